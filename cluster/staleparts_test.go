package cluster

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// placed is a config server with one database and one collection, db.c, sharded by k.
type placed struct {
	mu     sync.Mutex
	chunks []value.Value // as documents
	sent   int           // the number of entries of chunks that were read
	down   error         // the error of every request; nil for none
	hold   chan struct{} // requests wait until it is closed; nil for none
}

func placedChunk(from, to value.Value, shard string, major, minor uint32) value.Value {
	bound := func(v value.Value) value.Value { return value.NewDocument(value.Doc(value.F("k", v))) }
	return value.NewDocument(value.Doc(value.F("min", bound(from)), value.F("max", bound(to)), value.F("shard", value.NewString(shard)),
		value.F("lastmod", value.NewTimestampU64(uint64(major)<<32|uint64(minor)))))
}

func (p *placed) set(chunks ...value.Value) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chunks = chunks
}

func (p *placed) read() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent
}

func (p *placed) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	p.mu.Lock()
	hold, down := p.hold, p.down
	p.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return dst, ctx.Err()
		}
	}
	if down != nil {
		return dst, down
	}
	var found []value.Value
	switch value.Lookup(m.Body, "find").Str() {
	case "databases":
		found = append(found, value.NewDocument(value.Doc(value.F("_id", value.NewString("db")), value.F("primary", value.NewString("a")),
			value.F("version", value.NewDocument(DatabaseVersion{Timestamp: 1, LastMod: 1}.Doc())))))
	case "collections":
		found = append(found, value.NewDocument(value.Doc(value.F("_id", value.NewString("db.c")), value.F("lastmodEpoch", value.NewObjectID([12]byte{1})),
			value.F("timestamp", value.NewTimestampU64(7)), value.F("uuid", value.NewBinary(4, make([]byte, 16))),
			value.F("key", value.NewDocument(value.Doc(value.F("k", value.NewInt32(1))))))))
	case "chunks":
		since := value.Lookup(value.Lookup(value.Lookup(m.Body, "filter").Doc(), "lastmod").Doc(), "$gte")
		p.mu.Lock()
		for _, c := range p.chunks {
			if since.IsMissing() || value.Lookup(c.Doc(), "lastmod").TimestampU64() >= since.TimestampU64() {
				found = append(found, c)
			}
		}
		p.sent += len(found)
		p.mu.Unlock()
	}
	return append(dst, value.Doc(value.F("ok", value.NewDouble(1)), value.F("cursor", value.NewDocument(value.Doc(
		value.F("firstBatch", value.NewArray(value.ArrayOf(found...))), value.F("id", value.NewInt64(0)), value.F("ns", value.NewString("config.x"))))))...), nil
}

var lowest, highest = value.NewMinKey(), value.NewMaxKey()

// threeParts is a collection on shards a, b and c.
func threeParts(t *testing.T) (*placed, *Catalog, *CollectionInfo) {
	t.Helper()
	p := &placed{}
	p.set(placedChunk(lowest, value.NewInt32(0), "a", 1, 0), placedChunk(value.NewInt32(0), value.NewInt32(9), "b", 2, 0), placedChunk(value.NewInt32(9), highest, "c", 3, 0))
	c := NewCatalog(p)
	info, err := c.Collection(context.Background(), "db.c")
	if err != nil {
		t.Fatal(err)
	}
	return p, c, info
}

// refused returns the stale error of a shard that received its version in info.
func refused(info *CollectionInfo, shard string, wanted uint32) StaleInfo {
	w := info.Map.version
	w.Major, w.Minor = wanted, 0
	return StaleInfo{Ns: "db.c", Shard: shard, Received: info.Map.ShardVersion(shard), Wanted: w, HasWanted: true}
}

