package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// writingDuring runs a pipeline that ends in $out or $merge and, before the first of its documents is written, another command. A command
// creates its target before.
func writingDuring(t *testing.T, target, stage, db, command string) (c *testCluster, reply bson.M) {
	t.Helper()
	c = newTestCluster(t, 2)
	at := c.interposed("shard0")
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	var docs []string
	for i := range 200 {
		docs = append(docs, fmt.Sprintf(`{"_id": %d}`, i))
	}
	c.run("db", `{"insert": "from", "documents": [`+strings.Join(docs, ",")+`]}`)
	if target != "" {
		c.run("db", target)
	}
	var once atomic.Bool
	at.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if (name == "getMore" || name == "insert" || name == "update") && once.CompareAndSwap(false, true) {
			if m := c.raw(db, command); m["ok"] != 1.0 {
				t.Errorf("%s: %v", command, m)
			}
		}
		return call()
	})
	reply = c.raw("db", fmt.Sprintf(`{"aggregate": "from", "pipeline": [%s], "cursor": {}}`, stage))
	if !once.Load() {
		t.Errorf("%s: the router writes nothing", stage)
	}
	return c, reply
}

// While a pipeline writes into a collection, the collection is moved or sharded, or its database moves to another shard: nothing that was
// written is lost.
func TestWritingPipelinesBesideMoves(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{`{"$merge": "to"}`, `{"$merge": {"into": "to", "whenMatched": "fail"}}`, `{"$out": "to"}`} {
		for _, command := range []string{`{"movePrimary": "db", "to": "shard1"}`, `{"moveCollection": "db.to", "toShard": "shard1"}`, `{"shardCollection": "db.to", "key": {"_id": 1}}`} {
			c, m := writingDuring(t, `{"create": "to"}`, stage, "admin", command)
			want := `200`
			if strings.Contains(stage, "$out") && strings.Contains(command, "shardCollection") {
				if want = `0`; m["code"] != int32(mongoerr.NamespaceCannotBeSharded) {
					t.Errorf("%s during %s: %v", stage, command, m)
				}
			} else if m["ok"] != 1.0 {
				t.Errorf("%s during %s: %v", stage, command, m)
			}
			c.expect(fmt.Sprint(c.run("db", `{"count": "to"}`)["n"]), `"`+want+`"`)
			c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
			c.expect(c.all("db", `{"listCollections": 1, "filter": {"name": {"$regex": "tmp"}}}`), `[]`)
		}
	}
}

// An $out fails if the options or indexes of its target have changed while it was writing: the changes would be lost.
func TestOutBesideChangesOfItsTarget(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		target, command string
		code            mongoerr.Code
	}{
		{`{"create": "to"}`, `{"createIndexes": "to", "indexes": [{"key": {"k": 1}, "name": "k_1"}]}`, mongoerr.CommandFailed},
		{`{"create": "to"}`, `{"collMod": "to", "validator": {"k": 1}}`, mongoerr.CommandFailed},
		{`{"create": "to"}`, `{"drop": "to"}`, mongoerr.CommandFailed},
		{``, `{"create": "to", "capped": true, "size": 4096}`, mongoerr.CommandFailed},
		{``, `{"create": "to", "viewOn": "from", "pipeline": []}`, mongoerr.CommandFailed},
		{`{"create": "to"}`, `{"create": "other"}`, 0},
	} {
		c, m := writingDuring(t, x.target, `{"$out": "to"}`, "db", x.command)
		if x.code == 0 && m["ok"] != 1.0 || x.code != 0 && m["code"] != int32(x.code) {
			t.Errorf("$out during %s: %v", x.command, m)
		}
		c.expect(c.all("db", `{"listCollections": 1, "filter": {"name": {"$regex": "tmp"}}}`), `[]`)
		if n := len(c.all("db", `{"listCollections": 1, "filter": {"name": "to"}}`)); n > 1 {
			t.Errorf("during %s: %d collections have the name", x.command, n)
		}
	}
}

