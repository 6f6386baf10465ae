package router_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A DDL command whose collection does not have the UUID that its client expects says which one has, whether the collection has an entry in the catalog or not. A UUID that no collection of the
// database has is no collection's. Coordinators used to name none, and a rename of a missing source onto a sharded target said that it was missing.
func TestExpectedUUIDNamesTheCollectionThatHasIt(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, coll := range []string{"sharded", "other"} {
		c.run("admin", fmt.Sprintf(`{"shardCollection": "db.%s", "key": {"k": 1}}`, coll))
		c.run("admin", fmt.Sprintf(`{"split": "db.%s", "middle": {"k": 0}}`, coll))
		c.run("admin", fmt.Sprintf(`{"moveChunk": "db.%s", "find": {"k": 0}, "to": "shard1"}`, coll))
	}
	for _, coll := range []string{"plain", "moved"} {
		c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1, "k": 1}]}`, coll))
	}
	c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
	uuids := map[string]string{"": `{"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAA==", "subType": "04"}}`}
	for _, d := range c.all("db", `{"listCollections": 1}`) {
		uuids[get(d, "name").(string)] = show(get(get(d, "info"), "uuid"))
	}
	commands := strings.Split(`{"drop": "COLL"}
{"collMod": "COLL"}
{"dropIndexes": "COLL", "index": "*"}
{"createIndexes": "COLL", "indexes": [{"key": {"x": 1}, "name": "x"}]}
{"renameCollection": "db.COLL", "to": "db.new"}
{"renameCollection": "db.COLL", "to": "db.other", "dropTarget": true}`, "\n")
	for _, coll := range []string{"sharded", "plain", "moved", "missing"} {
		for _, has := range []string{"other", "plain", "moved", ""} {
			if has == coll {
				continue
			}
			for _, cmd := range commands {
				db := "db"
				if strings.HasPrefix(cmd, `{"rename`) {
					db = "admin"
				}
				cmd = strings.TrimSuffix(strings.ReplaceAll(cmd, "COLL", coll), "}") + `, "collectionUUID": ` + uuids[has] + "}"
				m := c.raw(db, cmd)
				var want any
				if has != "" {
					want = has
				}
				if m["code"] != int32(mongoerr.CollectionUUIDMismatch) || m["actualCollection"] != want || m["expectedCollection"] != coll {
					t.Errorf("%s: %s is the collection, and the reply %v", cmd, has, m)
				}
			}
		}
	}
}

// Reads and writes say so, too, whichever shard answers them: it used to know only what it has itself.
func TestReadsAndWritesNameTheCollectionThatHasTheUUID(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.sharded", "key": {"k": 1}}`)
	c.run("admin", `{"shardCollection": "db.elsewhere", "key": {"k": 1}}`)
	for _, coll := range []string{"sharded", "elsewhere"} {
		c.run("admin", fmt.Sprintf(`{"split": "db.%s", "middle": {"k": 0}}`, coll))
	}
	c.run("admin", `{"moveChunk": "db.sharded", "find": {"k": 1}, "to": "shard1"}`)
	c.run("admin", `{"moveChunk": "db.elsewhere", "find": {"k": 1}, "to": "shard2"}`)
	c.run("admin", `{"moveChunk": "db.elsewhere", "find": {"k": -1}, "to": "shard2"}`)
	for _, coll := range []string{"plain", "moved"} {
		c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1, "k": 1}]}`, coll))
	}
	c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
	uuids := map[string]string{"": `{"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAA==", "subType": "04"}}`}
	for _, d := range c.all("db", `{"listCollections": 1}`) {
		uuids[get(d, "name").(string)] = show(get(get(d, "info"), "uuid"))
	}
	commands := strings.Split(`{"find": "COLL", "filter": {"k": 1}, "collectionUUID": UUID}
{"find": "COLL", "collectionUUID": UUID}
{"aggregate": "COLL", "pipeline": [{"$match": {"k": 1}}], "cursor": {}, "collectionUUID": UUID}
{"count": "COLL", "query": {"k": 1}, "collectionUUID": UUID}
{"distinct": "COLL", "key": "k", "query": {"k": 1}, "collectionUUID": UUID}
{"insert": "COLL", "documents": [{"_id": 1, "k": 1}], "collectionUUID": UUID}
{"insert": "COLL", "documents": [{"_id": 1, "k": 1}, {"_id": 2, "k": 2}], "ordered": false, "collectionUUID": UUID}
{"update": "COLL", "updates": [{"q": {"k": 1}, "u": {"$set": {"x": 1}}}], "collectionUUID": UUID}
{"delete": "COLL", "deletes": [{"q": {"k": 1}, "limit": 1}], "collectionUUID": UUID}
{"findAndModify": "COLL", "query": {"k": 1}, "update": {"$set": {"x": 1}}, "collectionUUID": UUID}
{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 1, "k": 1}}], "nsInfo": [{"ns": "db.COLL", "collectionUUID": UUID}]}`, "\n")
	for _, coll := range []string{"sharded", "moved", "plain"} {
		for _, has := range []string{"elsewhere", "plain", "moved", ""} {
			if has == coll {
				continue
			}
			for _, cmd := range commands {
				cmd = strings.NewReplacer("COLL", coll, "UUID}", uuids[has]+"}").Replace(strings.ReplaceAll(cmd, `"collectionUUID": UUID`, `"collectionUUID": `+uuids[has]))
				db := "db"
				if strings.HasPrefix(cmd, `{"bulkWrite`) {
					db = "admin"
				}
				m := c.raw(db, cmd)
				failed := bson.A{}
				if list, ok := m["writeErrors"].(bson.A); ok {
					failed = list
				} else if m["cursor"] != nil {
					failed = get(m["cursor"], "firstBatch").(bson.A)
				}
				if len(failed) > 0 {
					m = decode(t, mustBSON(t, failed[0].(bson.D)))
				}
				var want any
				if has != "" {
					want = has
				}
				if m["code"] != int32(mongoerr.CollectionUUIDMismatch) || m["actualCollection"] != want || m["expectedCollection"] != coll {
					t.Errorf("%s: %s is the collection, and the reply %v", cmd, has, m)
				}
			}
		}
	}
}

