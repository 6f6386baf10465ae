package shardnode

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestArgumentErrors compares codes and texts of argument errors with those of the real server: some commands call
// themselves by the name of their structure, ranges name the field alone, and a few fields have a text of their own.
func TestArgumentErrors(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "arr": [1]}]}`)
	for _, c := range []struct {
		db, cmd string
		code    mongoerr.Code
		text    string
	}{
		{"d", `{"find": "c", "zz": 1}`, mongoerr.IDLUnknownField, "BSON field 'FindCommandRequest.zz' is an unknown field."},
		{"d", `{"find": "c", "readConcern": 5}`, mongoerr.TypeMismatch, "BSON field 'FindCommandRequest.readConcern' is the wrong type 'int', expected type 'object'"},
		{"d", `{"find": "c", "let": "x"}`, mongoerr.TypeMismatch, "BSON field 'FindCommandRequest.let' is the wrong type 'string', expected type 'object'"},
		{"d", `{"find": "c", "filter": 5}`, mongoerr.TypeMismatch, "Expected field filterto be of type object"},
		{"d", `{"find": "c", "sort": null}`, mongoerr.TypeMismatch, "Expected field sortto be of type object"},
		{"d", `{"find": "c", "min": null, "hint": {"_id": 1}}`, mongoerr.TypeMismatch, "Expected field minto be of type object"},
		{"d", `{"distinct": "c", "key": null}`, mongoerr.IDLFailedToParse, "BSON field 'distinctCommandRequest.key' is missing but a required field"},
		{"d", `{"distinct": "c", "key": "a", "zz": 1}`, mongoerr.IDLUnknownField, "BSON field 'distinctCommandRequest.zz' is an unknown field."},
		{"d", `{"count": "c", "limit": null}`, mongoerr.BadValue, "limit value is not a valid number"},
		{"d", `{"aggregate": "c", "pipeline": 5, "cursor": {}}`, mongoerr.TypeMismatch, "A pipeline must be an array of objects"},
		{"d", `{"aggregate": "c", "pipeline": [], "cursor": null}`, mongoerr.TypeMismatch, "cursor field must be missing or an object"},
		{"d", `{"aggregate": "c", "pipeline": [], "cursor": {"batchSize": "x"}}`, mongoerr.TypeMismatch,
			"BSON field 'cursor.batchSize' is the wrong type 'string', expected types '[long, int, decimal, double]'"},
		{"d", `{"aggregate": "c", "pipeline": [{"$lookup": {"from": "s", "pipeline": 5, "as": "s"}}], "cursor": {}}`, mongoerr.TypeMismatch, "A pipeline must be an array of objects"},
		{"d", `{"aggregate": "c", "pipeline": [{"$geoNear": {"a": 1}}], "cursor": {}}`, 5860400, "$geoNear requires a 'near' argument"},
		{"d", `{"killCursors": "c", "cursors": ["x"]}`, mongoerr.TypeMismatch, "BSON field 'killCursors.cursors.0' is the wrong type 'string', expected type 'long'"},
		{"d", `{"explain": {"find": "c"}, "verbosity": "nope"}`, mongoerr.BadValue, "Enumeration value 'nope' for field 'explain.verbosity' is not a valid value."},
		{"d", `{"findAndModify": "c", "update": {"$set": {"n": 1}}, "arrayFilters": [5]}`, mongoerr.TypeMismatch,
			"BSON field 'findAndModify.arrayFilters.0' is the wrong type 'int', expected type 'object'"},
		{"d", `{"create": "z", "capped": true, "size": -1}`, mongoerr.BadValue, "BSON field 'size' value must be >= 1, actual value '-1'"},
		{"d", `{"find": "c", "collation": {"locale": null}}`, mongoerr.IDLFailedToParse, "BSON field 'collation.locale' is missing but a required field"},
		{"d", `{"find": "c", "collation": {"locale": "en", "strength": 6}}`, mongoerr.BadValue, "BSON field 'strength' value must be <= 5, actual value '6'"},
		{"d", `{"find": "c", "collation": {"locale": "en", "strength": -1}}`, mongoerr.BadValue, "BSON field 'strength' value must be >= 0, actual value '-1'"},
		{"d", `{"find": "c", "collation": {"locale": "en", "strength": 0}}`, mongoerr.BadValue, "Enumeration value '0' for field 'collation.strength' is not a valid value."},
		{"d", `{"find": "c", "collation": {"locale": "en", "backwards": "x"}}`, mongoerr.TypeMismatch, "Field 'backwards' should be a boolean value, but found: string"},
		{"d", `{"aggregate": 1, "pipeline": [{"$listLocalSessions": {}}], "cursor": {}, "apiVersion": "1", "apiStrict": true}`, mongoerr.APIStrictError,
			"$listLocalSessions is not allowed with 'apiStrict: true' in API Version 1"},
		{"admin", `{"hello": 1, "topologyVersion": 1, "maxAwaitTimeMS": 1}`, mongoerr.TypeMismatch, "BSON field 'hello.topologyVersion' is the wrong type 'int', expected type 'object'"},
		{"admin", `{"hello": 1, "topologyVersion": {"processId": {"$oid": "65e000000000000000000001"}}, "maxAwaitTimeMS": 1}`, mongoerr.IDLFailedToParse,
			"BSON field 'hello.topologyVersion.counter' is missing but a required field"},
		{"admin", `{"hello": 1, "topologyVersion": {"processId": {"$oid": "65e000000000000000000001"}, "counter": 0}, "maxAwaitTimeMS": 1}`, mongoerr.TypeMismatch,
			"BSON field 'hello.topologyVersion.counter' is the wrong type 'int', expected type 'long'"},
		{"admin", `{"hello": 1, "maxAwaitTimeMS": "x"}`, mongoerr.TypeMismatch,
			"BSON field 'hello.maxAwaitTimeMS' is the wrong type 'string', expected types '[long, int, decimal, double]'"},
		{"admin", `{"hello": 1, "maxAwaitTimeMS": 1}`, 31368, "A request with 'topologyVersion' must include 'maxAwaitTimeMS', and vice versa"},
	} {
		r := n.do(c.db, c.cmd)
		if r["code"] != int32(c.code) || r["errmsg"] != c.text {
			t.Errorf("%s:\n got  %v %v\n want %d %s", c.cmd, r["code"], r["errmsg"], c.code, c.text)
		}
	}
	if n.code("d", `{"isMaster": 1, "apiVersion": "1", "apiStrict": true}`) != int32(mongoerr.APIStrictError) {
		t.Error("isMaster counts as a command of the stable API")
	}
	n.ok("d", `{"hello": 1, "apiVersion": "1", "apiStrict": true}`)
}

// A batch that holds every result of a bulkWrite leaves no cursor; find leaves one.
func TestBulkWriteCursor(t *testing.T) {
	n := newTestNode(t)
	for _, c := range []struct {
		more string
		open bool
	}{
		{`"cursor": {"batchSize": 2}`, false}, {`"cursor": {"batchSize": 3}`, false}, {`"cursor": {"batchSize": 1}`, true},
		{`"cursor": {"batchSize": 0}`, true}, {`"cursor": {"batchSize": 0}, "errorsOnly": true`, false},
	} {
		r := n.ok("admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}, {"insert": 0, "document": {}}], "nsInfo": [{"ns": "d.c"}], `+c.more+`}`)
		if id := asM(r["cursor"])["id"]; (id != int64(0)) != c.open {
			t.Errorf("%s: cursor %v", c.more, id)
		}
	}
}

