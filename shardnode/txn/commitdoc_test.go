package txn

import (
	"reflect"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// The documents of two-phase commits keep their form: an earlier version's are read, and read again as they were written.
func TestCommitDocumentsKeepTheirForm(t *testing.T) {
	lsid := value.Doc(value.F("id", value.NewBinary(4, make([]byte, 16))), value.F("uid", value.NewBinary(0, make([]byte, 32))))
	for _, x := range []struct {
		d    commitDoc
		want string
	}{
		{commitDoc{}, ``},
		{commitDoc{decision: "commit", ts: storage.TimestampOf(9, 2)}, `, decision: { decision: "commit", commitTimestamp: Timestamp(9, 2) }`},
		{commitDoc{decision: "abort"}, `, decision: { decision: "abort" }`},
	} {
		d := x.d
		d.lsid, d.number, d.participants = lsid, 7, []string{"a", "b"}
		want := `{ _id: { lsid: ` + value.ShowDoc(lsid) + `, txnNumber: 7 }, participants: [ "a", "b" ]` + x.want + ` }`
		if got := value.ShowDoc(d.Doc()); got != want {
			t.Errorf("stored as %s, want %s", got, want)
		}
		if back, err := readCommitDoc(d.Doc()); err != nil || !reflect.DeepEqual(*back, d) {
			t.Errorf("read as %+v, want %+v (%v)", back, d, err)
		}
	}
}
