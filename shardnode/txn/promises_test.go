package txn

import (
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// What readers at a time are told of prepared transactions: wait, come at another time, or nothing.
func TestReadersAndPromises(t *testing.T) {
	var p preparedTxns
	lsid := value.Doc(value.F("id", value.NewString("s")))
	now := time.Now()
	hear := func(ts storage.Timestamp, state string, number int64, decided storage.Timestamp) {
		p.onCommitNotice(ts, prepareNotice(state, lsid, number, value.F("decided", decided.Value())), now)
	}
	expect := func(at storage.Timestamp, wait, refused bool) {
		t.Helper()
		w, err := p.at(at)
		if w != wait || (err != nil) != refused || err != nil && mongoerr.CodeOf(err) != mongoerr.SnapshotUnavailable {
			t.Errorf("a reader at %d: waits %v, %v; want %v, refused %v", at, w, err, wait, refused)
		}
	}
	expect(5, false, false)
	if p.count.Load() != 0 {
		t.Error("readers look without need")
	}
	hear(10, "prepared", 1, 0)
	expect(9, false, false)
	expect(10, true, false)
	hear(20, "prepared", 2, 0)
	hear(30, "committed", 1, 15) // other shards may show it from 15 on, this one does from 30 on
	expect(14, false, false)
	expect(15, false, true)
	expect(25, true, false) // for the other one
	hear(40, "forgotten", 2, 0)
	expect(29, false, true)
	expect(30, false, false)
	expect(45, false, false)
	p.onCommitNotice(50, nil, now) // a snapshot is about to replace everything
	expect(60, true, false)
}
