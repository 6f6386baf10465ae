package main

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// anyDDL runs DDL of every kind, at random, on a collection that clients write to meanwhile, and on databases that live for a moment.
type anyDDL struct {
	l *clusterLoad

	sharded bool
	key     bson.D // the shard key, nil of a collection that is not sharded
	lives   int    // databases made
	done    map[string]int
	unclear []string // commands that did not come to an end

	mu struct {
		sync.Mutex
		next  int
		known map[int]bool // the documents that were sent: acknowledged
	}
}

const ddlDB = "nemesisddl"

// ddlKeys are those that the collection is sharded by; the second refines the first.
var ddlKeys = []bson.D{{{Key: "k", Value: 1}}, {{Key: "k", Value: 1}, {Key: "_id", Value: 1}}, {{Key: "g", Value: "hashed"}}}

func (o *anyDDL) prepare() {
	c := o.l.c
	o.done, o.mu.known = map[string]int{}, map[int]bool{}
	c.admin(bson.D{{Key: "enableSharding", Value: ddlDB}})
	c.admin(bson.D{{Key: "shardCollection", Value: ddlDB + ".c"}, {Key: "key", Value: ddlKeys[0]}})
	o.sharded, o.key = true, ddlKeys[0]
	for _, key := range ddlKeys[1:] {
		if _, err := o.coll(c.client).Indexes().CreateOne(context.Background(), mongo.IndexModel{Keys: key}); err != nil {
			o.l.t.Fatal(err)
		}
	}
}

func (o *anyDDL) coll(c *mongo.Client) *mongo.Collection {
	return c.Database(ddlDB, options.Database().SetWriteConcern(writeconcern.Majority())).Collection("c")
}

// insert inserts one document.
func (o *anyDDL) insert(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
	o.mu.Lock()
	n := o.mu.next
	o.mu.next++
	o.mu.known[n] = false
	o.mu.Unlock()
	_, err := o.coll(client).InsertOne(ctx, bson.D{{Key: "_id", Value: n}, {Key: "k", Value: rnd.Intn(1000)}, {Key: "g", Value: n}})
	if mongo.IsDuplicateKeyError(err) {
		o.l.h.violation("document %d of %s met itself: %v (%v after the start)", n, ddlDB, err, time.Since(o.l.h.start))
	}
	if err != nil {
		o.l.errors.add("insert beside DDL", err)
		return err
	}
	o.l.acked.Add(1)
	o.mu.Lock()
	o.mu.known[n] = true
	o.mu.Unlock()
	return nil
}

// step is one command, and the errors that mean that an earlier attempt has done it.
type ddlStep struct {
	db    string
	cmd   bson.D
	again []mongoerr.Code
}

// run sends commands until each has a reply.
func (o *anyDDL) run(client *mongo.Client, kind string, steps ...ddlStep) error {
	for _, s := range steps {
		o.l.longer.ddl.Add(1)
		ok := o.l.longer.until(kind, func(ctx context.Context, again bool) error {
			err := client.Database(s.db).RunCommand(ctx, s.cmd).Err()
			if again && slices.Contains(s.again, mongoerr.Code(codeOf(err))) {
				return nil
			}
			return err
		})
		o.l.longer.ddl.Add(-1)
		if !ok {
			o.unclear = append(o.unclear, kind)
			return fmt.Errorf("%s did not end", kind)
		}
	}
	o.done[kind]++
	return nil
}

// any runs an operation of a random kind.
func (o *anyDDL) any(_ context.Context, client *mongo.Client, rnd *rand.Rand) error {
	const ns = ddlDB + ".c"
	to := shardName(rnd.Intn(len(o.l.c.shards)))
	switch rnd.Intn(10) {
	case 0:
		return o.run(client, "collMod", ddlStep{db: ddlDB, cmd: bson.D{{Key: "collMod", Value: "c"}, {Key: "validator", Value: bson.D{{Key: "g", Value: bson.D{{Key: "$gte", Value: -rnd.Intn(100)}}}}}}})
	case 1:
		index := bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x"}}}
		return o.run(client, "createIndexes and dropIndexes", ddlStep{db: ddlDB, cmd: bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: index}}},
			ddlStep{db: ddlDB, cmd: bson.D{{Key: "dropIndexes", Value: "c"}, {Key: "index", Value: "x"}}, again: []mongoerr.Code{mongoerr.IndexNotFound}})
	case 2:
		return o.run(client, "movePrimary", ddlStep{db: "admin", cmd: bson.D{{Key: "movePrimary", Value: ddlDB}, {Key: "to", Value: to}}})
	case 3:
		return o.run(client, "setAllowMigrations", ddlStep{db: "admin", cmd: bson.D{{Key: "setAllowMigrations", Value: "nemesis.log"}, {Key: "allowMigrations", Value: false}}},
			ddlStep{db: "admin", cmd: bson.D{{Key: "setAllowMigrations", Value: "nemesis.log"}, {Key: "allowMigrations", Value: true}}})
	case 4:
		return o.brief(client)
	case 5:
		seconds := bson.D{{Key: "preAndPostImages", Value: bson.D{{Key: "expireAfterSeconds", Value: 1000 + rnd.Intn(1000)}}}}
		return o.run(client, "setClusterParameter", ddlStep{db: "admin", cmd: bson.D{{Key: "setClusterParameter", Value: bson.D{{Key: "changeStreamOptions", Value: seconds}}}}})
	}
	return o.place(client, ns, to, rnd)
}

