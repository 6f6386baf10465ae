package storage

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
)

// objectID makes ascending ids, as one client process does.
func objectID(n uint64) value.Value {
	var id [12]byte
	binary.BigEndian.PutUint32(id[:], 0x65000000)
	binary.BigEndian.PutUint64(id[4:], n)
	return value.NewObjectID(id)
}

func benchDoc(n int) []byte {
	return D("_id", objectID(uint64(n)), "n", n, "s", fmt.Sprintf("name-%d", n), "pad",
		string(make([]byte, 0))+"Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua. Ut enim ad minim veniam, quis nostrud exercitation ullamco laboris nisi ut")
}

// cpu reports the processor time of the whole process, background work included, per operation.
func cpu(b *testing.B, ops int) func() {
	var before syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	return func() {
		var after syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
		d := time.Duration(after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano())
		b.ReportMetric(float64(d.Nanoseconds())/float64(ops), "cpu-ns/op")
	}
}

func openDisk(b *testing.B) *Engine {
	return openMem(b, Options{FS: vfs.Default, Dir: b.TempDir()})
}

func fill(b *testing.B, e *Engine, n int) {
	c := create(b, e, "db.c", nil)
	for i := 0; i < n; {
		var docs [][]byte
		for ; len(docs) < 1000 && i < n; i++ {
			docs = append(docs, benchDoc(i))
		}
		u := e.NewUnitOfWork(nil)
		if _, err := u.InsertMany(c, docs, NoInfo); err != nil {
			b.Fatal(err)
		}
		if _, err := e.Commit(context.Background(), u, false); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFindByID(b *testing.B) {
	const n = 300000
	e := openDisk(b)
	defer e.Close()
	fill(b, e, n)
	for _, flushed := range []bool{false, true} {
		if flushed {
			_ = e.db.Flush()
		}
		b.Run(fmt.Sprintf("flushed=%v", flushed), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; i < b.N; i++ {
				s := e.Snapshot()
				_, doc, ok, err := s.FindByID(s.Catalog().Lookup("db.c"), objectID(uint64(rand.IntN(n))))
				if !ok || err != nil || len(doc) < 100 {
					b.Fatal(ok, err)
				}
				s.Release()
			}
		})
	}
}

func BenchmarkScan(b *testing.B) {
	const n = 300000
	e := openDisk(b)
	defer e.Close()
	fill(b, e, n)
	_ = e.db.Flush()
	for _, reverse := range []bool{false, true} {
		b.Run(fmt.Sprintf("reverse=%v", reverse), func(b *testing.B) {
			s := e.Snapshot()
			defer s.Release()
			c := s.Catalog().Lookup("db.c")
			for i := 0; i < b.N; {
				cur := s.Scan(c, ScanOptions{Reverse: reverse})
				for ; cur.Next() && i < b.N; i++ {
				}
				cur.Close()
			}
		})
	}
	b.Run("index", func(b *testing.B) {
		s := e.Snapshot()
		defer s.Release()
		c := s.Catalog().Lookup("db.c")
		for i := 0; i < b.N; {
			cur := s.IndexScan(c, c.IDIndex(), false)
			for ; cur.Next() && i < b.N; i++ {
			}
			cur.Close()
		}
	})
	b.Run("index and fetch", func(b *testing.B) {
		s := e.Snapshot()
		defer s.Release()
		c := s.Catalog().Lookup("db.c")
		for i := 0; i < b.N; {
			cur := s.IndexScan(c, c.IDIndex(), false)
			for ; cur.Next() && i < b.N; i++ {
				if _, ok, err := s.Get(c, cur.RecordID()); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
			cur.Close()
		}
	})
}

// Inserts in batches of 1000, background work included; -benchtime=1500000x shows what merging costs in the long run.
func BenchmarkInsertMany(b *testing.B) {
	for _, threads := range []int{1, 16} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			e := openDisk(b)
			defer e.Close()
			c := create(b, e, "db.c", nil)
			docs := make([][]byte, b.N)
			for i := range docs {
				docs[i] = smallDoc(i)
			}
			var next atomic.Int64
			var wg sync.WaitGroup
			report := cpu(b, b.N)
			b.ResetTimer()
			for range threads {
				wg.Go(func() {
					for {
						i := int(next.Add(1000)) - 1000
						if i >= b.N {
							return
						}
						u := e.NewUnitOfWork(nil)
						if _, err := u.InsertMany(c, docs[i:min(b.N, i+1000)], NoInfo); err != nil {
							b.Error(err)
						}
						if _, err := e.Commit(context.Background(), u, true); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			_ = e.db.Flush()
			await.True(b, "the store is merged", func() bool { return e.db.Metrics().Compact.NumInProgress == 0 })
			report()
		})
	}
}

// smallDoc is a document of 200 bytes, half of which does not compress.
func smallDoc(i int) []byte {
	r := rand.New(rand.NewPCG(uint64(i), 1))
	pad := make([]byte, 69)
	for k := range pad {
		pad[k] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"[r.IntN(62)]
	}
	return D("_id", objectID(uint64(i)), "k", i, "grp", i*7919%100, "n", r.IntN(1000), "val", r.Float64()*1e6,
		"ts", value.NewDateTime(1767225600000+int64(i)*1000), "name", fmt.Sprintf("name-%010d", i), "act", i%2 == 0, "pad", string(pad))
}

func BenchmarkInsertOne(b *testing.B) {
	for _, threads := range []int{1, 16} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			e := openDisk(b)
			defer e.Close()
			c := create(b, e, "db.c", nil)
			var next atomic.Int64
			var wg sync.WaitGroup
			report := cpu(b, b.N)
			for w := 0; w < threads; w++ {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for {
						i := int(next.Add(1))
						if i > b.N {
							return
						}
						u := e.NewUnitOfWork(nil)
						if _, err := u.Insert(c, benchDoc(i), NoInfo); err != nil {
							b.Error(err)
						}
						if _, err := e.Commit(context.Background(), u, true); err != nil {
							b.Error(err)
						}
					}
				}()
			}
			wg.Wait()
			report()
		})
	}
}

