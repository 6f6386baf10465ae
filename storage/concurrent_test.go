package storage

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// transfer moves an amount of one from one account to another, both written in one unit of work.
func transfer(e *Engine, ns string, from, to int, sync bool) error {
	s := e.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	u := e.NewUnitOfWork(s)
	defer u.Rollback()
	for id, by := range map[int]int{from: -1, to: 1} {
		r, d, ok, err := s.FindByID(c, V(id))
		if err != nil || !ok {
			return mongoerr.Newf(mongoerr.InternalError, "account %d: %v %v", id, ok, err)
		}
		rid, old := r.Clone(), append([]byte(nil), d...)
		n, _ := value.Lookup(old, "n").AsInt64()
		if err := u.Update(c, rid, old, D("_id", id, "n", int(n)+by), NoInfo); err != nil {
			return err
		}
	}
	_, err := e.Commit(context.Background(), u, sync)
	return err
}

// checkSum adds up all accounts, once through the records and once through the index.
func checkSum(t *testing.T, s *Snapshot, c *catalog.Collection, sum int64) {
	var total int64
	cur := s.Scan(c, ScanOptions{Reverse: rand.IntN(2) == 0})
	defer cur.Close()
	for n := 0; cur.Next(); n++ {
		v, _ := value.Lookup(cur.Doc(), "n").AsInt64()
		total += v
		if n%7 == 0 {
			cur.Save()
		}
	}
	if total != sum || cur.Err() != nil {
		t.Errorf("records at %v add up to %d, %v", s.Timestamp(), total, cur.Err())
	}
	if idx := c.Index("n_1"); idx != nil && idx.Ready {
		total = 0
		ic := s.IndexScan(c, idx, rand.IntN(2) == 0)
		defer ic.Close()
		for ic.Next() {
			d, ok, err := s.Get(c, ic.RecordID())
			if !ok || err != nil {
				t.Errorf("a key without record: %v", err)
			}
			v, _ := value.Lookup(d, "n").AsInt64()
			total += v
		}
		if total != sum || ic.Err() != nil {
			t.Errorf("the index at %v adds up to %d, %v", s.Timestamp(), total, ic.Err())
		}
	}
}

func ended(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Transfers between accounts, index builds, collections of garbage and readers, all at once: every snapshot sees the
// same sum.
func TestTransfers(t *testing.T) {
	e := openMem(t, Options{HistoryWindow: time.Nanosecond, CollectInterval: 5 * time.Millisecond, JournalInterval: 3 * time.Millisecond})
	defer e.Close()
	const accounts, writers = 20, 8
	var docs [][]byte
	for i := 0; i < accounts; i++ {
		docs = append(docs, D("_id", i, "n", 100))
	}
	insert(t, e, create(t, e, "db.c", nil), docs...)
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	done := make(chan struct{})
	var looked atomic.Int64
	var work, watch sync.WaitGroup
	for w := 0; w < writers; w++ {
		work.Add(1)
		go func() {
			defer work.Done()
			for i := 0; i < rounds; {
				from := rand.IntN(accounts)
				err := transfer(e, "db.c", from, (from+1+rand.IntN(accounts-1))%accounts, w%2 == 0)
				if err == nil {
					i++
				} else if !ErrConflict(err) {
					t.Error(err)
					return
				}
			}
		}()
	}
	watch.Add(2)
	go func() {
		defer watch.Done()
		for ctx := context.Background(); ; {
			select {
			case <-done:
				return
			default:
			}
			b, err := e.StartIndexBuild(ctx, "db.c", [][]byte{spec("n_1", D("n", 1))}, NewUUID())
			if err == nil {
				_, err = b.Run(ctx)
			}
			if err == nil {
				for from := looked.Load(); looked.Load() < from+2 && !ended(done); { // one complete check with the index
					runtime.Gosched()
				}
				_, err = e.retry(ctx, func(u *UnitOfWork) error {
					_, err := u.DropIndexes(u.Catalog().Lookup("db.c"), []string{"n_1"})
					return err
				})
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	go func() {
		defer watch.Done()
		for {
			select {
			case <-done:
				return
			default:
			}
			s := e.Snapshot()
			checkSum(t, s, s.Catalog().Lookup("db.c"), accounts*100)
			s.Release()
			looked.Add(1)
		}
	}()
	work.Wait()
	close(done)
	watch.Wait()
	// No history is left once no reader needs it.
	if err := e.collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := e.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup("db.c")
	checkSum(t, s, c, accounts*100)
	if c.Counters.Records.Load() != accounts {
		t.Errorf("%d records", c.Counters.Records.Load())
	}
}

// Many goroutines insert the same _ids: each is there once, and the others failed with a duplicate key error.
func TestSameIDs(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	const ids, writers = 50, 8
	var wg sync.WaitGroup
	for w := 0; w < writers; w++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for _, id := range rand.Perm(ids) {
				for {
					u := e.NewUnitOfWork(nil)
					_, err := u.Insert(c, D("_id", id, "w", w), NoInfo)
					if err == nil {
						_, err = e.Commit(context.Background(), u, w%2 == 0)
					}
					u.Rollback()
					if err == nil || mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
						break
					}
					if !ErrConflict(err) {
						t.Error(err)
						return
					}
				}
			}
		}()
	}
	wg.Wait()
	if n := indexKeys(t, e, "db.c", "_id_"); n != ids || c.Counters.Records.Load() != ids {
		t.Errorf("%d keys, %d records", n, c.Counters.Records.Load())
	}
}

// A tailing reader sees every entry once, in order, without holes.
func TestTailing(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	const each, writers = 100, 4
	for w := 0; w < writers; w++ {
		go func() {
			for i := 0; i < each; i++ {
				u := e.NewUnitOfWork(nil)
				_, err := u.InsertMany(c, [][]byte{D("_id", w*each*2+2*i), D("_id", w*each*2+2*i+1)}, NoInfo)
				if err == nil {
					_, err = e.Commit(context.Background(), u, i%3 == 0)
				}
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	seen, at := map[string]bool{}, Timestamp(0)
	for len(seen) < 2*each*writers {
		if _, err := e.WaitVisible(ctx, at); err != nil {
			t.Fatal(err, len(seen))
		}
		s := e.Snapshot()
		cur := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{From: NewRecordID(int64(at + 1))})
		for cur.Next() {
			n, _ := cur.RecordID().Int64()
			if Timestamp(n) <= at {
				t.Fatal("an entry came twice, or late")
			}
			at = Timestamp(n)
			if value.Lookup(cur.Doc(), "op").Str() == "i" {
				seen[shellString(value.Lookup(cur.Doc(), "o"))] = true
			}
		}
		if cur.Err() != nil {
			t.Fatal(cur.Err())
		}
		cur.Close()
		s.Release()
	}
}
