package shardnode

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func adminSteps(t *testing.T, n *testNode, steps []step) {
	t.Helper()
	for _, s := range steps {
		if got := n.code("admin", s.cmd); got != int32(s.code) {
			t.Errorf("%s: code %d, want %d", s.cmd, got, int32(s.code))
		}
	}
}

func TestAdministrationRefuses(t *testing.T) {
	n := newTestNode(t)
	adminSteps(t, n, []step{
		{`{"fsyncUnlock": 1}`, mongoerr.IllegalOperation},
		{`{"fsync": 1, "bogus": 1}`, mongoerr.IDLUnknownField},
		{`{"fsync": 1, "lock": true, "fsyncLockAcquisitionTimeoutMillis": {"$numberLong": "5"}}`, mongoerr.TypeMismatch},
		{`{"setDefaultRWConcern": 1}`, mongoerr.BadValue},
		{`{"setDefaultRWConcern": 1, "defaultReadConcern": {"level": "snapshot"}}`, mongoerr.BadValue},
		{`{"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 0}}`, mongoerr.BadValue},
		{`{"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": "tag"}}`, mongoerr.UnknownReplWriteConcern},
		{`{"setClusterParameter": {}}`, mongoerr.NoSuchKey},
		{`{"setClusterParameter": {"changeStreamOptions": {"$bad": 1}}}`, mongoerr.DollarPrefixedFieldName},
		{`{"setClusterParameter": {"changeStreams": {"expireAfterSeconds": 0}}}`, mongoerr.BadValue},
		{`{"getClusterParameter": []}`, mongoerr.BadValue},
		{`{"getClusterParameter": "none"}`, mongoerr.NoSuchKey},
		{`{"setFeatureCompatibilityVersion": "8.2"}`, 7369100},
		{`{"setFeatureCompatibilityVersion": "7.0", "confirm": true}`, 4926900},
		{`{"setUserWriteBlockMode": 1}`, mongoerr.IDLFailedToParse},
		{`{"profile": 0, "sampleRate": 2}`, mongoerr.BadValue},
		{`{"profile": 0, "filter": 1}`, mongoerr.BadValue},
		{`{"dropConnections": 1, "hostAndPort": ["h:0"]}`, mongoerr.FailedToParse},
		{`{"dropConnections": 1, "hostAndPort": ["[::1]:27017", "host"]}`, 0},
		{`{"applyOps": [{"op": "x", "ns": "d.c", "o": {"_id": 1}}]}`, mongoerr.BadValue},
		{`{"applyOps": [{"op": "c", "ns": "d.$cmd", "o": {}}]}`, mongoerr.BadValue},
		{`{"applyOps": [{"op": "i", "ns": "d.none", "o": {"_id": 1}}]}`, mongoerr.NamespaceNotFound},
		{`{"setQuerySettings": {"find": "c", "filter": {"_id": 1}, "$db": "d"}, "settings": {"reject": true}}`, 7746606},
		{`{"setQuerySettings": "AB", "settings": {"reject": true}}`, mongoerr.InvalidLength},
		{`{"replSetFreeze": 1}`, mongoerr.NotSecondary},
		{`{"replSetStepDown": 1, "secondaryCatchUpPeriodSecs": 2}`, mongoerr.BadValue},
		{`{"commitTransaction": 1}`, mongoerr.CommandFailed},
		{`{"killAllSessions": [{"user": "u"}]}`, mongoerr.IDLFailedToParse},
		{`{"fsync": 1, "autocommit": false, "txnNumber": {"$numberLong": "1"}, ` + testLSID + `}`, mongoerr.OperationNotSupportedInTransaction},
	})
}

