package shardnode

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// builtBeside starts a createIndexes on another connection, and returns its reply when it has one.
func (n *testNode) builtBeside(coll, name, more string) <-chan bson.M {
	other, reply := n.other(), make(chan bson.M, 1)
	go func() {
		reply <- other.do("d", fmt.Sprintf(`{"createIndexes": "%s", "indexes": [{"key": {"%s": 1}, "name": "%[2]s"}]%s}`, coll, name, more))
	}()
	return reply
}

// waitingBuilds returns the entries of the set's index builds.
func (n *testNode) waitingBuilds() []string {
	return n.first("config", `{"find": "system.indexBuilds"}`)
}

// untilWaits waits until a number of builds have been voted for by two members and shows the last of them.
func (n *testNode) untilWaits(count int) string {
	n.t.Helper()
	return await.State(n.t, "builds that wait for a member", func() (string, bool) {
		entries := n.waitingBuilds()
		voted := 0
		for _, e := range entries {
			if strings.Count(e, ":27017") == 2 {
				voted++
			}
		}
		return fmt.Sprint(entries), len(entries) == count && voted == count
	})
}

func (n *testNode) ready(coll, name string) bool {
	c := n.srv.Engine.Catalog().Lookup("d." + coll)
	return c != nil && c.Index(name) != nil && c.Index(name).Ready
}

func codeOf(reply bson.M) int32 {
	code, _ := reply["code"].(int32)
	return code
}

// While a member is down, a build on a collection with documents waits for it, and shows that it does. Another quorum ends the wait, and so does the member, once it is back.
func TestBuildsWaitForTheirCommitQuorum(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": [1, 2]}, {"_id": 2, "a": 3}]}`)
	if r := n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"all": 1}, "name": "all"}]}`); r["commitQuorum"] != "votingMembers" {
		t.Errorf("with all members: %v", r)
	}
	back := m.down(n)
	for _, quorum := range []string{`0`, `1`, `2`, `"majority"`} {
		n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}], "commitQuorum": `+quorum+`}`)
		n.ok("d", `{"dropIndexes": "c", "index": "x"}`)
	}
	n.ok("d", `{"createIndexes": "new", "indexes": [{"key": {"x": 1}, "name": "x"}]}`) // an empty collection needs no votes
	reply := n.builtBeside("c", "a", "")
	three := n.builtBeside("c", "three", `, "commitQuorum": 3`)
	entries := n.untilWaits(2)
	for _, want := range []string{`commitQuorum: "votingMembers", indexNames: [ "a" ], commitReadyMembers: [ "member`, `commitQuorum: 3, indexNames: [ "three" ]`, `collectionUUID: BinData(4, `} {
		if !strings.Contains(entries, want) {
			t.Errorf("no %s in %s", want, entries)
		}
	}
	ops := n.first("admin", `{"aggregate": 1, "pipeline": [{"$currentOp": {}}, {"$match": {"op": "none", "msg": "Index Build: waiting for commit quorum"}}], "cursor": {}}`)
	if len(ops) != 2 {
		t.Errorf("currentOp: %v", ops)
	}
	if n.ready("c", "a") || n.ready("c", "three") {
		t.Error("an index is ready without the third member")
	}
	for cmd, want := range map[string]mongoerr.Code{
		`["a", "three"], "commitQuorum": 1`: mongoerr.IndexNotFound, `["all"], "commitQuorum": 1`: mongoerr.IndexNotFound, `[], "commitQuorum": 1`: mongoerr.IndexNotFound,
		`["a"], "commitQuorum": 0`: mongoerr.BadValue, `["a"], "commitQuorum": 4`: mongoerr.UnsatisfiableCommitQuorum, `["a"], "commitQuorum": "no"`: mongoerr.UnknownReplWriteConcern,
		`[1], "commitQuorum": 1`: mongoerr.TypeMismatch,
	} {
		if code := n.code("d", `{"setIndexCommitQuorum": "c", "indexNames": `+cmd+`}`); code != int32(want) {
			t.Errorf("setIndexCommitQuorum with %s: %d", cmd, code)
		}
	}
	n.ok("d", `{"insert": "c", "documents": [{"_id": 3, "a": [5, 6]}]}`)
	n.ok("d", `{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}`)
	n.ok("d", `{"setIndexCommitQuorum": "c", "indexNames": ["a"], "commitQuorum": "majority"}`)
	if r := <-reply; r["ok"] != 1.0 {
		t.Errorf("with another quorum: %v", r)
	}
	if got := fmt.Sprint(n.first("d", `{"find": "c", "hint": "a", "filter": {"a": {"$gt": 0}}}`)); got != "[{ _id: 2, a: 3 } { _id: 3, a: [ 5, 6 ] }]" {
		t.Errorf("by the index: %s", got)
	}
	n.untilWaits(1)
	m.down(n) // the one that has voted: its vote is stored
	back()
	if r := <-three; r["ok"] != 1.0 {
		t.Errorf("with the member back: %v", r)
	}
	if left := n.waitingBuilds(); len(left) != 0 {
		t.Errorf("entries that are left: %v", left)
	}
}