// An $out into a time series collection reads a sharded collection: the router has the documents.
func TestOutOfAShardedCollectionIntoATimeSeries(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.from", "key": {"_id": "hashed"}}`)
	var docs []string
	for i := range 50 {
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "t": {"$date": %d}}`, i, i*1000))
	}
	c.run("db", `{"insert": "from", "documents": [`+strings.Join(docs, ",")+`]}`)
	for _, out := range []string{`{"db": "db", "coll": "ts", "timeseries": {"timeField": "t"}}`, `{"db": "db", "coll": "ts", "timeseries": {"timeField": "t"}}`, `"ts"`} {
		c.run("db", `{"aggregate": "from", "pipeline": [{"$out": `+out+`}], "cursor": {}}`)
		c.expect(c.run("db", `{"count": "ts"}`)["n"], `50`)
	}
	c.expect(c.all("db", `{"listCollections": 1, "filter": {"name": {"$regex": "tmp"}}}`), `[]`)
	if m := c.raw("db", `{"aggregate": "from", "pipeline": [{"$out": {"db": "db", "coll": "ts", "timeseries": {"timeField": "other"}}}], "cursor": {}}`); m["ok"] == 1.0 {
		t.Errorf("with other options: %v", m)
	}
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `50`)
	c.expect(c.all("db", `{"listCollections": 1, "filter": {"name": {"$regex": "tmp"}}}`), `[]`)
}

// An $out reads with the client's read concern; its steps that read nothing take none: they used to refuse all levels but local.
func TestOutWithReadConcerns(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("d", `{"insert": "from", "documents": [{"_id": 1}, {"_id": 2}]}`)
	c.run("admin", `{"shardCollection": "d.spread", "key": {"_id": 1}}`)
	c.run("d", `{"insert": "spread", "documents": [{"_id": 1}, {"_id": 2}]}`)
	for _, from := range []string{"from", "spread"} {
		for _, level := range []string{"local", "available", "majority"} {
			for range 2 { // the second replaces the target of the first
				c.run("d", `{"aggregate": "`+from+`", "pipeline": [{"$out": "to"}], "cursor": {}, "readConcern": {"level": "`+level+`"}}`)
			}
			if n := len(c.all("d", `{"find": "to"}`)); n != 2 {
				t.Errorf("%s by %s: %d documents", from, level, n)
			}
			c.run("d", `{"drop": "to"}`)
		}
	}
}

// An aggregate that bypasses validation writes what the target's validator refuses, also where the router writes; it was refused.
func TestWritingPipelinesBypassValidation(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("d", `{"insert": "from", "documents": [{"_id": 1}, {"_id": 2}]}`)
	for _, stage := range []string{`{"$out": "to"}`, `{"$merge": "to"}`} {
		c.run("d", `{"create": "to", "validator": {"k": {"$exists": true}}}`)
		cmd := `{"aggregate": "from", "pipeline": [` + stage + `], "cursor": {}`
		if m := c.raw("d", cmd+`}`); m["code"] != int32(mongoerr.DocumentValidationFailure) {
			t.Errorf("%s: %v", stage, m)
		}
		c.run("d", cmd+`, "bypassDocumentValidation": true}`)
		if n := len(c.all("d", `{"find": "to"}`)); n != 2 {
			t.Errorf("%s: %d documents", stage, n)
		}
		c.run("d", `{"drop": "to"}`)
	}
}

// A router's $merge continues after a document that cannot be merged, and the pipeline of whenMatched has the command's variables.
func TestMergesOfARouter(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("d", `{"insert": "from", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 2}, {"_id": 3, "a": 3}]}`)
	c.run("d", `{"insert": "to", "documents": [{"_id": 1}]}`)
	m := c.raw("d", `{"aggregate": "from", "pipeline": [{"$sort": {"_id": 1}}, {"$merge": {"into": "to", "whenMatched": "fail"}}], "cursor": {}}`)
	if n := len(c.all("d", `{"find": "to"}`)); m["code"] != int32(mongoerr.DuplicateKey) || n != 3 {
		t.Errorf("%d documents; %v", n, m)
	}
	c.run("d", `{"aggregate": "from", "pipeline": [{"$merge": {"into": "to", "whenMatched": [{"$set": {"v": "$$x", "w": "$$y"}}], "let": {"y": "$a"}}}], "cursor": {}, "let": {"x": 7, "y": 9}}`)
	if n := len(c.all("d", `{"find": "to", "filter": {"v": 7, "w": {"$lt": 4}}}`)); n != 3 {
		t.Errorf("%d documents have the variables", n)
	}
}

// With an empty first batch a pipeline's last stage runs in a getMore, which writes with the arguments of the aggregate: they used to be lost.
func TestWritingPipelinesOfAGetMore(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("d", `{"insert": "from", "documents": [{"_id": 1, "a": "x"}, {"_id": 2, "a": "y"}]}`)
	c.run("admin", `{"shardCollection": "d.spread", "key": {"_id": "hashed"}}`)
	c.run("d", `{"insert": "spread", "documents": [{"_id": 1, "a": "x"}, {"_id": 2, "a": "y"}]}`)
	for _, from := range []string{"from", "spread"} {
		for _, x := range []struct{ stage, args, want string }{
			{`{"$out": "to"}`, `"bypassDocumentValidation": true`, `[{"_id":1,"a":"x"},{"_id":2,"a":"y"}]`},
			{`{"$merge": "to"}`, `"bypassDocumentValidation": true`, `[{"_id":1,"a":"x"},{"_id":2,"a":"y"},{"_id":"X","k":1}]`},
			{`{"$merge": {"into": "to", "on": "a", "whenMatched": [{"$set": {"k": "$$more"}}], "whenNotMatched": "discard"}}`,
				`"let": {"more": 7}, "collation": {"locale": "en", "strength": 2}`, `[{"_id":1,"a":"X","k":7}]`},
		} {
			c.run("d", `{"create": "to", "validator": {"k": {"$exists": true}}}`)
			if strings.Contains(x.args, "collation") {
				c.run("d", `{"createIndexes": "to", "indexes": [{"key": {"a": 1}, "name": "a", "unique": true, "collation": {"locale": "en", "strength": 2}}]}`)
				c.run("d", `{"insert": "to", "documents": [{"_id": 1, "a": "X", "k": 1}]}`)
			} else {
				c.run("d", `{"insert": "to", "documents": [{"_id": "X", "k": 1}]}`)
			}
			m := c.run("d", fmt.Sprintf(`{"aggregate": %q, "pipeline": [%s], "cursor": {"batchSize": 0}, %s}`, from, x.stage, x.args))
			id := get(m["cursor"], "id").(int64)
			if id == 0 {
				t.Fatalf("%s: no cursor", x.stage)
			}
			if m := c.raw("d", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": %q}`, id, from)); m["ok"] != 1.0 {
				t.Errorf("%s of %s: %v", x.stage, from, m)
			}
			c.expect(c.all("d", `{"find": "to", "sort": {"_id": 1}}`), x.want)
			c.run("d", `{"drop": "to"}`)
		}
	}
}