// applyOps accepts the commands that oplogs contain, in the form that they have there, also nested. With any other, nothing is applied.
func TestApplyOpsOfCommands(t *testing.T) {
	n := newTestNode(t)
	adminSteps(t, n, []step{
		{`{"applyOps": [{"op": "c", "ns": "d.$cmd", "o": {"create": "a", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}}]}`, 0},
		{`{"applyOps": [{"op": "c", "ns": "d.$cmd", "o": {"createIndexes": "a", "indexes": [{"key": {"x": 1}, "name": "x_1"}]}}]}`, 0},
		{`{"applyOps": [{"op": "c", "ns": "d.$cmd", "o": {"collMod": "a", "index": {"name": "x_1", "hidden": true}}}]}`, 0},
		{`{"applyOps": [{"op": "c", "ns": "d.$cmd", "o": {"dropIndexes": "a", "index": "x_1"}}]}`, 0},
		{`{"applyOps": [{"op": "c", "ns": "d.$cmd", "o": {"renameCollection": "d.a", "to": "d.b", "stayTemp": false}}]}`, 0},
		{`{"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": {"applyOps": [{"op": "i", "ns": "d.b", "o": {"_id": 1}}, {"op": "c", "ns": "d.$cmd", "o": {"create": "c"}}]}}]}`, 0},
		{`{"applyOps": [{"op": "c", "ns": "d.$cmd", "o": {"drop": "c"}}]}`, 0},
	})
	for _, cmd := range []string{`{"find": "b"}`, `{"insert": "b", "documents": [{"_id": 2}]}`, `{"createUser": "u", "pwd": "p", "roles": []}`, `{"shutdown": 1}`, `{"none": 1}`,
		`{"startIndexBuild": "b"}`, `{"commitIndexBuild": "b"}`, `{"abortIndexBuild": "b"}`, `{"setFeatureCompatibilityVersion": "8.2"}`, `{"_shardsvrDropCollection": "b"}`} {
		for _, before := range []string{``, `{"op": "c", "ns": "d.$cmd", "o": {"create": "x"}}, `} {
			ops := `{"applyOps": [` + before + `{"op": "c", "ns": "admin.$cmd", "o": ` + cmd + `}]}`
			if got := n.code("admin", ops); got != int32(mongoerr.BadValue) {
				t.Errorf("%s: code %d", ops, got)
			}
		}
	}
	if got := n.code("admin", `{"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": {"applyOps": [{"op": "c", "ns": "d.$cmd", "o": {"find": "b"}}]}}]}`); got != int32(mongoerr.BadValue) {
		t.Errorf("nested: code %d", got)
	}
	names := fmt.Sprint(n.first("d", `{"listCollections": 1, "nameOnly": true}`))
	if !strings.Contains(names, `name: "b"`) || strings.Contains(names, `name: "x"`) || strings.Contains(names, `name: "c"`) {
		t.Errorf("%s", names)
	}
}

