package changestream

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

func TestUpdateDescriptions(t *testing.T) {
	for _, c := range []struct{ diff, want string }{
		{`{"u": {"a": 1}, "i": {"b": 2}, "d": {"c": false}}`, `{ updatedFields: { a: 1, b: 2 }, removedFields: [ "c" ], truncatedArrays: [ ], disambiguatedPaths: {} }`},
		{`{"sa": {"sb": {"u": {"c": 1}}}}`, `{ updatedFields: { a.b.c: 1 }, removedFields: [ ], truncatedArrays: [ ], disambiguatedPaths: {} }`},
		{`{"sa": {"a": true, "l": 3, "u1": 7}}`, `{ updatedFields: { a.1: 7 }, removedFields: [ ], truncatedArrays: [ { field: "a", newSize: 3 } ], disambiguatedPaths: {} }`},
		{`{"sa": {"u": {"1": 2}}}`, `{ updatedFields: { a.1: 2 }, removedFields: [ ], truncatedArrays: [ ], disambiguatedPaths: { a.1: [ "a", "1" ] } }`},
		{`{"sa": {"a": true, "s0": {"u": {"1": 2}}}}`, `{ updatedFields: { a.0.1: 2 }, removedFields: [ ], truncatedArrays: [ ], disambiguatedPaths: { a.0.1: [ "a", 0, "1" ] } }`},
		{`{"d": {"a.b": false}}`, `{ updatedFields: {}, removedFields: [ "a.b" ], truncatedArrays: [ ], disambiguatedPaths: { a.b: [ "a.b" ] } }`},
	} {
		if got := value.ShowDoc(describeUpdate(valuetest.Doc(t, c.diff), true)); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.diff, got, c.want)
		}
	}
}

// Which events a stream returns, by the oplog entry and by what is watched.
func TestFilters(t *testing.T) {
	streams := map[string]Filter{"coll": {DB: "d", Coll: "c"}, "db": {DB: "d"}, "all": {}, "expanded": {DB: "d", Expanded: true}, "system": {DB: "d", System: true}}
	for _, c := range []struct{ entry, kind, streams string }{
		{`{"op": "i", "ns": "d.c", "o": {"_id": 1}}`, "insert", "coll db all expanded system"},
		{`{"op": "i", "ns": "d.x", "o": {"_id": 1}}`, "insert", "db all expanded system"},
		{`{"op": "i", "ns": "x.c", "o": {"_id": 1}}`, "insert", "all"},
		{`{"op": "i", "ns": "d.system.js", "o": {"_id": 1}}`, "insert", "system"},
		{`{"op": "i", "ns": "config.c", "o": {"_id": 1}}`, "insert", ""},
		{`{"op": "i", "ns": "d.c", "o": {"_id": 1}, "fromMigrate": true}`, "insert", ""},
		{`{"op": "c", "ns": "d.$cmd", "o": {"drop": "c"}}`, "drop", "coll db all expanded system"},
		{`{"op": "c", "ns": "d.$cmd", "o": {"create": "c"}}`, "create", "expanded"},
		{`{"op": "c", "ns": "d.$cmd", "o": {"dropDatabase": 1}}`, "dropDatabase", "coll db all expanded system"},
		{`{"op": "c", "ns": "d.$cmd", "o": {"renameCollection": "d.x", "to": "d.c"}}`, "rename", "coll db all expanded system"},
		{`{"op": "c", "ns": "x.$cmd", "o": {"renameCollection": "x.x", "to": "d.y"}}`, "rename", "db all expanded system"},
		{`{"op": "c", "ns": "d.$cmd", "o": {"startIndexBuild": "c", "indexes": []}}`, "startIndexBuild", "system"},
		{`{"op": "i", "ns": "d.system.views", "o": {"_id": "d.c", "viewOn": "x"}}`, "create", "expanded"},
		{`{"op": "n", "ns": "", "o": {"msg": "x"}, "o2": {"shardCollection": "d.c"}}`, "shardCollection", "expanded"},
	} {
		events := ParseEntry(valuetest.Doc(t, c.entry)).Events()
		if len(events) != 1 || events[0].Type != c.kind {
			t.Errorf("%s: %v", c.entry, events)
			continue
		}
		got := ""
		for _, name := range []string{"coll", "db", "all", "expanded", "system"} {
			if f := streams[name]; f.Passes(events[0]) {
				got += " " + name
			}
		}
		if c.streams != "" {
			c.streams = " " + c.streams
		}
		if got != c.streams {
			t.Errorf("%s: seen by%s, want%s", c.entry, got, c.streams)
		}
	}
}
