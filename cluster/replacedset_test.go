package cluster

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// A node that has not seen that a shard was removed finds another set of the same set name under the shard's name: it no longer uses its peer of the former set, which follows the members of
// that. It used to, and wrote to the removed set. A set whose members change keeps its peer, also if another shard was removed meanwhile, which may change the topology time.
func TestRegistryFindsASetOfTheSameName(t *testing.T) {
	t.Parallel()
	host, topology := "", uint64(0)
	config := LocalPeer(func(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
		shard := value.Doc(value.F("_id", value.NewString("a")), value.F("host", value.NewString(host)), value.F("topologyTime", value.NewTimestampU64(topology)))
		cursor := value.Doc(value.F("firstBatch", value.NewArray(value.ArrayOf(value.NewDocument(shard)))), value.F("id", value.NewInt64(0)), value.F("ns", value.NewString("config.shards")))
		return append(dst, value.Doc(value.F("cursor", value.NewDocument(cursor)), value.F("ok", value.NewDouble(1)))...), nil
	})
	dialed := 0
	r := NewRegistry(config, nil, func(string, []string) (Peer, error) {
		dialed++
		return LocalPeer(nil), nil
	})
	for _, x := range []struct {
		host     string
		topology uint64
		dialed   int
	}{{"s/h1:1,h2:1", 1, 1}, {"s/h2:1,h3:1", 1, 1}, {"s/h3:1", 1, 1}, {"s/h3:1,h4:1", 2, 1}, {"s/h5:1", 3, 2}, {"s/h6:1", 3, 2}, {"other/h6:1", 4, 3}, {"other/h7:1", 5, 4}} {
		host, topology = x.host, x.topology
		if err := r.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if dialed != x.dialed {
			t.Errorf("%s: %d peers were made, want %d", x.host, dialed, x.dialed)
		}
	}
}

// Whoever knows that the list of shards has changed uses the new one: it used to be read beside the operations, some of which still went to a set that had left. While it cannot be read they go on with
// the old one.
func TestRegistryIsAsNewAsItsClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, topology, reads, down := "s/h1:1", Timestamp(10, 1), 0, false
		config := LocalPeer(func(ctx context.Context, q *wire.Message, dst []byte) ([]byte, error) {
			reads++
			if down {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return (&hostsOf{host, topology}).Call(ctx, q, dst)
		})
		clock := NewVectorClock(nil)
		r := NewRegistry(config, clock, func(string, []string) (Peer, error) { return LocalPeer(nil), nil })
		expect := func(want string, read int) {
			t.Helper()
			s, err := r.Shard(t.Context(), "a")
			if err != nil || s.Host != want || reads != read {
				t.Errorf("%v, %v after %d reads, want %s after %d", s, err, reads, want, read)
			}
			if all, err := r.All(t.Context()); err != nil || len(all) != 1 || all[0].Host != want {
				t.Errorf("%v, %v, want %s", all, err, want)
			}
		}
		expect("s/h1:1", 1)
		expect("s/h1:1", 1)
		host, topology = "s/h2:1", Timestamp(20, 1)
		clock.AdvanceTopology(topology)
		expect("s/h2:1", 2)
		clock.AdvanceTopology(Timestamp(30, 1)) // which no entry has
		expect("s/h2:1", 3)
		expect("s/h2:1", 3)
		down = true
		host = "s/h3:1"
		clock.AdvanceTopology(Timestamp(40, 1))
		expect("s/h2:1", 4)
		down = false
		expect("s/h3:1", 6)
	})
}
