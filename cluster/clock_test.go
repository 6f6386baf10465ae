package cluster

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// memoryKeys is a KeyStore in memory.
type memoryKeys struct {
	mu   sync.Mutex
	keys []SigningKey
	read int
}

func (m *memoryKeys) LoadKeys(context.Context) ([]SigningKey, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read++
	return append([]SigningKey(nil), m.keys...), nil
}

func (m *memoryKeys) InsertKey(_ context.Context, k SigningKey) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys = append(m.keys, k)
	return nil
}

func testClock(t *testing.T) (*VectorClock, *memoryKeys, *time.Time) {
	now := time.Unix(1_700_000_000, 0)
	c := NewVectorClock(func() time.Time { return now })
	store := &memoryKeys{}
	ring := NewKeyRing(store)
	if err := ring.EnsureAhead(context.Background(), c, DefaultKeyRotation); err != nil {
		t.Fatal(err)
	}
	c.UseKeys(ring)
	return c, store, &now
}

func clusterTimeOf(t *testing.T, c *VectorClock) []byte {
	dst, m := value.Begin(nil)
	return value.Lookup(value.End(c.AppendClusterTime(dst), m), "$clusterTime").Doc()
}

func TestTick(t *testing.T) {
	c, _, now := testClock(t)
	base := c.ClusterTime()
	if a := c.Tick(3); a != base+1 || c.ClusterTime() != base+3 {
		t.Fatalf("three ticks from %x: first %x, now %x", base, a, c.ClusterTime())
	}
	*now = now.Add(time.Second)
	if a := c.Tick(1); a != uint64(now.Unix())<<32|1 {
		t.Fatalf("the wall clock moved on, the tick did not: %x", a)
	}
	*now = now.Add(-time.Hour)
	before := c.ClusterTime()
	if a := c.Tick(1); a != before+1 {
		t.Fatalf("a wall clock set back moved the time: %x after %x", a, before)
	}
}

func TestKeysAreKeptAhead(t *testing.T) {
	c, store, now := testClock(t)
	if len(store.keys) != 2 {
		t.Fatalf("%d keys, want one valid now and one after it", len(store.keys))
	}
	*now = now.Add(DefaultKeyRotation + time.Hour)
	c.Tick(1)
	if err := c.Keys().EnsureAhead(context.Background(), c, DefaultKeyRotation); err != nil {
		t.Fatal(err)
	}
	if len(store.keys) != 3 {
		t.Fatalf("%d keys after the first one expired, want 3", len(store.keys))
	}
}

func TestGossip(t *testing.T) {
	ctx := context.Background()
	a, store, now := testClock(t)
	b := NewVectorClock(func() time.Time { return *now })
	b.UseKeys(NewKeyRing(store))
	a.Tick(5)
	signed := clusterTimeOf(t, a)
	if err := b.GossipIn(ctx, signed, false); err != nil || b.ClusterTime() != a.ClusterTime() {
		t.Fatalf("a signed time did not advance the clock: %v", err)
	}
	if err := b.GossipIn(ctx, signed, false); err != nil {
		t.Fatalf("the same time again: %v", err)
	}

	sig := value.Lookup(signed, "signature")
	// A time beyond the masked range of the signature needs a proof of its own.
	forged := value.Doc(value.F("clusterTime", value.NewTimestampU64(a.ClusterTime()+1<<20)), value.F("signature", sig))
	if err := b.GossipIn(ctx, forged, false); mongoerr.CodeOf(err) != mongoerr.TimeProofMismatch {
		t.Errorf("a forged time: %v", err)
	}
	unknown := value.Doc(value.F("clusterTime", value.NewTimestampU64(a.ClusterTime()+1<<20)),
		value.F("signature", value.NewDocument(value.Doc(value.F("hash", value.NewBinary(0, make([]byte, 20))), value.F("keyId", value.NewInt64(99))))))
	if err := b.GossipIn(ctx, unknown, false); mongoerr.CodeOf(err) != mongoerr.KeyNotFound {
		t.Errorf("an unknown key: %v", err)
	}
	reads := store.read
	for i := 0; i < 10; i++ {
		_ = b.GossipIn(ctx, unknown, false)
	}
	if store.read != reads {
		t.Errorf("ten requests with an unknown key caused %d reads of the keys", store.read-reads)
	}
	far := value.Doc(value.F("clusterTime", value.NewTimestamp(uint32(now.Unix()+DefaultMaxDriftSecs+10), 1)))
	if err := b.GossipIn(ctx, far, true); mongoerr.CodeOf(err) != mongoerr.ClusterTimeFailsRateLimiter {
		t.Errorf("a time too far ahead: %v", err)
	}
}

// All times of a second have one signature, and a key may expire within that second: other nodes used to refuse the times after its expiry.
func TestKeyExpiresWithinASecond(t *testing.T) {
	now := func() time.Time { return time.Unix(1_700_000_000, 0) }
	second := uint64(now().Unix()) << 32
	store := &memoryKeys{keys: []SigningKey{{ID: 1, Key: [20]byte{1}, ExpiresAt: second | 100}, {ID: 2, Key: [20]byte{2}, ExpiresAt: second + 1<<40}}}
	signer := NewVectorClock(now)
	ring := NewKeyRing(store)
	if err := ring.Load(context.Background()); err != nil {
		t.Fatal(err)
	}
	signer.UseKeys(ring)
	signer.AdvanceCluster(second | 98)
	for range 5 {
		reader := NewVectorClock(now)
		reader.UseKeys(NewKeyRing(store))
		if err := reader.GossipIn(context.Background(), clusterTimeOf(t, signer), false); err != nil {
			t.Error(err)
		}
		signer.Tick(1)
	}
}

func TestComponentsStayInOrder(t *testing.T) {
	c := NewVectorClock(nil)
	c.AdvanceTopology(7)
	if n := c.Now(); n.Cluster != 7 || n.Config != 7 || n.Topology != 7 {
		t.Fatalf("%+v", n)
	}
	c.AdvanceConfig(9)
	c.AdvanceCluster(8)
	if n := c.Now(); n.Cluster != 9 || n.Config != 9 || n.Topology != 7 {
		t.Fatalf("%+v", n)
	}
}

func BenchmarkAppendTimes(b *testing.B) {
	c := NewVectorClock(nil)
	ring := NewKeyRing(&memoryKeys{})
	if err := ring.EnsureAhead(context.Background(), c, DefaultKeyRotation); err != nil {
		b.Fatal(err)
	}
	c.UseKeys(ring)
	buf := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		buf = c.AppendTimes(buf[:0], c.Tick(1))
	}
}

func TestRequestedTimes(t *testing.T) {
	c, _, now := testClock(t)
	known := c.Tick(5)
	second := uint64(now.Unix()) << 32
	for at, want := range map[uint64]mongoerr.Code{
		known: mongoerr.OK, second | 1<<20: mongoerr.OK, second | 1<<31: mongoerr.InvalidOptions, second + 1<<32: mongoerr.InvalidOptions,
		math.MaxUint64: mongoerr.InvalidOptions, math.MaxUint32<<32 | math.MaxUint32 - 1: mongoerr.InvalidOptions, 1 << 63: mongoerr.InvalidOptions,
	} {
		if err := c.CheckRequested("readConcern afterClusterTime", at); mongoerr.CodeOf(err) != want {
			t.Errorf("%s: %v, want code %d", TimestampString(at), err, want)
		}
	}
}
