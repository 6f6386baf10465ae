package shardnode

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// watch is a change stream under test.
type watch struct {
	n     *testNode
	db    string
	coll  string
	id    int64
	token bson.M // postBatchResumeToken of the newest batch
}

// plain turns documents into maps, at every depth.
func plain(v any) any {
	switch v := v.(type) {
	case bson.D:
		m := bson.M{}
		for _, e := range v {
			m[e.Key] = plain(e.Value)
		}
		return m
	case bson.M:
		for k := range v {
			v[k] = plain(v[k])
		}
	case bson.A:
		for i := range v {
			v[i] = plain(v[i])
		}
	}
	return v
}

// openWatch opens a stream on a collection; "" stands for the database.
func (n *testNode) openWatch(db, coll, spec string, stages ...string) (*watch, bson.A) {
	n.t.Helper()
	target := fmt.Sprintf("%q", coll)
	if coll == "" {
		target, coll = "1", "$cmd.aggregate"
	}
	pipeline := strings.Join(append([]string{`{"$changeStream": ` + spec + `}`}, stages...), ",")
	c := plain(n.ok(db, fmt.Sprintf(`{"aggregate": %s, "pipeline": [%s], "cursor": {}}`, target, pipeline))["cursor"]).(bson.M)
	w := &watch{n: n, db: db, coll: coll, id: c["id"].(int64)}
	w.token, _ = c["postBatchResumeToken"].(bson.M)
	return w, c["firstBatch"].(bson.A)
}

func (w *watch) more(ms int) bson.A {
	w.n.t.Helper()
	c := plain(w.n.ok(w.db, fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": %q, "maxTimeMS": %d}`, w.id, w.coll, ms))["cursor"]).(bson.M)
	w.id, w.token = c["id"].(int64), c["postBatchResumeToken"].(bson.M)
	return c["nextBatch"].(bson.A)
}

// types lists the operation types of the events in a batch.
func types(batch bson.A) string {
	var out []string
	for _, e := range batch {
		out = append(out, e.(bson.M)["operationType"].(string))
	}
	return strings.Join(out, " ")
}

// all reads the stream until it has n events or no more arrive.
func (w *watch) all(n int) bson.A {
	w.n.t.Helper()
	var out bson.A
	for len(out) < n && w.id != 0 {
		b := w.more(5000)
		if len(b) == 0 {
			break
		}
		out = append(out, b...)
	}
	return out
}

func TestChangeStreamReportsChanges(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"insert": "c", "documents": [{"_id": 0}]}`)
	w, first := n.openWatch("db", "c", `{"fullDocument": "updateLookup"}`)
	if len(first) != 0 {
		t.Fatalf("a stream that begins now has %v", first)
	}
	n.ok("db", `{"insert": "c", "documents": [{"_id": 1, "a": 1, "l": [1, 2, 3, 4, 5, 6, 7, 8, 9]}]}`)
	n.ok("db", `{"insert": "other", "documents": [{"_id": 1}]}`)
	n.ok("db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"b.c": 1}, "$unset": {"a": 1}}}]}`)
	n.ok("db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": [{"$set": {"l": {"$slice": ["$l", 3]}}}]}]}`)
	n.ok("db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"z": 1}}]}`)
	n.ok("db", `{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}`)
	n.ok("db", `{"drop": "c"}`)
	got := w.all(7)
	if s := types(got); s != "insert update update replace delete drop invalidate" {
		t.Fatalf("the events are %s", s)
	}
	if w.id != 0 {
		t.Error("the cursor stays open after its invalidate")
	}
	insert, update, cut, replace := got[0].(bson.M), got[1].(bson.M), got[2].(bson.M), got[3].(bson.M)
	want := func(name string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	want("ns", insert["ns"], bson.M{"db": "db", "coll": "c"})
	want("documentKey", insert["documentKey"], bson.M{"_id": int32(1)})
	want("updateDescription", update["updateDescription"], bson.M{"updatedFields": bson.M{"b": bson.M{"c": int32(1)}}, "removedFields": bson.A{"a"}, "truncatedArrays": bson.A{}})
	want("fullDocument of an update whose document is gone", update["fullDocument"], nil)
	want("truncatedArrays", cut["updateDescription"].(bson.M)["truncatedArrays"], bson.A{bson.M{"field": "l", "newSize": int32(3)}})
	want("fullDocument of a replacement", replace["fullDocument"], bson.M{"_id": int32(1), "z": int32(1)})
	for _, e := range got {
		if _, ok := e.(bson.M)["wallTime"].(bson.DateTime); !ok {
			t.Errorf("%v has no wallTime", e)
		}
	}
}

