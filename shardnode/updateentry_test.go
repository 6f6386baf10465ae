package shardnode

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// loggedUpdate is an update with the delta of its oplog entry, as the shell shows it, and its event's description: the fields that were
// updated and removed, and the arrays that were truncated.
type loggedUpdate struct {
	doc, update, filters, delta string
	updated, removed, truncated string
	paths                       string // disambiguatedPaths
}

const five = `"arr": [1, 2, 3, 4, 5]`

// loggedUpdates are grouped by what is known of them.
var loggedUpdates = map[string][]loggedUpdate{
	// The manual's page of update events, "Array Updates", "Array Truncation", "Comparison of Standard Updates and Pipeline Updates" and
	// "Path Disambiguation".
	"manual": {
		{doc: `"s": []`, update: `{"$push": {"s": 0.85}}`, delta: `{ u: { s: [ 0.85 ] } }`, updated: `{"s": [0.85]}`},
		{doc: `"s": [0.85]`, update: `{"$push": {"s": 0.75}}`, delta: `{ ss: { a: true, u1: 0.75 } }`, updated: `{"s.1": 0.75}`},
		{doc: `"s": [0.85, 0.94]`, update: `{"$pull": {"s": 0.94}}`, delta: `{ u: { s: [ 0.85 ] } }`, updated: `{"s": [0.85]}`},
		{doc: `"s": [0.85, 0.94, 0.78]`, update: `[{"$addFields": {"s": [0.85, 0.94]}}]`, delta: `{ ss: { a: true, l: 2 } }`, truncated: `[{"field": "s", "newSize": 2}]`},
		{doc: `"s": [0.85, 0.94]`, update: `[{"$addFields": {"s": [0.85, 0.94, 0.78]}}]`, delta: `{ ss: { a: true, u2: 0.78 } }`, updated: `{"s.2": 0.78}`},
		{doc: `"c": {"email": "user@example.com", "phone": "555-0100", "mobile": "555-0101"}`, update: `{"$unset": {"c.email": "", "c.phone": ""}}`,
			delta: `{ sc: { d: { email: false, phone: false } } }`, removed: `["c.email", "c.phone"]`},
		{doc: `"c": {"email": "user@example.com", "phone": "555-0100", "mobile": "555-0101"}`, update: `[{"$unset": "c.email"}]`,
			delta: `{ sc: { d: { email: false } } }`, removed: `["c.email"]`},
		{doc: `"c": {"email": "user@example.com", "phone": "555-0100", "mobile": "555-0101"}`, update: `[{"$unset": ["c.email", "c.phone"]}]`,
			delta: `{ u: { c: { mobile: "555-0101" } } }`, updated: `{"c": {"mobile": "555-0101"}}`},
		{doc: `"r": [{"0": "Oxford"}, {"1": "Sunbury"}]`, update: `{"$set": {"r.0.0": "London"}}`, delta: `{ sr: { a: true, s0: { u: { 0: "London" } } } }`,
			updated: `{"r.0.0": "London"}`, paths: `{"r.0.0": ["r", 0, "0"]}`},
	},
	// Measured on a server of version 8.2.11 (SecantusDB's changelog.d/changestream-array-diff.md and tools/probes/change_streams.py).
	"measured": {
		{doc: five, update: `{"$push": {"arr": 9}}`, delta: `{ sarr: { a: true, u5: 9 } }`, updated: `{"arr.5": 9}`},
		{doc: five, update: `{"$push": {"arr": {"$each": [6, 7]}}}`, delta: `{ sarr: { a: true, u5: 6, u6: 7 } }`, updated: `{"arr.5": 6, "arr.6": 7}`},
		{doc: five, update: `{"$addToSet": {"arr": 42}}`, delta: `{ sarr: { a: true, u5: 42 } }`, updated: `{"arr.5": 42}`},
		{doc: five, update: `{"$set": {"arr": [1, 2, 3, 4, 5, 6, 7]}}`, delta: `{ u: { arr: [ 1, 2, 3, 4, 5, 6, 7 ] } }`, updated: `{"arr": [1, 2, 3, 4, 5, 6, 7]}`},
		{doc: five, update: `{"$set": {"arr": [7, 8]}}`, delta: `{ u: { arr: [ 7, 8 ] } }`, updated: `{"arr": [7, 8]}`},
		{doc: five, update: `{"$set": {"arr.2": 99}}`, delta: `{ sarr: { a: true, u2: 99 } }`, updated: `{"arr.2": 99}`},
		{doc: five, update: `{"$set": {"arr.7": 77}}`, delta: `{ sarr: { a: true, u7: 77 } }`, updated: `{"arr.7": 77}`},
		{doc: five, update: `{"$unset": {"arr.1": 1}}`, delta: `{ sarr: { a: true, u1: null } }`, updated: `{"arr.1": null}`},
		{doc: five, update: `{"$inc": {"arr.1": 1}}`, delta: `{ sarr: { a: true, u1: 3 } }`, updated: `{"arr.1": 3}`},
		{doc: five, update: `{"$mul": {"arr.1": 2}}`, delta: `{ sarr: { a: true, u1: 4 } }`, updated: `{"arr.1": 4}`},
		{doc: five, update: `{"$min": {"arr.1": 0}, "$max": {"arr.2": 9}}`, delta: `{ sarr: { a: true, u1: 0, u2: 9 } }`, updated: `{"arr.1": 0, "arr.2": 9}`},
		{doc: five, update: `{"$pop": {"arr": 1}}`, delta: `{ u: { arr: [ 1, 2, 3, 4 ] } }`, updated: `{"arr": [1, 2, 3, 4]}`},
		{doc: five, update: `{"$pop": {"arr": -1}}`, delta: `{ u: { arr: [ 2, 3, 4, 5 ] } }`, updated: `{"arr": [2, 3, 4, 5]}`},
		{doc: five, update: `{"$pull": {"arr": 3}}`, delta: `{ u: { arr: [ 1, 2, 4, 5 ] } }`, updated: `{"arr": [1, 2, 4, 5]}`},
		{doc: five, update: `{"$pullAll": {"arr": [1, 5]}}`, delta: `{ u: { arr: [ 2, 3, 4 ] } }`, updated: `{"arr": [2, 3, 4]}`},
		{doc: five, update: `{"$push": {"arr": {"$each": [], "$slice": 2}}}`, delta: `{ u: { arr: [ 1, 2 ] } }`, updated: `{"arr": [1, 2]}`},
		{doc: five, update: `{"$push": {"arr": {"$each": [6], "$sort": 1}}}`, delta: `{ u: { arr: [ 1, 2, 3, 4, 5, 6 ] } }`, updated: `{"arr": [1, 2, 3, 4, 5, 6]}`},
	},
	// The same rules elsewhere in a document, and of the fields that an update does not change nothing is logged. Fields are logged in the order
	// in which operators process them (manual, "Update Operators Behavior"): by name, numbers by value.
	"rules": {
		{doc: `"b": 1, "a": 1`, update: `{"$set": {"b": 2, "a": 2, "c": 3}}`, delta: `{ u: { a: 2, b: 2 }, i: { c: 3 } }`, updated: `{"a": 2, "b": 2, "c": 3}`},
		{doc: `"x10": 1, "10": 1, "9": 1`, update: `{"$inc": {"10": 1, "9": 1, "x10": 1}}`, delta: `{ u: { 9: 2, 10: 2, x10: 2 } }`, updated: `{"9": 2, "10": 2, "x10": 2}`},
		{doc: `"b": {"x": 1}, "a": {"x": 1}`, update: `{"$inc": {"b.x": 1, "a.x": 1}}`, delta: `{ sa: { u: { x: 2 } }, sb: { u: { x: 2 } } }`, updated: `{"a.x": 2, "b.x": 2}`},
		{doc: `"a": [1, 2]`, update: `{"$set": {"a.0": 1, "a.3": 2}}`, delta: `{ sa: { a: true, u3: 2 } }`, updated: `{"a.3": 2}`},
		{doc: `"a": [1, 2]`, update: `{"$set": {"a.3": 2, "a.0": 9, "a.4.x": 1}}`, delta: `{ sa: { a: true, u0: 9, u3: 2, u4: { x: 1 } } }`, updated: `{"a.0": 9, "a.3": 2, "a.4": {"x": 1}}`},
		{doc: `"a": [[1, 2], [3]]`, update: `{"$push": {"a.1": 4}, "$pop": {"a.0": 1}}`, delta: `{ sa: { a: true, u0: [ 1 ], s1: { a: true, u1: 4 } } }`, updated: `{"a.0": [1], "a.1.1": 4}`},
		{doc: `"a": {"b": [{"c": [1]}]}`, update: `{"$addToSet": {"a.b.0.c": {"$each": [1, 2, 2]}}}`, delta: `{ sa: { sb: { a: true, s0: { sc: { a: true, u1: 2 } } } } }`, updated: `{"a.b.0.c.1": 2}`},
		{doc: `"a": 1`, update: `{"$push": {"l": 1}, "$addToSet": {"m.n": 2}, "$set": {"m.o": 3}}`, delta: `{ i: { l: [ 1 ], m: { n: [ 2 ], o: 3 } } }`, updated: `{"l": [1], "m": {"n": [2], "o": 3}}`},
		{doc: `"a": {}`, update: `{"$set": {"a.b.c": 1, "a.b.d": 2}}`, delta: `{ sa: { i: { b: { c: 1, d: 2 } } } }`, updated: `{"a.b": {"c": 1, "d": 2}}`},
		{doc: `"a": {"1": [1, 2, 3]}`, update: `{"$pop": {"a.1": 1}}`, delta: `{ sa: { u: { 1: [ 1, 2 ] } } }`, updated: `{"a.1": [1, 2]}`, paths: `{"a.1": ["a", "1"]}`},
		{doc: `"a": 1, "b": {"c": 2}`, update: `{"$rename": {"a": "b.c", "b.x": "y"}}`, delta: `{ d: { a: false }, sb: { u: { c: 1 } } }`, updated: `{"b.c": 1}`, removed: `["a"]`},
		{doc: `"a": [1, 2]`, update: `{"$rename": {"a": "c"}}`, delta: `{ d: { a: false }, i: { c: [ 1, 2 ] } }`, updated: `{"c": [1, 2]}`, removed: `["a"]`},
		{doc: `"a": 5, "b": 5, "c": 5`, update: `{"$inc": {"a": 0}, "$max": {"b": 3}, "$bit": {"c": {"xor": 1}}}`, delta: `{ u: { c: 4 } }`, updated: `{"c": 4}`},
		{doc: `"a": {"b": 1, "c": 1}`, update: `{"$max": {"a": {"b": 2, "c": 1}}}`, delta: `{ u: { a: { b: 2, c: 1 } } }`, updated: `{"a": {"b": 2, "c": 1}}`},
		{doc: `"a": {"b": 1}`, update: `{"$set": {"a": {"b": 2}}}`, delta: `{ u: { a: { b: 2 } } }`, updated: `{"a": {"b": 2}}`},
		{doc: `"a": [{"1": 1}]`, update: `{"$set": {"a.0.1": 2}}`, delta: `{ sa: { a: true, s0: { u: { 1: 2 } } } }`, updated: `{"a.0.1": 2}`, paths: `{"a.0.1": ["a", 0, "1"]}`},
		{doc: `"a": [1, 2]`, update: `{"$push": {"a": {"$each": [9], "$position": 0}}}`, delta: `{ u: { a: [ 9, 1, 2 ] } }`, updated: `{"a": [9, 1, 2]}`},
		{doc: `"a": [1, 2, 3, 4, 5, 6, 7, 8]`, update: `{"$pop": {"a": 1}, "$inc": {"n": 1}}`, delta: `{ u: { a: [ 1, 2, 3, 4, 5, 6, 7 ] }, i: { n: 1 } }`, updated: `{"a": [1, 2, 3, 4, 5, 6, 7], "n": 1}`},
	},
	// A $slice that cuts nothing and a $position behind the end leave a $push that appends.
	"append": {
		{doc: `"a": [1, 2]`, update: `{"$push": {"a": {"$each": [3], "$slice": -3}}}`, delta: `{ sa: { a: true, u2: 3 } }`, updated: `{"a.2": 3}`},
		{doc: `"a": [1, 2]`, update: `{"$push": {"a": {"$each": [3], "$slice": 3}}}`, delta: `{ sa: { a: true, u2: 3 } }`, updated: `{"a.2": 3}`},
		{doc: `"a": [1, 2]`, update: `{"$push": {"a": {"$each": [3], "$slice": -2}}}`, delta: `{ u: { a: [ 2, 3 ] } }`, updated: `{"a": [2, 3]}`},
		{doc: `"a": [1, 2]`, update: `{"$push": {"a": {"$each": [3], "$position": 9}}}`, delta: `{ sa: { a: true, u2: 3 } }`, updated: `{"a.2": 3}`},
	},
	// Array filters replace the array if they change several elements.
	"filters": {
		{doc: `"a": [1, 2]`, update: `{"$inc": {"a.$[]": 1}}`, delta: `{ u: { a: [ 2, 3 ] } }`, updated: `{"a": [2, 3]}`},
		{doc: `"a": [0, 1, 0]`, update: `{"$set": {"a.$[x]": 2}}`, filters: `{"x": 0}`, delta: `{ u: { a: [ 2, 1, 2 ] } }`, updated: `{"a": [2, 1, 2]}`},
		{doc: `"a": [{"b": {"c": 1}}, {"b": {"c": 2}}]`, update: `{"$set": {"a.$[x].b.c": 3}}`, filters: `{"x.b.c": 1}`, delta: `{ sa: { a: true, s0: { sb: { u: { c: 3 } } } } }`, updated: `{"a.0.b.c": 3}`},
		{doc: `"a": [{"b": 1}, {"b": 3}]`, update: `{"$max": {"a.$[].b": 2}}`, delta: `{ sa: { a: true, u0: { b: 2 } } }`, updated: `{"a.0": {"b": 2}}`},
		{doc: `"a": [{"b": [1, 2]}, {"b": []}]`, update: `{"$inc": {"a.0.b.$[]": 1}}`, delta: `{ sa: { a: true, s0: { u: { b: [ 2, 3 ] } } } }`, updated: `{"a.0.b": [2, 3]}`},
		{doc: `"a": [{"b": [1, 2]}, {"b": []}]`, update: `{"$inc": {"a.$[].b.$[x]": 1}}`, filters: `{"x": 1}`, delta: `{ sa: { a: true, u0: { b: [ 2, 2 ] } } }`, updated: `{"a.0": {"b": [2, 2]}}`},
	},
}

