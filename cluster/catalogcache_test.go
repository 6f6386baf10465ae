package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// emptyConfig is a config server that knows one database, db, and no sharded collection.
type emptyConfig struct{ asked atomic.Int64 }

func (f *emptyConfig) Call(_ context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	f.asked.Add(1)
	var found []value.Value
	if value.Lookup(m.Body, "find").Str() == "databases" && value.Lookup(value.Lookup(m.Body, "filter").Doc(), "_id").Str() == "db" {
		found = append(found, value.NewDocument(value.Doc(value.F("_id", value.NewString("db")), value.F("primary", value.NewString("a")),
			value.F("version", value.NewDocument(DatabaseVersion{Timestamp: 1, LastMod: 1}.Doc())))))
	}
	return append(dst, value.Doc(value.F("ok", value.NewDouble(1)), value.F("cursor", value.NewDocument(value.Doc(
		value.F("firstBatch", value.NewArray(value.ArrayOf(found...))), value.F("id", value.NewInt64(0)), value.F("ns", value.NewString("config.x"))))))...), nil
}

func (c *cacheOf[T]) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.merged())
}

// The routing table cache keeps no entries for databases that do not exist, and no more names than its limit; names that
// are used again and again stay. It used to keep each name that a client ever sent, and copied all of them for each new
// one.
func TestCatalogForgetsNames(t *testing.T) {
	f := &emptyConfig{}
	c := NewCatalog(f)
	c.Limit(100, 100)
	ctx := context.Background()
	for i := range 1000 {
		ns := fmt.Sprintf("none%d.c", i)
		if _, err := c.Collection(ctx, ns); mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
			t.Fatalf("%s: %v", ns, err)
		}
	}
	if c.dbs.size() != 0 || c.colls.size() != 0 {
		t.Errorf("%d databases and %d collections are kept that do not exist", c.dbs.size(), c.colls.size())
	}
	hot, err := c.Collection(ctx, "db.hot")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		if _, err := c.Collection(ctx, fmt.Sprintf("db.c%d", i)); err != nil {
			t.Fatal(err)
		}
		asked := f.asked.Load()
		if info, err := c.Collection(ctx, "db.hot"); err != nil || info != hot || f.asked.Load() != asked {
			t.Fatalf("a collection in use was forgotten after %d others: %v", i, err)
		}
	}
	if n := c.colls.size(); n > 100 {
		t.Errorf("%d collections are kept of 100", n)
	}
	c.InvalidateCollection("db.hot")
	asked := f.asked.Load()
	if _, err := c.Collection(ctx, "db.hot"); err != nil || f.asked.Load() == asked {
		t.Errorf("an invalidated collection was not read again: %v", err)
	}
	c.Clear()
	if n := c.colls.size() + c.dbs.size(); n != 0 {
		t.Errorf("%d names are left after Clear", n)
	}
}

// BenchmarkCatalogNewNames looks up collections that were not looked up before.
func BenchmarkCatalogNewNames(b *testing.B) {
	c, ctx := NewCatalog(&emptyConfig{}), context.Background()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := c.Collection(ctx, fmt.Sprint("db.c", i)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCatalogKnownName looks up a collection that is cached.
func BenchmarkCatalogKnownName(b *testing.B) {
	c, ctx := NewCatalog(&emptyConfig{}), context.Background()
	for b.Loop() {
		if _, err := c.Collection(ctx, "db.c"); err != nil {
			b.Fatal(err)
		}
	}
}

// A value that was loaded before an invalidation is not returned after it, however loads, invalidations and readers interleave.
func TestInvalidatedValueIsNotFresh(t *testing.T) {
	e := newCacheEntry[int64]()
	var truth atomic.Int64
	load := func(*int64) (int64, error) { return truth.Load(), nil }
	const rounds = 2_000_000
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				least := truth.Load() // the writer below continues only after it has invalidated, so one less is certainly visible
				v, err := e.get(context.Background(), load)
				if err != nil || v < least-1 {
					t.Errorf("the cache has %d after %d was invalidated, %v", v, least-1, err)
					return
				}
				if least == rounds {
					return
				}
			}
		})
	}
	for range rounds {
		truth.Add(1)
		e.invalidate()
	}
	wg.Wait()
}
