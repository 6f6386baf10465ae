package router_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// unreachable has nodes reach a set's streams no longer. The other nodes of the test do not notice by themselves that the shard has changed.
func (w *interposedPeer) unreachable() {
	w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		switch name {
		case "aggregate", "getMore", "appendOplogNote":
			return nil, mongoerr.New(mongoerr.HostUnreachable, "the set is gone")
		}
		return call()
	})
}

// watchAll opens a stream of the cluster, at a time or now.
func (c *testCluster) watchAll(at any) (*streamOf, bson.A) {
	c.t.Helper()
	spec := bson.D{{Key: "allChangesForCluster", Value: true}}
	if at != nil {
		spec = append(spec, bson.E{Key: "startAtOperationTime", Value: at})
	}
	s := &streamOf{c: c, db: "admin", coll: "$cmd.aggregate"}
	first := s.take(c.cmd("admin", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: spec}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D), "firstBatch")
	return s, first
}

// inserted reads until the insert of an _id, and returns the _ids of the inserts, with those of the first events.
func (s *streamOf) inserted(last int32, first ...any) (ids []any) {
	s.c.t.Helper()
	events := bson.A(first)
	s.c.until(fmt.Sprint("the stream has the insert of ", last), func() bool {
		for _, e := range events {
			if field(e, "operationType") == "insert" {
				ids = append(ids, field(field(e, "documentKey"), "_id"))
			}
		}
		events = s.more(100)
		return slices.Contains(ids, any(last))
	})
	return ids
}