// The reply to an update has its write errors and upserted documents before nModified.
func TestOrderOfAnUpdatesReply(t *testing.T) {
	n := newTestNode(t)
	var d bson.D
	const cmd = `{"update": "c", "ordered": false, "$db": "d", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}, "upsert": true},
		{"q": {"_id": 1}, "u": {"$nope": {"n": 1}}}]}`
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		t.Fatal(err)
	}
	body, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for k := range value.Elements(n.srv.Service.Run(t.Context(), n.cl, &wire.Message{Body: body}, nil)) {
		names = append(names, k)
	}
	if got := strings.Join(names, " "); !strings.HasPrefix(got, "n writeErrors upserted nModified ok") {
		t.Errorf("the reply's fields are %s", got)
	}
}

// The codes that end a change stream for good, and those of an overloaded server, have their label on every command.
func TestLabelsOfEveryCommand(t *testing.T) {
	n := newTestNode(t)
	for code, want := range map[mongoerr.Code]string{
		mongoerr.ChangeStreamFatalError: "NonResumableChangeStreamError", mongoerr.ChangeStreamHistoryLost: "NonResumableChangeStreamError",
		mongoerr.IngressRequestRateLimitExceeded: "SystemOverloadedError", mongoerr.BadValue: "",
	} {
		n.fail("failCommand", 1, bson.M{"failCommands": bson.A{"find"}, "errorCode": int(code)})
		r := n.do("d", `{"find": "c"}`)
		labels, _ := r["errorLabels"].(bson.A)
		if r["code"] != int32(code) || (want == "") != (len(labels) == 0) || want != "" && labels[0] != want {
			t.Errorf("%d: %v", code, r)
		}
	}
}
