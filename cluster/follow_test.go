package cluster

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// shardsOf replies to finds on config.shards with its entries.
type shardsOf struct {
	mu      sync.Mutex
	entries map[string]uint64 // by id, the topology time
	reads   int
}

func (s *shardsOf) Call(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	var docs []value.Value
	for id, ts := range s.entries {
		docs = append(docs, value.NewDocument(value.Doc(value.F("_id", value.NewString(id)), value.F("host", value.NewString(id+"/"+id+":27018")),
			value.F("topologyTime", value.NewTimestampU64(ts)))))
	}
	cursor := value.Doc(value.F("firstBatch", value.NewArray(value.ArrayOf(docs...))), value.F("id", value.NewInt64(0)), value.F("ns", value.NewString("config.shards")))
	return append(dst, value.Doc(value.F("cursor", value.NewDocument(cursor)), value.F("ok", value.NewDouble(1)))...), nil
}

func (s *shardsOf) set(entries map[string]uint64) {
	s.mu.Lock()
	s.entries = entries
	s.mu.Unlock()
}

// A node that received a later topology time knows of an added or removed shard before it serves the next request; it learns
// of changes of hosts and tags, which do not advance that time, within 30 seconds.
func TestRegistryFollowsTheTopologyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := &shardsOf{entries: map[string]uint64{"a": Timestamp(10, 1)}}
		clock := NewVectorClock(time.Now)
		r := NewRegistry(config, clock, func(string, []string) (Peer, error) { return LocalPeer(nil), nil })
		ctx, stop := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { r.Follow(ctx) })
		defer done.Wait()
		defer stop()
		knows := func(want string) {
			t.Helper()
			synctest.Wait()
			got := ""
			r.mu.RLock()
			for _, id := range []string{"a", "b"} {
				if r.mu.byID[id] != nil {
					got += id
				}
			}
			r.mu.RUnlock()
			if got != want {
				t.Errorf("knows %q, want %q", got, want)
			}
		}
		clock.GossipInPlain(Timestamp(10, 1), Timestamp(10, 1))
		knows("a")
		config.set(map[string]uint64{"a": Timestamp(10, 1), "b": Timestamp(20, 1)})
		knows("a") // not notified yet
		clock.GossipInPlain(Timestamp(20, 1), Timestamp(20, 1))
		knows("ab")
		config.set(map[string]uint64{"a": Timestamp(10, 1)}) // by a server that records no time with the removal
		clock.GossipInPlain(Timestamp(30, 1), Timestamp(30, 1))
		knows("a")
		if config.reads != 3 {
			t.Errorf("%d reads for 3 changes", config.reads)
		}
		config.set(map[string]uint64{"b": Timestamp(5, 1)})
		time.Sleep(reloadInterval)
		knows("b")
	})
}

// A router that ran for longer than the validity of the keys that it had read last used to stop sending $clusterTime.
func TestKeysAreReadBeforeTheyExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rotation = 20 * time.Second
		store := &memoryKeys{}
		owner, reader := NewVectorClock(time.Now), NewVectorClock(time.Now)
		own := NewKeyRing(store)
		if err := own.EnsureAhead(t.Context(), owner, rotation); err != nil {
			t.Fatal(err)
		}
		ring := NewKeyRing(store)
		if err := ring.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		reader.UseKeys(ring)
		ctx, stop := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { ring.Follow(ctx, reader) })
		defer done.Wait()
		defer stop()
		for range 60 {
			time.Sleep(rotation / 4)
			if err := own.EnsureAhead(ctx, owner, rotation); err != nil {
				t.Fatal(err)
			}
			reader.AdvanceCluster(owner.Tick(1))
			if len(reader.AppendSignedTime(nil)) == 0 {
				t.Fatalf("no key after %v", time.Since(time.Unix(946684800, 0)))
			}
		}
		if store.read > 60*3*2 {
			t.Errorf("the keys were read %d times in %v", store.read, 60*rotation/4)
		}
	})
}
