package router_test

import (
	"fmt"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The commit quorum of an index build is checked against the configuration of the set, by createIndexes and setIndexCommitQuorum: a number of voting members, all of
// them, their majority, or a mode of the configuration. setIndexCommitQuorum concerns builds that are under way.
func TestCommitQuorum(t *testing.T) {
	c := newTestCluster(t, 1)
	c.addSet("shardx")
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shardx"}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}]}`)
	c.run("d", `{"createIndexes": "c", "indexes": [{"key": {"built": 1}, "name": "built"}]}`)
	for i, x := range []struct {
		quorum string
		code   mongoerr.Code // of createIndexes; 0 for none
	}{
		{`"votingMembers"`, 0}, {`"majority"`, 0}, {`0`, 0}, {`1`, 0}, {`3`, 0}, {`4`, mongoerr.UnsatisfiableCommitQuorum}, {`7`, mongoerr.UnsatisfiableCommitQuorum},
		{`8`, mongoerr.FailedToParse}, {`-1`, mongoerr.FailedToParse}, {`"nowhere"`, mongoerr.UnknownReplWriteConcern}, {`{"a": 1}`, mongoerr.TypeMismatch},
	} {
		m := c.raw("d", fmt.Sprintf(`{"createIndexes": "c", "indexes": [{"key": {"a%d": 1}, "name": "a%[1]d"}], "commitQuorum": %s}`, i, x.quorum))
		if code, _ := m["code"].(int32); code != int32(x.code) {
			t.Errorf("createIndexes with %s: %v", x.quorum, m)
		}
		if x.code == 0 {
			c.expect(m["commitQuorum"], x.quorum)
			x.code = mongoerr.IndexNotFound
		}
		for _, names := range []string{`["built"]`, `["odd"]`, `[]`} { // none is being built
			if m := c.raw("d", fmt.Sprintf(`{"setIndexCommitQuorum": "c", "indexNames": %s, "commitQuorum": %s}`, names, x.quorum)); m["code"] != int32(x.code) {
				t.Errorf("setIndexCommitQuorum of %s with %s: %v", names, x.quorum, m)
			}
		}
	}
	if m := c.raw("d", `{"setIndexCommitQuorum": "none", "indexNames": ["a"], "commitQuorum": 1}`); m["code"] != int32(mongoerr.NamespaceNotFound) {
		t.Errorf("of no collection: %v", m)
	}
}

// A build that waits for a majority is under way: its quorum can be set through a router, and the build ends with its majority, whatever the quorum.
func TestCommitQuorumDuringABuild(t *testing.T) {
	c := newTestCluster(t, 1)
	x := c.addSet("shardx")
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shardx"}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}]}`)
	set := func(names string) any {
		return c.raw("d", `{"setIndexCommitQuorum": "c", "indexNames": `+names+`, "commitQuorum": "majority", "maxTimeMS": 10000}`)["ok"]
	}
	x.cut.Store(true)
	c.timedOut("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}], "commitQuorum": 3}`)
	c.expect(set(`["a", "odd"]`), `0.0`)
	x.cut.Store(false)
	c.until("the index is there", func() bool {
		l := c.server["shardx"].Node.Engine.Catalog().Lookup("d.c").Index("a")
		return l != nil && l.Ready
	})
	c.expect(set(`["a"]`), `0.0`)
	c.run("d", `{"find": "c", "filter": {"a": 1}, "hint": "a"}`)
}
