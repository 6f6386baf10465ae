package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
)

// asOnASet compares a router's replies with those of a replica set.
type asOnASet struct {
	c    *testCluster
	set  *shardnode.Server
	user *command.Client
	n    int // sessions so far
}

// newAsOnASet starts a replica set beside a cluster. Both have the same documents in d.c, which is sharded in the cluster; p.c is a copy on one shard.
func newAsOnASet(t *testing.T) *asOnASet {
	c := newTestCluster(t, 2)
	c.moveColl()
	s := &asOnASet{c: c, set: c.opened(shardnode.Config{SetName: "set", Host: "set:27018"}), user: command.NewClient(77, "test:77", "test:27018", nil)}
	if err := s.set.Initiate(t.Context()); err != nil {
		t.Fatal(err)
	}
	const docs = `{"insert": "c", "documents": [{"_id": 1, "k": 1}, {"_id": 2, "k": 2}, {"_id": 11, "k": 11}]}`
	c.run("admin", `{"enableSharding": "p", "primaryShard": "shard0"}`)
	c.run("p", docs)
	s.onSet("d", docs)
	return s
}

// onSet sends a command to the replica set.
func (s *asOnASet) onSet(db, cmd string) bson.M {
	s.c.t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		s.c.t.Fatalf("%s: %v", cmd, err)
	}
	body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: db}))
	if err != nil {
		s.c.t.Fatal(err)
	}
	return decode(s.c.t, s.set.Service.Run(s.c.t.Context(), s.user, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))
}

// session returns the fields of a new session.
func (s *asOnASet) session(more string) string {
	s.n++
	return fmt.Sprintf(`"lsid": {"id": {"$uuid": "bbbbbbbb-aaaa-4aaa-8aaa-%012d"}}, "txnNumber": {"$numberLong": "5"}%s`, s.n, more)
}

// same runs a command on the set and through the router, on the sharded collection and on the plain one: DB stands for the database. Afterwards documents whose _id is 100 and more are removed.
func (s *asOnASet) same(db, cmd string) {
	s.c.t.Helper()
	const in = "DB"
	at := func(name string) string {
		if db == in {
			return name
		}
		return db
	}
	shown := func(m bson.M) string {
		for _, of := range []string{"$clusterTime", "operationTime", "$configTime", "$topologyTime", "recoveryToken"} {
			delete(m, of)
		}
		lines := make([]string, 0, len(m))
		for k, v := range m {
			lines = append(lines, k+": "+show(v))
		}
		slices.Sort(lines)
		return strings.Join(lines, ", ")
	}
	want := shown(s.onSet(at("d"), strings.ReplaceAll(cmd, in, "d")))
	for _, name := range []string{"d", "p"} {
		sent := strings.ReplaceAll(cmd, in, name)
		if name == "p" {
			sent = strings.ReplaceAll(sent, "-4aaa-", "-4bbb-") // a session of its own
		}
		got := shown(s.c.raw(at(name), sent))
		got = strings.NewReplacer(" p.", " d.", "'p.", "'d.", `"p"`, `"d"`, `"p.`, `"d.`, "4BBB", "4AAA").Replace(got)
		if got != want {
			s.c.t.Errorf("%s:\n  set    %s\n  router %s", sent, want, got)
		}
	}
	if strings.Contains(cmd, "startTransaction") {
		return
	}
	for _, run := range []func(db, cmd string) bson.M{s.onSet, s.c.raw} {
		for _, db := range []string{"d", "p"} {
			run(db, `{"delete": "c", "deletes": [{"q": {"_id": {"$gte": 100}}, "limit": 0}]}`)
		}
	}
}