// Whichever event a stream is resumed after, the later events arrive once each, and the tokens sort in the same order.
func TestChangeStreamResumesAfterEveryEvent(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"create": "c"}`)
	w, _ := n.openWatch("db", "c", `{}`)
	begin := w.token
	n.ok("db", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2.5}, {"_id": "three"}]}`)
	n.ok("db", `{"insert": "c", "documents": [{"_id": 4}, {"_id": 5}], "lsid": {"id": {"$uuid": "11111111-1111-4111-8111-111111111111"}}, "txnNumber": {"$numberLong": "1"}, "startTransaction": true, "autocommit": false}`)
	n.ok("db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}], "lsid": {"id": {"$uuid": "11111111-1111-4111-8111-111111111111"}}, "txnNumber": {"$numberLong": "1"}, "autocommit": false}`)
	n.ok("admin", `{"commitTransaction": 1, "lsid": {"id": {"$uuid": "11111111-1111-4111-8111-111111111111"}}, "txnNumber": {"$numberLong": "1"}, "autocommit": false}`)
	n.ok("db", `{"delete": "c", "deletes": [{"q": {"_id": 4}, "limit": 1}]}`)
	n.ok("db", `{"drop": "c"}`)
	all := w.all(9)
	if s := types(all); s != "insert insert insert insert insert update delete drop invalidate" {
		t.Fatalf("the events are %s", s)
	}
	if e := all[4].(bson.M); e["txnNumber"] != int64(1) || e["lsid"] == nil {
		t.Errorf("an event of a transaction is %v", e)
	}
	last := begin["_data"].(string)
	for i, e := range all {
		token := e.(bson.M)["_id"].(bson.M)["_data"].(string)
		if token <= last {
			t.Errorf("the token of event %d, %s, does not sort after %s", i, token, last)
		}
		last = token
		for _, option := range []string{"resumeAfter", "startAfter"} {
			if i == len(all)-1 && option == "resumeAfter" {
				continue
			}
			_, rest := n.openWatch("db", "c", fmt.Sprintf(`{%q: {"_data": %q}}`, option, token))
			if !reflect.DeepEqual(rest, all[i+1:]) {
				t.Errorf("%s event %d gives %v", option, i, types(rest))
			}
		}
	}
	if code := n.code("db", fmt.Sprintf(`{"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": {"_data": %q}}}], "cursor": {}}`, last)); code != int32(mongoerr.InvalidResumeToken) {
		t.Errorf("resumeAfter an invalidate: %d", code)
	}
	_, rest := n.openWatch("db", "c", fmt.Sprintf(`{"startAfter": {"_data": %q}}`, begin["_data"]))
	if !reflect.DeepEqual(rest, all) {
		t.Errorf("from the token of the empty first batch: %v", types(rest))
	}
}

