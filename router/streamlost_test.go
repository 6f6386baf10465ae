package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// loseCursors ends the cursors that routers have on the shards, as the death of a member does.
func (c *testCluster) loseCursors() (n int) {
	c.t.Helper()
	for _, p := range c.shards {
		for _, op := range c.admin(p, bson.D{{Key: "aggregate", Value: 1}, {Key: "cursor", Value: bson.D{}}, {Key: "$db", Value: "admin"},
			{Key: "pipeline", Value: bson.A{bson.D{{Key: "$currentOp", Value: bson.D{{Key: "idleCursors", Value: true}}}}}}})["cursor"].(bson.D) {
			if op.Key != "firstBatch" {
				continue
			}
			for _, o := range op.Value.(bson.A) {
				cur, ok := field(o, "cursor").(bson.D)
				if !ok || field(o, "ns") != "db.s" {
					continue
				}
				id := field(cur, "cursorId").(int64)
				c.admin(p, bson.D{{Key: "killCursors", Value: "s"}, {Key: "cursors", Value: bson.A{id}}, {Key: "$db", Value: "db"}})
				n++
			}
		}
	}
	return n
}

// A shard's cursor of a change stream is lost in the middle of a transaction's events, all of which have one time, and in the middle
// of an event's fragments: the stream continues without an error, a gap or a duplicate. It used to end with an error, after which clients resume.
func TestStreamsGoOnWhereShardsLoseTheirCursors(t *testing.T) {
	t.Parallel()
	for _, split := range []bool{false, true} {
		t.Run(fmt.Sprint("fragments ", split), func(t *testing.T) {
			c := newTestCluster(t, 2)
			c.reuses = true
			c.twoShards()
			start := c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: -1}, {Key: "k", Value: 0}}}}})["operationTime"]
			const n = 300
			var docs bson.A
			for i := range n {
				docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i % 100}})
			}
			lsid := bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}
			txn := bson.D{{Key: "lsid", Value: lsid}, {Key: "txnNumber", Value: int64(1)}, {Key: "autocommit", Value: false}}
			c.cmd("db", append(bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: docs}, {Key: "startTransaction", Value: true}}, txn...))
			c.cmd("admin", append(bson.D{{Key: "commitTransaction", Value: 1}}, txn...))
			var behind []any
			if split {
				behind = append(behind, bson.D{{Key: "$changeStreamSplitLargeEvent", Value: bson.D{}}})
			}
			s, batch := c.watch("s", bson.D{{Key: "startAtOperationTime", Value: start}}, behind...)
			seen, lost := map[int32]int{}, 0
			for tries := 0; tries < 40 && len(seen) < n+1; tries++ {
				for _, e := range batch {
					seen[field(field(e, "documentKey"), "_id").(int32)]++
				}
				lost += c.loseCursors()
				batch = s.more(500)
			}
			for _, e := range batch {
				seen[field(field(e, "documentKey"), "_id").(int32)]++
			}
			for i := int32(-1); i < n; i++ {
				if seen[i] != 1 {
					t.Errorf("the event of %d arrived %d times", i, seen[i])
				}
			}
			if lost == 0 {
				t.Error("no cursor was lost")
			}
		})
	}
}