// A bulkWrite through a router has the reply that a set gives: errors that concern one namespace are those of its operations, and those that concern the session, the transaction or the
// form are those of the whole command. The router used to refuse the whole command if one of its names could not be written, whether or not an operation named it, to count refused
// inserts of commands with w: 0 as done, to go on after them, and to report errors of sessions and read concerns as those of operations.
func TestBulkWriteAnswersAsASet(t *testing.T) {
	s := newAsOnASet(t)
	const doc = `"document": {"_id": 100, "k": 100}`
	for _, ns := range []string{"config.system.x", "config.transactions", "local.oplog.rs", "DB.system.views", "DB.system.foo", "DB.x$", "config.x", "admin.system.version"} {
		begin := s.session(`, "autocommit": false`)
		s.same("admin", `{"bulkWrite": 1, "ops": [{"insert": 0, `+doc+`}, {"delete": 1, "filter": {"_id": -1}}], "nsInfo": [{"ns": "DB.c"}, {"ns": "`+ns+`"}], "startTransaction": true, `+begin+`}`)
		s.same("admin", `{"abortTransaction": 1, `+begin+`}`)
		if ns == "config.x" || ns == "admin.system.version" {
			continue // which may be written without a transaction
		}
		for _, cmd := range []string{
			`"ops": [{"insert": 0, ` + doc + `}, {"delete": 1, "filter": {"_id": -1}}, {"insert": 0, "document": {"_id": 101, "k": 3}}]`,
			`"ops": [{"update": 1, "filter": {"_id": -1}, "updateMods": {"$set": {"x": 1}}}, {"delete": 0, "filter": {"_id": -1}}]`,
			`"ops": [{"delete": 1, "filter": {"_id": -1}}, {"insert": 0, ` + doc + `}], "ordered": false`,
			`"ops": [{"insert": 0, ` + doc + `}]`,
		} {
			for _, nsInfo := range []string{`[{"ns": "DB.c"}, {"ns": "` + ns + `"}]`, `[{"ns": "` + ns + `"}, {"ns": "` + ns + `"}]`} {
				s.same("admin", `{"bulkWrite": 1, `+cmd+`, "nsInfo": `+nsInfo+`}`)
			}
		}
	}
	for _, uuid := range []string{`null`, `"x"`, `1`, `{}`, `{"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "00"}}`, `{"$binary": {"base64": "AAAAAAA=", "subType": "04"}}`, otherUUID} {
		for _, op := range []string{`{"insert": 0, ` + doc + `}`, `{"insert": 1, ` + doc + `}`, `{"insert": 0, ` + doc + `}, {"delete": 1, "filter": {"_id": 100}}`} {
			s.same("admin", `{"bulkWrite": 1, "ops": [`+op+`], "nsInfo": [{"ns": "DB.c"}, {"ns": "DB.c", "collectionUUID": `+uuid+`}]}`)
		}
	}
	for _, first := range []string{`{"insert": 0, ` + doc + `}`, `{"update": 0, "filter": {"k": 1}, "updateMods": {"$inc": {"x": 1}}}`} {
		bulk := `"ops": [` + first + `, {"update": 0, "filter": {"k": 2}, "updateMods": {"$inc": {"x": 1}}}, {"update": 0, "filter": {"k": 11}, "updateMods": {"$inc": {"x": 1}}}], "nsInfo": [{"ns": "DB.c"}]`
		for _, begin := range []string{
			`"readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": 1, "i": 1}}}`, `"readConcern": {"level": "linearizable"}`,
			`"readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": 2000000000, "i": 1}}}`, `"writeConcern": {"w": 1}`, `"maxTimeMS": -1`,
		} {
			lsid := s.session("")
			if !strings.Contains(begin, "2000000000") { // whose error shows the current time
				s.same("admin", `{"bulkWrite": 1, `+bulk+`, "startTransaction": true, "autocommit": false, `+begin+`, `+lsid+`}`)
				continue
			}
			if r := s.c.raw("admin", strings.ReplaceAll(`{"bulkWrite": 1, `+bulk+`, "startTransaction": true, "autocommit": false, `+begin+`, `+lsid+`}`, "DB", "d")); r["codeName"] != "InvalidOptions" {
				t.Errorf("%s: %v", begin, r)
			}
		}
		for _, w := range []string{"0", "1"} {
			lsid := s.session("")
			for range 2 { // the second is a retry
				s.same("admin", `{"bulkWrite": 1, `+bulk+`, "writeConcern": {"w": `+w+`}, `+lsid+`}`)
			}
			s.same("admin", `{"bulkWrite": 1, `+bulk+`, `+strings.Replace(lsid, `"5"`, `"4"`, 1)+`}`)
		}
	}
	for _, w := range []string{"0", "1"} {
		for _, ordered := range []string{"true", "false"} {
			options := `"ordered": ` + ordered + `, "writeConcern": {"w": ` + w + `}`
			s.same("admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 100, "k": 12}}, {"insert": 0, "document": {"_id": 100, "k": 12}}, {"insert": 0, "document": {"_id": 101, "k": 3}}],
				"nsInfo": [{"ns": "DB.c"}], `+options+`}`)
			s.same("DB", `{"insert": "c", "documents": [{"_id": 100, "k": 12}, {"_id": 100, "k": 12}, {"_id": 101, "k": 3}], `+options+`}`)
			s.same("DB", `{"update": "c", "updates": [{"q": {"k": 11}, "u": {"$set": {"y": `+w+`}}}, {"q": {"k": 11}, "u": {"$bad": 1}}, {"q": {"k": 1}, "u": {"$set": {"y": [`+ordered+`, `+w+`]}}}], `+options+`}`)
		}
	}
}

// An ordered batch with w: 0 ends at its first error although the client is not told of it, also where the next statement is for another shard.
func TestUnacknowledgedBatchEndsAtItsError(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	r := c.run("d", `{"insert": "c", "documents": [{"_id": 1, "k": 1}, {"_id": 12, "k": 12}], "writeConcern": {"w": 0}}`)
	if r["n"] != int32(0) {
		t.Errorf("%v", r)
	}
	c.run("admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 1, "k": 1}}, {"insert": 0, "document": {"_id": 13, "k": 13}}], "nsInfo": [{"ns": "d.c"}], "writeConcern": {"w": 0}}`)
	if got := c.held(); got != `[{_id:1,k:1},{_id:2,k:2}] [{_id:11,k:11}]` {
		t.Errorf("the shards hold %s", got)
	}
}
