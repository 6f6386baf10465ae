package replication

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The effect of each write concern on a write: durable or not, and which error after the write.
func TestWriteConcerns(t *testing.T) {
	e, err := storage.Open(storage.Options{FS: vfs.NewMem(), Dir: "db", JournalInterval: 1 << 40, MinFreeDisk: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	set := NewSingle(e)
	u := e.NewUnitOfWork(nil)
	c, err := u.CreateCollection(storage.CollectionSpec{NS: "db.c"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := set.Commit(context.Background(), u, Majority); err != nil {
		t.Fatal(err)
	}
	for i, x := range []struct {
		name    string
		wc      WriteConcern
		durable bool
		code    mongoerr.Code
	}{
		{"majority", Majority, true, 0},
		{"w: 1", WriteConcern{W: 1}, false, 0},
		{"w: 0", WriteConcern{}, false, 0},
		{"w: 1, j: true", WriteConcern{W: 1, J: true}, true, 0},
		{"w: 3", WriteConcern{W: 3}, false, mongoerr.UnsatisfiableWriteConcern},
		{"custom", WriteConcern{W: 1, Tag: "x"}, false, mongoerr.UnknownReplWriteConcern},
	} {
		u := e.NewUnitOfWork(nil)
		if _, err := u.Insert(c, value.Doc(value.F("_id", value.NewInt32(int32(i)))), storage.NoInfo); err != nil {
			t.Fatal(err)
		}
		ts, err := set.Commit(context.Background(), u, x.wc)
		if mongoerr.CodeOf(err) != x.code || ts == 0 || e.Visible() != ts || (set.MajorityCommitted() == ts) != x.durable {
			t.Errorf("%s: %v %v, visible %v, majority %v", x.name, ts, err, e.Visible(), set.MajorityCommitted())
		}
		if err := set.Await(context.Background(), ts, Majority); err != nil || set.MajorityCommitted() < ts {
			t.Errorf("%s: awaiting majority: %v, %v", x.name, err, set.MajorityCommitted())
		}
	}
}
