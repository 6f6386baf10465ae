package router_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// moveStep is a command on d.c, as a retryable write if number is not 0, and its outcome: the error code (of the command
// or of its first writeError), a part of the reply, and what the shards hold afterwards.
type moveStep struct {
	number int
	cmd    string
	code   mongoerr.Code
	field  string
	want   string
	stored string // "" for what was there before
}

// moveColl creates d.c, sharded by k: below 10 on shard0, the others on shard1.
func (c *testCluster) moveColl() {
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"k": 1}}`)
	c.run("admin", `{"split": "d.c", "middle": {"k": 10}}`)
	c.run("admin", `{"moveChunk": "d.c", "find": {"k": 10}, "to": "shard1"}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": 1, "k": 1}, {"_id": 2, "k": 2}, {"_id": 11, "k": 11}]}`)
}

// held lists the documents of d.c on each shard.
func (c *testCluster) held() string {
	var out []string
	for _, s := range []string{"shard0", "shard1"} {
		r := c.admin(c.shards[s], txnFind)
		out = append(out, show(get(r["cursor"], "firstBatch")))
	}
	return strings.ReplaceAll(strings.Join(out, " "), `"`, "")
}

func retryable(cmd string, number int) string {
	if number == 0 {
		return cmd
	}
	return fmt.Sprintf(`%s, %s, "txnNumber": {"$numberLong": "%d"}}`, cmd[:len(cmd)-1], txnLSID, number)
}

func update(st string) string { return `{"update": "c", "updates": [` + st + `]}` }