// mismatchedCluster has the collections plain and other, which are on shard0, moved, which is on shard1, and spread, which is on both.
func mismatchedCluster(t *testing.T, watch func(shard string, m *wire.Message) error) (c *testCluster, uuid func(coll string) string) {
	t.Helper()
	c = newWatchedCluster(t, 2, watch)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, coll := range []string{"plain", "other", "moved"} {
		c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1}]}`, coll))
	}
	c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
	c.run("admin", `{"shardCollection": "db.spread", "key": {"_id": 1}}`)
	c.run("admin", `{"split": "db.spread", "middle": {"_id": 0}}`)
	c.run("admin", `{"moveChunk": "db.spread", "find": {"_id": 0}, "to": "shard1"}`)
	return c, func(coll string) string {
		list := c.all("db", fmt.Sprintf(`{"listCollections": 1, "filter": {"name": %q}}`, coll))
		return show(get(get(list[0], "info"), "uuid"))
	}
}

// The errors of a bulkWrite beyond its first batch name the collection, too, whether one shard has run it, the router has divided it, or the router has gone on where a shard stopped. They used to name none.
func TestLaterBatchesNameTheCollectionThatHasTheUUID(t *testing.T) {
	t.Parallel()
	c, uuid := mismatchedCluster(t, nil)
	stale := c.through()
	stale.run("db", `{"find": "moved"}`)
	stale.run("db", `{"find": "other"}`)
	for _, x := range []struct {
		form   string
		router *testCluster
		with   string // a namespace beside moved
	}{{"one shard", c, "db.moved"}, {"divided", c, "db.spread"}, {"taken over", stale, "db.other"}} {
		if x.router == stale {
			c.run("admin", `{"moveCollection": "db.other", "toShard": "shard1"}`)
			stale.run("admin", `{"moveCollection": "db.moved", "toShard": "shard0"}`)
		}
		r := x.router.run("admin", `{"bulkWrite": 1, "ordered": false, "cursor": {"batchSize": 1}, "nsInfo": [{"ns": "db.moved", "collectionUUID": `+uuid("plain")+`}, {"ns": "`+x.with+`"}], "ops": [
			{"insert": 0, "document": {"_id": 5}}, {"insert": 0, "document": {"_id": 6}}, {"update": 0, "filter": {"_id": 7}, "updateMods": {"$set": {"x": 1}}}, {"delete": 1, "filter": {"_id": 8}}, {"delete": 0, "filter": {"_id": 8}}]}`)
		c.expect(r["nErrors"], "4")
		results := fieldAt(r, "cursor.firstBatch").(bson.A)
		for id := fieldAt(r, "cursor.id").(int64); id != 0; id = fieldAt(r, "cursor.id").(int64) {
			r = x.router.run("admin", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "$cmd.bulkWrite", "batchSize": 2}`, id))
			results = append(results, fieldAt(r, "cursor.nextBatch").(bson.A)...)
		}
		var got []string
		for _, d := range results {
			got = append(got, fmt.Sprintf("%v %v", get(d, "idx"), get(d, "actualCollection")))
		}
		if s := strings.Join(got, ", "); s != "0 plain, 1 plain, 2 plain, 3 <nil>, 4 plain" {
			t.Errorf("%s: %s", x.form, s)
		}
	}
}

