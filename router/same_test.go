package router_test

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// scatterCopies creates db.one (not sharded), db.range (by k), db.hash (by _id hashed) and db.pair (by g, k) with the
// same documents, their chunks spread over three shards.
func scatterCopies(c *testCluster, rnd *rand.Rand) []string {
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.range", "key": {"k": 1}}`)
	c.run("admin", `{"shardCollection": "db.hash", "key": {"_id": "hashed"}}`)
	c.run("admin", `{"shardCollection": "db.pair", "key": {"g": 1, "k": 1}}`)
	for i, at := range []int{10, 20, 30, 40, 50} {
		c.run("admin", fmt.Sprintf(`{"split": "db.range", "middle": {"k": %d}}`, at))
		c.run("admin", fmt.Sprintf(`{"moveChunk": "db.range", "find": {"k": %d}, "to": "shard%d"}`, at, i%3))
	}
	for i, at := range []string{`"g": 1, "k": 30`, `"g": 2`, `"g": 2, "k": 10`} {
		c.run("admin", fmt.Sprintf(`{"moveRange": "db.pair", "min": {%s}, "toShard": "shard%d"}`, at, 2-i%2))
	}
	var docs []string
	for i := 0; i < 60; i++ {
		k := fmt.Sprint(rnd.IntN(60))
		switch i % 10 {
		case 7:
			k = "null"
		case 8:
			k = fmt.Sprintf(`"s%d"`, i)
		case 9:
			k = fmt.Sprintf("%d.5", i)
		}
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "k": %s, "g": %d, "s": "%c", "a": [%d, %d], "d": {"x": %d}, "e": [{"b": [%d, [1]]}, {"b": %d}, 7, [{"b": 99}], {"b": null}, {"c": 1}]}`,
			i, k, i%4, 'a'+i%5, i%7, i%3, i%6, i%9, i%4))
	}
	names := []string{"one", "range", "hash", "pair"}
	for _, n := range names {
		c.run("db", fmt.Sprintf(`{"insert": "%s", "documents": [%s]}`, n, strings.Join(docs, ",")))
	}
	for _, n := range names {
		c.run("db", fmt.Sprintf(`{"create": "view_%s", "viewOn": "%s", "pipeline": [{"$match": {"_id": {"$gt": 9}}}, {"$project": {"k": 1, "g": 1, "e": 1}}]}`, n, n))
	}
	c.run("db", `{"insert": "side", "documents": [{"_id": 0, "n": "zero"}, {"_id": 1, "n": "one"}, {"_id": 2, "n": "two"}]}`)
	return names
}

// answer runs a command with COLL replaced and returns its results, sorted if the command asks for no order.
func (c *testCluster) answer(coll, cmd string) string {
	cmd = strings.ReplaceAll(cmd, "COLL", coll)
	if !strings.HasPrefix(cmd, `{"find"`) && !strings.HasPrefix(cmd, `{"aggregate"`) {
		m := c.raw("db", cmd)
		var lines []string
		for f, v := range m {
			switch list, isList := v.(bson.A); {
			case f == "$clusterTime", f == "operationTime":
			case f == "values" && isList: // of distinct: a router sorts them
				for _, x := range list {
					lines = append(lines, "value "+show(x))
				}
			default:
				lines = append(lines, f+" "+show(v))
			}
		}
		sort.Strings(lines)
		return strings.Join(lines, "\n")
	}
	m := c.raw("db", cmd)
	if m["ok"] != 1.0 {
		return fmt.Sprintf("error %v", m["code"])
	}
	docs := c.all("db", cmd)
	lines := make([]string, len(docs))
	for i, d := range docs {
		lines[i] = show(d)
	}
	if !strings.Contains(cmd, `$sort"`) && !strings.Contains(cmd, `"sort"`) {
		sort.Strings(lines)
	}
	return strings.Join(lines, "\n")
}

// sameCommands must have the same results whatever the placement. Each sorts by unique values if the order is visible.
var sameCommands = []string{
	`{"find": "COLL"}`,
	`{"find": "COLL", "filter": {"k": 12}}`,
	`{"find": "COLL", "filter": {"k": {"$gte": 10, "$lt": 35}}, "sort": {"_id": -1}}`,
	`{"find": "COLL", "filter": {"k": null}}`,
	`{"find": "COLL", "filter": {"k": {"$in": [1, 2, 3, 40, "s8", null]}}}`,
	`{"find": "COLL", "filter": {"$or": [{"k": {"$lt": 5}}, {"g": 2, "k": {"$gt": 50}}]}}`,
	`{"find": "COLL", "filter": {"g": 1, "k": {"$gt": 20}}}`,
	`{"find": "COLL", "filter": {"_id": {"$in": [3, 33, 59]}}}`,
	`{"find": "COLL", "filter": {"k": {"$not": {"$gt": 20}}}}`,
	`{"find": "COLL", "sort": {"a": 1, "_id": 1}, "projection": {"_id": 1, "a": 1}}`,
	`{"find": "COLL", "sort": {"a": -1, "_id": 1}, "limit": 7, "skip": 3, "projection": {"d": 0}}`,
	`{"find": "COLL", "sort": {"k": 1, "_id": 1}, "projection": {"s": 1, "_id": 0}, "batchSize": 2}`,
	`{"find": "COLL", "sort": {"d.x": -1, "s": 1, "_id": 1}, "limit": 20}`,
	`{"find": "COLL", "filter": {"a": {"$elemMatch": {"$gt": 5}}}, "projection": {"a.$": 1}, "sort": {"_id": 1}}`,
	`{"find": "COLL", "filter": {"$bad": 1}}`,
	`{"find": "COLL", "sort": {"s": 1, "_id": -1}, "collation": {"locale": "en", "strength": 2}}`,
	`{"count": "COLL"}`,
	`{"count": "COLL", "query": {"g": {"$gt": 1}}, "skip": 2, "limit": 20}`,
	`{"distinct": "COLL", "key": "a"}`,
	`{"distinct": "COLL", "key": "s", "query": {"k": {"$lt": 30}}}`,
	`{"aggregate": "COLL", "pipeline": [{"$group": {"_id": "$g", "n": {"$sum": 1}, "avg": {"$avg": "$d.x"}, "max": {"$max": "$_id"}, "min": {"$min": "$_id"}}}, {"$sort": {"_id": 1}}], "cursor": {}}`,
	`{"aggregate": "COLL", "pipeline": [{"$unwind": "$a"}, {"$group": {"_id": "$a", "ids": {"$addToSet": "$g"}}}, {"$project": {"n": {"$size": "$ids"}}}, {"$sort": {"_id": 1}}], "cursor": {}}`,
	`{"aggregate": "COLL", "pipeline": [{"$match": {"k": {"$gt": 5}}}, {"$sort": {"_id": -1}}, {"$skip": 2}, {"$limit": 5}, {"$project": {"s": 1}}], "cursor": {"batchSize": 2}}`,
	`{"aggregate": "COLL", "pipeline": [{"$sort": {"_id": 1}}, {"$group": {"_id": "$s", "first": {"$first": "$_id"}, "last": {"$last": "$_id"}, "all": {"$push": "$_id"}}}, {"$sort": {"_id": 1}}], "cursor": {}}`,
	`{"aggregate": "COLL", "pipeline": [{"$count": "n"}], "cursor": {}}`,
	`{"aggregate": "COLL", "pipeline": [{"$sortByCount": "$g"}, {"$match": {"_id": 2}}], "cursor": {}}`,
	`{"aggregate": "COLL", "pipeline": [{"$facet": {"a": [{"$match": {"g": 1}}, {"$count": "n"}], "b": [{"$sort": {"_id": 1}}, {"$limit": 2}, {"$project": {"_id": 1}}]}}], "cursor": {}}`,
	`{"aggregate": "COLL", "pipeline": [{"$bucket": {"groupBy": "$_id", "boundaries": [0, 20, 40], "default": "more", "output": {"n": {"$sum": 1}}}}, {"$sort": {"n": 1, "_id": 1}}], "cursor": {}}`,
	`{"aggregate": "COLL", "pipeline": [{"$lookup": {"from": "side", "localField": "g", "foreignField": "_id", "as": "side"}}, {"$match": {"side.n": "two"}}, {"$project": {"_id": 1}}], "cursor": {}}`,
	`{"aggregate": "side", "pipeline": [{"$lookup": {"from": "COLL", "localField": "_id", "foreignField": "g", "as": "m"}}, {"$project": {"n": {"$size": "$m"}}}, {"$sort": {"_id": 1}}], "cursor": {}}`,
	`{"aggregate": "side", "pipeline": [{"$unionWith": {"coll": "COLL", "pipeline": [{"$match": {"_id": {"$lt": 3}}}]}}, {"$project": {"_id": 1}}], "cursor": {}}`,
	`{"aggregate": "COLL", "pipeline": [{"$addFields": {"t": {"$add": ["$_id", 1]}}}, {"$replaceRoot": {"newRoot": {"t": "$t"}}}, {"$sort": {"t": 1}}, {"$limit": 3}], "cursor": {}}`,
	`{"aggregate": "COLL", "pipeline": [{"$nope": 1}], "cursor": {}}`,
	`{"aggregate": "COLL", "pipeline": [{"$group": {"_id": "$s", "m": {"$mergeObjects": "$d"}, "sd": {"$stdDevPop": "$_id"}}}, {"$project": {"sd": {"$round": ["$sd", 6]}, "m": 1}}, {"$sort": {"_id": 1}}, {"$project": {"sd": 1}}], "cursor": {}}`,
	`{"find": "view_COLL", "filter": {"g": 2}, "sort": {"_id": -1}, "limit": 5, "projection": {"k": 1}}`,
	`{"count": "view_COLL", "query": {"g": 1}}`,
	`{"count": "view_COLL", "query": {"g": {"$gt": 0}}, "skip": 3, "limit": -20}`,
	`{"distinct": "view_COLL", "key": "g"}`,
	`{"distinct": "COLL", "key": "e.b"}`,
	`{"distinct": "view_COLL", "key": "e.b"}`,
	`{"distinct": "view_COLL", "key": "e.b", "query": {"g": 1}}`,
	`{"distinct": "view_COLL", "key": "e"}`,
	`{"distinct": "view_COLL", "key": "nothing.there"}`,
	`{"find": "view_COLL", "returnKey": true}`,
	`{"find": "view_COLL", "min": {"_id": 1}, "hint": {"_id": 1}}`,
	`{"aggregate": "view_COLL", "pipeline": [{"$group": {"_id": "$g", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], "cursor": {}}`,
	`{"aggregate": "side", "pipeline": [{"$lookup": {"from": "view_COLL", "localField": "_id", "foreignField": "g", "as": "m"}}, {"$project": {"n": {"$size": "$m"}}}, {"$sort": {"_id": 1}}], "cursor": {}}`,
	`{"update": "COLL", "updates": [{"q": {"g": 3}, "u": {"$inc": {"d.x": 10}}, "multi": true}]}`,
	`{"update": "COLL", "updates": [{"q": {"_id": 5}, "u": {"$set": {"s": "zz"}}}, {"q": {"_id": 6}, "u": {"$push": {"a": 9}}}, {"q": {"_id": 600}, "u": {"$set": {"s": "zz"}}}]}`,
	`{"update": "COLL", "updates": [{"q": {"k": {"$lt": 12}}, "u": [{"$set": {"p": {"$concat": ["$s", "!"]}}}], "multi": true}]}`,
	`{"find": "COLL", "sort": {"_id": 1}}`,
	`{"delete": "COLL", "deletes": [{"q": {"g": 0, "k": {"$gt": 10}}, "limit": 0}, {"q": {"_id": 7}, "limit": 1}]}`,
	`{"findAndModify": "COLL", "query": {"g": 1}, "sort": {"_id": -1}, "update": {"$set": {"s": "fam"}}, "new": true, "fields": {"s": 1}}`,
	`{"findAndModify": "COLL", "query": {"_id": 11}, "remove": true, "fields": {"_id": 1}}`,
	`{"find": "COLL", "sort": {"_id": 1}}`,
}

func TestSameAnswersWhateverThePlacement(t *testing.T) {
	const seed = 7
	c := newTestCluster(t, 3)
	names := scatterCopies(c, rand.New(rand.NewPCG(seed, 1)))
	for _, cmd := range sameCommands {
		want := c.answer("one", cmd)
		for _, n := range names[1:] {
			if got := c.answer(n, cmd); strings.ReplaceAll(got, "db."+n, "db.one") != want {
				t.Errorf("%s\non %s:\n%s\nunsharded:\n%s", cmd, n, got, want)
			}
		}
	}
}

func TestNoWriteIsLostWhileChunksMove(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	var docs []string
	for i := 0; i < 200; i++ {
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "k": %d, "n": 0}`, i, i))
	}
	c.run("db", fmt.Sprintf(`{"insert": "c", "documents": [%s]}`, strings.Join(docs, ",")))
	const writers, rounds = 4, 60
	done := make(chan string, writers)
	for w := 0; w < writers; w++ {
		go func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 3))
			for i := 0; i < rounds; i++ {
				k := rnd.IntN(200)
				for _, cmd := range []string{
					fmt.Sprintf(`{"update": "c", "updates": [{"q": {"k": %d}, "u": {"$inc": {"n": 1}}}]}`, k),
					fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "k": %d}]}`, 1000+w*1000+i, rnd.IntN(200)),
				} {
					if m := c.raw("db", cmd); m["ok"] != 1.0 || m["writeErrors"] != nil || m["n"] != int32(1) {
						done <- fmt.Sprintf("%s: %v", cmd, m)
						return
					}
				}
			}
			done <- ""
		}()
	}
	moves := 0
	for left := writers; left > 0; {
		select {
		case msg := <-done:
			if left--; msg != "" {
				t.Error(msg)
			}
		default:
			moves++
			m := c.raw("admin", fmt.Sprintf(`{"moveRange": "db.c", "min": {"k": %d}, "max": {"k": %d}, "toShard": "shard%d", "waitForDelete": true}`, moves%4*50, moves%4*50+50, moves/4%2))
			if m["ok"] != 1.0 {
				t.Fatalf("move %d: %v", moves, m)
			}
		}
	}
	c.expect(c.run("db", `{"count": "c"}`)["n"], fmt.Sprint(200+writers*rounds))
	sum := c.all("db", `{"aggregate": "c", "pipeline": [{"$group": {"_id": null, "n": {"$sum": "$n"}}}], "cursor": {}}`)
	if got := fmt.Sprint(get(sum[0], "n")); got != fmt.Sprint(writers*rounds) {
		t.Errorf("the increments add up to %s, want %d (after %d moves)", got, writers*rounds, moves)
	}
	if a, b := c.onShard("shard0", "c"), c.onShard("shard1", "c"); int(a+b) != 200+writers*rounds {
		t.Errorf("%d and %d documents on the shards, orphans are left", a, b)
	}
}
