package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// oddDocuments are documents that resemble the nodes' own documents in some respect, but are invalid.
func oddDocuments(uuid any) []bson.D {
	id := func(b byte) bson.Binary { return bson.Binary{Subtype: 4, Data: append(make([]byte, 15), b)} }
	session := func(n any) bson.D {
		return bson.D{{Key: "lsid", Value: bson.D{{Key: "id", Value: id(1)}}}, {Key: "txnNumber", Value: n}}
	}
	doc := func(id any, more ...any) bson.D {
		d := bson.D{{Key: "_id", Value: id}}
		for i := 0; i < len(more); i += 2 {
			d = append(d, bson.E{Key: more[i].(string), Value: more[i+1]})
		}
		return d
	}
	at := func(k any) bson.D { return bson.D{{Key: "x", Value: k}} }
	rng := func(min, max any) bson.D { return bson.D{{Key: "min", Value: min}, {Key: "max", Value: max}} }
	return []bson.D{
		doc(nil), doc(1), doc("x"), doc(bson.D{}), doc(session("x")), doc(session(int64(1)), "participants", 1),
		doc(session(int64(2)), "participants", bson.A{"nosuch", 3, nil}), doc(session(int64(3)), "participants", bson.A{"nosuch"}, "decision", 7),
		doc(session(int64(4)), "participants", bson.A{"nosuch"}, "decision", bson.D{{Key: "decision", Value: "perhaps"}}), doc(session(int64(-4)), "participants", bson.A{}),
		doc(id(2), "nss", 1), doc(id(3), "nss", "odd.c"), doc(bson.Binary{Data: []byte{1}}, "nss", "odd.c", "range", 1, "collectionUuid", 1),
		doc(id(4), "nss", "odd.c", "collectionUuid", uuid, "recipientShardId", 9, "range", rng(3, "x")),
		doc(id(5), "nss", "odd.c", "collectionUuid", uuid, "recipientShardId", "nosuch", "range", rng(at(1), bson.D{}), "decision", "committed"),
		doc(id(6), "nss", "odd.c", "collectionUuid", uuid, "keyPattern", at(1), "range", rng(3, "x"), "whenToClean", "now"),
		doc(id(7), "nss", "odd.c", "collectionUuid", uuid, "keyPattern", bson.D{}, "range", rng(at(0), at(10)), "whenToClean", "now"),
		// The documents that this one would delete are the shard's own.
		doc(id(8), "nss", "odd.c", "collectionUuid", uuid, "keyPattern", at(1), "range", rng(at(bson.MinKey{}), at(bson.MaxKey{})), "whenToClean", "now"),
		doc("configRepl", "version", "x"), doc("shard00", "version", 1, "members", bson.A{}), doc("shard01", "version", int64(1), "members", bson.A{doc(0, "host", "a:1"), doc(1, "host", "b:1")}),
		doc("balancer", "stopped", bson.D{}, "activeWindow", 7), doc("chunksize", "value", "x"), doc("automerge", "enabled", "perhaps"),
		doc("ReadWriteConcernDefaults", "defaultWriteConcern", 3, "defaultReadConcern", bson.A{}), doc("querySettings", "settingsArray", 3),
		doc("shardIdentity", "shardName", 1), doc("featureCompatibilityVersion", "version", 1), doc(int64(5), "purpose", "HMAC", "key", 1, "expiresAt", 1),
		doc("odd2", "primary", 7, "version", "x"), doc("odd.z", "uuid", 1, "key", 3), doc("shardZZ", "host", 7), doc("shardYY", "host", ""),
		doc(bson.NewObjectID(), "uuid", uuid, "min", 3, "max", 4, "shard", 7), doc("zone", "ns", "odd.c", "min", 3, "max", at(1), "tag", 7),
	}
}

