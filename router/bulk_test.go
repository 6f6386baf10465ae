package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The operations of a bulkWrite that insert into one collection go to its shards together; each has its own result.
func TestBulkInsertsOverShards(t *testing.T) {
	const ops = `"ops": [{"insert": 0, "document": {"_id": 11, "k": 11}}, {"insert": 0, "document": {"_id": 20, "k": 3}}, {"insert": 0, "document": {"_id": 20, "k": 14}},
		{"insert": 0, "document": {"_id": 1, "k": 1}}, {"insert": 1, "document": {"_id": 5}}, {"insert": 1, "document": {"_id": 5}}, {"delete": 0, "filter": {"k": 3}},
		{"insert": 0, "document": {"_id": 21, "k": 15}}, {"insert": 0, "document": {"_id": 22, "k": 16}}],
		"nsInfo": [{"ns": "d.c"}, {"ns": "d.plain"}]`
	for _, x := range []struct {
		options, want, retried string
	}{
		{`"ordered": true`, `nErrors 1, nInserted 0: 0!11000`, "null"},
		{`"ordered": false`, `nErrors 3, nInserted 5: 0!11000 1:1 2:1 3!11000 4:1 5!11000 6:1 7:1 8:1`, "[1,2,4,6,7,8]"},
		{`"ordered": false, "errorsOnly": true`, `nErrors 3, nInserted 5: 0!11000 3!11000 5!11000`, "[1,2,4,6,7,8]"},
	} {
		c := newTestCluster(t, 2)
		c.moveColl()
		for _, retried := range []string{"null", x.retried} {
			r := c.run("admin", retryable(`{"bulkWrite": 1, `+x.options+`, `+ops+`}`, 1))
			if got := fmt.Sprintf("nErrors %v, nInserted %v: %s", r["nErrors"], r["nInserted"], bulkResults(r)); got != x.want {
				t.Errorf("%s: %s, want %s", x.options, got, x.want)
			}
			c.expect(r["retriedStmtIds"], retried)
		}
	}
}

// Each entry of nsInfo expects the collection by its own UUID, also if two entries have one name, the command is relayed to one shard,
// or the router makes commands of its operations.
func TestBulkWriteExpectsUUIDs(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	c.run("d", `{"create": "plain"}`)
	for _, coll := range []string{"plain", "c"} {
		list := c.run("d", `{"listCollections": 1, "filter": {"name": "`+coll+`"}}`)
		info := get(get(list["cursor"], "firstBatch").(bson.A)[0], "info")
		current := show(get(info, "uuid"))
		nsInfo := `"nsInfo": [{"ns": "d.` + coll + `", "collectionUUID": ` + current + `}, {"ns": "d.` + coll + `", "collectionUUID": ` + otherUUID + `}]`
		for ops, want := range map[string]string{
			`{"insert": 1, "document": {"_id": 31, "k": 31}}, {"insert": 0, "document": {"_id": 32, "k": 32}}, {"insert": 1, "document": {"_id": 33, "k": 3}}`: "0!361 1:1 2!361",
			`{"update": 0, "filter": {}, "updateMods": {"$set": {"x": 1}}, "multi": true}, {"update": 1, "filter": {}, "updateMods": {"$set": {"x": 2}}, "multi": true},
				{"delete": 1, "filter": {}, "multi": true}, {"delete": 0, "filter": {"_id": 77}, "multi": true}`: "1!361 2!361 3:0",
		} {
			r := c.run("admin", `{"bulkWrite": 1, "ordered": false, "ops": [`+ops+`], `+nsInfo+`}`)
			if got := bulkResults(r); !strings.HasSuffix(got, want) {
				t.Errorf("%s: %s: %s, want %s", coll, ops, got, want)
			}
		}
		if r := c.run("d", `{"count": "`+coll+`", "query": {"x": 2}}`); r["n"] != int32(0) {
			t.Errorf("%s: %v documents were updated by a name that has another UUID now", coll, r["n"])
		}
	}
}

const otherUUID = `{"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}`

