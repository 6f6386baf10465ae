package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

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
		{`"votingMembers"`, 0}, {`"majority"`, 0}, {`0`, 0}, {`1`, 0}, {`3`, 0}, {`4`, mongoerr.UnsatisfiableCommitQuorum}, {`50`, mongoerr.UnsatisfiableCommitQuorum},
		{`51`, mongoerr.FailedToParse}, {`-1`, mongoerr.FailedToParse}, {`"nowhere"`, mongoerr.UnknownReplWriteConcern}, {`{"a": 1}`, mongoerr.TypeMismatch},
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

// With the set's majority away, a build cannot vote: its quorum cannot be changed before there is a majority again.
func TestCommitQuorumWithoutAMajority(t *testing.T) {
	c := newTestCluster(t, 1)
	x := c.addSet("shardx")
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shardx"}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}]}`)
	set := func(names string) any {
		return c.raw("d", `{"setIndexCommitQuorum": "c", "indexNames": `+names+`, "commitQuorum": "majority", "maxTimeMS": 100000}`)["ok"]
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

// Each shard of a sharded collection waits for its own members. A change of the quorum reaches all of them; a shard whose build has ended has none to change.
func TestCommitQuorumOverShards(t *testing.T) {
	c := newTestCluster(t, 1)
	x, y := c.addSet("shardx"), c.addSet("shardy")
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shardx"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
	c.run("admin", `{"split": "d.c", "middle": {"_id": 0}}`)
	c.run("admin", `{"moveChunk": "d.c", "find": {"_id": 1}, "to": "shardy", "_waitForDelete": true}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": -1, "a": 1}, {"_id": 1, "a": 1}]}`)
	waits := func(id string) bool {
		for _, b := range c.server[id].Node.Engine.Builds() {
			if e, _ := c.server[id].Node.Engine.BuildEntry(b.UUID()); e != nil && len(e.Ready) == 2 {
				return true
			}
		}
		return false
	}
	create := func(name string) <-chan bson.M {
		reply := make(chan bson.M, 1)
		go func() {
			reply <- c.raw("d", fmt.Sprintf(`{"createIndexes": "c", "indexes": [{"key": {"%s": 1}, "name": "%[1]s"}], "writeConcern": {"w": 1}}`, name))
		}()
		return reply
	}
	set := func(name string) bson.M {
		return c.raw("d", `{"setIndexCommitQuorum": "c", "indexNames": ["`+name+`"], "commitQuorum": "majority"}`)
	}
	x.lose("shardx:27020")
	one := create("one")
	c.until("shardx waits", func() bool { return waits("shardx") })
	c.until("shardy does not", func() bool {
		l := c.server["shardy"].Node.Engine.Catalog().Lookup("d.c").Index("one")
		return l != nil && l.Ready
	})
	if m := set("one"); m["ok"] != 1.0 {
		t.Errorf("a quorum for the shard that waits: %v", m)
	}
	if m := <-one; m["ok"] != 1.0 {
		t.Errorf("createIndexes: %v", m)
	}
	y.lose("shardy:27020")
	two := create("two")
	c.until("both wait", func() bool { return waits("shardx") && waits("shardy") })
	if m := set("two"); m["ok"] != 1.0 {
		t.Errorf("a quorum for both: %v", m)
	}
	if m := <-two; m["ok"] != 1.0 {
		t.Errorf("createIndexes: %v", m)
	}
	if m := set("two"); m["code"] != int32(mongoerr.IndexNotFound) {
		t.Errorf("after the build: %v", m)
	}
	three := create("three")
	c.until("both wait again", func() bool { return waits("shardx") && waits("shardy") })
	joined := create("three")
	c.until("a request joins the run", func() bool { // or is about to, on the shard
		ops := c.admin(c.shards["shardx"], bson.D{{Key: "aggregate", Value: 1}, {Key: "cursor", Value: bson.D{}}, {Key: "$db", Value: "admin"}, {Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}}}}, bson.D{{Key: "$match", Value: bson.D{{Key: "command._shardsvrCreateIndexes", Value: "c"}}}}}}})
		return len(get(ops["cursor"], "firstBatch").(bson.A)) >= 2
	})
	// One that has not joined when the index is dropped begins another build, which is dropped, too.
	answered := 0
	c.until("both requests are answered", func() bool {
		select {
		case m := <-three:
			three, answered = joined, answered+1
			if m["code"] != int32(mongoerr.IndexBuildAborted) {
				t.Errorf("createIndexes of a dropped index: %v", m)
			}
		default:
			if waits("shardx") && waits("shardy") {
				c.run("d", `{"dropIndexes": "c", "index": "three"}`)
			}
		}
		return answered == 2
	})
	c.until("nothing is left", func() bool {
		return len(c.server["shardx"].Node.Engine.Builds()) == 0 && len(c.server["shardy"].Node.Engine.Builds()) == 0
	})
}