// Whatever a client writes to the collections that nodes read when they start, every node restarts, has its documents, and
// serves. Invalid documents are skipped with a line in the log.
func TestNodesStartBesideWhateverClientsWrote(t *testing.T) {
	t.Parallel()
	port, dir := freePorts(t, 3), t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	start := func() (*mongo.Client, *roles) {
		c := newConfig(isStart)
		c.Listen, c.DBPath, c.NodePort = []string{"127.0.0.1:0"}, dir, port
		r, err := startCluster(c, newHost(isStart))
		if err != nil {
			t.Fatalf("it does not start: %v", err)
		}
		client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + r.Addrs[0].String() + "/"))
		if err != nil {
			t.Fatal(err)
		}
		return client, r
	}
	client, r := start()
	stop := func() {
		if err := client.Disconnect(ctx); err != nil {
			t.Error(err)
		}
		if err := r.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	run := func(cmd bson.D) {
		t.Helper()
		if err := client.Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
			t.Errorf("%v: %v", cmd, err)
		}
	}
	coll := client.Database("odd").Collection("c")
	run(bson.D{{Key: "shardCollection", Value: "odd.c"}, {Key: "key", Value: bson.D{{Key: "x", Value: 1}}}})
	for i := range 100 {
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "x", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	var entry bson.M
	if err := client.Database("config").Collection("collections").FindOne(ctx, bson.D{{Key: "_id", Value: "odd.c"}}).Decode(&entry); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		writeOddities(ctx, t, fmt.Sprintf("mongodb://127.0.0.1:%d/?directConnection=true", port+i), entry["uuid"])
	}
	stop()
	for round := range 2 {
		client, r = start()
		coll = client.Database("odd").Collection("c")
		if n, err := coll.CountDocuments(ctx, bson.D{}); err != nil || n != 100 {
			t.Fatalf("after start %d: %d documents, %v", round, n, err)
		}
		run(bson.D{{Key: "shardCollection", Value: fmt.Sprint("odd.n", round)}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}})
		for _, to := range []string{"shard00", "shard01"} { // waits for undecided migrations and range deletions
			run(bson.D{{Key: "moveRange", Value: "odd.c"}, {Key: "min", Value: bson.D{{Key: "x", Value: bson.MinKey{}}}}, {Key: "toShard", Value: to}, {Key: "waitForDelete", Value: true}})
		}
		if n, err := coll.CountDocuments(ctx, bson.D{}); err != nil || n != 100 {
			t.Fatalf("after moves %d: %d documents, %v", round, n, err)
		}
		stop()
	}
}

// writeOddities inserts the odd documents wherever the node lets a client do so, and damages existing ones.
func writeOddities(ctx context.Context, t *testing.T, uri string, uuid any) {
	direct, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = direct.Disconnect(ctx) }()
	for db, names := range map[string][]string{
		"config": {"rangeDeletions", "migrationCoordinators", "transaction_coordinators", "transactions", "image_collection", "shards", "databases",
			"collections", "chunks", "tags", "settings", "version", "system.sessions", "clusterParameters", "system.preparedTransactions",
			"system.retryableWrites", "system.indexBuilds", "system.sharding_ddl_coordinators", "collection_critical_sections", "querySettings"},
		"admin": {"system.version", "system.keys"},
		"local": {"system.replset", "replset.election", "replset.minvalid", "startup_log", "system.rollback.id"},
	} {
		for _, name := range names {
			coll := direct.Database(db).Collection(name)
			docs := oddDocuments(uuid)
			_, err := coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
			var each mongo.BulkWriteException
			if errors.As(err, &each) && len(each.WriteErrors) > 0 { // many of them are refused, or exist already
				var refused []bson.D
				for _, e := range each.WriteErrors {
					refused = append(refused, docs[e.Index])
				}
				docs = refused
			} else if err == nil {
				docs = nil
			}
			for _, d := range docs {
				_, _ = coll.ReplaceOne(ctx, d[:1], d)
			}
			if db == "local" || name == "settings" || name == "clusterParameters" || name == "system.keys" {
				_, _ = coll.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "members", Value: "x"}, {Key: "key", Value: "x"}}}})
			}
		}
	}
}