// place gives the collection another key or other shards.
func (o *anyDDL) place(client *mongo.Client, ns, to string, rnd *rand.Rand) (err error) {
	key := ddlKeys[rnd.Intn(len(ddlKeys))]
	switch {
	case !o.sharded && rnd.Intn(4) == 0:
		return o.untrack(client, ns)
	case !o.sharded && rnd.Intn(2) == 0:
		return o.run(client, "moveCollection", ddlStep{db: "admin", cmd: bson.D{{Key: "moveCollection", Value: ns}, {Key: "toShard", Value: to}}})
	case !o.sharded:
		if err = o.run(client, "shardCollection", ddlStep{db: "admin", cmd: bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: ddlKeys[0]}}}); err == nil {
			o.sharded, o.key = true, ddlKeys[0]
		}
	case len(o.key) == 1 && o.key[0].Key == "k" && rnd.Intn(2) == 0:
		if err = o.run(client, "refineCollectionShardKey", ddlStep{db: "admin", cmd: bson.D{{Key: "refineCollectionShardKey", Value: ns}, {Key: "key", Value: ddlKeys[1]}}}); err == nil {
			o.key = ddlKeys[1]
		}
	case rnd.Intn(3) == 0:
		step := ddlStep{db: "admin", cmd: bson.D{{Key: "unshardCollection", Value: ns}, {Key: "toShard", Value: to}}, again: []mongoerr.Code{mongoerr.NamespaceNotSharded}}
		if err = o.run(client, "unshardCollection", step); err == nil {
			o.sharded, o.key = false, nil
		}
	default:
		step := ddlStep{db: "admin", cmd: bson.D{{Key: "reshardCollection", Value: ns}, {Key: "key", Value: key}, {Key: "numInitialChunks", Value: 3}}}
		if err = o.run(client, "reshardCollection", step); err == nil {
			o.key = key
		}
	}
	return err
}

// untrack moves the collection, which is not sharded, to the primary shard of its database, and takes it from the catalog.
func (o *anyDDL) untrack(client *mongo.Client, ns string) error {
	var db struct{ Primary string }
	if err := client.Database("config").Collection("databases").FindOne(context.Background(), bson.D{{Key: "_id", Value: ddlDB}}).Decode(&db); err != nil {
		return err
	}
	return o.run(client, "untrackUnshardedCollection", ddlStep{db: "admin", cmd: bson.D{{Key: "moveCollection", Value: ns}, {Key: "toShard", Value: db.Primary}}},
		ddlStep{db: "admin", cmd: bson.D{{Key: "untrackUnshardedCollection", Value: ns}}})
}

// brief makes a database with several kinds of collections, and drops it.
func (o *anyDDL) brief(client *mongo.Client) error {
	db := fmt.Sprintf("%s%d", ddlDB, o.lives)
	o.lives++
	in := func(cmd bson.D, again ...mongoerr.Code) ddlStep { return ddlStep{db: db, cmd: cmd, again: again} }
	admin := func(cmd bson.D, again ...mongoerr.Code) ddlStep {
		return ddlStep{db: "admin", cmd: cmd, again: again}
	}
	return o.run(client, "create, time series, rename, convertToCapped, drop, dropDatabase",
		admin(bson.D{{Key: "enableSharding", Value: db}, {Key: "primaryShard", Value: shardName(0)}}), admin(bson.D{{Key: "enableSharding", Value: db + "x"}, {Key: "primaryShard", Value: shardName(0)}}),
		in(bson.D{{Key: "create", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}}}),
		admin(bson.D{{Key: "shardCollection", Value: db + ".series"}, {Key: "key", Value: bson.D{{Key: "m", Value: 1}}}}),
		in(bson.D{{Key: "collMod", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "granularity", Value: "minutes"}}}}),
		in(bson.D{{Key: "create", Value: "leaves"}}),
		admin(bson.D{{Key: "renameCollection", Value: db + ".leaves"}, {Key: "to", Value: db + "x.arrived"}}, mongoerr.NamespaceNotFound, mongoerr.NamespaceExists),
		ddlStep{db: db + "x", cmd: bson.D{{Key: "dropDatabase", Value: 1}}},
		in(bson.D{{Key: "create", Value: "plain"}}), in(bson.D{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "plain"}, {Key: "pipeline", Value: bson.A{}}}),
		admin(bson.D{{Key: "shardCollection", Value: db + ".sharded"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}}),
		in(bson.D{{Key: "create", Value: "target"}}),
		admin(bson.D{{Key: "renameCollection", Value: db + ".sharded"}, {Key: "to", Value: db + ".target"}, {Key: "dropTarget", Value: true}}, mongoerr.NamespaceNotFound),
		in(bson.D{{Key: "convertToCapped", Value: "plain"}, {Key: "size", Value: 4096}}),
		in(bson.D{{Key: "drop", Value: "target"}}), in(bson.D{{Key: "dropDatabase", Value: 1}}))
}

// check compares the collection with what was acknowledged.
func (o *anyDDL) check(t *testing.T, long bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var docs []struct {
		ID int `bson:"_id"`
	}
	cur, err := o.coll(o.l.c.client).Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	if err != nil {
		t.Error(err)
		return
	}
	found := map[int]int{}
	for _, d := range docs {
		found[d.ID]++
	}
	acked := 0
	for n, known := range o.mu.known {
		if known {
			acked++
		}
		if found[n] > 1 || found[n] == 0 && known {
			t.Errorf("document %d of %s is there %d times (acknowledged: %v)", n, ddlDB, found[n], known)
		}
	}
	if len(o.unclear) > 0 {
		t.Errorf("DDL did not come to an end: %v", o.unclear)
	}
	t.Logf("%d documents acknowledged beside DDL, %d there; %v", acked, len(found), o.done)
	if acked == 0 || long && len(o.done) < 10 {
		t.Errorf("not everything was tried: %d documents, %v", acked, o.done)
	}
	o.l.c.checkCatalog(ddlDB, "c")
}