// While the server is locked by fsync, writers wait, and readers do not.
func TestFsyncLockHoldsWriters(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "c"}`)
	n.ok("admin", `{"fsync": 1, "lock": true}`)
	n.ok("d", `{"find": "c"}`)
	if got := n.code("d", `{"insert": "c", "documents": [{"_id": 1}], "maxTimeMS": 20}`); got != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("write under the lock: code %d, want 50", got)
	}
	done := make(chan struct{})
	go func() { defer close(done); n.ok("d", `{"insert": "c", "documents": [{"_id": 2}]}`) }()
	n.ok("admin", `{"fsyncUnlock": 1}`)
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the writer still waits")
	}
}

// Nor do files change, although the replicated log and the collector take no locks.
func TestFsyncLockHoldsFiles(t *testing.T) {
	dir := t.TempDir()
	srv, err := Open(Config{Dir: dir, SetName: "rs", Host: "test:27017", Info: &command.Info{Host: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{t: t, srv: srv, cl: command.NewClient(1, "test:1", "test:27017", nil)}
	if err := srv.Initiate(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.ok("d", `{"create": "c"}`)
	n.ok("admin", `{"fsync": 1, "lock": true}`)
	e, written := srv.Engine, make(chan error, 1)
	before := e.Visible()
	go func() {
		u := e.NewUnitOfWork(nil)
		defer u.Rollback()
		_, err := u.Insert(e.Catalog().Lookup("d.c"), value.Doc(value.F("_id", value.NewInt32(1))), storage.NoInfo)
		if err == nil {
			_, err = e.Commit(t.Context(), u, true)
		}
		written <- err
	}()
	for e.Visible() == before {
		n.ok("d", `{"find": "c"}`)
	}
	other, err := os.Create(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for range 50 { // long enough for the disk to complete the commit's sync
		if _, err := other.WriteString("x"); err != nil {
			t.Fatal(err)
		}
		if err := other.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if e.Durable() > before {
		t.Error("a commit was synced")
	}
	n.ok("admin", `{"fsyncUnlock": 1}`)
	if err := <-written; err != nil || e.Durable() == before {
		t.Errorf("behind the lock: %v", err)
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
}

// Defaults apply to operations without a concern of their own, and survive a restart.
func TestDefaultConcernsAreStored(t *testing.T) {
	n := newTestNode(t)
	n.ok("admin", `{"setDefaultRWConcern": 1, "defaultReadConcern": {"level": "majority"}, "defaultWriteConcern": {"w": 1}}`)
	if err := n.srv.Node.settings.Load(); err != nil {
		t.Fatal(err)
	}
	r := n.ok("admin", `{"getDefaultRWConcern": 1}`)
	if got := shown(t, r, "defaultReadConcern", "defaultWriteConcern", "defaultReadConcernSource"); got !=
		`{ defaultReadConcern: { level: "majority" }, defaultWriteConcern: { w: 1, wtimeout: 0 }, defaultReadConcernSource: "global" }` {
		t.Errorf("%s", got)
	}
	if got := n.code("admin", `{"setDefaultRWConcern": 1, "defaultWriteConcern": {}}`); got != int32(mongoerr.IllegalOperation) {
		t.Errorf("unset write concern: code %d", got)
	}
}

func TestWriteBlockSurvives(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "c"}`)
	n.ok("admin", `{"setUserWriteBlockMode": 1, "global": true}`)
	if err := n.srv.Node.settings.Load(); err != nil {
		t.Fatal(err)
	}
	runSteps(t, n, []step{
		{`{"insert": "c", "documents": [{}]}`, mongoerr.UserWritesBlocked},
		{`{"drop": "c"}`, mongoerr.UserWritesBlocked},
		{`{"aggregate": "c", "pipeline": [{"$out": "out"}], "cursor": {}}`, mongoerr.UserWritesBlocked},
		{`{"aggregate": "c", "pipeline": [{"$merge": "out"}], "cursor": {}}`, mongoerr.UserWritesBlocked},
		{`{"find": "c"}`, 0},
	})
	if got := n.code("admin", `{"renameCollection": "d.c", "to": "d.e"}`); got != int32(mongoerr.UserWritesBlocked) {
		t.Errorf("renameCollection: code %d", got)
	}
	m := n.ok("admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "d.c"}]}`)
	if m["nErrors"] != int32(1) {
		t.Errorf("bulkWrite: %v", m)
	}
	n.ok("admin", `{"setUserWriteBlockMode": 1, "global": false}`)
	n.ok("d", `{"insert": "c", "documents": [{}]}`)
}

// The profiler keeps what its level and filter ask for, in a capped collection of the database.
func TestProfilerKeepsOperations(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"profile": 2}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	n.ok("d", `{"find": "c", "filter": {"_id": 1}}`)
	if got := n.first("d", `{"find": "system.profile", "filter": {"op": {"$in": ["insert", "query"]}}, "projection": {"_id": 0, "op": 1, "ns": 1}}`); fmt.Sprint(got) !=
		`[{ op: "insert", ns: "d.c" } { op: "query", ns: "d.c" }]` {
		t.Errorf("%v", got)
	}
	n.ok("d", `{"profile": 1, "filter": {"op": "remove"}}`)
	n.ok("d", `{"find": "c"}`)
	n.ok("d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
	if got := n.first("d", `{"find": "system.profile", "sort": {"$natural": -1}, "limit": 1, "projection": {"op": 1, "ndeleted": 1}}`); fmt.Sprint(got) !=
		`[{ op: "remove", ndeleted: 1 }]` {
		t.Errorf("%v", got)
	}
	if r := n.ok("d", `{"profile": 0, "filter": "unset"}`); shown(t, r, "was", "filter") != `{ was: 1, filter: { op: { $eq: "remove" } } }` {
		t.Errorf("%s", shown(t, r, "was", "filter"))
	}
}

