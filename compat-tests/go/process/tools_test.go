package process

import (
	"context"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestDumpIsRestored carries out the recipe of docs/operations.md with the real tools, where they are installed: a sharded cluster is dumped through
// its router, and restored to an empty one that has more shards.
func TestDumpIsRestored(t *testing.T) {
	for _, tool := range []string{"mongodump", "mongorestore"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	ctx := context.Background()
	cluster := func(shards int) (string, *mongo.Client) {
		port := freePorts(t, 1)[0]
		launch(t, "shoal", "start", "--data-dir", t.TempDir(), "--shards", strconv.Itoa(shards), "--listen", "127.0.0.1:"+strconv.Itoa(port))
		c := connect(t, direct(port))
		admin(t, c, bson.D{{Key: "balancerStop", Value: 1}})
		admin(t, c, bson.D{{Key: "shardCollection", Value: "d.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}})
		return "mongodb://127.0.0.1:" + strconv.Itoa(port), c
	}
	run := func(tool string, args ...string) {
		t.Helper()
		if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", tool, err, out)
		}
	}
	from, old := cluster(2)
	db := old.Database("d")
	insertRange(t, db.Collection("c"), 0, 2000)
	insertRange(t, db.Collection("plain"), 0, 300)
	if _, err := db.Collection("c").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "n", Value: -1}}, Options: options.Index().SetSparse(true)}); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []bson.D{
		{{Key: "create", Value: "capped"}, {Key: "capped", Value: true}, {Key: "size", Value: 100000}},
		{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 7}}}}}}}}},
		{{Key: "create", Value: "valid"}, {Key: "validator", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: 0}}}}}},
	} {
		if err := db.RunCommand(ctx, cmd).Err(); err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
	}
	dump := t.TempDir()
	run("mongodump", "--uri", from, "--out", dump)
	to, restored := cluster(3)
	run("mongorestore", "--uri", to, "--nsExclude", "config.*", dump)
	admin(t, restored, bson.D{{Key: "balancerStart", Value: 1}})
	for _, name := range []string{"c", "plain", "capped", "view", "valid"} {
		if was, is := contents(t, db, name), contents(t, restored.Database("d"), name); was != is {
			t.Errorf("%s was\n%s\nand is\n%s", name, was, is)
		}
	}
	found := admin(t, restored, bson.D{{Key: "checkMetadataConsistency", Value: 1}, {Key: "checkIndexes", Value: true}})["cursor"].(bson.D)
	if left := bson.D(found)[slices.IndexFunc(found, func(e bson.E) bool { return e.Key == "firstBatch" })].Value.(bson.A); len(left) > 0 {
		t.Errorf("checkMetadataConsistency: %v", left)
	}
}

// contents is what a backup has to bring back of a collection or view: documents in the order of their _id, indexes, options.
func contents(t *testing.T, db *mongo.Database, name string) string {
	t.Helper()
	ctx := context.Background()
	all := struct {
		Docs, Indexes []bson.Raw
		Options       []bson.D
	}{}
	cur, err := db.Collection(name).Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err == nil {
		err = cur.All(ctx, &all.Docs)
	}
	if err != nil {
		t.Fatal(err)
	}
	if cur, err = db.ListCollections(ctx, bson.D{{Key: "name", Value: name}}); err == nil {
		err = cur.All(ctx, &all.Options)
	}
	if err != nil || len(all.Options) != 1 {
		t.Fatalf("%s: %v, %v", name, all.Options, err)
	}
	collection := slices.ContainsFunc(all.Options[0], func(e bson.E) bool { return e.Key == "type" && e.Value == "collection" })
	all.Options[0] = slices.DeleteFunc(all.Options[0], func(e bson.E) bool { return e.Key == "info" }) // the restored collection has a UUID of its own
	if collection {
		if cur, err = db.Collection(name).Indexes().List(ctx); err == nil {
			err = cur.All(ctx, &all.Indexes)
		}
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(all.Indexes, func(a, b bson.Raw) int { return slices.Compare(a, b) })
	}
	text, err := bson.MarshalExtJSON(all, true, false)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