// The images before and after each change come from what was stored with the change, in transactions too.
func TestChangeStreamImages(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"create": "c", "changeStreamPreAndPostImages": {"enabled": true}}`)
	w, _ := n.openWatch("db", "c", `{"fullDocument": "required", "fullDocumentBeforeChange": "required"}`)
	begin := w.token["_data"]
	const txn = `, "lsid": {"id": {"$uuid": "11111111-1111-4111-8111-111111111111"}}, "txnNumber": {"$numberLong": "1"}, "autocommit": false`
	n.ok("db", `{"insert": "c", "documents": [{"_id": 1, "a": 1, "l": [1, 2, 3, 4, 5, 6]}, {"_id": 2, "a": 1}]}`)
	n.ok("db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": [{"$set": {"l": {"$slice": ["$l", 2]}}}]}]}`)
	n.ok("db", `{"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 2}}, "multi": true}, {"q": {"_id": 1}, "u": {"z": 1}}]}`)
	n.ok("db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"t": 1}}}], "startTransaction": true`+txn+`}`)
	n.ok("db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"t": 2}}}]`+txn+`}`)
	n.ok("db", `{"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]`+txn+`}`)
	n.ok("admin", `{"commitTransaction": 1`+txn+`}`)
	n.ok("db", `{"findAndModify": "c", "query": {"_id": 1}, "remove": true}`)
	got := w.all(10)
	d := func(kv ...any) bson.M {
		m := bson.M{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i].(string)] = kv[i+1]
		}
		return m
	}
	one, two := int32(1), int32(2)
	long, short := bson.A{one, two, int32(3), int32(4), int32(5), int32(6)}, bson.A{one, two}
	images := []struct {
		kind          string
		before, after any
	}{
		{"insert", nil, d("_id", one, "a", one, "l", long)}, {"insert", nil, d("_id", two, "a", one)},
		{"update", d("_id", one, "a", one, "l", long), d("_id", one, "a", one, "l", short)},
		{"update", d("_id", one, "a", one, "l", short), d("_id", one, "a", two, "l", short)}, {"update", d("_id", two, "a", one), d("_id", two, "a", two)},
		{"replace", d("_id", one, "a", two, "l", short), d("_id", one, "z", one)},
		{"update", d("_id", one, "z", one), d("_id", one, "z", one, "t", one)}, {"update", d("_id", one, "z", one, "t", one), d("_id", one, "z", one, "t", two)},
		{"delete", d("_id", two, "a", two), nil}, {"delete", d("_id", one, "z", one, "t", two), nil},
	}
	if len(got) != len(images) {
		t.Fatalf("the events are %s", types(got))
	}
	for i, want := range images {
		e := got[i].(bson.M)
		if e["operationType"] != want.kind || !reflect.DeepEqual(e["fullDocumentBeforeChange"], want.before) || !reflect.DeepEqual(e["fullDocument"], want.after) {
			t.Errorf("event %d is %v,\nwant %v", i, e, want)
		}
		if _, has := e["fullDocumentBeforeChange"]; has != (want.kind != "insert") {
			t.Errorf("event %d, %s, has an image: %v", i, want.kind, has)
		}
	}
	stored := plain(n.ok("config", `{"find": "system.preimages", "filter": {"_id.applyOpsIndex": 2}}`)["cursor"]).(bson.M)["firstBatch"].(bson.A)
	if len(stored) != 1 || !reflect.DeepEqual(stored[0].(bson.M)["preImage"], images[8].before) || stored[0].(bson.M)["_id"].(bson.M)["ts"] != got[8].(bson.M)["clusterTime"] {
		t.Errorf("stored are %v", stored)
	}

	// Once they are disabled, changes have no images; earlier ones still have theirs.
	n.ok("db", `{"collMod": "c", "changeStreamPreAndPostImages": {"enabled": false}}`)
	n.ok("db", `{"insert": "c", "documents": [{"_id": 3}]}`)
	n.ok("db", `{"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"a": 1}}}]}`)
	n.ok("db", `{"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]}`)
	for _, c := range []struct{ spec, text string }{
		{`"fullDocument": "required"`, "post-image for all update events, but the post-image was not found"},
		{`"fullDocumentBeforeChange": "required"`, "pre-image for all update, delete and replace events, but the pre-image was not found"},
	} {
		r := n.do("db", fmt.Sprintf(`{"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": {"_data": %q}, %s}}], "cursor": {}}`, begin, c.spec))
		if msg, _ := r["errmsg"].(string); r["code"] != int32(mongoerr.NoMatchingDocument) || !strings.Contains(msg, c.text) {
			t.Errorf("%s: %v", c.spec, r)
		}
	}
	_, rest := n.openWatch("db", "c", fmt.Sprintf(`{"resumeAfter": {"_data": %q}, "fullDocument": "whenAvailable", "fullDocumentBeforeChange": "whenAvailable"}`, begin))
	if len(rest) != 13 || !reflect.DeepEqual(rest[9], got[9]) {
		t.Fatalf("whenAvailable gives %v", types(rest))
	}
	for i, name := range []string{"fullDocument", "fullDocumentBeforeChange"} {
		if v, has := rest[11+i].(bson.M)[name]; v != nil || !has {
			t.Errorf("%s without an image is %v, %v", name, v, has)
		}
	}
}