// The oplog entries and events of updates tell what operators did, not how the documents differ.
func TestUpdatesAreLoggedAsTheyWereMade(t *testing.T) {
	for group, cases := range loggedUpdates {
		t.Run(group, func(t *testing.T) {
			n := newTestNode(t)
			n.ok("db", `{"create": "c"}`)
			w, _ := n.openWatch("db", "c", `{"showExpandedEvents": true}`)
			for i, c := range cases {
				n.ok("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, %s}]}`, i, c.doc))
				n.ok("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": %s, "arrayFilters": [%s]}]}`, i, c.update, c.filters))
			}
			logged := n.first("local", `{"find": "oplog.rs", "filter": {"op": "u", "ns": "db.c"}, "projection": {"_id": 0, "o": 1}, "batchSize": 1000}`)
			got := w.all(2 * len(cases))
			if len(logged) != len(cases) || len(got) != 2*len(cases) {
				t.Fatalf("%d entries and %d events for %d updates", len(logged), len(got), len(cases))
			}
			for i, c := range cases {
				if want := `{ o: { $v: 2, diff: ` + c.delta + ` } }`; logged[i] != want {
					t.Errorf("%s: the entry is %s, want %s", c.update, logged[i], want)
				}
				c.checkEvent(t, got[2*i+1].(bson.M))
			}
		})
	}
}

func (c *loggedUpdate) checkEvent(t *testing.T, e bson.M) {
	t.Helper()
	or := func(s, none string) string {
		if s == "" {
			return none
		}
		return s
	}
	var want bson.M
	text := fmt.Sprintf(`{"updatedFields": %s, "removedFields": %s, "truncatedArrays": %s, "disambiguatedPaths": %s}`,
		or(c.updated, `{}`), or(c.removed, `[]`), or(c.truncated, `[]`), or(c.paths, `{}`))
	if err := bson.UnmarshalExtJSON([]byte(text), false, &want); err != nil {
		t.Fatal(err)
	}
	if e["operationType"] != "update" || !reflect.DeepEqual(e["updateDescription"], plain(want)) {
		t.Errorf("%s: %v is %v, want %v", c.update, e["operationType"], e["updateDescription"], want)
	}
}

// Whichever command makes an update, its event is the same, and what the event tells makes the document after it of the one before.
func TestEveryCommandLogsUpdatesAlike(t *testing.T) {
	const u = `{"$pop": {"a": 1}, "$set": {"b.3": 1}, "$push": {"c": {"$each": [9], "$slice": -2}}, "$unset": {"d.0": 1}}`
	const session = `"lsid": {"id": {"$uuid": "11111111-1111-4111-8111-111111111111"}}, "txnNumber": {"$numberLong": "%d"}`
	txn := fmt.Sprintf(session, 9) + `, "autocommit": false`
	update := func(q, more string) string {
		return `{"update": "c", "updates": [{"q": ` + q + `, "u": ` + u + more + `}]`
	}
	bulk := `{"bulkWrite": 1, "ops": [{"update": 0, "filter": {"_id": "%s"}, "updateMods": ` + u + `}], "nsInfo": [{"ns": "db.c"}]`
	ways := []struct {
		name string
		cmds []string
	}{
		{"update", []string{update(`{"_id": "update"}`, "") + `}`}},
		{"multi", []string{update(`{"multi": true}`, `, "multi": true`) + `}`}},
		{"upsert", []string{update(`{"_id": "upsert"}`, `, "upsert": true`) + `}`}},
		{"findAndModify", []string{`{"findAndModify": "c", "query": {"_id": "findAndModify"}, "update": ` + u + `}`}},
		{"bulkWrite", []string{fmt.Sprintf(bulk, "bulkWrite") + `}`}},
		{"retryable", []string{update(`{"_id": "retryable"}`, "") + `, ` + fmt.Sprintf(session, 1) + `}`}},
		{"retryable findAndModify", []string{`{"findAndModify": "c", "query": {"_id": "retryable findAndModify"}, "new": true, "update": ` + u + `, ` + fmt.Sprintf(session, 2) + `}`}},
		{"retryable bulkWrite", []string{fmt.Sprintf(bulk, "retryable bulkWrite") + `, ` + fmt.Sprintf(session, 3) + `}`}},
		{"transaction", []string{update(`{"_id": "transaction"}`, "") + `, "startTransaction": true, ` + txn + `}`, `{"commitTransaction": 1, ` + txn + `}`}},
	}
	n := newTestNode(t)
	n.ok("db", `{"create": "c", "changeStreamPreAndPostImages": {"enabled": true}}`)
	for _, w := range ways {
		n.ok("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %q, %q: true, "a": [1, 2, 3], "b": [1], "c": [1, 2], "d": [1, 2]}]}`, w.name, w.name))
	}
	stream, _ := n.openWatch("db", "c", `{"showExpandedEvents": true, "fullDocument": "required", "fullDocumentBeforeChange": "required"}`)
	for _, w := range ways {
		for _, cmd := range w.cmds {
			db := "db"
			if strings.HasPrefix(cmd, `{"bulkWrite"`) || strings.HasPrefix(cmd, `{"commitTransaction"`) {
				db = "admin"
			}
			n.ok(db, cmd)
		}
	}
	got := stream.all(len(ways))
	if len(got) != len(ways) {
		t.Fatalf("the events are %s", types(got))
	}
	want := loggedUpdate{update: u, updated: `{"a": [1, 2], "c": [2, 9], "b.3": 1, "d.0": null}`}
	for i, w := range ways {
		e := got[i].(bson.M)
		want.checkEvent(t, e)
		after := bson.M{"_id": w.name, w.name: true, "a": bson.A{int32(1), int32(2)}, "b": bson.A{int32(1), nil, nil, int32(1)}, "c": bson.A{int32(2), int32(9)}, "d": bson.A{nil, int32(2)}}
		if !reflect.DeepEqual(e["fullDocument"], after) || !reflect.DeepEqual(e["fullDocumentBeforeChange"].(bson.M)["a"], bson.A{int32(1), int32(2), int32(3)}) {
			t.Errorf("%s: the images are %v and %v, want %v", w.name, e["fullDocumentBeforeChange"], e["fullDocument"], after)
		}
	}
}

// An update that changes nothing has no entry and no event.
func TestUpdatesThatChangeNothingAreNotLogged(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"insert": "c", "documents": [{"_id": 1, "a": 1, "l": [1, 2], "e": []}]}`)
	w, _ := n.openWatch("db", "c", `{}`)
	for _, u := range []string{`{"$inc": {"a": 0}}`, `{"$set": {"a": 1, "l.1": 2}}`, `{"$pull": {"l": 7}}`, `{"$pop": {"e": 1}}`, `{"$push": {"l": {"$each": []}}}`, `{"$addToSet": {"l": 1}}`,
		`{"$max": {"l.$[]": 0}}`, `{"$unset": {"x.y": 1}}`, `{"$rename": {"x": "a"}}`, `{"$push": {"l": {"$each": [], "$slice": 5}}}`, `{"$push": {"l": {"$each": [], "$sort": 1}}}`, `{"$set": {}}`} {
		n.ok("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": %s}]}`, u))
	}
	n.ok("db", `{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}`)
	if got := w.all(1); types(got) != "delete" {
		t.Errorf("the events are %v", got)
	}
}