// endsWith reads until the stream ends, with an error.
func (s *streamOf) endsWith(code mongoerr.Code) {
	s.c.t.Helper()
	var m bson.M
	s.c.until("the stream has ended", func() bool {
		m = s.c.raw("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": %q, "maxTimeMS": 100}`, s.id, s.coll))
		return m["ok"] != 1.0
	})
	if m["code"] != int32(code) {
		s.c.t.Error(m)
	}
}

// moves moves the upper chunk of db.s, once all shards know which sets the shards are.
func (c *testCluster) moves(to string) {
	c.t.Helper()
	for _, s := range c.server {
		if state, ok := s.Node.Sharding().(*migration.ShardState); ok {
			if err := state.Registry.Reload(c.t.Context()); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: 70}}}, {Key: "to", Value: to}, {Key: "_waitForDelete", Value: true}})
}

// puts inserts a document into db.s, and returns the time.
func (c *testCluster) puts(id int) any {
	c.t.Helper()
	return c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id}}}}})["operationTime"]
}

// A stream returns nothing that a set wrote before it joined: neither one that has lost its cursor on the set whose name the new one took, and is opened again before the event of its joining is handled, nor one that
// begins before that. It used to.
func TestStreamsBeginWhereASetJoins(t *testing.T) {
	t.Parallel()
	for _, past := range []bool{false, true} {
		t.Run(fmt.Sprint("opened afterwards ", past), func(t *testing.T) {
			c := newTestCluster(t, 3)
			former := c.interposed("shard2")
			c.twoShards()
			start := c.puts(1)
			s, first := c.watchAll(nil)
			s.more(1)
			c.removeEmptyShard("shard2")
			former.unreachable()
			c.addedAgain("shard2", "shardx", "newdb")
			if past {
				s, first = c.watchAll(start)
			}
			c.run("newdb", `{"insert": "c", "documents": [{"_id": 778}]}`)
			want := "[778]"
			if past {
				want = "[1 778]"
			}
			if got := s.inserted(778, first...); fmt.Sprint(got) != want {
				t.Errorf("the stream has %v, want %s", got, want)
			}
		})
	}
}

// A stream that begins when a set had data of its collection which was removed since, and whose name another set has, ends with ChangeStreamHistoryLost: it used to skip the former set's events. One that begins after
// that is opened.
func TestStreamsReportASetWhoseNameAnotherHas(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 4)
	c.twoShards()
	c.cmd("admin", bson.D{{Key: "shardCollection", Value: "db.other"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
	before := c.puts(1)
	c.moves("shard2")
	held := c.puts(80)
	c.moves("shard1")
	after := c.puts(2)
	c.removeEmptyShard("shard2")
	c.removeEmptyShard("shard3") // which changes the topology time of another shard's entry
	c.addedAgain("shard2", "shardx")
	c.moves("shard2") // the new set's placement is not the former one's
	c.puts(81)
	check := func(when string) {
		t.Helper()
		for _, x := range []struct {
			name string
			db   string
			coll any
			at   any
			want mongoerr.Code
		}{
			{"before the set had any", "db", "s", before, mongoerr.ChangeStreamHistoryLost},
			{"while it had some", "db", "s", held, mongoerr.ChangeStreamHistoryLost},
			{"afterwards", "db", "s", after, 0},
			{"another collection", "db", "other", before, 0},
			{"its database", "db", 1, held, mongoerr.ChangeStreamHistoryLost},
		} {
			code, labels := c.openWatch(x.db, x.coll, bson.D{{Key: "startAtOperationTime", Value: x.at}})
			if code != int32(x.want) {
				t.Errorf("%s%s: %d %v, want %d", x.name, when, code, labels, x.want)
			}
			if code != 0 {
				c.expect(labels, `["NonResumableChangeStreamError"]`)
			}
		}
	}
	check("")
	c.cmd("admin", bson.D{{Key: "resetPlacementHistory", Value: 1}}) // which is not to hide it
	check(", since the history was reset")
	c.moves("shard0")
	c.removeEmptyShard("shard2") // once more, so that the new set's events are lost, too
	if code, _ := c.openWatch("db", "s", bson.D{{Key: "startAtOperationTime", Value: after}}); code != int32(mongoerr.ChangeStreamHistoryLost) {
		t.Errorf("before the new set had any: %d", code)
	}
}

// A shard is removed and added again twice before a stream reads on. The stream has the events of the set that it had open, and those of the last one from when it joined: it used to end with
// ChangeStreamHistoryLost. It does so if the one in between had data of its collection; that set's events used to be skipped.
func TestStreamsOfAShardThatIsAddedAgainTwice(t *testing.T) {
	t.Parallel()
	for _, data := range []bool{false, true} {
		t.Run(fmt.Sprint("data in between ", data), func(t *testing.T) {
			c := newTestCluster(t, 3)
			c.twoShards()
			c.moves("shard2")
			s, _ := c.watch("s", bson.D{})
			s.more(1)
			c.puts(70)
			c.moves("shard1")
			c.removeEmptyShard("shard2")
			c.addedAgain("shard2", "shardx")
			if data {
				c.moves("shard2")
				c.puts(71)
				c.moves("shard1")
			}
			c.removeEmptyShard("shard2")
			c.addedAgain("shard2", "shardy")
			c.moves("shard2")
			c.puts(72)
			if data {
				s.endsWith(mongoerr.ChangeStreamHistoryLost)
			} else if got := s.inserted(72); fmt.Sprint(got) != "[70 72]" {
				t.Errorf("the stream has %v", got)
			}
		})
	}
}

// newConfigCluster makes a cluster in which what nodes send to the config server passes the returned peer.
func newConfigCluster(t *testing.T, shards int) (c *testCluster, config *interposedPeer) {
	t.Helper()
	c = newHookedCluster(t, shards, clusterHooks{peer: func(set string, s *shardnode.Server) cluster.Peer {
		if set != "config" {
			return s.Peer()
		}
		config = &interposedPeer{Peer: s.Peer()}
		return config
	}})
	return c, config
}

// holdReads keeps a stream's getMores from a set until release is called, and returns once one is held.
func (s *streamOf) holdReads(w *interposedPeer) (release func()) {
	s.c.t.Helper()
	var held atomic.Int64
	free := make(chan struct{})
	w.through(func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name == "getMore" {
			held.Add(1)
			select {
			case <-free:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return call()
	})
	s.c.until("a getMore is held", func() bool {
		s.more(10)
		return held.Load() > 0
	})
	return sync.OnceFunc(func() { close(free) })
}

// A stream loses its cursor on a set that has been removed, and is opened again on the one that has its name now before it learns of either: it returned what that set wrote before it joined.
func TestLostStreamsAreNotOpenedOnAnotherSet(t *testing.T) {
	t.Parallel()
	c, config := newConfigCluster(t, 3)
	former := c.interposed("shard2")
	c.twoShards()
	s, _ := c.watchAll(nil)
	s.more(1)
	release := s.holdReads(config)
	defer release()
	c.removeEmptyShard("shard2")
	c.addedAgain("shard2", "shardx", "newdb")
	var opened atomic.Int64
	c.interposed("shardx").through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		reply, err := call()
		if name == "aggregate" {
			opened.Add(1)
		}
		return reply, err
	})
	if err := c.r.Registry.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	former.unreachable()
	c.until("the stream is opened on the new set", func() bool {
		s.more(10)
		return opened.Load() > 0
	})
	release()
	c.run("newdb", `{"insert": "c", "documents": [{"_id": 778}]}`)
	if got := s.inserted(778); fmt.Sprint(got) != "[778]" {
		t.Errorf("the stream has %v", got)
	}
}

// A set is removed and added again, both before a stream learns of either, and removed once more before another one gets its name: the stream waits for what it wrote between.
func TestStreamsWaitForASetThatLeavesTwice(t *testing.T) {
	t.Parallel()
	c, config := newConfigCluster(t, 3)
	former := c.interposed("shard2")
	c.twoShards()
	s, _ := c.watch("s", bson.D{})
	s.more(1)
	release := s.holdReads(config)
	defer release()
	c.removeEmptyShard("shard2")
	add := value.Doc(value.F("_configsvrAddShard", value.NewString("shard2/shard2:27018")), value.F("name", value.NewString("shard2")), value.F("$db", value.NewString("admin")))
	if _, err := cluster.Run(t.Context(), c.confP, add); err != nil {
		t.Fatal(err)
	}
	release()
	c.puts(1)
	if got := s.inserted(1); len(got) != 1 {
		t.Errorf("the stream has %v", got)
	}
	let := s.holdReads(former)
	defer let()
	c.moves("shard2")
	c.puts(70)
	c.moves("shard1")
	var asked atomic.Int64
	config.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		reply, err := call()
		if name == "_configsvrGetHistoricalPlacement" {
			asked.Add(1)
		}
		return reply, err
	})
	c.removeEmptyShard("shard2")
	c.addedAgain("shard2", "shardx")
	c.until("the stream asks for the set's data", func() bool { return asked.Load() > 0 })
	let()
	c.puts(2)
	if got := s.inserted(2); fmt.Sprint(got) != "[70 2]" {
		t.Errorf("the stream has %v", got)
	}
}

// Whether a former set had data is asked once more if there is no answer: after the set's removal, the question used to take the time in which the next set's stream is opened, so that the stream ended with
// an error.
func TestStreamsAskAgainWhetherASetHadData(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{false, true} {
		t.Run(fmt.Sprint("since the removal ", removed), func(t *testing.T) {
			c, config := newConfigCluster(t, 3)
			c.r.SetStreamOpening(2 * time.Second)
			c.twoShards()
			s, _ := c.watch("s", bson.D{})
			s.more(1)
			if removed {
				c.removeEmptyShard("shard2")
			}
			var asked atomic.Int64
			config.through(func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
				if name == "_configsvrGetHistoricalPlacement" && asked.Add(1) == 1 {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return call()
			})
			if !removed {
				c.removeEmptyShard("shard2")
			}
			c.addedAgain("shard2", "shardx")
			c.moves("shard2")
			c.puts(70)
			if got := s.inserted(70); len(got) != 1 || !removed && asked.Load() < 2 {
				t.Errorf("the stream has %v, %d questions", got, asked.Load())
			}
		})
	}
}