// A stream that had reached a time in a history that its member then rolled back continued after that time, and missed the events before.
func TestChangeStreamEndsWithTheHistoryItFollows(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	w, _ := n.openWatch("d", "c", `{}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 2}]}`)
	w.all(1)
	n.srv.follow(storage.ApplyInfo{Snapshot: true, TS: n.srv.Node.Engine.Visible()})
	if got := n.code("d", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c", "maxTimeMS": 100}`, w.id)); got != int32(mongoerr.InterruptedDueToReplStateChange) {
		t.Errorf("code %d", got)
	}
	w, _ = n.openWatch("d", "c", `{}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 3}]}`)
	if got := types(w.all(1)); got != "insert" {
		t.Errorf("%s", got)
	}
}

// Images are removed when they expire, or when they are older than the oplog.
func TestPreImagesExpire(t *testing.T) {
	n := newTestNode(t)
	for _, c := range []string{"a", "b"} {
		n.ok("db", `{"create": "`+c+`", "changeStreamPreAndPostImages": {"enabled": true}}`)
		n.ok("db", `{"insert": "`+c+`", "documents": [{"_id": 1}]}`)
		for i := range 3 {
			n.ok("db", fmt.Sprintf(`{"update": %q, "updates": [{"q": {"_id": 1}, "u": {"$set": {"i": %d}}}]}`, c, i))
		}
	}
	left := func(want string) {
		t.Helper()
		got := strings.Join(n.first("config", `{"aggregate": "system.preimages", "pipeline": [{"$group": {"_id": "$_id.nsUUID", "n": {"$sum": 1}}}, {"$sort": {"n": -1}}, {"$project": {"_id": 0}}], "cursor": {}}`), " ")
		if got != want {
			t.Errorf("left are %s, want %s", got, want)
		}
	}
	left("{ n: 3 } { n: 3 }")
	remover, ctx := imageRemover{n.srv.Node}, t.Context()
	if err := remover.pass(ctx); err != nil {
		t.Fatal(err)
	}
	left("{ n: 3 } { n: 3 }")
	remove := func(l imageLimits) {
		t.Helper()
		if err := n.srv.Node.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			_, err := removeImages(s, u, l)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	last := plain(n.ok("config", `{"find": "system.preimages", "sort": {"_id.ts": -1}, "limit": 2}`)["cursor"]).(bson.M)["firstBatch"].(bson.A)
	ts := last[1].(bson.M)["_id"].(bson.M)["ts"].(bson.Timestamp)
	remove(imageLimits{before: storage.TimestampOf(ts.T, ts.I)})
	left("{ n: 2 }")
	n.ok("admin", `{"setClusterParameter": {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": 3600}}}}`)
	l, err := remover.limits()
	if age := n.srv.Node.now().UnixMilli() - l.age; err != nil || age < 3600_000 || age > 2*3600_000 || l.before != 0 {
		t.Errorf("the limits are %v, %v", l, err)
	}
	if err := remover.pass(ctx); err != nil {
		t.Fatal(err)
	}
	left("{ n: 2 }")
	n.ok("admin", `{"setClusterParameter": {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": 10000000000}}}}`)
	if err := remover.pass(ctx); err != nil {
		t.Fatal(err)
	}
	left("{ n: 2 }") // a time longer than a Duration can express
	remove(imageLimits{age: l.age + 2*3600_000})
	left("")
}

// Errors after which a stream can be resumed have the label for that, on streams alone.
func TestResumableChangeStreamErrors(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}`)
	for _, c := range []struct {
		code  mongoerr.Code
		label bool
	}{{mongoerr.HostUnreachable, true}, {mongoerr.ShutdownInProgress, true}, {mongoerr.PrimarySteppedDown, true}, {mongoerr.ExceededTimeLimit, true}, {mongoerr.RetryChangeStream, true}, {mongoerr.FailedToSatisfyReadPreference, true}, {mongoerr.StaleConfig, true}, {mongoerr.Interrupted, false}, {mongoerr.UnknownError, false}, {mongoerr.ChangeStreamHistoryLost, false}} {
		n.fail("failGetMoreAfterCursorCheckout", 2, bson.M{"errorCode": int(c.code)})
		w, _ := n.openWatch("db", "c", `{}`)
		r := n.do("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, w.id))
		labels, _ := r["errorLabels"].(bson.A)
		if r["code"] != int32(c.code) || (len(labels) == 1 && labels[0] == "ResumableChangeStreamError") != c.label || len(labels) > 1 {
			t.Errorf("%d: %v", int(c.code), r)
		}
		id := plain(n.ok("db", `{"find": "c", "batchSize": 1}`)["cursor"]).(bson.M)["id"].(int64)
		if r := n.do("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, id)); r["code"] != int32(c.code) || strings.Contains(fmt.Sprint(r["errorLabels"]), "ResumableChangeStreamError") && !strings.Contains(fmt.Sprint(r["errorLabels"]), "NonResumable") {
			t.Errorf("%d of a find: %v", int(c.code), r)
		}
	}
}

// A stream whose next events have been truncated ends with ChangeStreamHistoryLost, when it is resumed and while it is open.
func TestChangeStreamHistoryLost(t *testing.T) {
	n := newTestNode(t)
	e := n.srv.Node.Engine
	n.ok("db", `{"create": "c"}`)
	w, _ := n.openWatch("db", "c", `{}`)
	slow, _ := n.openWatch("db", "c", `{}`)
	n.ok("db", `{"insert": "c", "documents": [{"_id": 0}]}`)
	first := w.all(1)
	if len(first) != 1 {
		t.Fatal("the first event did not come")
	}
	token := first[0].(bson.M)["_id"].(bson.M)["_data"]
	at := first[0].(bson.M)["clusterTime"].(bson.Timestamp)
	pad := strings.Repeat("x", 1<<20)
	for i := range 40 { // more than the streams' window can hold
		n.ok("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "pad": %q}]}`, i+1, pad))
	}
	e.SetOplogSize(1 << 20)
	n.flush()
	if err := e.TruncateOplog(); err != nil {
		t.Fatal(err)
	}
	lost := func(what string, r bson.M) {
		t.Helper()
		labels, _ := r["errorLabels"].(bson.A)
		msg, _ := r["errmsg"].(string)
		if r["code"] != int32(mongoerr.ChangeStreamHistoryLost) || len(labels) != 1 || labels[0] != "NonResumableChangeStreamError" ||
			!strings.HasSuffix(msg, ":: caused by :: Resume of change stream was not possible, as the resume point may no longer be in the oplog.") || strings.Count(msg, "caused by") != 1 {
			t.Errorf("%s: %v", what, r)
		}
	}
	for _, spec := range []string{
		fmt.Sprintf(`{"resumeAfter": {"_data": %q}}`, token), fmt.Sprintf(`{"startAfter": {"_data": %q}}`, token),
		fmt.Sprintf(`{"startAtOperationTime": {"$timestamp": {"t": %d, "i": %d}}}`, at.T, at.I),
	} {
		lost(spec, n.do("db", `{"aggregate": "c", "pipeline": [{"$changeStream": `+spec+`}], "cursor": {}}`))
	}
	lost("a stream that nobody read", n.do("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, slow.id)))
}

// An event that is too large for a message is sent in fragments, and a stream can be resumed after each of them.
func TestSplitEventsAreResumed(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"create": "c", "changeStreamPreAndPostImages": {"enabled": true}}`)
	n.ok("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": 1, "pad": %q}]}`, strings.Repeat("a", 9<<20)))
	const split = `{"$changeStreamSplitLargeEvent": {}}`
	w, _ := n.openWatch("db", "c", `{"fullDocumentBeforeChange": "required"}`, split)
	n.ok("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"pad": %q}}]}`, strings.Repeat("b", 9<<20)))
	n.ok("db", `{"insert": "c", "documents": [{"_id": 2}]}`)
	all := w.all(3)
	if len(all) != 3 || all[2].(bson.M)["operationType"] != "insert" {
		t.Fatalf("%d events came", len(all))
	}
	token := func(e any) string { return e.(bson.M)["_id"].(bson.M)["_data"].(string) }
	for i, e := range all[:2] {
		if want := (bson.M{"fragment": int32(i + 1), "of": int32(2)}); !reflect.DeepEqual(e.(bson.M)["splitEvent"], want) {
			t.Errorf("fragment %d is %v", i, e.(bson.M)["splitEvent"])
		}
		if token(e) >= token(all[i+1]) {
			t.Errorf("the token %s sorts after %s", token(e), token(all[i+1]))
		}
	}
	for i := range all {
		r, rest := n.openWatch("db", "c", fmt.Sprintf(`{"fullDocumentBeforeChange": "required", "resumeAfter": {"_data": %q}}`, token(all[i])), split)
		for len(rest) < len(all)-1-i {
			b := r.more(2000)
			if len(b) == 0 {
				break
			}
			rest = append(rest, b...)
		}
		if len(rest) != len(all)-1-i || len(rest) > 0 && !reflect.DeepEqual(rest, all[i+1:]) {
			t.Errorf("after event %d: %d events", i, len(rest))
		}
	}
	open := `{"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": {"_data": %q}}}%s], "cursor": {}}`
	if code := n.code("db", fmt.Sprintf(open, token(all[0]), "")); code != int32(mongoerr.ChangeStreamFatalError) {
		t.Errorf("without the stage: %d", code)
	}
	if code := n.code("db", fmt.Sprintf(open, token(all[0]), ","+split)); code != int32(mongoerr.ChangeStreamFatalError) {
		t.Errorf("of an event that is not split: %d", code)
	}
}

