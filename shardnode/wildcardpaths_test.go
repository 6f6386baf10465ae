package shardnode

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// scanOf returns the stages of a find's winning plan, from the top, and what its index scan reports about arrays.
func (n *testNode) scanOf(find string) string {
	n.t.Helper()
	r := n.ok("d", `{"explain": `+find+`}`)
	stage, _ := dig(r, "queryPlanner", "winningPlan").(bson.D)
	var out []string
	for len(stage) > 0 {
		m := asMap(stage)
		if out = append(out, fmt.Sprint(m["stage"])); m["multiKeyPaths"] != nil {
			js, _ := bson.MarshalExtJSON(m["multiKeyPaths"], false, false)
			out = append(out, fmt.Sprint(m["isMultiKey"], " ", string(js)))
		}
		stage, _ = m["inputStage"].(bson.D)
	}
	return strings.Join(out, " ")
}

func dig(v any, names ...string) any {
	for _, name := range names {
		switch d := v.(type) {
		case bson.M:
			v = d[name]
		case bson.D:
			v = asMap(d)[name]
		}
	}
	return v
}

func asMap(d bson.D) bson.M {
	m := bson.M{}
	for _, e := range d {
		m[e.Key] = e.Value
	}
	return m
}

// A wildcard index remembers for each path whether it goes through arrays: an array elsewhere in the collection keeps no query from being
// answered by keys alone.
func TestWildcardIndexKeepsArraysByPath(t *testing.T) {
	docs := `{"insert": "c", "documents": [{"_id": 1, "a": 1, "s": {"x": 1}}, {"_id": 2, "l": [1, 2], "o": {"p": [{"q": 1}, {"q": [5]}]}}, {"_id": 3, "e": []}]}`
	index := `{"createIndexes": "c", "indexes": [{"key": {"$**": 1}, "name": "w"}, {"key": {"z": 1, "l.$**": -1}, "name": "zl"}]}`
	for name, steps := range map[string][]string{"index first": {index, docs}, "built": {docs, index}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			n := openTestNode(t, Config{Dir: dir})
			for _, s := range steps {
				n.ok("d", s)
			}
			for range 2 {
				for _, x := range []struct{ find, want string }{
					{`{"find": "c", "filter": {"a": {"$gt": 0}}, "projection": {"a": 1, "_id": 0}}`, `PROJECTION_COVERED IXSCAN false {"$_path":[],"a":[]}`},
					{`{"find": "c", "filter": {"a": {"$gt": 0, "$lt": 5}}, "projection": {"a": 1, "_id": 0}, "sort": {"a": -1}}`, `PROJECTION_COVERED IXSCAN false {"$_path":[],"a":[]}`},
					{`{"find": "c", "filter": {"s.x": 1}, "projection": {"s.x": 1, "_id": 0}}`, `PROJECTION_COVERED IXSCAN false {"$_path":[],"s.x":[]}`},
					{`{"find": "c", "filter": {"s.x": 1}}`, `FETCH IXSCAN false {"$_path":[],"s.x":[]}`},
					{`{"find": "c", "filter": {"a": {"$gt": 0}}, "projection": {"a": 1}}`, `PROJECTION_SIMPLE FETCH IXSCAN false {"$_path":[],"a":[]}`},
					{`{"find": "c", "filter": {"a": {"$gt": 0}}, "projection": {"a": 1, "s": 1, "_id": 0}}`, `PROJECTION_SIMPLE FETCH IXSCAN false {"$_path":[],"a":[]}`},
					{`{"find": "c", "filter": {"a": {"$exists": true}}, "projection": {"a": 1, "_id": 0}}`, `PROJECTION_SIMPLE FETCH IXSCAN false {"$_path":[],"a":[]}`},
					{`{"find": "c", "filter": {"l": {"$gt": 0}}, "projection": {"l": 1, "_id": 0}, "hint": "w"}`, `PROJECTION_SIMPLE FETCH IXSCAN true {"$_path":[],"l":["l"]}`},
					{`{"find": "c", "filter": {"e": 1}}`, `FETCH IXSCAN true {"$_path":[],"e":["e"]}`},
					{`{"find": "c", "filter": {"o.p.q": 1}}`, `FETCH IXSCAN true {"$_path":[],"o.p.q":["o.p","o.p.q"]}`},
					{`{"find": "c", "filter": {"o.p.r": 1}}`, `FETCH IXSCAN true {"$_path":[],"o.p.r":["o.p"]}`},
					{`{"find": "c", "filter": {"o.r": 1}}`, `FETCH IXSCAN false {"$_path":[],"o.r":[]}`},
					{`{"find": "c", "filter": {"z": 1, "l.m": 1}, "hint": "zl"}`, `FETCH IXSCAN true {"z":[],"$_path":[],"l.m":["l"]}`},
				} {
					if got := n.scanOf(x.find); got != x.want {
						t.Errorf("%s: %s, want %s", x.find, got, x.want)
					}
				}
				if got := n.first("d", `{"find": "c", "filter": {"a": {"$gt": 0}}, "projection": {"a": 1, "_id": 0}}`); !slices.Equal(got, []string{"{ a: 1 }"}) {
					t.Errorf("covered: %v", got)
				}
				if v := n.ok("d", `{"validate": "c"}`); v["valid"] != true {
					t.Errorf("validate: %v", v)
				}
				n.close() // and again after a restart
				n = openTestNode(t, Config{Dir: dir})
			}
			n.ok("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": [1, 2]}}}]}`)
			if got, want := n.scanOf(`{"find": "c", "filter": {"a": {"$gt": 0}}, "projection": {"a": 1, "_id": 0}}`), `PROJECTION_SIMPLE FETCH IXSCAN true {"$_path":[],"a":["a"]}`; got != want {
				t.Errorf("once there is an array: %s, want %s", got, want)
			}
		})
	}
}

// The paths that an index remembers one by one are bounded: beyond that, any path may have arrays.
func TestWildcardIndexWithArraysAtManyPaths(t *testing.T) {
	dir := t.TempDir()
	n := openTestNode(t, Config{Dir: dir})
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"$**": 1}, "name": "w"}]}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}]}`)
	find := `{"find": "c", "filter": {"a": {"$gt": 0}}, "projection": {"a": 1, "_id": 0}}`
	for i := range 1000 {
		n.ok("d", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": "d%d", "f%d": [1]}]}`, i, i))
		if i == 100 {
			if got, want := n.scanOf(find), `PROJECTION_COVERED IXSCAN false {"$_path":[],"a":[]}`; got != want {
				t.Errorf("some paths: %s, want %s", got, want)
			}
		}
	}
	for range 2 {
		if got, want := n.scanOf(find), `PROJECTION_SIMPLE FETCH IXSCAN true {"$_path":[],"a":["a"]}`; got != want {
			t.Errorf("many paths: %s, want %s", got, want)
		}
		if got := n.first("d", find); !slices.Equal(got, []string{"{ a: 1 }"}) {
			t.Errorf("found %v", got)
		}
		n.close()
		n = openTestNode(t, Config{Dir: dir})
	}
}

// Two conditions of an $elemMatch may hold for different elements of an array further down.
func TestElemMatchOverAnArrayInAnArrayByWildcard(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": [{"b": [0, 5]}]}, {"_id": 2, "a": [{"b": 2}]}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"$**": 1}, "name": "w"}]}`)
	for _, hint := range []string{`{"$natural": 1}`, `"w"`} {
		got := n.first("d", `{"find": "c", "filter": {"a": {"$elemMatch": {"b": {"$gt": 1, "$lt": 3}}}}, "sort": {"_id": 1}, "projection": {"_id": 1}, "hint": `+hint+`}`)
		if !slices.Equal(got, []string{"{ _id: 1 }", "{ _id: 2 }"}) {
			t.Errorf("by %s: %v", hint, got)
		}
	}
}