// Settings reject a shape, whatever its values, and list the indexes it may use. Explain shows them.
func TestQuerySettings(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"a": 1, "b": 1}, "name": "ab"}]}`)
	r := n.ok("admin", `{"setQuerySettings": {"find": "c", "filter": {"a": 1}, "$db": "d"}, "settings": {"reject": true}}`)
	hash := r["queryShapeHash"]
	for _, cmd := range []string{
		`{"find": "c", "filter": {"a": 5}}`, `{"find": "c", "filter": {"b": 5}}`, `{"aggregate": "c", "pipeline": [{"$match": {"a": 1}}, {"$group": {"_id": "$b"}}], "cursor": {}}`,
	} {
		planner := docAt(t, n.ok("d", `{"explain": `+cmd+`, "verbosity": "queryPlanner"}`), "queryPlanner")
		set, _ := planner["querySettings"].(bson.D)
		if (len(set) == 1 && set[0] == bson.E{Key: "reject", Value: true}) != strings.Contains(cmd, `"a": 5`) {
			t.Errorf("%s: %v", cmd, planner)
		}
	}
	runSteps(t, n, []step{
		{`{"find": "c", "filter": {"a": 99}}`, mongoerr.QueryRejectedBySettings},
		{`{"find": "c", "filter": {"a": "text"}}`, 0},
		{`{"find": "c", "filter": {"b": 1}}`, 0},
	})
	n.ok("admin", fmt.Sprintf(`{"removeQuerySettings": "%s"}`, hash))
	n.ok("d", `{"find": "c", "filter": {"a": 99}}`)
	if got := n.first("admin", `{"aggregate": 1, "pipeline": [{"$querySettings": {}}], "cursor": {}}`); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// A member that stepped down is a secondary until its time is over.
func TestStepDown(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "c"}`)
	n.ok("admin", `{"replSetStepDown": 3600, "force": true}`)
	if r := n.ok("admin", `{"hello": 1}`); r["isWritablePrimary"] != false || r["secondary"] != true {
		t.Errorf("%v", r)
	}
	runSteps(t, n, []step{
		{`{"insert": "c", "documents": [{}]}`, mongoerr.NotWritablePrimary},
		{`{"find": "c"}`, mongoerr.NotPrimaryNoSecondaryOk},
		{`{"find": "c", "$readPreference": {"mode": "secondary"}}`, 0},
	})
	n.ok("admin", `{"replSetStepUp": 1}`)
	n.ok("d", `{"insert": "c", "documents": [{}]}`)
}