// A collMod that changes nothing is an event.
func TestChangeStreamReportsEveryCollMod(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"create": "c"}`)
	w, _ := n.openWatch("db", "c", `{"showExpandedEvents": true}`)
	n.ok("db", `{"collMod": "c"}`)
	if got := w.all(1); types(got) != "modify" {
		t.Errorf("a collMod that changes nothing is %v", got)
	}
}

// A modify event has the collection's UUID and, for an index, the former values of the options that the command changed.
func TestModifyReportsWhatWasBefore(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"create": "c"}`)
	n.ok("db", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a", "expireAfterSeconds": 100}, {"key": {"b": 1}, "name": "b"}]}`)
	w, _ := n.openWatch("db", "c", `{"showExpandedEvents": true}`)
	cases := []struct {
		change string
		index  any
	}{
		{`"index": {"name": "a", "expireAfterSeconds": 300, "hidden": true}`, bson.M{"expireAfterSeconds": int64(100), "hidden": false}},
		{`"index": {"name": "b", "expireAfterSeconds": 300}`, nil},
		{`"changeStreamPreAndPostImages": {"enabled": true}`, nil},
	}
	for _, c := range cases {
		n.ok("db", `{"collMod": "c", `+c.change+`}`)
	}
	for i, e := range w.all(len(cases)) {
		e := e.(bson.M)
		before, _ := e["stateBeforeChange"].(bson.M)
		options, _ := before["collectionOptions"].(bson.M)
		if e["operationType"] != "modify" || options["uuid"] == nil || !reflect.DeepEqual(options["uuid"], e["collectionUUID"]) {
			t.Errorf("%s: %v", cases[i].change, e)
		}
		if got := before["indexOptions"]; !reflect.DeepEqual(plain(got), plain(cases[i].index)) {
			t.Errorf("%s: before, the index had %v, want %v", cases[i].change, got, cases[i].index)
		}
	}
}