// What ends a build that waits: a drop of its index or of the collection, a time limit, a killOp. Nothing is left of it.
func TestEndsOfAWaitForTheCommitQuorum(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	m.down(n)
	for what, x := range map[string]struct {
		more string
		do   func(coll string)
		code mongoerr.Code
	}{
		"dropIndexes":  {"", func(coll string) { n.ok("d", `{"dropIndexes": "`+coll+`", "index": "a"}`) }, mongoerr.IndexBuildAborted},
		"drop":         {"", func(coll string) { n.ok("d", `{"drop": "`+coll+`"}`) }, mongoerr.IndexBuildAborted},
		"a time limit": {`, "maxTimeMS": 1500`, func(string) {}, mongoerr.MaxTimeMSExpired},
		"killOp":       {"", func(coll string) { n.killCreateIndexes(coll) }, mongoerr.Interrupted},
		"the database": {"", func(string) { n.ok("d", `{"dropDatabase": 1}`) }, mongoerr.IndexBuildAborted},
		"a write block": {"", func(string) {
			n.ok("admin", `{"setUserWriteBlockMode": 1, "global": true}`)
			if left := n.srv.Engine.Builds(); len(left) > 0 {
				t.Errorf("%d builds are left when users' writes are blocked", len(left))
			}
			n.ok("admin", `{"setUserWriteBlockMode": 1, "global": false}`)
		}, mongoerr.IndexBuildAborted},
	} {
		coll := strings.ReplaceAll(what, " ", "")
		n.ok("d", `{"insert": "`+coll+`", "documents": [{"a": 1}]}`)
		reply := n.builtBeside(coll, "a", x.more)
		n.untilWaits(1)
		x.do(coll)
		if code := codeOf(<-reply); code != int32(x.code) {
			t.Errorf("%s: %d", what, code)
		}
		await.True(t, "no entry after "+what, func() bool { return len(n.waitingBuilds()) == 0 && len(n.srv.Engine.Builds()) == 0 })
		n.ok("d", `{"insert": "`+coll+`", "documents": [{"a": 2}]}`)
		n.ok("d", `{"createIndexes": "`+coll+`", "indexes": [{"key": {"a": 1}, "name": "a"}], "commitQuorum": 2}`)
	}
}

// besideABuild are commands that are refused while an index of d.c is being built, and succeed afterwards, one after the other.
var besideABuild = [][2]string{
	{"d", `{"collMod": "c", "validationLevel": "moderate"}`},
	{"admin", `{"renameCollection": "d.from", "to": "d.c", "dropTarget": true}`},
	{"d", `{"convertToCapped": "c", "size": 10000}`},
	{"admin", `{"renameCollection": "d.c", "to": "d.other"}`},
	{"admin", `{"renameCollection": "d.other", "to": "d2.c"}`},
}

