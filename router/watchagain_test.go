package router_test

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// addedAgain adds a new set, which may have databases, under the name of a shard that has been removed.
func (c *testCluster) addedAgain(shard, set string, dbs ...string) {
	c.t.Helper()
	s := c.opened(shardnode.Config{SetName: set, Host: set + ":27018"})
	if err := s.Initiate(context.Background()); err != nil {
		c.t.Fatal(err)
	}
	for _, db := range dbs {
		c.admin(s.Peer(), bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 777}}}}, {Key: "$db", Value: db}})
	}
	s.OnJoin(c.joining(shard))
	c.shards[set] = newShardPeer(c.hooks.peer(set, s))
	add := value.Doc(value.F("_configsvrAddShard", value.NewString(set+"/"+set+":27018")), value.F("name", value.NewString(shard)), value.F("$db", value.NewString("admin")))
	if _, err := cluster.Run(context.Background(), c.confP, add); err != nil {
		c.t.Fatal(err)
	}
}

// A stream that is open while a shard is removed and another set is added under its name has the events of the new set. It used to keep its cursor on the former one, which still served it, or
// to wait for that to pass the time of the change.
func TestStreamsFollowAShardThatIsAddedAgain(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name      string
		gone      bool // the former set replies no longer
		meanwhile bool // the stream is read between the two
		shared    bool // there is another stream of the same kind
	}{{"idle", false, false, false}, {"read in between", false, true, false}, {"the former set is gone", true, false, false}, {"shared", false, false, true}} {
		t.Run(x.name, func(t *testing.T) {
			c := newTestCluster(t, 3)
			former := c.interposed("shard2")
			c.twoShards()
			s, _ := c.watch("s", bson.D{})
			if x.shared {
				c.watch("s", bson.D{})
			}
			s.more(1)
			c.removeEmptyShard("shard2")
			if x.gone {
				former.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
					switch name {
					case "aggregate", "getMore", "appendOplogNote": // the other nodes of the test do not notice by themselves that the shard has changed
						return nil, mongoerr.New(mongoerr.HostUnreachable, "the set is gone")
					}
					return call()
				})
			}
			if x.meanwhile {
				c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: 3}}}}})
				if got := s.rest(1); len(got) != 1 {
					t.Errorf("the stream has %v", got)
				}
			}
			c.addedAgain("shard2", "shardx")
			s.more(1)
			c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: 70}}}, {Key: "to", Value: "shard2"}, {Key: "_waitForDelete", Value: true}})
			for _, k := range []int{70, 1, 71} {
				c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: k}}}}})
			}
			if got := s.rest(3); len(got) != 3 {
				t.Errorf("the stream has %v", got)
			}
			c.expect(c.admin(c.shards["shardx"], bson.D{{Key: "count", Value: "s"}, {Key: "$db", Value: "db"}})["n"], `2`)
		})
	}
}

// Events of the former set that a stream has not read when another set has the shard's name are delivered if the former set still serves its cursor; else the stream ends with ChangeStreamHistoryLost.
func TestStreamsBehindAShardThatIsAddedAgain(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		c := newTestCluster(t, 3)
		former := c.interposed("shard2")
		c.twoShards()
		move := func(to string) {
			c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: 70}}}, {Key: "to", Value: to}, {Key: "_waitForDelete", Value: true}})
		}
		move("shard2")
		s, _ := c.watch("s", bson.D{})
		s.more(1)
		if gone { // from before the event on
			former.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
				if name == "aggregate" || name == "getMore" || name == "appendOplogNote" {
					return nil, mongoerr.New(mongoerr.HostUnreachable, "the set is gone")
				}
				return call()
			})
		}
		c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: 70}}}}})
		move("shard1")
		c.removeEmptyShard("shard2")
		c.addedAgain("shard2", "shardx")
		if !gone {
			if got := s.rest(1); len(got) != 1 {
				t.Errorf("the stream has %v", got)
			}
			continue
		}
		var m bson.M
		c.until("the stream has ended", func() bool {
			m = c.raw("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "s", "maxTimeMS": 100}`, s.id))
			return m["ok"] != 1.0
		})
		if m["code"] != int32(mongoerr.ChangeStreamHistoryLost) {
			t.Error(m)
		}
	}
}

// A set that brings a database is added under the name of a removed shard. Its database's placement was taken for data of the former set, and ended open streams.
func TestStreamsFollowASetThatBringsADatabase(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		c := newTestCluster(t, 3)
		former := c.interposed("shard2")
		c.twoShards()
		s := &streamOf{c: c, db: "admin", coll: "$cmd.aggregate"}
		s.take(c.cmd("admin", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: bson.D{{Key: "allChangesForCluster", Value: true}}}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D), "firstBatch")
		s.more(1)
		c.removeEmptyShard("shard2")
		if gone {
			former.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
				if name == "aggregate" || name == "getMore" || name == "appendOplogNote" {
					return nil, mongoerr.New(mongoerr.HostUnreachable, "the set is gone")
				}
				return call()
			})
		}
		c.addedAgain("shard2", "shardx", "newdb")
		c.run("newdb", `{"insert": "c", "documents": [{"_id": 778}]}`)
		c.run("db", `{"insert": "s", "documents": [{"k": 1}]}`)
		c.until("the stream has the event of the new set", func() bool {
			for _, e := range s.more(1) {
				if k, ok := field(e, "documentKey").(bson.D); ok && field(k, "_id") == int32(778) {
					return true
				}
			}
			return false
		})
	}
}
