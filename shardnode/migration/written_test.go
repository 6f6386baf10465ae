package migration

import (
	"context"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
)

// One reply has few large _ids. There used to be as many of them as of small ones: thousands of 16 KB each made a reply larger than a message can be.
func TestLargeIDsAreReadInParts(t *testing.T) {
	e, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	docs := &statedoc.Docs{Engine: e, Set: replication.NewSingle(e)}
	const n, size = 40, 100_000
	for i := range n {
		doc := value.Doc(value.F("_id", value.NewString(strings.Repeat(string(rune('0'+i)), size))))
		if err := docs.Put(context.Background(), "d.c", doc); err != nil {
			t.Fatal(err)
		}
	}
	s := e.Snapshot()
	defer s.Release()
	w, all, parts := &Written{NS: "d.c", Limit: 1000}, 0, 0
	for more := true; more; parts++ {
		w = &Written{NS: w.NS, Limit: w.Limit, After: w.After}
		if err := w.Read(func() error { return nil }, s); err != nil {
			t.Fatal(err)
		}
		if len(w.IDs) > 1+w.Limit*perID/size {
			t.Errorf("part %d has %d _ids of %d bytes", parts, len(w.IDs), size)
		}
		all, more = all+len(w.IDs), w.More
	}
	if all != n {
		t.Errorf("%d of %d _ids", all, n)
	}
}
