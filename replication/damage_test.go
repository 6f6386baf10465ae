package replication

import (
	"context"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/storetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A member of three was killed, and one of its files was damaged: it starts with everything that it had
// acknowledged, entries, term and vote, or it refuses to start.
func TestDamagedMembersAreNoticed(t *testing.T) {
	s := newEngineSet(t, false)
	disks := map[string]*vfs.MemFS{}
	for _, h := range three {
		disks[h] = vfs.NewCrashableMem()
		s.open(h, false, disks[h])
	}
	ctx := context.Background()
	if err := s.nodes["a:1"].Initiate(ctx, simConfig(time.Second, three...)); err != nil {
		t.Fatal(err)
	}
	p, e := s.nodes["a:1"], s.engines["a:1"]
	coll := makeCollection(t, p, e)
	await.True(t, "all vote", func() bool { return len(p.voting()) == 3 })
	all := WriteConcern{W: 3, Timeout: 10 * time.Second}
	insert := func(from, to int32) {
		for i := from; i < to; i++ {
			u := e.NewUnitOfWork(nil)
			if _, err := u.Insert(coll, value.Doc(value.F("_id", value.NewInt32(i))), storage.NoInfo); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Commit(ctx, u, all); err != nil {
				t.Fatal(err)
			}
		}
	}
	insert(0, 40)
	// Tables besides the logs: a store that opens flushes what is in its logs.
	s.crash("b:1", disks, 100)
	s.open("b:1", false, disks["b:1"])
	insert(40, 80)
	r := s.nodes["b:1"]
	term, vote := r.rlog.mu.hard.GetTerm(), r.rlog.mu.hard.GetVote()
	last := r.rlog.lastIndex()
	s.crash("b:1", disks, 100)
	storetest.EachDamage(t, disks["b:1"], "db", func(what, _ string, damaged *vfs.MemFS) (refused bool) {
		l, applied, docs, err := openDamaged(damaged, 80)
		switch {
		case mongoerr.CodeOf(err) == mongoerr.DataCorruptionDetected:
			return true
		case err != nil:
			t.Errorf("%s: %v", what, err)
		case l.lastIndex() < last || l.mu.hard.GetTerm() < term || l.mu.hard.GetTerm() == term && l.mu.hard.GetVote() != vote:
			t.Errorf("%s: it starts with %d entries, %v; it had %d, term %d, vote %d", what, l.lastIndex(), l.mu.hard, last, term, vote)
		case applied == last && docs != 80:
			t.Errorf("%s: it starts with %d of 80 documents, and has applied %d of %d entries", what, docs, applied, last)
		}
		return false
	})
}

// openDamaged opens store and log as a member does, and counts the documents from 0 on.
func openDamaged(fs vfs.FS, n int32) (l *raftLog, applied uint64, docs int, err error) {
	e, err := storage.Open(storage.Options{FS: fs, Dir: "db", MinFreeDisk: 1})
	if err != nil {
		return nil, 0, 0, err
	}
	defer func() { _ = e.Close() }()
	applied, _ = e.AppliedIndex()
	if l, err = openLog(EngineStore(e), 1<<20); err == nil {
		err = l.check(applied)
	}
	if err != nil {
		return nil, 0, 0, err
	}
	snap := e.Snapshot()
	defer snap.Release()
	for i := range n {
		c := snap.Catalog().Lookup("db.c")
		if c == nil {
			break
		}
		if _, _, ok, err := snap.FindByID(c, value.NewInt32(i)); err == nil && ok {
			docs++
		}
	}
	return l, applied, docs, nil
}
