package router_test

import (
	"testing"
)

// A pipeline that the router runs in part has the default collation of its collection throughout, even if that has no entry in the
// catalog of the cluster: there, the stages on the router used to compare strings by their bytes.
func TestRouterStagesHaveTheSourcesCollation(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("d", `{"create": "c", "collation": {"locale": "en", "strength": 2}}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": 1, "a": "x"}, {"_id": 2, "a": "X"}, {"_id": 3, "a": "y"}]}`)
	c.run("d", `{"create": "plain"}`)
	c.run("d", `{"insert": "plain", "documents": [{"_id": 1, "a": "x"}, {"_id": 2, "a": "X"}]}`)
	// Foreign collections on two shards: one with the simple collation, one with that of c.
	for _, x := range []struct{ name, collation string }{{"f", ``}, {"g", `, "collation": {"locale": "en", "strength": 2}`}} {
		c.run("d", `{"create": "`+x.name+`"`+x.collation+`}`)
		c.run("admin", `{"shardCollection": "d.`+x.name+`", "key": {"k": 1}, "collation": {"locale": "simple"}}`)
		c.run("admin", `{"split": "d.`+x.name+`", "middle": {"k": 0}}`)
		c.run("admin", `{"moveChunk": "d.`+x.name+`", "find": {"k": 1}, "to": "shard1"}`)
		c.run("d", `{"insert": "`+x.name+`", "documents": [{"_id": 1, "k": -1, "b": "x"}, {"_id": 2, "k": 1, "b": "X"}, {"_id": 3, "k": 2, "b": "y", "to": "X"}]}`)
	}
	c.run("d", `{"create": "of", "viewOn": "c", "pipeline": []}`)
	c.run("d", `{"create": "collated", "viewOn": "plain", "pipeline": [], "collation": {"locale": "en", "strength": 2}}`)
	join := `{"$lookup": {"from": "f", "localField": "a", "foreignField": "b", "as": "j"}}`
	size := `{"$project": {"n": {"$size": "$j"}}}, {"$sort": {"_id": 1}}`
	for _, x := range []struct{ on, pipeline, want string }{
		{"c", join + `, ` + size, `[{"_id":1,"n":2},{"_id":2,"n":2},{"_id":3,"n":1}]`},
		{"plain", join + `, ` + size, `[{"_id":1,"n":1},{"_id":2,"n":1}]`},
		{"plain", `{"$lookup": {"from": "g", "localField": "a", "foreignField": "b", "as": "j"}}, ` + size, `[{"_id":1,"n":1},{"_id":2,"n":1}]`},
		{"c", `{"$lookup": {"from": "f", "let": {"a": "$a"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$b", "$$a"]}}}], "as": "j"}}, ` + size, `[{"_id":1,"n":2},{"_id":2,"n":2},{"_id":3,"n":1}]`},
		{"c", `{"$match": {"_id": 1}}, {"$graphLookup": {"from": "f", "startWith": "$a", "connectFromField": "to", "connectToField": "b", "as": "j"}}, ` + size, `[{"_id":1,"n":2}]`},
		{"c", join + `, {"$match": {"a": "X"}}, {"$project": {"_id": 1}}, {"$sort": {"_id": 1}}`, `[{"_id":1},{"_id":2}]`},
		{"c", join + `, {"$group": {"_id": {"$toString": "$a"}, "n": {"$sum": 1}}}, {"$project": {"_id": 0, "n": 1}}, {"$sort": {"n": 1}}`, `[{"n":1},{"n":2}]`},
		{"c", join + `, {"$sort": {"a": 1, "_id": -1}}, {"$project": {"_id": 1}}`, `[{"_id":2},{"_id":1},{"_id":3}]`},
		{"c", `{"$project": {"s": "$a"}}, {"$unionWith": {"coll": "f", "pipeline": [{"$match": {"b": "x"}}, {"$project": {"_id": 0, "s": "$b"}}]}}, {"$group": {"_id": "$s", "n": {"$sum": 1}}}, {"$project": {"_id": 0, "n": 1}}, {"$sort": {"n": 1}}`, `[{"n":1},{"n":4}]`},
		{"of", join + `, ` + size, `[{"_id":1,"n":1},{"_id":2,"n":1},{"_id":3,"n":1}]`},
		{"collated", join + `, ` + size, `[{"_id":1,"n":2},{"_id":2,"n":2}]`},
		{"collated", join + `, {"$group": {"_id": {"$toString": "$a"}, "n": {"$sum": 1}}}, {"$project": {"_id": 0, "n": 1}}`, `[{"n":2}]`},
	} {
		if got := c.all("d", `{"aggregate": "`+x.on+`", "cursor": {}, "pipeline": [`+x.pipeline+`]}`); true {
			t.Log(x.on, x.pipeline)
			c.expect(got, x.want)
		}
	}
}

// The fields that identify documents for a $merge need a unique index of the aggregate's collation: without one of its own, that is the
// default of the collection or view that it reads.
func TestMergeOnNeedsAnIndexOfTheSourcesCollation(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("d", `{"create": "c", "collation": {"locale": "en", "strength": 2}}`)
	c.run("d", `{"create": "plain"}`)
	c.run("d", `{"create": "collated", "viewOn": "plain", "pipeline": [], "collation": {"locale": "en", "strength": 2}}`)
	c.run("d", `{"create": "of", "viewOn": "c", "pipeline": []}`)
	for _, coll := range []string{"c", "plain"} {
		c.run("d", `{"insert": "`+coll+`", "documents": [{"_id": 1, "a": "X", "n": 1}]}`)
	}
	for _, to := range []struct{ name, collation string }{{"simple", ``}, {"folded", `, "collation": {"locale": "en", "strength": 2}`}} {
		c.run("d", `{"createIndexes": "`+to.name+`", "indexes": [{"key": {"a": 1}, "name": "a", "unique": true`+to.collation+`}]}`)
		for _, from := range []struct{ name, needs string }{{"c", "folded"}, {"plain", "simple"}, {"collated", "folded"}, {"of", "simple"}} {
			want := int32(51183)
			if from.needs == to.name {
				want = 0
			}
			c.run("d", `{"delete": "`+to.name+`", "deletes": [{"q": {}, "limit": 0}]}`)
			c.run("d", `{"insert": "`+to.name+`", "documents": [{"_id": 7, "a": "x"}]}`)
			m := c.raw("d", `{"aggregate": "`+from.name+`", "cursor": {}, "pipeline": [{"$project": {"_id": 0}}, {"$merge": {"into": "`+to.name+`", "on": "a"}}]}`)
			if code, _ := m["code"].(int32); code != want {
				t.Errorf("from %s into %s: %v, want code %d", from.name, to.name, m, want)
			}
			if want != 0 {
				continue
			}
			found := `[{"_id":7,"a":"X","n":1}]` // x and X are the same
			if to.name == "simple" {
				found = `[{"a":"X","n":1},{"a":"x"}]`
			}
			project := `{"_id": 0}`
			if to.name == "folded" {
				project = `{"_id": 1, "a": 1, "n": 1}`
			}
			c.expect(c.all("d", `{"find": "`+to.name+`", "projection": `+project+`, "sort": {"a": 1}}`), found)
		}
	}
	// _id's own index has the default collation of the target.
	if m := c.raw("d", `{"aggregate": "c", "cursor": {}, "pipeline": [{"$merge": {"into": "simple", "on": "_id"}}]}`); m["code"] != int32(51183) {
		t.Errorf("on an _id of another collation: %v", m)
	}
}
