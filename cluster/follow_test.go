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

// closing is a peer that is released.
type closing struct {
	Peer
	hosts  []string
	closed bool
}

func (c *closing) Close() { c.closed = true }

// hostsOf replies to finds on config.shards with one entry.
type hostsOf struct {
	host     string
	topology uint64
}

func (s *hostsOf) Call(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
	entry := value.Doc(value.F("_id", value.NewString("a")), value.F("host", value.NewString(s.host)), value.F("topologyTime", value.NewTimestampU64(s.topology)))
	cursor := value.Doc(value.F("firstBatch", value.NewArray(value.ArrayOf(value.NewDocument(entry)))), value.F("id", value.NewInt64(0)), value.F("ns", value.NewString("config.shards")))
	return append(dst, value.Doc(value.F("cursor", value.NewDocument(cursor)), value.F("ok", value.NewDouble(1)))...), nil
}

// A node that has not read the list of shards between the removal of a set and the joining of another, with the same names, reaches the other one: it used to keep the peer of the former. One whose
// members alone have changed keeps its peer.
func TestRegistryReachesTheSetOfTheEntry(t *testing.T) {
	config := &hostsOf{"rs/a:1,b:1", Timestamp(10, 1)}
	var dialled []*closing
	r := NewRegistry(config, nil, func(_ string, hosts []string) (Peer, error) {
		if n := len(dialled); n > 0 && !dialled[n-1].closed {
			t.Error("the former set is still followed")
		}
		dialled = append(dialled, &closing{Peer: LocalPeer(nil), hosts: hosts})
		return dialled[len(dialled)-1], nil
	})
	for _, x := range []struct {
		hostsOf
		want string // the first host that was dialled last
	}{{hostsOf{"rs/a:1,b:1", Timestamp(10, 1)}, "a:1"}, {hostsOf{"rs/c:1", Timestamp(10, 1)}, "a:1"}, {hostsOf{"rs/d:1", Timestamp(20, 1)}, "d:1"}, {hostsOf{"rs/d:1", Timestamp(30, 1)}, "d:1"}} {
		*config = x.hostsOf
		if err := r.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, err := r.Shard(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if p := s.Peer.(*closing); p.hosts[0] != x.want || p.closed {
			t.Errorf("with %v: the shard is reached at %v, closed %v, want %s", x.hostsOf, p.hosts, p.closed, x.want)
		}
	}
	if len(dialled) != 2 {
		t.Errorf("%d sets were dialled, want 2", len(dialled))
	}
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