// Updates that move a document to another shard: as retryable writes, each sent twice, as after a reply that was lost.
func TestUpdatesThatMoveADocument(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	start := `[{_id:1,k:1},{_id:2,k:2}] [{_id:11,k:11}]`
	steps := []moveStep{
		{0, update(`{"q": {"k": 1}, "u": {"$set": {"k": 12}}}`), mongoerr.IllegalOperation, "", "", start},
		{0, update(`{"q": {"k": 1}, "u": {"$set": {"k": 3}}}`), mongoerr.IllegalOperation, "", "", ""},
		{0, update(`{"q": {"k": 1}, "u": {"$set": {"k": 12}}, "multi": true}`), mongoerr.InvalidOptions, "", "", ""},
		{0, `{"findAndModify": "c", "query": {"k": 1}, "update": {"$set": {"k": 12}}}`, mongoerr.IllegalOperation, "", "", ""},
		{1, update(`{"q": {"k": 1}, "u": {"$set": {"k": 12}}}`), 0, "nModified", "1", `[{_id:2,k:2}] [{_id:11,k:11},{_id:1,k:12}]`},
		{2, update(`{"q": {"k": 12}, "u": {"k": 3, "x": 1}}`), 0, "n", "1", `[{_id:2,k:2},{_id:1,k:3,x:1}] [{_id:11,k:11}]`},
		{3, update(`{"q": {"_id": 1}, "u": [{"$set": {"k": {"$add": ["$k", 10]}}}]}`), 0, "nModified", "1", `[{_id:2,k:2}] [{_id:11,k:11},{_id:1,k:13,x:1}]`},
		{4, `{"findAndModify": "c", "query": {"k": 13}, "update": {"$set": {"k": 4}}, "fields": {"k": 1, "_id": 0}}`, 0, "value", `{"k":13}`, `[{_id:2,k:2},{_id:1,k:4,x:1}] [{_id:11,k:11}]`},
		{5, `{"findAndModify": "c", "query": {"x": 1}, "update": {"$set": {"k": 14}}, "new": true, "fields": {"k": 1}}`, 0, "value", `{"_id":1,"k":14}`, `[{_id:2,k:2}] [{_id:11,k:11},{_id:1,k:14,x:1}]`},
		{6, `{"findAndModify": "c", "query": {"k": 14}, "update": {"$unset": {"x": 1}, "$set": {"k": 5}}}`, 0, "lastErrorObject", `{"n":1,"updatedExisting":true}`, `[{_id:2,k:2},{_id:1,k:5}] [{_id:11,k:11}]`},
		// within the shard it is an update like others
		{7, update(`{"q": {"k": 5}, "u": {"$inc": {"k": 1}}}`), 0, "nModified", "1", `[{_id:2,k:2},{_id:1,k:6}] [{_id:11,k:11}]`},
		{0, update(`{"q": {"k": 7}, "u": {"$set": {"k": 17, "_id": 7}}, "upsert": true}`), mongoerr.IllegalOperation, "", "", ""},
		{8, update(`{"q": {"k": 7, "_id": 7}, "u": [{"$set": {"k": 17}}], "upsert": true}`), 0, "upserted", `[{"index":0,"_id":7}]`, `[{_id:2,k:2},{_id:1,k:6}] [{_id:11,k:11},{_id:7,k:17}]`},
		{9, `{"findAndModify": "c", "query": {"k": 8, "_id": 8}, "update": [{"$set": {"k": 18}}], "upsert": true, "new": true}`, 0, "value", `{"_id":8,"k":18}`,
			`[{_id:2,k:2},{_id:1,k:6}] [{_id:11,k:11},{_id:7,k:17},{_id:8,k:18}]`},
		{10, `{"findAndModify": "c", "query": {"k": 9, "_id": 9}, "update": [{"$set": {"k": 19}}], "upsert": true}`, 0, "lastErrorObject", `{"n":1,"updatedExisting":false,"upserted":9}`,
			`[{_id:2,k:2},{_id:1,k:6}] [{_id:11,k:11},{_id:7,k:17},{_id:8,k:18},{_id:9,k:19}]`},
		// an upsert that does not name its shard, with and without a retry
		{0, update(`{"q": {"_id": 20}, "u": {"k": 20}, "upsert": true}`), 0, "upserted", `[{"index":0,"_id":20}]`,
			`[{_id:2,k:2},{_id:1,k:6}] [{_id:11,k:11},{_id:7,k:17},{_id:8,k:18},{_id:9,k:19},{_id:20,k:20}]`},
		{11, update(`{"q": {"_id": 21}, "u": {"k": 21}, "upsert": true}`), 0, "upserted", `[{"index":0,"_id":21}]`,
			`[{_id:2,k:2},{_id:1,k:6}] [{_id:11,k:11},{_id:7,k:17},{_id:8,k:18},{_id:9,k:19},{_id:20,k:20},{_id:21,k:21}]`},
		{0, `{"delete": "c", "deletes": [{"q": {"k": {"$gte": 17}}, "limit": 0}]}`, 0, "", "", `[{_id:2,k:2},{_id:1,k:6}] [{_id:11,k:11}]`},
		// several statements: none of them may move a document
		{12, update(`{"q": {"k": 2}, "u": {"$set": {"y": 1}}}, {"q": {"k": 6}, "u": {"$set": {"k": 16}}}`), mongoerr.InvalidOptions, "n", "1", `[{_id:2,k:2,y:1},{_id:1,k:6}] [{_id:11,k:11}]`},
		// what is refused at the new place stays where it was
		{13, update(`{"q": {"k": 30}, "u": {"_id": 1, "k": 31}, "upsert": true}`), 0, "n", "1", `[{_id:2,k:2,y:1},{_id:1,k:6}] [{_id:11,k:11},{_id:1,k:31}]`},
		{14, update(`{"q": {"k": 6}, "u": {"$set": {"k": 32}}}`), mongoerr.DuplicateKey, "", "", ""},
	}
	stored := ""
	for _, s := range steps {
		if s.stored != "" {
			stored = s.stored
		}
		for again := range 2 {
			r := c.raw("d", retryable(s.cmd, s.number))
			if code := codeOf(r); code != int32(s.code) {
				t.Errorf("%s (%d): code %d, want %d: %v", s.cmd, again, code, int32(s.code), r)
			}
			if got := show(r[s.field]); s.field != "" && got != s.want && !(s.number == 0 && again == 1) {
				t.Errorf("%s (%d): %s is %s, want %s", s.cmd, again, s.field, got, s.want)
			}
			if got := c.held(); got != stored {
				t.Fatalf("%s (%d): the shards hold %s, want %s", s.cmd, again, got, stored)
			}
		}
	}
	if t.Failed() {
		return
	}
	// A retry after another write has brought the document back, and after the chunk has moved.
	c.run("d", retryable(update(`{"q": {"k": 2}, "u": {"$set": {"k": 40}}}`), 20))
	c.run("d", `{"delete": "c", "deletes": [{"q": {"k": 31}, "limit": 0}]}`) // two of one _id cannot be on one shard
	other := strings.Replace(txnLSID, "AAAAAQ==", "AAAABQ==", 1)
	c.run("d", strings.Replace(retryable(update(`{"q": {"k": 40}, "u": {"$set": {"k": 2}}}`), 1), txnLSID, other, 1))
	c.run("admin", `{"moveChunk": "d.c", "find": {"k": 1}, "to": "shard1", "_waitForDelete": true}`)
	r := c.run("d", retryable(update(`{"q": {"k": 2}, "u": {"$set": {"k": 40}}}`), 20))
	if got := show(r["nModified"]) + show(r["retriedStmtIds"]); got != "1[0]" {
		t.Errorf("after the move of the chunk: %s", got)
	}
	if got := show(get(c.run("d", `{"find": "c", "filter": {"_id": 2}}`)["cursor"], "firstBatch")); got != `[{"_id":2,"k":2,"y":1}]` {
		t.Errorf("a retried update was executed again: %s", got)
	}
}

