package router_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A message that makes a shard a donor or a recipient, and that has made sure that the config server runs the resharding, is held up until the resharding has been undone: it
// begins nothing. A donor used to remain, which refused the collection's DDL for ever.
func TestLateStartOfAResharding(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ name, state string }{{"_shardsvrReshardingDonorStart", "preparing-to-donate"}, {"_shardsvrReshardingRecipientStart", "cloning"}} {
		var sent atomic.Pointer[[]byte]
		var armed atomic.Bool
		came, free := make(chan struct{}), make(chan struct{})
		c := newHookedCluster(t, 2, clusterHooks{
			peer: func(shard string, s *shardnode.Server) cluster.Peer {
				return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
					body := bytes.Clone(m.Body)
					dst, err := s.Peer().Call(ctx, m, dst)
					if shard == "shard1" && string(m.CommandName()) == x.name { // and has asked what it asks: what is held up is the late message's question
						sent.CompareAndSwap(nil, &body)
					}
					return dst, err
				})
			},
			out: func(from string) func(cluster.Peer) cluster.Peer {
				return func(to cluster.Peer) cluster.Peer {
					return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
						dst, err := to.Call(ctx, m, dst)
						if from == "shard1" && string(m.CommandName()) == "_holdsCriticalSection" && armed.CompareAndSwap(true, false) {
							close(came)
							<-free
						}
						return dst, err
					})
				}
			},
		})
		c.config.Points = c.points["config"]
		c.halved("c")
		reached, release := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", x.state)
		c.point("shard1", "reshardingPauseRecipientAtState", true)
		answer, other := make(chan bson.M, 1), c.through()
		go func() {
			answer <- c.raw("admin", `{"reshardCollection": "db.c", "key": {"k": "hashed"}, "numInitialChunks": 2, "shardDistribution": [{"shard": "shard0"}, {"shard": "shard1"}]}`)
		}()
		reached()
		release()
		c.until("shard1 has begun", func() bool { return sent.Load() != nil })
		armed.Store(true)
		late := make(chan error, 1)
		go func() {
			_, err := cluster.Run(context.Background(), c.server["shard1"].Peer(), *sent.Load())
			late <- err
		}()
		<-came
		other.run("admin", `{"abortReshardCollection": "db.c"}`)
		c.point("shard1", "reshardingPauseRecipientAtState", false)
		if m := <-answer; m["code"] != int32(mongoerr.ReshardCollectionAborted) {
			t.Errorf("%s: %v", x.name, m)
		}
		close(free)
		if err := <-late; mongoerr.CodeOf(err) != mongoerr.NoSuchReshardCollection {
			t.Errorf("%s, late: %v", x.name, err)
		}
		for _, coll := range []string{"localReshardingOperations.donor", "localReshardingOperations.recipient"} {
			if n := c.admin(c.shards["shard1"], bson.D{{Key: "count", Value: coll}, {Key: "$db", Value: "config"}})["n"]; n != int32(0) {
				t.Errorf("%s: %v documents in %s", x.name, n, coll)
			}
		}
		c.run("db", `{"collMod": "c", "validationLevel": "moderate"}`)
		c.run("admin", `{"reshardCollection": "db.c", "key": {"k": "hashed"}, "numInitialChunks": 2}`)
	}
}

// The message that makes a shard a donor is sent twice, as by a primary of the config server and its successor, and one of the two is held up until the recipient has cloned. The donor's
// primary changes before the recipient asks for what was written since. The donor used to begin with the later message then: what was written before it was lost, without an error.
func TestRepeatedStartOfADonor(t *testing.T) {
	t.Parallel()
	const start = "_shardsvrReshardingDonorStart"
	var sent atomic.Pointer[[]byte]
	var armed atomic.Bool
	came, free := make(chan struct{}), make(chan struct{})
	var c *testCluster
	c = newHookedCluster(t, 2, clusterHooks{
		watch: func(shard string, m *wire.Message) error {
			if shard == "shard1" && string(m.CommandName()) == start && sent.Load() == nil {
				body := bytes.Clone(m.Body)
				c.disk.hold()
				sent.Store(&body)
			}
			return nil
		},
		out: func(from string) func(cluster.Peer) cluster.Peer {
			return func(to cluster.Peer) cluster.Peer {
				return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
					if from == "shard1" && string(m.CommandName()) != "_holdsCriticalSection" && armed.CompareAndSwap(true, false) {
						close(came)
						<-free
					}
					return to.Call(ctx, m, dst)
				})
			}
		},
	})
	c.halved("c")
	reached, release := c.hangOn("shard0", "reshardingPauseRecipientAtState", "state", "applying")
	answer, other := make(chan bson.M, 1), c.through()
	go func() {
		answer <- c.raw("admin", `{"reshardCollection": "db.c", "key": {"_id": 1}, "numInitialChunks": 1, "shardDistribution": [{"shard": "shard0"}]}`)
	}()
	c.until("shard1 stores that it is a donor", func() bool {
		c.disk.mu.Lock()
		defer c.disk.mu.Unlock()
		return sent.Load() != nil && c.disk.all["shard1"] > 0
	})
	armed.Store(true)
	late := make(chan error, 1)
	go func() {
		_, err := cluster.Run(context.Background(), c.server["shard1"].Peer(), *sent.Load())
		late <- err
	}()
	<-came // it has found no donor, and asks for the collection's placement
	c.disk.free()
	reached()
	other.run("db", `{"insert": "c", "documents": [{"k": -2, "since": 1}, {"k": 2, "since": 1}, {"k": 3, "since": 1}]}`)
	close(free)
	if err := <-late; err != nil {
		t.Error(err)
	}
	c.restart("shard1")
	release()
	if m := <-answer; m["ok"] != 1.0 {
		t.Error(m)
	}
	c.expect(c.run("db", `{"count": "c", "query": {"since": 1}}`)["n"], `3`)
	c.leftOver()
}

// The write that commits a resharding succeeds, but its reply is lost, and it is repeated: the placement's history has the collection's shards, not none.
func TestReshardCommitRepeatedAfterAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	var lost atomic.Int32
	c := newHookedCluster(t, 2, clusterHooks{own: func(to cluster.Peer) cluster.Peer {
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			dst, err := to.Call(ctx, m, dst)
			if err == nil && string(m.CommandName()) == "_writeTogether" && value.Lookup(m.Body, "_writeTogether").Str() == "config.collections" && !value.Lookup(m.Body, "placement").IsMissing() &&
				lost.CompareAndSwap(1, 2) {
				err = mongoerr.New(mongoerr.HostUnreachable, "the reply was lost")
			}
			return dst, err
		})
	}})
	c.halved("c")
	lost.Store(1)
	c.run("admin", `{"reshardCollection": "db.c", "key": {"k": "hashed"}, "numInitialChunks": 2}`)
	if lost.Load() != 2 {
		t.Error("no reply was lost")
	}
	c.placementsAre("db.c", "0 0+1 0+1! 0+1")
}