// However many errors a reply has about a collection, it is looked up once: each of them used to cost a listCollections.
func TestErrorsAboutOneCollectionLookItUpOnce(t *testing.T) {
	t.Parallel()
	var lists atomic.Int64
	c, uuid := mismatchedCluster(t, func(_ string, m *wire.Message) error {
		if string(m.CommandName()) == "listCollections" {
			lists.Add(1)
		}
		return nil
	})
	const n = 50
	repeated := func(statement string) string { return strings.TrimSuffix(strings.Repeat(statement+",", n), ",") }
	inserts, updates := repeated(`{"insert": 0, "document": {"_id": 9}}, {"insert": 1, "document": {"_id": 9}}`), repeated(`{"update": 0, "filter": {"_id": 9}, "updateMods": {"$set": {"x": 1}}}, {"update": 1, "filter": {"_id": 9}, "updateMods": {"$set": {"x": 1}}}`)
	const none = `{"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAA==", "subType": "04"}}`
	plain := uuid("plain")
	for _, x := range []struct {
		db, cmd string
		want    int64 // the number of collections
	}{
		{"db", `{"insert": "moved", "ordered": false, "collectionUUID": ` + plain + `, "documents": [` + repeated(`{"_id": 9}`) + `]}`, 1},
		{"db", `{"insert": "moved", "ordered": false, "collectionUUID": ` + none + `, "documents": [` + repeated(`{"_id": 9}`) + `]}`, 1},
		{"db", `{"update": "moved", "ordered": false, "collectionUUID": ` + plain + `, "updates": [` + repeated(`{"q": {"_id": 9}, "u": {"$set": {"x": 1}}}`) + `]}`, 1},
		{"admin", `{"bulkWrite": 1, "ordered": false, "nsInfo": [{"ns": "db.moved", "collectionUUID": ` + plain + `}, {"ns": "db.moved", "collectionUUID": ` + none + `}], "ops": [` + inserts + `]}`, 2},
		{"admin", `{"bulkWrite": 1, "ordered": false, "nsInfo": [{"ns": "db.spread", "collectionUUID": ` + plain + `}, {"ns": "db.moved", "collectionUUID": ` + none + `}], "ops": [` + updates + `]}`, 2},
		{"admin", `{"bulkWrite": 1, "ordered": false, "errorsOnly": true, "nsInfo": [{"ns": "db.spread"}, {"ns": "db.moved"}], "ops": [` + updates + `]}`, 0},
	} {
		lists.Store(0)
		m := c.raw(x.db, x.cmd)
		if got := lists.Load(); got != x.want {
			t.Errorf("%.150s: %d look-ups, want %d", x.cmd, got, x.want)
		}
		if got := strings.Count(show(m), `"code":361`); x.want > 0 && got < 1 || x.db == "admin" && int64(got) != n*x.want {
			t.Errorf("%.150s: %d errors: %s", x.cmd, got, show(m))
		}
	}
}

// The results of a bulkWrite whose errors name another collection by a long name, which the router has looked up, are longer than the batches of the shard: no batch of the router is larger than a batch may be. One was.
func TestLongNamesInABulkWrite(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "c"}`)
	long := strings.Repeat("n", 240)
	c.run("db", `{"create": "`+long+`"}`)
	c.run("admin", `{"moveCollection": "db.c", "toShard": "shard1"}`) // which has no other collection
	uuid := get(get(c.all("db", `{"listCollections": 1, "filter": {"name": "`+long+`"}}`)[0], "info"), "uuid")
	const n = 50_000
	ops := make(bson.A, n)
	for i := range ops {
		ops[i] = bson.D{{Key: "delete", Value: int32(0)}, {Key: "filter", Value: bson.D{}}}
	}
	body, err := bson.Marshal(bson.D{{Key: "bulkWrite", Value: int32(1)}, {Key: "ops", Value: ops}, {Key: "ordered", Value: false},
		{Key: "nsInfo", Value: bson.A{bson.D{{Key: "ns", Value: "db.c"}, {Key: "collectionUUID", Value: uuid}}}}, {Key: "$db", Value: "admin"}})
	if err != nil {
		t.Fatal(err)
	}
	reply, batch, found := c.router.Run(t.Context(), c.client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil), "firstBatch", 0
	for {
		cur := value.LookupDoc(reply, "cursor")
		list := value.Lookup(cur, batch).Doc()
		if len(list) > command.MaxBSONSize {
			t.Errorf("a batch of %d bytes", len(list))
		}
		for _, d := range value.Values(list) {
			if value.Lookup(d.Doc(), "actualCollection").Str() != long || value.Lookup(d.Doc(), "idx").Int32() != int32(found) {
				t.Fatalf("result %d: %s", found, value.ShowDoc(d.Doc()))
			}
			found++
		}
		id := value.Lookup(cur, "id").Int64()
		if id == 0 {
			break
		}
		more, err := bson.Marshal(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "$cmd.bulkWrite"}, {Key: "$db", Value: "admin"}})
		if err != nil {
			t.Fatal(err)
		}
		reply, batch = c.router.Run(t.Context(), c.client, &wire.Message{OpCode: wire.OpMsg, Body: more}, nil), "nextBatch"
	}
	if found != n {
		t.Errorf("%d results", found)
	}
}