// builtDuring starts a createIndexes of an index of d.<coll>, and waits until each of the shards waits for a member.
func (c *testCluster) builtDuring(coll string, shards ...string) <-chan bson.M {
	c.t.Helper()
	reply := make(chan bson.M, 1)
	go func() {
		reply <- c.raw("d", `{"createIndexes": "`+coll+`", "indexes": [{"key": {"a": 1}, "name": "a"}], "writeConcern": {"w": 1}}`)
	}()
	for _, id := range shards {
		c.until(id+" waits", func() bool {
			x := c.server[id].Node.Engine.Catalog().Lookup("d." + coll)
			return x != nil && x.Building() != nil && len(c.server[id].Node.Engine.Builds()) > 0
		})
	}
	return reply
}

// While a shard builds an index of a collection, a rename of it or over it is refused, as are collMod, convertToCapped and a resharding: before anything is blocked,
// and whether or not the collection is in the catalog. Nothing hangs, the build goes on, and nobody is kept out of the collections.
func TestRenamesDuringBuildsOverShards(t *testing.T) {
	c := newTestCluster(t, 1)
	x, y := c.addSet("shardx"), c.addSet("shardy")
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shardx"}`)
	for _, coll := range []string{"c", "from"} {
		c.run("admin", `{"shardCollection": "d.`+coll+`", "key": {"_id": 1}}`)
		c.run("admin", `{"split": "d.`+coll+`", "middle": {"_id": 0}}`)
		c.run("admin", `{"moveChunk": "d.`+coll+`", "find": {"_id": 1}, "to": "shardy", "_waitForDelete": true}`)
		c.run("d", `{"insert": "`+coll+`", "documents": [{"_id": -1, "a": 1}, {"_id": 1, "a": 1}]}`)
	}
	c.run("d", `{"insert": "plain", "documents": [{"_id": 1, "a": 1}]}`)
	c.run("d", `{"insert": "placed", "documents": [{"_id": 1, "a": 1}]}`)
	c.run("admin", `{"moveCollection": "d.placed", "toShard": "shardy"}`)
	x.lose("shardx:27020")
	y.lose("shardy:27020")
	refused := func(cmds ...string) {
		t.Helper()
		for _, cmd := range cmds {
			db := "admin"
			if strings.Contains(cmd, "collMod") || strings.Contains(cmd, "convertToCapped") {
				db = "d"
			}
			if m := c.raw(db, cmd); m["code"] != int32(mongoerr.BackgroundOperationInProgressForNamespace) {
				t.Errorf("%s: %v", cmd, m)
			}
		}
	}
	sharded := c.builtDuring("c", "shardx", "shardy")
	refused(`{"renameCollection": "d.c", "to": "d.new"}`, `{"renameCollection": "d.from", "to": "d.c", "dropTarget": true}`, `{"renameCollection": "d.plain", "to": "d.c", "dropTarget": true}`,
		`{"collMod": "c", "validationLevel": "moderate"}`, `{"reshardCollection": "d.c", "key": {"a": 1}}`)
	plain, placed := c.builtDuring("plain", "shardx"), c.builtDuring("placed", "shardy")
	refused(`{"renameCollection": "d.plain", "to": "d.new"}`, `{"renameCollection": "d.from", "to": "d.plain", "dropTarget": true}`, `{"renameCollection": "d.placed", "to": "d.plain", "dropTarget": true}`,
		`{"renameCollection": "d.from", "to": "d.placed", "dropTarget": true}`, `{"renameCollection": "d.placed", "to": "d.new"}`, `{"convertToCapped": "placed", "size": 10000}`, `{"collMod": "plain", "validationLevel": "moderate"}`)
	for _, coll := range []string{"c", "from", "plain", "placed"} {
		c.run("d", `{"insert": "`+coll+`", "documents": [{"_id": -2, "a": 1}, {"_id": 2, "a": 1}], "maxTimeMS": 60000}`)
	}
	for coll, reply := range map[string]<-chan bson.M{"c": sharded, "plain": plain, "placed": placed} {
		c.run("d", `{"setIndexCommitQuorum": "`+coll+`", "indexNames": ["a"], "commitQuorum": "majority"}`)
		if m := <-reply; m["ok"] != 1.0 {
			t.Errorf("createIndexes of %s: %v", coll, m)
		}
	}
	c.run("d", `{"collMod": "c", "validationLevel": "moderate"}`)
	c.run("admin", `{"renameCollection": "d.from", "to": "d.c", "dropTarget": true}`)
	c.run("admin", `{"renameCollection": "d.c", "to": "d.plain", "dropTarget": true}`)
	c.run("admin", `{"renameCollection": "d.placed", "to": "d.new"}`)
	c.expect(c.all("d", `{"find": "plain", "sort": {"_id": 1}, "projection": {"_id": 1}}`), `[{"_id":-2},{"_id":-1},{"_id":1},{"_id":2}]`)
}
