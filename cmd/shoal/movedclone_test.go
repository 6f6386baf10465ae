package main

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
)

// The oplog of a shard that a database has moved to refers to the documents of the clone. Each member of the set returns them nevertheless, with the documents: after the move, after the
// primary has stepped down in the middle of a clone and after it was killed, and once the database has moved on, when the collection is dropped.
func TestOplogOfAMovedDatabase(t *testing.T) {
	if testing.Short() {
		t.Skip("starts six servers")
	}
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{1, 3}, shardArgs: []string{"--setParameter", "minSnapshotHistoryWindowInSeconds=0"}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c.admin(bson.D{{Key: "enableSharding", Value: "moved"}, {Key: "primaryShard", Value: c.shards[0].name}})
	pad := bytes.Repeat([]byte("clone of a database"), 100)
	docs := make([]any, 3000)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: pad[i%len(pad):]}}
	}
	coll := c.client.Database("moved").Collection("plain")
	if _, err := coll.InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	move := func(to *replicaSet) {
		t.Helper()
		await.State(t, "the database is on "+to.name, func() (string, bool) {
			err := c.client.Database("admin").RunCommand(ctx, bson.D{{Key: "movePrimary", Value: "moved"}, {Key: "to", Value: to.name}}).Err()
			return fmt.Sprint(err), err == nil
		})
	}
	rs := c.shards[1]
	check := func(when string) {
		t.Helper()
		if n, err := coll.CountDocuments(ctx, bson.D{}); err != nil || n != int64(len(docs)) {
			t.Errorf("%s: %d documents, %v", when, n, err)
		}
		rs.sameEverywhere("moved")
		for _, m := range rs.members {
			if n, err := clonedInto(ctx, m, "moved.plain", docs); err != nil || n < len(docs) {
				t.Errorf("%s: the oplog of %s has %d of %d documents, %v", when, m.name, n, len(docs), err)
			}
		}
	}
	stepped := make(chan struct{})
	go func() {
		defer close(stepped)
		rs.stepDown()
	}()
	move(rs)
	<-stepped
	check("after a step-down")
	rs.killPrimary().start()
	rs.waitReady()
	check("after a kill")
	move(c.shards[0])
	check("after the database has left")
}

// clonedInto counts the documents of a collection whose insertion a member's oplog has.
func clonedInto(ctx context.Context, m *server, ns string, docs []any) (n int, err error) {
	cur, err := m.direct.Database("local").Collection("oplog.rs").Find(ctx, bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: ns}})
	if err != nil {
		return 0, err
	}
	seen := make(map[int32]bool)
	for cur.Next(ctx) {
		o, ok := cur.Current.Lookup("o").DocumentOK()
		if !ok {
			return 0, fmt.Errorf("the entry %v has no document", cur.Current)
		}
		id := o.Lookup("_id").AsInt64()
		want, err := bson.Marshal(docs[id])
		if err != nil || !bytes.Equal(want, o) {
			return 0, fmt.Errorf("document %d is another one in the oplog: %v", id, err)
		}
		seen[int32(id)] = true
	}
	return len(seen), cur.Err()
}
