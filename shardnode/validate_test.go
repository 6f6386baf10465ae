package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// damage gives the document {_id: 1} an index entry of another key in place of its own: the number of entries stays right.
func (n *testNode) damage(ns string) {
	n.t.Helper()
	e := n.srv.Engine
	c := e.Catalog().Lookup(ns)
	s := e.Snapshot()
	defer s.Release()
	u := e.NewUnitOfWork(s)
	rid, _, ok, err := s.FindByID(c, value.NewInt32(1))
	if err != nil || !ok {
		n.t.Fatal(ok, err)
	}
	rid = rid.Clone()
	doc := func(a int32, more ...value.Field) []byte {
		return value.Doc(append([]value.Field{value.F("_id", value.NewInt32(1)), value.F("a", value.NewInt32(a))}, more...)...)
	}
	// The second update states the wrong old document, whose key is that of the new one: it leaves the index as it is.
	for _, to := range [][]byte{doc(7), doc(1, value.F("b", value.NewInt32(1)))} {
		if err := u.Update(c, rid, doc(1), to, storage.NoInfo); err != nil {
			n.t.Fatal(err)
		}
	}
	if _, err := e.Commit(n.t.Context(), u, true); err != nil {
		n.t.Fatal(err)
	}
}

// An entry that is missing and another one that has no document are found although an index has as many entries as there are keys, and repaired on a
// standalone server.
func TestValidateRepairs(t *testing.T) {
	srv, err := Open(Config{Memory: true, Host: "test:27017", Info: &command.Info{Host: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	n := &testNode{t: t, srv: srv, cl: command.NewClient(1, "test:1", "test:27017", nil)}
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 0, "a": 0}, {"_id": 1, "a": 1}, {"_id": 2, "a": 2}]}`)
	n.damage("d.c")
	const three = `{"_id_":{"$numberInt":"3"},"a_1":{"$numberInt":"3"}}`
	const found = ` [{"indexName":"a_1","recordId":{"$numberLong":"2"},"indexKey":{"a":{"$numberInt":"1"}}}] [{"indexName":"a_1","recordId":{"$numberLong":"2"},"indexKey":{"a":{"$numberInt":"7"}}}] [Detected 1 missing index entries. Detected 1 extra index entries.]`
	brief := func(v bson.M) string {
		return fmt.Sprint(v["valid"], v["repaired"], v["repairMode"], v["keysPerIndex"], v["missingIndexEntries"], v["extraIndexEntries"], v["errors"])
	}
	for _, tc := range []struct{ options, want string }{
		{`"full": true`, "false falseNone" + three + found},
		{`"repair": true`, "false trueFixErrors" + three + found},
		{`"repair": true`, "true falseFixErrors" + three + " [] [] []"},
		{`"fixMultikey": true`, "true falseAdjustMultikey" + three + " [] [] []"},
	} {
		if got := brief(n.ok("d", `{"validate": "c", `+tc.options+`}`)); got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", tc.options, got, tc.want)
		}
	}
	if r := n.do("d", `{"validate": "c", "background": true}`); r["code"] != int32(mongoerr.CommandNotSupported) {
		t.Error(r)
	}
	if r := newTestNode(t).do("d", `{"validate": "c", "repair": true}`); r["code"] != int32(mongoerr.InvalidOptions) {
		t.Error(r)
	}
	if r := n.ok("d", `{"count": "c", "query": {"a": 1}, "hint": "a_1"}`); r["n"] != int32(1) {
		t.Error(r)
	}
}

// A record that both inputs of a SORT_MERGE return is counted as a duplicate.
func TestDuplicatesOfASortMergeAreCounted(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1, "c": 1}, "name": "a"}, {"key": {"b": 1, "c": 1}, "name": "b"}]}`)
	n.ok("d", `{"insert": "c", "documents": [{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 2, "c": 2}]}`)
	r := fmt.Sprint(n.ok("d", `{"explain": {"find": "c", "filter": {"$or": [{"a": 1}, {"b": 1}]}, "sort": {"c": 1}}, "verbosity": "executionStats"}`))
	if !strings.Contains(r, "SORT_MERGE") || !strings.Contains(r, `"dupsDropped":{"$numberInt":"1"}`) {
		t.Error(r)
	}
}