// bulkResults lists the operations that a bulkWrite's reply has results of: idx:n, or idx!code.
func bulkResults(r bson.M) string {
	var results []string
	batch := get(r["cursor"], "firstBatch")
	if batch == nil {
		batch = get(r["cursor"], "nextBatch")
	}
	for _, res := range batch.(bson.A) {
		if code := get(res, "code"); code != nil {
			results = append(results, fmt.Sprintf("%v!%v", get(res, "idx"), code))
		} else {
			results = append(results, fmt.Sprintf("%v:%v", get(res, "idx"), get(res, "n")))
		}
	}
	return strings.Join(results, " ")
}

// The results of a bulkWrite come in batches of the size that its cursor names, whether one shard has run it, the router has
// divided it, or the router has gone on where a shard stopped because its placement was out of date.
func TestBulkWriteInBatches(t *testing.T) {
	const ops = `"ops": [{"insert": 0, "document": {"_id": 101, "k": 101}}, {"insert": 1, "document": {"_id": 101}}, {"insert": 1, "document": {"_id": 101}},
		{"update": 0, "filter": {"_id": 101}, "updateMods": {"$set": {"x": 1}}}, {"delete": 0, "filter": {"_id": 101}}], "nsInfo": [{"ns": "d.c"}, {"ns": "d.plain"}], "ordered": false`
	session := func(i int) string {
		return fmt.Sprintf(`"lsid": {"id": {"$uuid": "bbbbbbbb-aaaa-4aaa-8aaa-%012d"}}`, i)
	}
	for name, prepare := range map[string]func(c *testCluster) *testCluster{
		"one shard": func(c *testCluster) *testCluster {
			c.run("d", `{"create": "c"}`)
			return c
		},
		"divided": func(c *testCluster) *testCluster {
			c.moveColl()
			return c
		},
		"taken over": func(c *testCluster) *testCluster {
			c.run("d", `{"create": "c"}`)
			c.run("d", `{"create": "plain"}`)
			stale := c.through()
			stale.run("d", `{"count": "c"}`)
			stale.run("d", `{"count": "plain"}`)
			c.run("admin", `{"shardCollection": "d.plain", "key": {"_id": 1}}`)
			return stale
		},
	} {
		c := newTestCluster(t, 2)
		c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
		c = prepare(c)
		for i, x := range []struct {
			batchSize, batches string
		}{
			{`{"batchSize": 0}`, ";0:1 1:1 2!11000 3:1 4:1"}, {`{"batchSize": 2}`, "0:1 1:1;2!11000 3:1 4:1"}, {`{"batchSize": 5}`, "0:1 1:1 2!11000 3:1 4:1"},
			{`{"batchSize": {"$numberLong": "3"}}`, "0:1 1:1 2!11000;3:1 4:1"}, {`{}`, "0:1 1:1 2!11000 3:1 4:1"},
		} {
			r := c.run("admin", `{"bulkWrite": 1, "cursor": `+x.batchSize+`, `+ops+`, `+session(i)+`}`)
			if got := fmt.Sprint(r["nErrors"], r["nInserted"], r["nModified"], r["nDeleted"]); got != "1 2 1 1" {
				t.Errorf("%s, %s: %v", name, x.batchSize, r)
			}
			c.expect(fieldAt(r, "cursor.ns"), `"admin.$cmd.bulkWrite"`)
			got := []string{bulkResults(r)}
			for id := fieldAt(r, "cursor.id").(int64); id != 0; id = fieldAt(r, "cursor.id").(int64) {
				r = c.run("admin", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "$cmd.bulkWrite", %s}`, id, session(i)))
				got = append(got, bulkResults(r))
			}
			if s := strings.Join(got, ";"); s != x.batches {
				t.Errorf("%s, %s: %s, want %s", name, x.batchSize, s, x.batches)
			}
			c.run("d", `{"delete": "plain", "deletes": [{"q": {}, "limit": 0}]}`)
			if name == "taken over" {
				break // the router's placement has been refreshed
			}
		}
		for cursor, code := range map[string]mongoerr.Code{`{"batchSize": -1}`: mongoerr.BadValue, `{"batchSize": "2"}`: mongoerr.TypeMismatch, `{"size": 2}`: mongoerr.IDLUnknownField, `2`: mongoerr.TypeMismatch} {
			if r := c.raw("admin", `{"bulkWrite": 1, "cursor": `+cursor+`, `+ops+`}`); r["code"] != int32(code) {
				t.Errorf("%s, cursor %s: %v", name, cursor, r)
			}
		}
		c.expect(c.run("d", `{"count": "plain"}`)["n"], "0")
	}
}

// A router checks the number of a bulkWrite's operations itself where it does not relay them as they are.
func TestBulkWriteOfTooMany(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	one := `{"insert": 0, "document": {"k": 1}},`
	for _, ops := range []string{"", strings.TrimSuffix(strings.Repeat(one, command.MaxWriteBatch+1), ",")} {
		if r := c.raw("admin", `{"bulkWrite": 1, "nsInfo": [{"ns": "d.c"}], "ops": [`+ops+`]}`); r["codeName"] != "InvalidLength" {
			t.Errorf("%d bytes of operations: %v", len(ops), r)
		}
	}
}

// The first error of an unordered bulkWrite in a transaction, which it aborts, is the last of its results, as it is on a member: the whole command used to fail with a label by which
// clients repeat the transaction, although it fails each time.
func TestUnorderedBulkWriteInTransaction(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	for i, ops := range []string{
		`{"update": 0, "filter": {"k": 1}, "updateMods": {"$bad": 1}}, {"insert": 0, "document": {"_id": 3, "k": 3}}, {"insert": 0, "document": {"_id": 12, "k": 12}}`,
		`{"insert": 0, "document": {"_id": 1, "k": 1}}, {"insert": 0, "document": {"_id": 12, "k": 12}}, {"insert": 0, "document": {"_id": 11, "k": 11}}, {"delete": 0, "filter": {"k": 1}}`,
	} {
		open := fmt.Sprintf(`%s, "txnNumber": {"$numberLong": "%d"}, "autocommit": false`, txnLSID, i+1)
		r := c.raw("admin", `{"bulkWrite": 1, "ordered": false, "ops": [{"insert": 0, "document": {"_id": 4, "k": 4}}, `+ops+`], "nsInfo": [{"ns": "d.c"}], "startTransaction": true, `+open+`}`)
		if r["ok"] != 1.0 {
			t.Fatalf("%s: %v", ops, show(r))
		}
		if got := bulkResults(r); !strings.HasPrefix(got, "0:1 1!") || strings.Contains(got, " 2") {
			t.Errorf("%s: %s", ops, got)
		}
		if r := c.raw("admin", `{"commitTransaction": 1, `+open+`}`); r["codeName"] != "NoSuchTransaction" {
			t.Errorf("commit: %v", r)
		}
	}
	if got := c.held(); got != `[{_id:1,k:1},{_id:2,k:2}] [{_id:11,k:11}]` {
		t.Errorf("the shards hold %s", got)
	}
}

// Fields without a value count as missing, as on a member. They used to fail their operations.
func TestBulkWriteOfNulls(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	r := c.run("admin", `{"bulkWrite": 1, "ops": [
		{"update": 0, "filter": {"k": 1}, "updateMods": {"$set": {"x": 1}}, "multi": null, "upsert": null, "collation": null, "arrayFilters": null, "constants": null, "sort": null},
		{"delete": 0, "filter": {"k": 11}, "multi": null, "collation": null}], "nsInfo": [{"ns": "d.c"}]}`)
	if got := bulkResults(r); got != "0:1 1:1" {
		t.Errorf("%v", show(r))
	}
}

// A migration to a shard that already has the collection waits for no transaction there, so that no writer waits for the migration.
func TestMoveToAShardWithAnOpenTransaction(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	open := txnLSID + `, "txnNumber": {"$numberLong": "1"}, "autocommit": false`
	c.run("d", `{"update": "c", "updates": [{"q": {"k": 1}, "u": {"$set": {"x": 1}}}], "startTransaction": true, `+open+`}`)
	c.run("admin", `{"moveRange": "d.c", "min": {"k": 10}, "max": {"k": 12}, "toShard": "shard0", "maxTimeMS": 100000}`)
	c.run("d", `{"update": "c", "updates": [{"q": {"k": 2}, "u": {"$set": {"x": 1}}}], "maxTimeMS": 100000}`)
	c.run("admin", `{"commitTransaction": 1, `+open+`}`)
	if got := c.held(); !strings.HasPrefix(got, `[{_id:1,k:1,x:1},{_id:2,k:2,x:1},{_id:11,k:11}] `) {
		t.Errorf("the shards hold %s", got)
	}
}