// A rename of a collection whose index is being built, or one that would drop such a collection, is refused, as are collMod and convertToCapped. The build goes on.
func TestCommandsThatAreRefusedDuringABuild(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	n.ok("d", `{"insert": "from", "documents": [{"a": 1}]}`)
	n.ok("d", `{"insert": "c", "documents": [{"a": 1}]}`)
	m.down(n)
	reply := n.builtBeside("c", "a", "")
	n.untilWaits(1)
	n.refuses(besideABuild[:4]...)
	n.refuses([2]string{"admin", `{"renameCollection": "d.c", "to": "d.from", "dropTarget": true}`}, [2]string{"admin", `{"renameCollection": "d.c", "to": "d2.c"}`})
	if code := n.code("admin", `{"renameCollection": "d.from", "to": "d.c"}`); code != int32(mongoerr.NamespaceExists) {
		t.Errorf("a target that would not be dropped: %d", code)
	}
	n.ok("d", `{"setIndexCommitQuorum": "c", "indexNames": ["a"], "commitQuorum": 2}`)
	if r := <-reply; r["ok"] != 1.0 {
		t.Errorf("createIndexes: %v", r)
	}
	for _, cmd := range besideABuild {
		n.ok(cmd[0], cmd[1])
	}
}

// refuses runs commands that are refused because of an index build.
func (n *testNode) refuses(cmds ...[2]string) {
	n.t.Helper()
	for _, cmd := range cmds {
		if code := n.code(cmd[0], cmd[1]); code != int32(mongoerr.BackgroundOperationInProgressForNamespace) {
			n.t.Errorf("%s: %d", cmd[1], code)
		}
	}
}

// A server that is not in a set refuses them, too.
func TestCommandsThatALoneServerRefusesDuringABuild(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "from", "documents": [{"a": 1}]}`)
	n.ok("d", `{"insert": "c", "documents": [{"a": 1}]}`)
	spec := []byte(value.Doc(value.F("v", value.NewInt32(2)), value.F("key", value.NewDocument(value.Doc(value.F("a", value.NewInt32(1))))), value.F("name", value.NewString("a"))))
	b, err := n.srv.Engine.StartIndexBuild(t.Context(), "d.c", [][]byte{spec}, storage.NewUUID())
	if err != nil {
		t.Fatal(err)
	}
	n.refuses(besideABuild[:4]...)
	if _, err := b.Run(t.Context()); err != nil {
		t.Error(err)
	}
	for _, cmd := range besideABuild {
		n.ok(cmd[0], cmd[1])
	}
}

// A createIndexes that meets an unfinished build of one of its indexes waits for it, and looks again: the build may have ended without an index.
func TestBuildsOfOthersMayFail(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1, "b": 1}]}`)
	m.down(n)
	first := n.builtBeside("c", "a", `, "comment": "first"`)
	n.untilWaits(1)
	other, joined := n.other(), make(chan bson.M, 1)
	go func() {
		joined <- other.do("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"}], "comment": "joined"}`)
	}()
	const running = `{"aggregate": 1, "pipeline": [{"$currentOp": {}}, {"$match": {"command.comment": "joined"}}], "cursor": {}}`
	await.True(t, "the other command runs", func() bool { return len(n.first("admin", running)) == 1 })
	n.killOps(`"command.comment": "first"`)
	if code := codeOf(<-first); code != int32(mongoerr.Interrupted) {
		t.Errorf("the killed command: %d", code)
	}
	await.True(t, "the other command builds both", func() bool {
		entries := n.waitingBuilds()
		return len(entries) == 1 && strings.Contains(entries[0], `indexNames: [ "a", "b" ]`)
	})
	n.ok("d", `{"setIndexCommitQuorum": "c", "indexNames": ["a", "b"], "commitQuorum": "majority"}`)
	if r := <-joined; r["ok"] != 1.0 || !n.ready("c", "a") || !n.ready("c", "b") {
		t.Errorf("%v, with a ready %v and b ready %v", r, n.ready("c", "a"), n.ready("c", "b"))
	}
}

func (n *testNode) killCreateIndexes(coll string) {
	n.killOps(`"op": "command", "command.createIndexes": "` + coll + `"`)
}

// killOps kills the operations that a filter of $currentOp matches.
func (n *testNode) killOps(filter string) {
	r := n.ok("admin", `{"aggregate": 1, "pipeline": [{"$currentOp": {}}, {"$match": {`+filter+`}}], "cursor": {}}`)
	for _, op := range r["cursor"].(bson.D)[0].Value.(bson.A) {
		for _, f := range op.(bson.D) {
			if f.Key == "opid" {
				n.ok("admin", fmt.Sprintf(`{"killOp": 1, "op": %v}`, f.Value))
			}
		}
	}
}

// The votes and the quorum outlast the primary: the next one waits for the member that is still missing, and for no other.
func TestCommitQuorumAfterAStepDown(t *testing.T) {
	m := newTestMembers(t, 2*time.Second)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": [1, 2], "u": 1}, {"_id": 2, "a": 3, "u": 2}]}`)
	back := m.down(n)
	reply := n.builtBeside("c", "a", "")
	n.untilWaits(1)
	n.do("admin", `{"replSetStepDown": 60, "force": true}`)
	if code := mongoerr.Code(codeOf(<-reply)); !code.IsNotPrimary() {
		t.Errorf("createIndexes on the former primary: %v", code)
	}
	next := await.State(t, "another primary", func() (*testNode, bool) {
		for _, x := range m.nodes {
			if x != n && x.srv.Repl.Writable() {
				return x, true
			}
		}
		return nil, false
	})
	await.True(t, "the build continues", func() bool { return len(next.srv.Engine.Builds()) == 1 })
	next.ok("d", `{"insert": "c", "documents": [{"_id": 3, "a": [7, 8], "u": 3}]}`)
	if next.untilWaits(1); next.ready("c", "a") {
		t.Error("the next primary does not wait")
	}
	c := next.srv.Engine.Catalog().Lookup("d.c")
	if idx := c.Index("a"); !idx.Build.Loaded || !idx.Multikey {
		t.Errorf("the index that waits: %+v", idx)
	}
	back()
	await.True(t, "the index is ready on every member", func() bool {
		for _, x := range m.nodes {
			if !x.ready("c", "a") {
				return false
			}
		}
		return true
	})
	if v := next.ok("d", `{"validate": "c", "full": true}`); v["valid"] != true {
		t.Errorf("validate: %v", v)
	}
	if left := next.waitingBuilds(); len(left) != 0 {
		t.Errorf("entries that are left: %v", left)
	}
}

