package main

import (
	"context"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/internal/await"
)

// TestRestoreOfAClusterByFiles carries out the recipe of docs/operations.md: a cluster's members are stopped in order and their data
// directories copied; later, each member's own copy is put back at its address.
func TestRestoreOfAClusterByFiles(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := launchCluster(t, clusterOptions{shards: []int{1, 1}})
	config, shards, router := c.config, c.shards, c.routers[0]
	db := router.direct.Database("d")
	adminOK(t, router.direct, bson.D{{Key: "enableSharding", Value: "d"}, {Key: "primaryShard", Value: "shard00"}})
	adminOK(t, router.direct, bson.D{{Key: "shardCollection", Value: "d.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	adminOK(t, router.direct, bson.D{{Key: "moveRange", Value: "d.c"}, {Key: "min", Value: bson.D{{Key: "_id", Value: 100}}}, {Key: "toShard", Value: "shard01"}})
	if _, err := db.Collection("c").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "x", Value: 1}}}); err != nil {
		t.Fatal(err)
	}
	insertNumbers(t, db, 0, 200)
	before := clusterState(t, ctx, router)
	if len(before["chunks"]) < 2 {
		t.Fatalf("%d chunks", len(before["chunks"]))
	}

	// The routers, the shards and, last, the config server.
	members := []*server{config.members[0], shards[0].members[0], shards[1].members[0]}
	stop := func() {
		t.Helper()
		for _, o := range append([]*server{router}, members[1], members[2], members[0]) {
			o.signal(syscall.SIGTERM)
			<-o.ended
			if code := o.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("%v ended with %d", o.args, code)
			}
		}
	}
	// The config server first.
	start := func() {
		t.Helper()
		for _, o := range append(slices.Clone(members), router) {
			o.start()
		}
		await.True(t, "the cluster takes writes", func() bool {
			err := db.Collection("ready").FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}).Err()
			_, err2 := db.Collection("c").UpdateOne(ctx, bson.D{{Key: "_id", Value: 199}}, bson.D{{Key: "$unset", Value: bson.D{{Key: "none", Value: ""}}}})
			return (err == nil || err == mongo.ErrNoDocuments) && err2 == nil
		})
	}
	stop()
	copies := t.TempDir()
	for _, o := range members {
		if err := os.CopyFS(copyOf(copies, o), os.DirFS(o.dbpath())); err != nil {
			t.Fatal(err)
		}
	}
	start()

	// What happens after the copy is gone once it is restored: documents, a chunk that moved, a collection.
	insertNumbers(t, db, 1000, 10)
	adminOK(t, router.direct, bson.D{{Key: "moveRange", Value: "d.c"}, {Key: "min", Value: bson.D{{Key: "_id", Value: 100}}}, {Key: "toShard", Value: "shard00"}})
	if err := db.Collection("plain").Drop(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	for _, o := range members {
		if err := os.RemoveAll(o.dbpath()); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(o.dbpath(), os.DirFS(copyOf(copies, o))); err != nil {
			t.Fatal(err)
		}
	}
	start()

	if after := clusterState(t, ctx, router); !reflect.DeepEqual(before, after) {
		t.Errorf("restored:\n%v\nnot\n%v", after, before)
	}
	var found struct{ Cursor struct{ FirstBatch bson.A } }
	if err := router.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "checkMetadataConsistency", Value: 1}, {Key: "checkIndexes", Value: true}}).Decode(&found); err != nil || len(found.Cursor.FirstBatch) > 0 {
		t.Errorf("checkMetadataConsistency: %v, %v", found, err)
	}
	adminOK(t, router.direct, bson.D{{Key: "moveRange", Value: "d.c"}, {Key: "min", Value: bson.D{{Key: "_id", Value: 100}}}, {Key: "toShard", Value: "shard00"}})
	insertNumbers(t, db, 2000, 10)
}

func adminOK(t *testing.T, c *mongo.Client, cmd bson.D) {
	t.Helper()
	if err := c.Database("admin").RunCommand(t.Context(), cmd).Err(); err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
}

// insertNumbers inserts n documents into a sharded collection and into one that is not.
func insertNumbers(t *testing.T, db *mongo.Database, from, n int) {
	t.Helper()
	var docs []any
	for i := range n {
		docs = append(docs, bson.D{{Key: "_id", Value: from + i}, {Key: "x", Value: i % 7}})
	}
	for _, coll := range []string{"c", "plain"} {
		if _, err := db.Collection(coll).InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
	}
}

// clusterState reads the documents, indexes and chunks that a backup has to bring back.
func clusterState(t *testing.T, ctx context.Context, router *server) map[string][]bson.M {
	t.Helper()
	out := map[string][]bson.M{}
	for _, ns := range []string{"d.c", "d.plain", "config.chunks", "config.collections", "config.shards", "config.databases"} {
		db, coll, _ := strings.Cut(ns, ".")
		cur, err := router.direct.Database(db).Collection(coll).Aggregate(ctx, bson.A{bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}}})
		if err != nil {
			t.Fatal(err)
		}
		var docs []bson.M
		if err := cur.All(ctx, &docs); err != nil {
			t.Fatal(err)
		}
		out[coll] = docs
	}
	cur, err := router.direct.Database("d").Collection("c").Indexes().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var specs []bson.M
	if err := cur.All(ctx, &specs); err != nil {
		t.Fatal(err)
	}
	out["indexes"] = specs
	return out
}

func copyOf(dir string, o *server) string { return dir + "/" + o.at() }