// A document moves within a client's transaction, and back where that is aborted.
func TestDocumentsMoveInTransactions(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	c.txn([]txnStep{
		{1, true, "d", update(`{"q": {"k": 1}, "u": {"$set": {"k": 12}}}`), 0, "nModified", "1"},
		{1, false, "d", update(`{"q": {"k": 12}, "u": {"$set": {"x": 1}}}`), 0, "nModified", "1"},
		{1, false, "d", `{"find": "c", "sort": {"_id": 1}}`, 0, "cursor", `[{"_id":1,"k":12,"x":1},{"_id":2,"k":2},{"_id":11,"k":11}]`},
		{1, false, "d", `{"findAndModify": "c", "query": {"_id": 2}, "update": {"$set": {"k": 13}}, "new": true}`, 0, "value", `{"_id":2,"k":13}`},
		{1, false, "d", update(`{"q": {"k": 5, "_id": 5}, "u": [{"$set": {"k": 15}}], "upsert": true}`), 0, "upserted", `[{"index":0,"_id":5}]`},
		{0, false, "d", `{"find": "c", "sort": {"_id": 1}}`, 0, "cursor", `[{"_id":1,"k":1},{"_id":2,"k":2},{"_id":11,"k":11}]`},
		{1, false, "admin", `{"abortTransaction": 1}`, 0, "", ""},
		{0, false, "d", `{"find": "c", "sort": {"_id": 1}}`, 0, "cursor", `[{"_id":1,"k":1},{"_id":2,"k":2},{"_id":11,"k":11}]`},
		{2, true, "d", update(`{"q": {"k": 1}, "u": {"$set": {"k": 12}}}`), 0, "nModified", "1"},
		{2, false, "admin", `{"bulkWrite": 1, "ops": [{"update": 0, "filter": {"k": 2}, "updateMods": {"$set": {"k": 22}}}], "nsInfo": [{"ns": "d.c"}]}`, 0, "nModified", "1"},
		{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{0, false, "d", `{"find": "c", "sort": {"_id": 1}}`, 0, "cursor", `[{"_id":1,"k":12},{"_id":2,"k":22},{"_id":11,"k":11}]`},
	})
	for i, st := range []string{`{"q": {"k": 12}, "u": {"$set": {"k": 1}}, "multi": true}`, `{"q": {"k": 12}, "u": {"$set": {"x": 1}}}, {"q": {"k": 22}, "u": {"$set": {"k": 2}}}`} {
		begin := fmt.Sprintf(`%s, "autocommit": false, "startTransaction": true}`, strings.TrimSuffix(retryable(update(st), 3+i), "}"))
		if r := c.raw("d", begin); codeOf(r) != int32(mongoerr.InvalidOptions) {
			t.Errorf("%s: %v", st, r)
		}
		c.txn([]txnStep{{3 + i, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, "", ""}})
	}
	if got := c.held(); got != `[] [{_id:11,k:11},{_id:1,k:12},{_id:2,k:22}]` {
		t.Errorf("the shards hold %s", got)
	}
}

// Every operation of a bulkWrite is a statement of its own, and the reply lists those that had been executed before.
func TestRetriedBulkWriteOverShards(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	cmd := retryable(`{"bulkWrite": 1, "ops": [{"update": 0, "filter": {"k": 1}, "updateMods": {"$inc": {"x": 1}}}, {"update": 0, "filter": {"k": 1}, "updateMods": {"$inc": {"x": 1}}},
		{"insert": 0, "document": {"_id": 12, "k": 12}}, {"update": 0, "filter": {"_id": 2}, "updateMods": {"$inc": {"x": 1}}}], "nsInfo": [{"ns": "d.c"}]}`, 1)
	for _, retried := range []string{"null", "[0,1,2,3]"} {
		r := c.run("admin", cmd)
		if got := show(r["nModified"]) + show(r["nInserted"]) + show(r["nErrors"]); got != "310" {
			t.Errorf("%s of 310: %v", got, r)
		}
		c.expect(r["retriedStmtIds"], retried)
	}
	if got := c.held(); got != `[{_id:1,k:1,x:2},{_id:2,k:2,x:1}] [{_id:11,k:11},{_id:12,k:12}]` {
		t.Errorf("the shards hold %s", got)
	}
}

// A statement without a shard key finds other documents when it is retried: it is not executed twice.
func TestRetriesWithoutAShardKey(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	for number, cmd := range []string{1: update(`{"q": {"x": null}, "u": {"$set": {"x": 1}}}`),
		2: `{"findAndModify": "c", "query": {"x": null}, "update": {"$set": {"x": 1}}}`,
		3: `{"delete": "c", "deletes": [{"q": {"x": 1}, "limit": 1}]}`} {
		if number == 0 {
			continue
		}
		var replies []string
		var after []string
		for range 2 {
			r := c.run("d", retryable(cmd, number))
			replies, after = append(replies, show(r["n"])+show(r["value"])), append(after, c.held())
		}
		if replies[0] != replies[1] || after[0] != after[1] {
			t.Errorf("%s: %v, then %v", cmd, replies, after)
		}
	}
}

// An upsert may insert its document on a shard that has no document that its filter matches. Sent again, it finds another document there, which it used to
// change, too.
func TestRetriedUpsertsThatInsertElsewhere(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	c.run("d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
	for number, tc := range []struct{ cmd, between string }{
		{update(`{"q": {"k": {"$gt": 10}, "z": 0}, "u": {"$inc": {"w": 1}}, "upsert": true}`), `{"k": 20, "z": 0}`},
		{`{"findAndModify": "c", "query": {"k": {"$gt": 10}, "z": 1}, "update": {"$inc": {"w": 1}}, "upsert": true, "new": true}`, `{"k": 20, "z": 1}`},
		{update(`{"q": {"k": {"$lt": 5}, "z": 2}, "u": {"$set": {"k": 33}, "$inc": {"w": 1}}, "upsert": true}`), `{"k": 2, "z": 2}`},
		{`{"bulkWrite": 1, "nsInfo": [{"ns": "d.c"}], "ops": [{"update": 0, "filter": {"k": {"$gt": 10}, "z": 3}, "updateMods": {"$inc": {"w": 1}}, "upsert": true}]}`, `{"k": 20, "z": 3}`},
	} {
		db := "d"
		if strings.Contains(tc.cmd, "bulkWrite") {
			db = "admin"
		}
		cmd := retryable(tc.cmd, number+1)
		first := c.run(db, cmd)
		c.run("d", `{"insert": "c", "documents": [`+tc.between+`]}`)
		again := c.run(db, cmd)
		for _, field := range []string{"n", "nModified", "upserted", "value", "nUpserted"} {
			if show(first[field]) != show(again[field]) {
				t.Errorf("%s: %s %s, then %s", cmd, field, show(first[field]), show(again[field]))
			}
		}
		if n := len(c.all("d", fmt.Sprintf(`{"find": "c", "filter": {"z": %d, "w": 1}}`, number))); n != 1 {
			t.Errorf("%s was executed %d times", cmd, n)
		}
	}
}

// The same update sent by many clients at the same moment is executed once, whichever of them gets which reply.
func TestConcurrentRetriesMoveADocumentOnce(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	for number := 1; number <= 20; number++ {
		from, to := 2, 12
		if number%2 == 0 {
			from, to = 12, 2
		}
		cmd := retryable(update(fmt.Sprintf(`{"q": {"k": %d}, "u": {"$set": {"k": %d}, "$inc": {"x": 1}}}`, from, to)), number)
		up := strings.Replace(retryable(update(fmt.Sprintf(`{"q": {"k": 3, "up": %d}, "u": [{"$set": {"k": 33}}], "upsert": true}`, number)), number), "AAAAAQ==", "AAAACQ==", 1)
		var wg sync.WaitGroup
		for range 4 {
			for _, cmd := range []string{cmd, up} {
				wg.Add(1)
				go func() {
					defer wg.Done()
					if r := c.raw("d", cmd); codeOf(r) != 0 || show(r["n"]) != "1" {
						t.Errorf("%s: %v", cmd, r)
					}
				}()
			}
		}
		wg.Wait()
	}
	if got := show(get(c.run("d", `{"find": "c", "filter": {"_id": 2}}`)["cursor"], "firstBatch")); got != `[{"_id":2,"k":2,"x":20}]` {
		t.Errorf("the document is %s", got)
	}
	if got := show(c.run("d", `{"count": "c", "query": {"k": 33}}`)["n"]); got != "20" {
		t.Errorf("%s upserts instead of 20", got)
	}
}

var txnFind = bson.D{{Key: "find", Value: "c"}, {Key: "sort", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "$db", Value: "d"}}

// codeOf returns a reply's error code, or that of its first writeError.
func codeOf(r bson.M) int32 {
	if errs, ok := r["writeErrors"].(bson.A); ok && len(errs) > 0 {
		return get(errs[0], "code").(int32)
	}
	code, _ := r["code"].(int32)
	return code
}

// A batch may have several upserts whose filters do not determine the shard; $merge sends such batches.
func TestUpsertsThatDoNotNameTheirShard(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	for _, ordered := range []bool{true, false} {
		c.run("d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
		r := c.run("d", fmt.Sprintf(`{"update": "c", "ordered": %v, "updates": [{"q": {"_id": 20}, "u": {"k": 20}, "upsert": true}, {"q": {"_id": 3}, "u": {"k": 3}, "upsert": true},
			{"q": {"_id": 21}, "u": {"$set": {"k": 21}}, "upsert": true}]}`, ordered))
		if got := show(r["n"]) + show(r["upserted"]); got != `3[{"index":0,"_id":20},{"index":1,"_id":3},{"index":2,"_id":21}]` {
			t.Errorf("ordered %v: %s", ordered, got)
		}
		if got, want := c.held(), `[{_id:3,k:3}] [{_id:20,k:20},{_id:21,k:21}]`; got != want {
			t.Errorf("ordered %v: the shards hold %s, want %s", ordered, got, want)
		}
	}
	c.run("admin", `{"shardCollection": "d.to", "key": {"g": 1, "_id": 1}}`)
	c.run("admin", `{"split": "d.to", "middle": {"g": 2, "_id": 0}}`)
	c.run("admin", `{"moveChunk": "d.to", "find": {"g": 2, "_id": 0}, "to": "shard1"}`)
	for range 2 {
		c.run("d", `{"aggregate": "c", "cursor": {}, "pipeline": [{"$set": {"g": {"$mod": ["$k", 4]}}}, {"$merge": {"into": "to",
			"whenMatched": [{"$set": {"again": "$$new.k"}}], "whenNotMatched": "insert"}}]}`)
	}
	got := show(get(c.run("d", `{"find": "to", "sort": {"_id": 1}}`)["cursor"], "firstBatch"))
	if want := `[{"_id":3,"k":3,"g":3,"again":3},{"_id":20,"k":20,"g":0,"again":20},{"_id":21,"k":21,"g":1,"again":21}]`; got != want {
		t.Errorf("merged: %s, want %s", got, want)
	}
}

// $merge finds documents by _id and the shard key, or by fields with a unique index.
func TestMergeIdentifiesDocuments(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	c.run("admin", `{"shardCollection": "d.to", "key": {"g": 1}}`)
	c.run("d", `{"createIndexes": "to", "indexes": [{"key": {"g": 1, "u": 1}, "name": "gu", "unique": true}, {"key": {"g": 1, "s": 1}, "name": "gs", "unique": true, "sparse": true}]}`)
	for _, tc := range []struct {
		on   string
		code mongoerr.Code
	}{{``, 0}, {`"on": "g",`, 51183}, {`"on": ["g", "_id"],`, 51183}, {`"on": ["u", "g"],`, 0}, {`"on": ["g", "s"],`, 51132}, {`"on": "_id",`, 0}} {
		r := c.raw("d", `{"aggregate": "c", "cursor": {}, "pipeline": [{"$set": {"g": {"$cond": [{"$eq": ["$k", 1]}, null, "$k"]}, "u": "$_id"}}, {"$merge": {"into": "to", `+tc.on+` "whenMatched": "merge"}}]}`)
		if codeOf(r) != int32(tc.code) {
			t.Errorf("%s: %v, want code %d", tc.on, r, int32(tc.code))
		}
	}
	if got := show(c.run("d", `{"count": "to"}`)["n"]); got != "3" {
		t.Errorf("%s documents were merged, want 3", got)
	}
}
