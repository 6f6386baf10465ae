package shardnode

import (
	"regexp"
	"testing"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Errors of the commands on indexes, as other servers' suites have measured them.
func TestErrorsOfIndexCommands(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	n.ok("d", `{"create": "empty"}`)
	const twice = `"indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"a": 1}, "name": "a_1"}]}`
	const built = `^Index build failed: [0-9a-f-]{36}: Collection d\.\w+ \( [0-9a-f-]{36} \) :: caused by :: Cannot build two identical indexes\. Try again without duplicate indexes\.$`
	for _, x := range []struct {
		cmd  string
		code mongoerr.Code
		text string
	}{
		{`{"createIndexes": "new", ` + twice, mongoerr.IndexAlreadyExists, `^Identical index already exists: a_1$`},
		{`{"createIndexes": "c", ` + twice, mongoerr.OperationFailed, built},
		{`{"createIndexes": "empty", ` + twice, mongoerr.OperationFailed, built},
		{`{"dropIndexes": "c", "index": true}`, mongoerr.TypeMismatch, `^BSON field 'dropIndexes\.index' is the wrong type 'bool', expected types '\[string, object'\]$`},
		{`{"dropIndexes": "c", "index": [{"a": 1}]}`, mongoerr.TypeMismatch, `^BSON field 'dropIndexes\.index' is the wrong type 'array', expected types '\[string'\]$`},
		{`{"insert": "system.odd", "documents": [{}]}`, mongoerr.InvalidNamespace, `^Invalid system namespace: d\.system\.odd$`},
		{`{"update": "system.odd", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]}`, mongoerr.InvalidNamespace, ``},
		{`{"delete": "system.odd", "deletes": [{"q": {}, "limit": 0}]}`, mongoerr.InvalidNamespace, ``},
		{`{"findAndModify": "system.odd", "query": {}, "remove": true}`, mongoerr.InvalidNamespace, ``},
	} {
		r := n.do("d", x.cmd)
		if text, _ := r["errmsg"].(string); codeOf(r) != int32(x.code) || !regexp.MustCompile(x.text).MatchString(text) {
			t.Errorf("%s: %v", x.cmd, r)
		}
	}
	if n.srv.Engine.Catalog().Lookup("d.new") != nil {
		t.Error("a collection was created for indexes that are refused")
	}
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}`)
	n.ok("d", `{"createIndexes": "c", `+twice) // they exist
	n.ok("d", `{"update": "system.js", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]}`)
}

// A standalone server takes no commit quorum and reports none.
func TestCommitQuorumOfAStandalone(t *testing.T) {
	srv, err := Open(Config{Memory: true, Host: "test:27017", Info: &command.Info{Host: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{t: t, srv: srv, cl: command.NewClient(1, "test:1", "test:27017", nil)}
	t.Cleanup(n.close)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	if r := n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`); r["commitQuorum"] != nil || r["numIndexesAfter"] != int32(2) {
		t.Errorf("createIndexes: %v", r)
	}
	for _, cmd := range []string{
		`{"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}], "commitQuorum": 1}`, `{"createIndexes": "new", "indexes": [{"key": {"b": 1}, "name": "b"}], "commitQuorum": "majority"}`,
		`{"setIndexCommitQuorum": "c", "indexNames": ["a"], "commitQuorum": 1}`,
	} {
		if r := n.do("d", cmd); codeOf(r) != int32(mongoerr.BadValue) || r["errmsg"] != "Standalones can't specify commitQuorum" {
			t.Errorf("%s: %v", cmd, r)
		}
	}
	if left := n.first("config", `{"find": "system.indexBuilds"}`); len(left) != 0 {
		t.Errorf("entries: %v", left)
	}
}