// showExpandedEvents is not part of the stable API.
func TestStreamsOfTheStableAPI(t *testing.T) {
	n := newTestNode(t)
	for spec, want := range map[string]mongoerr.Code{`{}`: 0, `{"showExpandedEvents": true}`: mongoerr.APIStrictError, `{"showExpandedEvents": false}`: mongoerr.APIStrictError} {
		if got := n.code("d", `{"aggregate": "c", "pipeline": [{"$changeStream": `+spec+`}], "cursor": {}, "apiVersion": "1", "apiStrict": true}`); got != int32(want) {
			t.Errorf("%s: %d, want %d", spec, got, want)
		}
	}
}

// A client that returns to its stream after a pause gets everything that was committed before in one batch: the reader of
// the oplog may have shown only a part of it by then. Here it has thousands of other documents to decode between the two events.
func TestStreamsHaveWhatWasCommittedBefore(t *testing.T) {
	n := newTestNode(t)
	others := make([]string, 20_000)
	for i := range 5 {
		coll := fmt.Sprint("c", i)
		w, _ := n.openWatch("db", coll, `{}`)
		for k := range others {
			others[k] = fmt.Sprintf(`{"_id": %d}`, i*len(others)+k)
		}
		time.Sleep(streamPause + time.Millisecond) // the client stays away, for as long as the server takes for a pause
		n.ok("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1}]}`, coll))
		n.ok("db", `{"insert": "others", "documents": [`+strings.Join(others, ",")+`]}`)
		n.ok("db", fmt.Sprintf(`{"drop": %q}`, coll))
		if got := types(w.more(5000)); got != "insert drop invalidate" {
			t.Fatalf("in round %d the first batch has %q", i, got)
		}
	}
}

// The documents of an insert are one entry of the oplog: their events have its time, and tokens with their position in it. Those of a
// retryable write have no lsid and txnNumber, which identify transactions. Resumed after each, the stream continues with the next.
func TestEventsOfABatchOfInserts(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "c"}`)
	w, _ := n.openWatch("d", "c", `{}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 2}, {"_id": 3, "a": 1}]}`)
	n.ok("d", inSession(`{"insert": "c", "documents": [{"_id": 4}, {"_id": 5}]}`, 1))
	all := w.all(5)
	if s := types(all); s != "insert insert insert insert insert" {
		t.Fatalf("the events are %s", s)
	}
	for i, e := range all {
		e, first := e.(bson.M), all[i/3*3].(bson.M)
		if e["clusterTime"] != first["clusterTime"] || e["txnNumber"] != nil || e["lsid"] != nil {
			t.Errorf("event %d is %v", i, e)
		}
		_, rest := n.openWatch("d", "c", fmt.Sprintf(`{"resumeAfter": {"_data": %q}}`, e["_id"].(bson.M)["_data"]))
		if !reflect.DeepEqual(rest, all[i+1:]) && len(rest)+len(all[i+1:]) > 0 {
			t.Errorf("after event %d: %v", i, types(rest))
		}
	}
	x, _ := n.openWatch("d", "c", `{}`, `{"$match": {"fullDocument.a": 1}}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 6, "a": 1}, {"_id": 7, "a": 2}, {"_id": 8, "a": 1}]}`)
	if got := x.all(2); len(got) != 2 || got[0].(bson.M)["documentKey"].(bson.M)["_id"] != int32(6) || got[1].(bson.M)["documentKey"].(bson.M)["_id"] != int32(8) {
		t.Errorf("a stream that selects two of three has %v", got)
	}
}

// An _id may be a DBRef; no other fields that begin with a dollar are allowed in it.
func TestDBRefAsID(t *testing.T) {
	n := newTestNode(t)
	const dollar = int32(mongoerr.DollarPrefixedFieldName)
	for id, code := range map[string]int32{
		`{"$ref": "c", "$id": 1}`: 0, `{"$ref": "c", "$id": 1, "$db": "d"}`: 0, `{"$ref": "c", "$id": 1, "x": 1}`: 0,
		`{"$id": 1}`: dollar, `{"$ref": 1, "$id": 1}`: dollar, `{"$id": 1, "$ref": "c"}`: dollar, `{"$ref": "c", "$id": 1, "$x": 1}`: dollar, `{"$ref": "c", "$db": "d"}`: dollar,
	} {
		var got int32
		r := n.do("d", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": {"v": 1}, "x": 1}, {"_id": %s}]}`, id))
		if errs, ok := r["writeErrors"].(bson.A); ok {
			got = asM(errs[0])["code"].(int32)
		}
		if got != code {
			t.Errorf("%s: %d, want %d", id, got, code)
		}
		n.ok("d", `{"drop": "c"}`)
	}
}