// A batch of a collection scan sees what was written since the batch before it; read concern snapshot does not.
func TestBatchesSeeNewWrites(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}]}`)
	for level, want := range map[string]int{"local": 3, "snapshot": 2} {
		r := n.ok("d", fmt.Sprintf(`{"find": "c", "batchSize": 1, "readConcern": {"level": "%s"}}`, level))
		id := cursorID(t, r)
		n.ok("d", `{"insert": "c", "documents": [{"_id": 4}]}`)
		more := n.ok("d", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, id))
		if got := batchLen(t, more); got != want {
			t.Errorf("%s: %d documents, want %d", level, got, want)
		}
		n.ok("d", `{"delete": "c", "deletes": [{"q": {"_id": 4}, "limit": 1}]}`)
	}
	r := n.ok("d", `{"find": "c", "batchSize": 1}`)
	n.ok("d", `{"drop": "c"}`)
	if got := n.code("d", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, cursorID(t, r))); got != int32(mongoerr.QueryPlanKilled) {
		t.Errorf("after drop: code %d, want 175", got)
	}
}

// shown is some fields of a reply as text.
func shown(t *testing.T, r bson.M, keys ...string) string {
	t.Helper()
	var d bson.D
	for _, k := range keys {
		if v, ok := r[k]; ok {
			d = append(d, bson.E{Key: k, Value: v})
		}
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return value.ShowDoc(raw)
}

func cursorOf(t *testing.T, r bson.M) bson.D {
	t.Helper()
	d, ok := r["cursor"].(bson.D)
	if !ok {
		t.Fatalf("no cursor in %v", r)
	}
	return d
}

func cursorID(t *testing.T, r bson.M) (id int64) {
	for _, e := range cursorOf(t, r) {
		if e.Key == "id" {
			id, _ = e.Value.(int64)
		}
	}
	return id
}

func batchLen(t *testing.T, r bson.M) int {
	for _, e := range cursorOf(t, r) {
		if a, ok := e.Value.(bson.A); ok {
			return len(a)
		}
	}
	return -1
}

// With help, a command returns its description and does nothing, whatever else is wrong with the request.
func TestCommandsDescribeThemselves(t *testing.T) {
	n := newTestNode(t)
	for _, cmd := range []string{`{"find": 1, "help": true}`, `{"dropDatabase": 1, "help": 1}`, `{"update": 1, "nonsense": 2, "help": true}`, `{"replSetGetStatus": 1, "help": true}`} {
		r := n.ok("d", cmd)
		text, _ := r["help"].(string)
		if !strings.HasPrefix(text, "help for: ") || len(strings.Fields(text)) < 4 || len(r) > 2 && r["operationTime"] == nil {
			t.Errorf("%s: %v", cmd, r)
		}
	}
	if r := n.do("d", `{"find": 1, "help": false}`); r["ok"] != 0.0 {
		t.Errorf("help: false ran no find: %v", r)
	}
	for _, v := range n.ok("admin", `{"listCommands": 1}`)["commands"].(bson.D) {
		if help := v.Value.(bson.D)[0]; help.Key != "help" || help.Value == "" {
			t.Errorf("%s: no help", v.Key)
		}
	}
}

// serverStatus.metrics counts the work that was done.
func TestMetricsCountWork(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 3}, {"_id": 2, "a": 2}, {"_id": 3, "a": 1}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
	figures := func() map[string]int64 {
		out := map[string]int64{}
		var walk func(prefix string, d bson.D)
		walk = func(prefix string, d bson.D) {
			for _, e := range d {
				switch v := e.Value.(type) {
				case bson.D:
					walk(prefix+e.Key+".", v)
				case int64:
					out[prefix+e.Key] = v
				}
			}
		}
		walk("", n.ok("admin", `{"serverStatus": 1}`)["metrics"].(bson.D))
		return out
	}
	before := figures()
	n.ok("d", `{"find": "c", "sort": {"b": 1}}`)
	n.ok("d", `{"find": "c", "filter": {"a": {"$gte": 2}}}`)
	n.ok("d", `{"aggregate": "c", "pipeline": [{"$match": {"a": 1}}, {"$count": "n"}], "cursor": {}}`)
	n.ok("d", `{"update": "c", "updates": [{"q": {"a": {"$gt": 99}}, "u": [{"$set": {"b": {"$add": ["$a", 1]}}}]}, {"q": {"a": 99}, "u": {"$set": {"l.$[e]": 1}}, "arrayFilters": [{"e": 1}]}]}`)
	id := n.ok("d", `{"find": "c", "filter": {"a": {"$gte": 0}}, "batchSize": 1, "noCursorTimeout": true}`)["cursor"].(bson.D)[1].Value.(int64)
	open := figures()
	n.ok("d", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, id))
	after := figures()
	for name, want := range map[string]int64{
		"document.returned": 3 + 2 + 1 + 3, "queryExecutor.collectionScans.total": 1, "queryExecutor.collectionScans.nonTailable": 1, "operation.scanAndOrder": 1,
		"aggStageCounters.$match": 1, "aggStageCounters.$count": 1, "aggStageCounters.$group": 0, "aggStageCounters.$set": 1,
		"operatorCounters.match.$gte": 2, "operatorCounters.match.$gt": 1, "operatorCounters.expressions.$add": 1,
		"commands.update.pipeline": 1, "commands.update.arrayFilters": 1, "commands.update.total": 1,
		"cursor.totalOpened": 1, "cursor.moreThanOneBatch": 1, "cursor.lifespan.lessThan1Second": 1, "cursor.open.noTimeout": 0,
	} {
		if got := after[name] - before[name]; got != want {
			t.Errorf("%s grew by %d, want %d", name, got, want)
		}
	}
	if open["cursor.open.noTimeout"] != 1 || open["cursor.open.total"] != 1 {
		t.Errorf("with an open cursor: %d, of which %d never time out", open["cursor.open.total"], open["cursor.open.noTimeout"])
	}
	if after["queryExecutor.scanned"]-before["queryExecutor.scanned"] < 6 || after["queryExecutor.scannedObjects"]-before["queryExecutor.scannedObjects"] < 8 {
		t.Errorf("scanned %d keys and %d documents", after["queryExecutor.scanned"], after["queryExecutor.scannedObjects"])
	}
}

// A default read concern does not break commands that read the server's own memory.
func TestDefaultReadConcernIsForData(t *testing.T) {
	n := newTestNode(t)
	n.ok("admin", `{"setDefaultRWConcern": 1, "defaultReadConcern": {"level": "majority"}}`)
	n.ok("admin", `{"aggregate": 1, "pipeline": [{"$currentOp": {}}, {"$match": {"a": 1}}], "cursor": {}}`)
	n.ok("d", `{"aggregate": 1, "pipeline": [{"$listClusterCatalog": {}}], "cursor": {}}`)
	if got := n.code("admin", `{"aggregate": 1, "pipeline": [{"$currentOp": {}}], "cursor": {}, "readConcern": {"level": "majority"}}`); got != int32(mongoerr.InvalidOptions) {
		t.Errorf("a read concern of the client's: code %d, want InvalidOptions", got)
	}
}

// A standalone server has no change streams, and refuses the stage wherever it appears.
func TestLoneServerHasNoChangeStreams(t *testing.T) {
	srv, err := Open(Config{Memory: true, Host: "test:27017", Info: &command.Info{Host: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	n := &testNode{t: t, srv: srv, cl: command.NewClient(1, "test:1", "test:27017", nil)}
	n.ok("d", `{"create": "v", "viewOn": "c", "pipeline": []}`)
	for _, cmd := range []string{
		`{"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}`,
		`{"aggregate": "c", "pipeline": [{"$lookup": {"from": "x", "pipeline": [{"$changeStream": {}}], "as": "a"}}], "cursor": {}}`,
		`{"create": "w", "viewOn": "c", "pipeline": [{"$changeStream": {}}]}`,
		`{"collMod": "v", "viewOn": "c", "pipeline": [{"$changeStream": {}}]}`,
	} {
		if got := n.code("d", cmd); got != 40573 {
			t.Errorf("%s: code %d", cmd, got)
		}
	}
}

