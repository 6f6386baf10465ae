package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Copies are changed, removed and dropped while the collector runs, the oplog is read and the machine loses power at a random moment: the oplog
// reads as it did.
func TestReferencesSurviveCrashes(t *testing.T) {
	for round := range 4 {
		t.Run(fmt.Sprint(round), func(t *testing.T) { crashWithReferences(t, uint64(round)) })
	}
}

func crashWithReferences(t *testing.T, seed uint64) {
	fs := vfs.NewCrashableMem()
	base := time.Now()
	var skipped, steps atomic.Int64
	clock := func() time.Time { return base.Add(100*time.Since(base) + time.Duration(skipped.Load())) } // history ends at a full second
	e := openMem(t, Options{FS: fs, Clock: clock, JournalInterval: time.Millisecond, CollectInterval: 2 * time.Millisecond, HistoryWindow: time.Nanosecond})
	var stop atomic.Bool
	var wg sync.WaitGroup
	for w := range 2 {
		ns := fmt.Sprintf("db.c%d", w)
		create(t, e, ns, nil, spec("n_1", D("n", 1)))
		wg.Go(func() {
			r := newRand(seed*10 + uint64(w))
			for i := 0; !stop.Load(); i++ {
				if err := copiesStep(e, ns, i, r.IntN(10), r.IntN(1000)); err != nil {
					t.Errorf("%s: %v", ns, err)
					return
				}
				steps.Add(1)
			}
		})
	}
	var mu sync.Mutex
	seen := map[string]string{}
	for _, reverse := range []bool{false, true} {
		wg.Go(func() {
			for !stop.Load() {
				s := e.Snapshot()
				cur := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{Reverse: reverse})
				for i := 0; cur.Next(); i++ {
					d := cur.Doc()
					ts, text := shellString(value.Lookup(d, "ts")), shellString(value.NewDocument(d))
					mu.Lock()
					if before := seen[ts]; before != "" && before != text {
						t.Errorf("%s\nwas\n%s", text, before)
					}
					seen[ts] = text
					mu.Unlock()
					if i%5 == 0 {
						cur.Save()
					}
				}
				if cur.Err() != nil {
					t.Error(cur.Err())
					stop.Store(true)
				}
				cur.Close()
				s.Release()
			}
		})
	}
	wg.Go(func() {
		for !stop.Load() {
			_ = e.db.Flush()
		}
	})
	await.True(t, "steps before the power is lost", func() bool { return t.Failed() || steps.Load() > int64(200+50*seed) })
	crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed*17) % 101, RNG: newRand(seed)})
	stop.Store(true)
	wg.Wait()
	e.db.Flush()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for again := range 2 {
		e = openMem(t, Options{FS: crashed, Clock: clock, HistoryWindow: time.Nanosecond, CollectInterval: time.Hour})
		before := oplogFrom(t, e, 0)
		for range 2 {
			skipped.Add(int64(3 * time.Second))
			create(t, e, fmt.Sprintf("db.x%d", time.Now().UnixNano()), nil)
			if err := e.collect(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if again == 1 {
			for w := range 2 {
				u := e.NewUnitOfWork(nil)
				if c := e.Catalog().Lookup(fmt.Sprintf("db.c%d", w)); c != nil {
					if err := u.DropCollection(c); err != nil {
						t.Fatal(err)
					}
					commit(t, e, u)
				}
			}
			for range 2 {
				skipped.Add(int64(3 * time.Second))
				create(t, e, fmt.Sprintf("db.x%d", time.Now().UnixNano()), nil)
				if err := e.collect(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			if n, _ := refBlocks(t, e); n != 0 {
				t.Errorf("%d blocks refer", n)
			}
		}
		after := oplogFrom(t, e, 0)
		if !slices.Equal(before, after[:len(before)]) {
			t.Error("the oplog reads differently")
		}
		s := e.Snapshot()
		cur := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{})
		n := 0
		for cur.Next() {
			d := cur.Doc()
			ts, text := shellString(value.Lookup(d, "ts")), shellString(value.NewDocument(d))
			if was := seen[ts]; was != "" {
				n++
				if was != text && again == 0 && n < len(before)-1 {
					t.Errorf("%.200s\nwas\n%.200s", text, was)
				}
			}
		}
		if cur.Err() != nil {
			t.Error(cur.Err())
		}
		cur.Close()
		s.Release()
		t.Logf("%d entries, %d compared", len(before), n)
		if again == 1 {
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func copiesStep(e *Engine, ns string, i, what, x int) error {
	s := e.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	u := e.NewUnitOfWork(s)
	defer u.Rollback()
	u.ReferToVersions()
	var err error
	switch {
	case c == nil:
		if c, err = u.CreateCollection(CollectionSpec{NS: ns}); err == nil {
			_, err = u.InsertMany(c, copyDocs(i*100, 20), NoInfo) // the collection is created by the same unit
		}
	case what == 0 && x < 300:
		err = u.DropCollection(c)
	case what == 1:
		_, _ = u.RenameCollection(c, ns, nil, false)
	case what < 6:
		if _, err = u.InsertMany(c, copyDocs(i*100, 1+x%90), NoInfo); err == nil && what == 5 {
			_, err = u.InsertMany(c, copyDocs(i*100+50, 90), NoInfo)
			if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
				err = nil
			}
		}
	default:
		var rids []RecordID
		var docs [][]byte
		cur := s.Scan(c, ScanOptions{})
		for n := 0; cur.Next() && len(rids) < 3; n++ {
			if n%(1+x%37) == 0 {
				rids, docs = append(rids, cur.RecordID().Clone()), append(docs, slices.Clone(cur.Doc()))
			}
		}
		err = cur.Err()
		cur.Close()
		if what == 9 && err == nil {
			_, err = u.InsertMany(c, copyDocs(i*100, 5), NoInfo)
		}
		for j := range rids {
			if err != nil {
				break
			}
			if j%2 == 0 {
				err = u.Delete(c, rids[j], docs[j], NoInfo)
			} else {
				err = u.Update(c, rids[j], docs[j], D("_id", int(mustInt(docs[j])), "n", x), NoInfo)
			}
		}
		if what == 8 && err == nil {
			_, err = u.InsertMany(c, copyDocs(i*100, 60), NoInfo)
		}
	}
	if err == nil {
		_, err = e.Commit(context.Background(), u, x%2 == 0)
	}
	if errors.Is(err, context.Canceled) || ErrConflict(err) || mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
		err = nil
	}
	return err
}

func mustInt(doc []byte) int64 {
	n, _ := value.Lookup(doc, "_id").AsInt64()
	return n
}