// A full capped collection deletes a document for every insert.
func BenchmarkInsertCapped(b *testing.B) {
	for _, full := range []bool{false, true} {
		b.Run(fmt.Sprintf("full=%v", full), func(b *testing.B) {
			e := openDisk(b)
			defer e.Close()
			size := 1 << 30
			if full {
				size = 1 << 20
			}
			c := create(b, e, "db.c", D("capped", true, "size", size))
			report := cpu(b, b.N)
			for i := range b.N {
				u := e.NewUnitOfWork(nil)
				if _, err := u.Insert(c, benchDoc(i), NoInfo); err != nil {
					b.Fatal(err)
				}
				if _, err := e.Commit(context.Background(), u, false); err != nil {
					b.Fatal(err)
				}
			}
			report()
		})
	}
}

func BenchmarkUpdate(b *testing.B) {
	const n = 100000
	e := openDisk(b)
	defer e.Close()
	fill(b, e, n)
	report := cpu(b, b.N)
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		s := e.Snapshot()
		c := s.Catalog().Lookup("db.c")
		k := rand.IntN(n)
		rid, old, ok, err := s.FindByID(c, objectID(uint64(k)))
		if !ok || err != nil {
			b.Fatal(ok, err)
		}
		u := e.NewUnitOfWork(s)
		if err := u.Update(c, rid, old, benchDoc(k), OpInfo{StmtID: -1, O: D("$v", 2, "diff", D("u", D("n", k)))}); err != nil {
			b.Fatal(err)
		}
		if _, err := e.Commit(context.Background(), u, false); err != nil {
			b.Fatal(err)
		}
		s.Release()
	}
	report()
}

func BenchmarkIndexBuild(b *testing.B) {
	e := openDisk(b)
	defer e.Close()
	fill(b, e, b.N)
	report := cpu(b, b.N)
	b.ResetTimer()
	build, err := e.StartIndexBuild(context.Background(), "db.c", [][]byte{spec("n_1", D("n", 1))}, NewUUID())
	if err != nil {
		b.Fatal(err)
	}
	if _, err := build.Run(context.Background()); err != nil {
		b.Fatal(err)
	}
	report()
}

// BenchmarkReplicated measures single inserts through a replicated log that commits at once, on the primary and on a
// member that follows.
func BenchmarkReplicated(b *testing.B) {
	for _, threads := range []int{1, 16} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) { benchReplicated(b, threads) })
	}
}

func benchReplicated(b *testing.B, threads int) {
	var engines [2]*Engine
	for i := range engines {
		e, err := Open(Options{Memory: true, OplogSize: 1 << 40})
		if err != nil {
			b.Fatal(err)
		}
		defer e.Close()
		e.Resign(errNoMember)
		engines[i] = e
	}
	log := make(chan *Group, 1024)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for index := uint64(1); ; index++ {
			g, more := <-log
			if !more {
				return
			}
			for _, e := range engines {
				if err := e.ApplyEntry(g.Data(), index, 1); err != nil {
					b.Error(err)
				}
			}
		}
	}()
	if err := engines[0].BecomePrimary(1, func(g *Group) error { log <- g; return nil }); err != nil {
		b.Fatal(err)
	}
	c := create(b, engines[0], "db.c", nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	report := cpu(b, b.N)
	for range threads {
		wg.Go(func() {
			for i := int(next.Add(1)); i <= b.N; i = int(next.Add(1)) {
				u := engines[0].NewUnitOfWork(nil)
				if _, err := u.Insert(c, benchDoc(i), NoInfo); err != nil {
					b.Error(err)
				}
				u.MayDetach(0) // as clients' units are
				if _, err := engines[0].Commit(context.Background(), u, true); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	report()
	close(log)
	<-done
	engines[0].Resign(errNoMember)
}