// An $out into a time series that was moved or unsharded replaces it; the collection is on the primary shard of its database afterwards, as others are.
func TestOutIntoAMovedTimeSeries(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	var docs []string
	for i := range 50 {
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "m": %d, "t": {"$date": %d}}`, i, i%5, i*1000))
	}
	c.run("db", `{"insert": "from", "documents": [`+strings.Join(docs, ",")+`]}`)
	c.run("db", `{"insert": "away", "documents": [`+strings.Join(docs, ",")+`]}`)
	c.run("admin", `{"moveCollection": "db.away", "toShard": "shard1"}`)
	c.run("db", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	for _, from := range []string{"from", "away"} {
		for _, out := range []string{`"ts"`, `{"db": "db", "coll": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`} {
			c.run("db", `{"insert": "ts", "documents": [{"_id": 100, "m": 100, "t": {"$date": 5}}]}`)
			c.run("admin", `{"moveCollection": "db.ts", "toShard": "shard1"}`)
			c.expect(c.run("db", `{"count": "ts", "query": {"m": 100}}`)["n"], `1`)
			c.run("db", `{"aggregate": "`+from+`", "pipeline": [{"$out": `+out+`}], "cursor": {}}`)
			c.expect(c.run("db", `{"count": "ts"}`)["n"], `50`)
			c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
			c.expect(c.all("db", `{"listCollections": 1, "filter": {"name": {"$regex": "tmp"}}}`), `[]`)
		}
	}
}

// The shard drops the temporary collection of an $out when it has a new primary. An $out that went on wrote what was left into another collection of the name, and put that in place of its target; or it
// failed as if the client had renamed a collection that does not exist. It fails as if it had met the change itself: the target is unchanged.
func TestOutDuringAnElection(t *testing.T) {
	t.Parallel()
	const target = `{"createIndexes": "to", "indexes": [{"key": {"k": 1}, "name": "k_1"}]}`
	for _, x := range []struct {
		step, target string
		times        int32
	}{
		{"createIndexes", target, 1},
		{"insert", target, 1},
		{"insert", target, 2},
		{"_shardsvrRenameCollection", target, 1},
		{"_shardsvrRenameCollection", `{"create": "other"}`, 1},
		{"aggregate", `{"create": "to", "timeseries": {"timeField": "t"}}`, 2}, // the first one reads
	} {
		name := fmt.Sprint(x.step, " ", x.times, " ", x.target)
		c := newTestCluster(t, 2)
		at := c.interposed("shard0")
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("admin", `{"shardCollection": "db.from", "key": {"_id": "hashed"}}`)
		var docs []string
		for i := range 2500 {
			docs = append(docs, fmt.Sprintf(`{"_id": %d, "t": {"$date": %d}}`, i, i*1000))
		}
		c.run("db", `{"insert": "from", "documents": [`+strings.Join(docs, ",")+`]}`)
		c.run("db", x.target)
		if !strings.Contains(x.target, "other") {
			c.run("db", `{"insert": "to", "documents": [`+strings.Join(docs[:3], ",")+`]}`)
		}
		before := show(c.all("db", `{"find": "to", "sort": {"_id": 1}}`))
		temporary := func() (names []string) {
			c.server["shard0"].Node.Engine.Catalog().Each(func(coll *catalog.Collection) {
				if coll.DB() == "db" && strings.HasPrefix(coll.Name(), "tmp") {
					names = append(names, coll.Name())
				}
			})
			return names
		}
		var seen atomic.Int32
		at.through(func(_ context.Context, command string, call func() ([]byte, error)) ([]byte, error) {
			if command == x.step && seen.Add(1) == x.times {
				c.restart("shard0")
				c.until("the temporary collection is dropped", func() bool { return len(temporary()) == 0 })
			}
			return call()
		})
		m := c.raw("db", `{"aggregate": "from", "pipeline": [{"$out": "to"}], "cursor": {}}`)
		if m["code"] != int32(mongoerr.HostUnreachable) || !strings.Contains(fmt.Sprint(m["errmsg"]), "operation was interrupted") || m["errorLabels"] != nil {
			t.Errorf("%s: %v", name, m)
		}
		if seen.Load() < x.times {
			t.Errorf("%s: the step was not reached", name)
		}
		if after := show(c.all("db", `{"find": "to", "sort": {"_id": 1}}`)); after != before {
			t.Errorf("%s: the target has %d bytes, and had %d", name, len(after), len(before))
		}
		if left := temporary(); len(left) > 0 {
			t.Errorf("%s leaves %v", name, left)
		}
	}
}