// Users are blocked on the next primary: it aborts the build that it has just continued, or is about to.
func TestTheBlockAbortsABuildOfAnEarlierPrimary(t *testing.T) {
	m := newTestMembers(t, 2*time.Second)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}]}`)
	m.down(n)
	reply := n.builtBeside("c", "a", "")
	n.untilWaits(1)
	n.do("admin", `{"replSetStepDown": 60, "force": true}`)
	<-reply
	next := await.State(t, "another primary", func() (*testNode, bool) {
		for _, x := range m.nodes {
			if x != n && x.srv.Repl.Writable() {
				return x, true
			}
		}
		return nil, false
	})
	next.ok("admin", `{"setUserWriteBlockMode": 1, "global": true}`)
	if left := next.waitingBuilds(); len(left) != 0 || len(next.srv.Engine.Builds()) != 0 || next.srv.Engine.Catalog().Lookup("d.c").Index("a") != nil {
		t.Errorf("left: %v", left)
	}
	next.ok("admin", `{"setUserWriteBlockMode": 1, "global": false}`)
	next.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}], "commitQuorum": 2}`)
}

// A build that waits holds no history back: its keys are in.
func TestHistoryDuringAWaitForTheCommitQuorum(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}]}`)
	m.down(n)
	n.builtBeside("c", "a", `, "maxTimeMS": 20000`)
	n.untilWaits(1)
	at := n.srv.Engine.Visible()
	n.srv.Engine.SetHistoryWindow(0)
	await.True(t, "the history moves on", func() bool {
		n.ok("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`)
		s, err := n.srv.Engine.SnapshotAt(at)
		if err == nil {
			s.Release()
		}
		return err != nil
	})
	n.ok("d", `{"dropIndexes": "c", "index": "a"}`)
}
