package consistency

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

const (
	uuidA = `{"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}`
	uuidB = `{"$binary": {"base64": "BBBBBBBBBBBBBBBBBBBBBA==", "subType": "04"}}`
)

func collection(t *testing.T, key, more string) *Collection {
	t.Helper()
	c, err := Parse(valuetest.Doc(t, `{"_id": "db.c", "lastmodEpoch": {"$oid": "6b03fe3ea9561bd055000213"}, "timestamp": {"$timestamp": {"t": 1, "i": 1}}, "uuid": `+uuidA+`, "key": `+key+more+`}`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func types(bad [][]byte) string {
	var out []string
	for _, d := range bad {
		out = append(out, value.Lookup(d, "type").Str())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestRoutingTables(t *testing.T) {
	chunk := func(min, max string) []byte {
		return valuetest.Doc(t, `{"min": `+min+`, "max": `+max+`, "shard": "a"}`)
	}
	const low, high = `{"k": {"$minKey": 1}}`, `{"k": {"$maxKey": 1}}`
	for _, x := range []struct {
		name, key, more string
		chunks          [][]byte
		want            string
	}{
		{"whole", `{"k": 1}`, "", [][]byte{chunk(`{"k": 1}`, high), chunk(low, `{"k": 1}`)}, ""},
		{"none", `{"k": 1}`, "", nil, "MissingRoutingTable"},
		{"gap", `{"k": 1}`, "", [][]byte{chunk(low, `{"k": 1}`), chunk(`{"k": 2}`, high)}, "RoutingTableRangeGap"},
		{"overlap", `{"k": 1}`, "", [][]byte{chunk(low, `{"k": 3}`), chunk(`{"k": 2}`, high)}, "RoutingTableRangeOverlap"},
		{"an empty one at the end", `{"k": 1}`, "", [][]byte{chunk(low, high), chunk(high, high)}, "RoutingTableRangeOverlap"},
		{"an empty one in the middle", `{"k": 1}`, "", [][]byte{chunk(low, `{"k": 2}`), chunk(`{"k": 2}`, `{"k": 2}`), chunk(`{"k": 2}`, high)}, "RoutingTableRangeOverlap"},
		{"one within another", `{"k": 1}`, "", [][]byte{chunk(low, high), chunk(`{"k": 2}`, `{"k": 3}`)}, "RoutingTableRangeOverlap"},
		{"no beginning", `{"k": 1}`, "", [][]byte{chunk(`{"k": 0}`, high)}, "RoutingTableMissingMinKey"},
		{"no end", `{"k": 1}`, "", [][]byte{chunk(low, `{"k": 0}`)}, "RoutingTableMissingMaxKey"},
		{"other fields", `{"k": 1, "g": 1}`, "", [][]byte{chunk(low, high)}, "CorruptedChunkShardKey"},
		{"unsplittable", `{"_id": 1}`, `, "unsplittable": true`, [][]byte{chunk(`{"_id": {"$minKey": 1}}`, `{"_id": {"$maxKey": 1}}`)}, ""},
		{"of many chunks", `{"_id": 1}`, `, "unsplittable": true`, [][]byte{chunk(`{"_id": {"$minKey": 1}}`, `{"_id": 1}`), chunk(`{"_id": 1}`, `{"_id": {"$maxKey": 1}}`)}, "TrackedUnshardedCollectionHasMultipleChunks"},
		{"with a key", `{"k": 1}`, `, "unsplittable": true`, [][]byte{chunk(low, high)}, "TrackedUnshardedCollectionHasInvalidKey"},
	} {
		if got := types(collection(t, x.key, x.more).RoutingTable(x.chunks)); got != x.want {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
}

func TestZones(t *testing.T) {
	zone := func(min, max string) []byte { return valuetest.Doc(t, `{"min": `+min+`, "max": `+max+`, "tag": "z"}`) }
	c := collection(t, `{"k": 1}`, "")
	for want, zones := range map[string][][]byte{
		"":                      {zone(`{"k": 5}`, `{"k": 6}`), zone(`{"k": 1}`, `{"k": 5}`)},
		"ZonesRangeOverlap":     {zone(`{"k": 4}`, `{"k": 6}`), zone(`{"k": 1}`, `{"k": 5}`)},
		"CorruptedZoneShardKey": {zone(`{"g": 4}`, `{"g": 6}`)},
	} {
		if got := types(c.Zones(zones)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestLocals(t *testing.T) {
	c := collection(t, `{"k": 1}`, "")
	a, b := value.Lookup(valuetest.Doc(t, `{"u": `+uuidA+`}`), "u"), value.Lookup(valuetest.Doc(t, `{"u": `+uuidB+`}`), "u")
	plain, capped := valuetest.Doc(t, `{"a": 1, "b": 2}`), valuetest.Doc(t, `{"a": 1, "c": 2}`)
	for _, x := range []struct {
		name   string
		owners []string
		locals []Local
		want   string
	}{
		{"as it should be", []string{"x", "y"}, []Local{{Shard: "x", Owner: true, UUID: a, Options: plain}, {Shard: "y", Owner: true, UUID: a, Options: valuetest.Doc(t, `{"b": 2, "a": 1}`)}}, ""},
		{"missing", []string{"x", "y"}, []Local{{Shard: "x", Owner: true, UUID: a, Options: plain}}, "MissingLocalCollection"},
		{"another", []string{"x"}, []Local{{Shard: "x", Owner: true, UUID: a, Options: plain}, {Shard: "y", UUID: b, Options: plain}}, "CollectionUUIDMismatch"},
		{"options", []string{"x", "y"}, []Local{{Shard: "x", Owner: true, UUID: a, Options: plain}, {Shard: "y", Owner: true, UUID: a, Options: capped}}, "CollectionOptionsMismatch"},
	} {
		if got := types(c.Locals(x.owners, x.locals)); got != x.want {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
}

func TestIndexes(t *testing.T) {
	c := collection(t, `{"k": 1}`, "")
	k, other, hidden := valuetest.Doc(t, `{"key": {"k": 1}, "name": "k"}`), valuetest.Doc(t, `{"key": {"o": 1}, "name": "o"}`), valuetest.Doc(t, `{"key": {"o": 1}, "name": "o", "hidden": true}`)
	on := func(x, y [][]byte) []Local {
		return []Local{{Shard: "x", Owner: true, Indexes: x}, {Shard: "y", Owner: true, Indexes: y}, {Shard: "z"}}
	}
	for _, x := range []struct {
		name   string
		locals []Local
		want   string
	}{
		{"the same", on([][]byte{k, other}, [][]byte{other, k}), ""},
		{"missing", on([][]byte{k, other}, [][]byte{k}), "InconsistentIndex"},
		{"differing", on([][]byte{k, other}, [][]byte{k, hidden}), "InconsistentIndex"},
		{"of the key", on([][]byte{k}, [][]byte{valuetest.Doc(t, `{"key": {"k": 1}, "name": "k", "sparse": true}`)}), "InconsistentIndex MissingShardKeyIndex"},
	} {
		if got := types(append(c.Indexes(x.locals), c.ShardKeyIndex(x.locals)...)); got != x.want {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
	bad := c.Indexes(on([][]byte{k, other}, [][]byte{k, hidden}))[0]
	info := value.LookupDoc(value.LookupDoc(bad, "details"), "info")
	if got, want := value.ShowDoc(info), value.ShowDoc(valuetest.Doc(t, `{"missingFromShards": [], "inconsistentProperties": [{"k": "hidden", "v": true}], "indexName": "o"}`)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