// A stale error of one shard used to hold up every operation on the collection until the refresh; it concerns only those that target the shard.
func TestAStaleShardStopsOnlyWhatTargetsIt(t *testing.T) {
	p, c, info := threeParts(t)
	ctx := context.Background()
	p.hold = make(chan struct{})
	c.OnStale(mongoerr.StaleConfig, refused(info, "b", 4))
	soon, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	got, err := c.Collection(soon, "db.c")
	if err != nil || got != info {
		t.Fatalf("the placement of the other shards was not available: %v", err)
	}
	if !got.Outdated("b") || got.Outdated("a") || got.Outdated("c") {
		t.Errorf("outdated: a %v, b %v, c %v", got.Outdated("a"), got.Outdated("b"), got.Outdated("c"))
	}
	refreshed := make(chan error)
	go func() { refreshed <- c.Refresh(ctx, "db.c", "b") }()
	await.True(t, "the table is being loaded", func() bool { return len(c.colls.peek("db.c").loading) > 0 })
	if got, err := c.Collection(soon, "db.c"); err != nil || got != info {
		t.Fatalf("a refresh under way held up the others: %v", err)
	}
	p.set(placedChunk(lowest, value.NewInt32(0), "a", 1, 0), placedChunk(value.NewInt32(0), value.NewInt32(9), "c", 4, 0), placedChunk(value.NewInt32(9), highest, "c", 3, 0))
	close(p.hold)
	if err := <-refreshed; err != nil {
		t.Fatal(err)
	}
	got, err = c.Collection(ctx, "db.c")
	if err != nil || got.Outdated("b") || got.Map.ShardOf([]value.Value{value.NewInt32(3)}) != "c" {
		t.Errorf("not refreshed: %v", err)
	}

	// A new collection of the same name concerns all shards.
	other := refused(got, "a", 1)
	other.Wanted.Epoch = [12]byte{2}
	c.OnStale(mongoerr.StaleConfig, other)
	if _, fresh := c.Cached("db.c"); fresh {
		t.Error("the table of a recreated collection is considered fresh")
	}
}

// A refresh reads only the changes.
func TestARefreshReadsWhatChanged(t *testing.T) {
	p := &placed{}
	var all []value.Value
	const n = 2000
	for i := range n {
		lo, hi := value.NewInt32(int32(i)), value.NewInt32(int32(i+1))
		if i == 0 {
			lo = lowest
		}
		if i == n-1 {
			hi = highest
		}
		all = append(all, placedChunk(lo, hi, "a", 1, uint32(i)))
	}
	p.set(all...)
	c, ctx := NewCatalog(p), context.Background()
	info, err := c.Collection(ctx, "db.c")
	if err != nil || p.read() != n {
		t.Fatalf("%d read of %d: %v", p.read(), n, err)
	}
	all[7] = placedChunk(value.NewInt32(7), value.NewInt32(8), "b", 2, 0)
	all[9] = placedChunk(value.NewInt32(9), value.NewInt32(10), "a", 2, 1)
	p.set(all...)
	c.OnStale(mongoerr.StaleConfig, refused(info, "a", 2))
	if err := c.Refresh(ctx, "db.c", "a"); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Collection(ctx, "db.c"); err != nil || got.Map.ShardOf([]value.Value{value.NewInt32(7)}) != "b" {
		t.Fatal("the move was not seen", err)
	}
	if more := p.read() - n; more > 3 {
		t.Errorf("a refresh after one move read %d entries of %d", more, n)
	}
}

// An operation that waits for another one's refresh used to wait without limit; it waits no longer than its own time limit.
func TestWaitingForARefreshEndsWithTheOperation(t *testing.T) {
	p, c, _ := threeParts(t)
	p.hold = make(chan struct{})
	c.InvalidateCollection("db.c")
	first := make(chan error)
	go func() {
		_, err := c.Collection(context.Background(), "db.c")
		first <- err
	}()
	await.True(t, "the table is being loaded", func() bool { return len(c.colls.peek("db.c").loading) > 0 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	waited := make(chan error)
	go func() {
		_, err := c.Collection(ctx, "db.c")
		waited <- err
	}()
	select {
	case err := <-waited:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("an operation with a time limit of 20 ms waits for another one's refresh")
	}
	close(p.hold)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// A router's cache returns its last placement if no member of the config server replies; a shard's does not.
func TestTheLastPlacementIsUsedWithoutAConfigServer(t *testing.T) {
	for _, serve := range []bool{true, false} {
		p, c, info := threeParts(t)
		c.ServeStale = serve
		p.down = mongoerr.New(mongoerr.HostUnreachable, "no config server")
		c.PurgeDatabase("db")
		got, err := c.Collection(context.Background(), "db.c")
		if !serve {
			if mongoerr.CodeOf(err) != mongoerr.HostUnreachable {
				t.Errorf("a shard uses %v, %v", got, err)
			}
			continue
		}
		if err != nil || got.Map != info.Map || mongoerr.CodeOf(got.Late()) != mongoerr.HostUnreachable {
			t.Fatalf("a router gets %v", err)
		}
		p.down = nil
		if got, err := c.Collection(context.Background(), "db.c"); err != nil || got.Late() != nil {
			t.Errorf("once the config server is back: %v, %v", err, got.Late())
		}
		p.down = mongoerr.New(mongoerr.Unauthorized, "not a matter of reach")
		c.InvalidateCollection("db.c")
		if _, err := c.Collection(context.Background(), "db.c"); mongoerr.CodeOf(err) != mongoerr.Unauthorized {
			t.Errorf("another error is ignored: %v", err)
		}
	}
}
