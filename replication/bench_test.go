package replication

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// BenchmarkMajorityInsert measures the throughput of w: "majority" inserts of 16 clients into a set of one without a
// raft log, and into sets of one and three members in this process, on disk and in memory.
func BenchmarkMajorityInsert(b *testing.B) {
	for _, memory := range []bool{false, true} {
		for _, members := range []int{1, 3} {
			b.Run(fmt.Sprintf("memory=%v/members=%d", memory, members), func(b *testing.B) {
				hosts := three[:members]
				s := newEngineSet(b, memory)
				for _, h := range hosts {
					s.open(h, memory, nil)
				}
				r, e := s.nodes[hosts[0]], s.engines[hosts[0]]
				if err := r.Initiate(context.Background(), simConfig(10*time.Second, hosts...)); err != nil {
					b.Fatal(err)
				}
				await.True(b, "all vote", func() bool { return len(r.voting()) == len(hosts) })
				insertLoad(b, r, e, makeCollection(b, r, e))
			})
		}
	}
}

// BenchmarkSingleInsert is BenchmarkMajorityInsert for a set of one without a raft log.
func BenchmarkSingleInsert(b *testing.B) {
	for _, memory := range []bool{false, true} {
		b.Run(fmt.Sprintf("memory=%v", memory), func(b *testing.B) {
			e, err := storage.Open(storage.Options{Dir: b.TempDir(), Memory: memory, MinFreeDisk: 1})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			set := NewSingle(e)
			u := e.NewUnitOfWork(nil)
			c, err := u.CreateCollection(storage.CollectionSpec{NS: "db.c"})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := set.Commit(context.Background(), u, Majority); err != nil {
				b.Fatal(err)
			}
			insertLoad(b, set, e, c)
		})
	}
}

// insertLoad inserts documents of 300 bytes from 16 goroutines.
func insertLoad(b *testing.B, set Set, e *storage.Engine, c *catalog.Collection) {
	pad := string(make([]byte, 270))
	wc := Majority
	wc.MayDetach = true // as clients' commands do
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				u := e.NewUnitOfWork(nil)
				doc := value.Doc(value.F("_id", value.NewInt64(i)), value.F("pad", value.NewString(pad)))
				if _, err := u.Insert(c, doc, storage.NoInfo); err != nil {
					b.Error(err)
					return
				}
				if _, err := set.Commit(context.Background(), u, wc); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "inserts/s")
}

// BenchmarkSnapshot measures how fast a snapshot reaches a new member: written, sent, checked and installed.
func BenchmarkSnapshot(b *testing.B) {
	for b.Loop() {
		s := newEngineSet(b, false)
		s.open("a:1", false, nil)
		r, e := s.nodes["a:1"], s.engines["a:1"]
		ctx := context.Background()
		if err := r.Initiate(ctx, simConfig(10*time.Second, "a:1")); err != nil {
			b.Fatal(err)
		}
		c := makeCollection(b, r, e)
		pad := make([]byte, 1<<20)
		for i := range pad {
			pad[i] = byte(i * i >> 3)
		}
		const docs = 256
		for i := range docs {
			pad[i%len(pad)]++
			u := e.NewUnitOfWork(nil)
			doc := value.Doc(value.F("_id", value.NewInt64(int64(i))), value.F("pad", value.NewBinary(0, pad)))
			if _, err := u.Insert(c, doc, storage.NoInfo); err != nil {
				b.Fatal(err)
			}
			if _, err := r.Commit(ctx, u, Majority); err != nil {
				b.Fatal(err)
			}
		}
		s.open("b:1", false, nil)
		next := r.Config().Clone()
		next.Version++
		next.Members = append(next.Members, MemberConfig{ID: 1, Host: "b:1", Priority: 1, Votes: 1, BuildIndexes: true})
		start := time.Now()
		if err := r.Reconfigure(ctx, next, false); err != nil {
			b.Fatal(err)
		}
		await.True(b, "the new member votes", func() bool { return len(r.voting()) == 2 })
		b.ReportMetric(float64(docs*len(pad))/1e6/time.Since(start).Seconds(), "MB/s")
	}
}