// A standalone server refuses, in every command, what only replica sets can honour: a time of the cluster, and acknowledgements of
// members or by modes, an empty name included; also where nothing is written. Cluster time is a variable of updates alone.
func TestLoneServerRefusesWhatSetsHonour(t *testing.T) {
	srv, err := Open(Config{Memory: true, Host: "test:27017", Info: &command.Info{Host: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	n := &testNode{t: t, srv: srv, cl: command.NewClient(1, "test:1", "test:27017", nil)}
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	n.ok("d", `{"create": "valid", "validator": {"$expr": {"$gt": ["$$CLUSTER_TIME", null]}}}`)
	const after = `"readConcern": {"afterClusterTime": {"$timestamp": {"t": 1, "i": 1}}}`
	for cmd, want := range map[string]mongoerr.Code{
		`{"find": "c", ` + after + `}`:                                                          mongoerr.IllegalOperation,
		`{"killCursors": "c", "cursors": [{"$numberLong": "1"}], ` + after + `}`:                mongoerr.IllegalOperation,
		`{"find": "c", "readConcern": {"level": "linearizable"}}`:                               mongoerr.NotAReplicaSet,
		`{"aggregate": "c", "pipeline": [], "cursor": {}, "writeConcern": {"w": 2}}`:            mongoerr.BadValue,
		`{"insert": "c", "documents": [{}], "writeConcern": {"w": ""}}`:                         mongoerr.BadValue,
		`{"insert": "c", "documents": [{}], "writeConcern": {"w": null}}`:                       mongoerr.BadValue,
		`{"create": "made", "writeConcern": {"w": "other"}}`:                                    mongoerr.BadValue,
		`{"aggregate": "c", "pipeline": [{"$group": {"_id": "$$CLUSTER_TIME"}}], "cursor": {}}`: 10071200,
	} {
		if got := n.code("d", cmd); got != int32(want) {
			t.Errorf("%s: code %d, want %d", cmd, got, want)
		}
	}
	if got := n.refusal("d", `{"insert": "valid", "documents": [{}]}`); got != 10071200 {
		t.Errorf("an insert whose validator has $$CLUSTER_TIME: write error %d", got)
	}
	n.ok("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": [{"$set": {"u": "$$CLUSTER_TIME"}}]}]}`)
	n.ok("d", `{"findAndModify": "c", "query": {"_id": 1}, "update": [{"$set": {"f": "$$CLUSTER_TIME"}}]}`)
	if got := n.first("d", `{"find": "c", "filter": {"u": {"$type": "timestamp"}, "f": {"$type": "timestamp"}}}`); len(got) != 1 {
		t.Errorf("updates with $$CLUSTER_TIME made %s", got)
	}
	n.ok("d", `{"insert": "c", "documents": [{}], "writeConcern": {"w": "majority"}}`)
	n.ok("d", `{"update": "c", "updates": [{"q": {}, "u": {"$currentDate": {"t": {"$type": "timestamp"}}}}]}`)
	if r := n.ok("d", `{"count": "c", "query": {"t": {"$gt": {"$timestamp": {"t": 1, "i": 0}}}}}`); r["n"] != int32(1) {
		t.Errorf("$currentDate set a timestamp on %v documents", r["n"])
	}
}

// In a set an empty name of a mode, and null in its place, is a mode that the set does not have: the write is executed, and its reply has the error.
func TestEmptyWriteConcernMode(t *testing.T) {
	n := newTestNode(t)
	for _, w := range []string{`""`, "null"} {
		r := n.ok("d", `{"insert": "c", "documents": [{}], "writeConcern": {"w": `+w+`}}`)
		e := asM(r["writeConcernError"])
		if r["n"] != int32(1) || e["code"] != int32(mongoerr.UnknownReplWriteConcern) {
			t.Errorf("w: %s: %v", w, r)
		}
	}
}

// collStats reported the oplog's default size, whatever it had been set to.
func TestOplogSizeIsReported(t *testing.T) {
	n := newTestNode(t)
	n.srv.Node.Engine.SetOplogSize(5 << 20)
	if r := n.ok("local", `{"collStats": "oplog.rs"}`); r["maxSize"] != int32(5<<20) {
		t.Errorf("maxSize: %v", r["maxSize"])
	}
}

// Commands about sharding on a server outside of clusters: readers in parallel find split points, and a client learns that there is no cluster.
func TestShardingCommandsOutsideOfClusters(t *testing.T) {
	n := newTestNode(t)
	docs := make([]string, 100)
	for i := range docs {
		docs[i] = fmt.Sprintf(`{"_id": %d}`, i)
	}
	n.ok("db", `{"insert": "c", "documents": [`+strings.Join(docs, ",")+`]}`)
	r := n.ok("db", `{"splitVector": "db.c", "keyPattern": {"_id": 1}, "force": true}`)
	if keys := fmt.Sprint(r["splitKeys"]); keys != `[{"_id":{"$numberInt":"50"}}]` {
		t.Errorf("the middle is %s", keys)
	}
	if r := n.ok("admin", `{"shardingState": 1}`); r["enabled"] != false {
		t.Errorf("shardingState: %v", r)
	}
	adminSteps(t, n, []step{
		{`{"getShardVersion": "db.c"}`, mongoerr.NoShardingEnabled},
		{`{"_recvChunkStatus": "db.c"}`, mongoerr.NoShardingEnabled},
		{`{"replSetRequestVotes": 1}`, mongoerr.NotImplemented},
	})
	// Commands for tests do not exist where these are not enabled.
	for _, name := range []string{"replSetTest", "captrunc", "emptycapped", "godinsert", "_hashBSONElement", "sleep", "configureFailPoint"} {
		if r := n.do("admin", `{"`+name+`": 1}`); fmt.Sprint(r["code"]) != "59" || r["errmsg"] != "no such command: '"+name+"'" {
			t.Errorf("%s: %v", name, r)
		}
	}
	n.srv.Node.Params.Store("enableTestCommands", value.NewBool(true))
	adminSteps(t, n, []step{{`{"replSetTest": 1}`, mongoerr.NotImplemented}})
}
