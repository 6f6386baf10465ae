package router_test

import (
	"crypto/sha256"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/querytest"
	"github.com/shoaldb/shoal/query/value"
)

// Further parts of TestRandomCommandsWhateverThePlacement: reads that need a special index, results written to other
// collections, upserts, updates of the shard key, transactions.

// special creates on all copies the indexes without which some queries are refused, and for each a collection to write results to.
func (r *sameRound) special() {
	var specs bson.A
	add := func(name string, key bson.D) {
		specs = append(specs, bson.D{{Key: "key", Value: key}, {Key: "name", Value: name}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}})
	}
	if r.g.Geo {
		add("sphere", bson.D{{Key: "geo", Value: "2dsphere"}})
		add("plane", bson.D{{Key: "xy", Value: "2d"}})
	}
	if r.g.Text {
		add("words", bson.D{{Key: "txt", Value: "text"}, {Key: "s", Value: "text"}})
	}
	key := pick(r.g, bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: "hashed"}}, bson.D{{Key: "g", Value: 1}, {Key: "_id", Value: 1}})
	for i, n := range r.names {
		for _, s := range specs {
			r.do("db", bson.D{{Key: "dropIndexes", Value: n}, {Key: "index", Value: s.(bson.D)[0].Value}})
			r.must("db", bson.D{{Key: "createIndexes", Value: n}, {Key: "indexes", Value: bson.A{s}}})
		}
		r.must("db", bson.D{{Key: "createIndexes", Value: "by_u_" + n}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "u", Value: 1}}}, {Key: "name", Value: "u"}, {Key: "unique", Value: true}}}}})
		if i == 0 {
			continue
		}
		r.target("to_"+n, key, false)
		r.target("by_u_"+n, bson.D{{Key: "u", Value: 1}}, true)
		if r.seed%2 == 0 {
			r.target("mr_"+n, bson.D{{Key: "_id", Value: pick[any](r.g, 1, "hashed")}}, false)
		}
	}
}

// target shards a collection that results are written to, and spreads its chunks.
func (r *sameRound) target(name string, key bson.D, unique bool) {
	r.must("admin", bson.D{{Key: "shardCollection", Value: "db." + name}, {Key: "key", Value: key}, {Key: "unique", Value: unique}})
	if key[0].Value != 1 {
		return
	}
	for _, at := range []int{1, 20, 40} {
		middle := bson.D{{Key: key[0].Key, Value: at}}
		if len(key) > 1 {
			middle = bson.D{{Key: "g", Value: at % 4}, {Key: "_id", Value: at}}
		}
		r.do("admin", bson.D{{Key: "split", Value: "db." + name}, {Key: "middle", Value: middle}})
		r.do("admin", bson.D{{Key: "moveChunk", Value: "db." + name}, {Key: "find", Value: middle}, {Key: "to", Value: pick(r.g, "shard0", "shard1", "shard2")}})
	}
}

// special1 is a read of one of the unusual kinds.
func (r *sameRound) special1() (cmd func(coll string) bson.D, ordered, cut bool) {
	g := r.g
	find := func(args ...bson.E) func(string) bson.D {
		return func(coll string) bson.D { return append(bson.D{{Key: "find", Value: coll}}, args...) }
	}
	aggregate := func(stages ...any) func(string) bson.D {
		return func(coll string) bson.D {
			return bson.D{{Key: "aggregate", Value: coll}, {Key: "pipeline", Value: bson.A(stages)}, {Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 7}}}}
		}
	}
	sort := func(keys bson.D) any { return bson.D{{Key: "$sort", Value: keys}} }
	for {
		switch g.R.IntN(9) {
		case 0, 1:
			if g.Geo {
				return r.near(find, aggregate)
			}
		case 2, 3:
			if g.Text {
				score := bson.D{{Key: "$meta", Value: "textScore"}}
				filter := bson.D{{Key: "$text", Value: bson.D{{Key: "$search", Value: pick(g, "coffee", "cake shop", "running", "coffee -tea", `"cake shop"`, "Runner e", "abc -ab")},
					{Key: "$caseSensitive", Value: g.Chance(0.2)}, {Key: "$diacriticSensitive", Value: g.Chance(0.2)}}}}
				if g.Chance(0.3) {
					filter = append(filter, bson.E{Key: "v", Value: bson.D{{Key: "$lt", Value: g.R.IntN(10)}}})
				}
				if g.Chance(0.3) {
					return aggregate(bson.D{{Key: "$match", Value: filter}}, bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: score}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}}), false, false
				}
				return find(bson.E{Key: "filter", Value: filter}, bson.E{Key: "projection", Value: bson.D{{Key: "score", Value: score}, {Key: "txt", Value: 1}}},
					bson.E{Key: "sort", Value: bson.D{{Key: "score", Value: score}, {Key: "_id", Value: 1}}}, bson.E{Key: "limit", Value: 1 + g.R.IntN(40)}), true, false
			}
		case 4:
			return find(bson.E{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: g.R.IntN(60)}}}}}, bson.E{Key: "sort", Value: bson.D{{Key: "_id", Value: pick(g, 1, -1)}}},
				bson.E{Key: "hint", Value: bson.D{{Key: "_id", Value: 1}}}, bson.E{Key: pick(g, "returnKey", "showRecordId"), Value: true}, bson.E{Key: "batchSize", Value: 3}), true, false
		case 5:
			count := bson.D{{Key: "query", Value: g.Filter()}, {Key: "collation", Value: r.anyCollation()}}
			return func(coll string) bson.D { return append(bson.D{{Key: "count", Value: coll}}, count...) }, false, false
		case 6:
			c := r.anyCollation()
			p := aggregate(bson.D{{Key: "$match", Value: g.Filter()}}, sort(append(g.Sort()[:1], bson.E{Key: "_id", Value: 1})), bson.D{{Key: "$limit", Value: 1 + g.R.IntN(30)}},
				bson.D{{Key: "$project", Value: bson.D{{Key: "less", Value: bson.D{{Key: "$lt", Value: bson.A{"$s", "b"}}}}, {Key: "s", Value: 1}}}})
			return func(coll string) bson.D { return append(p(coll), bson.E{Key: "collation", Value: c}) }, true, true
		case 7:
			return r.mapReduce(), false, false
		case 8:
			seed := g.R.Uint64()
			return func(coll string) bson.D { return r.written(coll, seed) }, false, false
		}
	}
}

func (r *sameRound) anyCollation() bson.D {
	for {
		if c := r.g.Collation(); c != nil {
			return c
		}
	}
}

// near is a read in the order of distances.
func (r *sameRound) near(find func(...bson.E) func(string) bson.D, aggregate func(...any) func(string) bson.D) (func(string) bson.D, bool, bool) {
	g := r.g
	x, y := float64(g.R.IntN(40)-20)/2, float64(g.R.IntN(40)-20)/2
	point := bson.D{{Key: "type", Value: "Point"}, {Key: "coordinates", Value: bson.A{x, y}}}
	within := bson.D{{Key: "$geometry", Value: point}, {Key: "$maxDistance", Value: g.R.IntN(2000000)}, {Key: "$minDistance", Value: g.R.IntN(2) * 100000}}
	switch g.R.IntN(4) {
	case 0:
		return find(bson.E{Key: "filter", Value: bson.D{{Key: "geo", Value: bson.D{{Key: pick(g, "$near", "$nearSphere"), Value: within}}}, {Key: "v", Value: bson.D{{Key: "$gt", Value: 1}}}}}), false, false
	case 1:
		return find(bson.E{Key: "filter", Value: bson.D{{Key: "xy", Value: bson.D{{Key: "$near", Value: bson.A{x, y}}, {Key: "$maxDistance", Value: 5}}}}}), false, false
	}
	from, key := any(point), "geo"
	if g.Chance(0.3) {
		from, key = bson.A{x, y}, "xy"
	}
	spec := bson.D{{Key: "near", Value: from}, {Key: "key", Value: key}, {Key: "distanceField", Value: "far"}, {Key: "query", Value: bson.D{{Key: "v", Value: bson.D{{Key: "$lt", Value: 8}}}}}, {Key: "spherical", Value: true}}
	stages := []any{bson.D{{Key: "$geoNear", Value: spec}}}
	switch g.R.IntN(3) {
	case 0: // documents at equal distances have no order, but the distances have one
		return aggregate(append(stages, bson.D{{Key: "$project", Value: bson.D{{Key: "_id", Value: 0}, {Key: "far", Value: 1}}}}, bson.D{{Key: "$limit", Value: 20}})...), true, false
	case 1:
		return aggregate(append(stages, bson.D{{Key: "$sort", Value: bson.D{{Key: "far", Value: 1}, {Key: "_id", Value: 1}}}}, bson.D{{Key: "$limit", Value: 9}})...), true, false
	}
	return aggregate(append(stages, bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$g"}, {Key: "far", Value: bson.D{{Key: "$min", Value: "$far"}}}}}})...), false, false
}

func (r *sameRound) mapReduce() func(coll string) bson.D {
	query, kind := r.g.Filter(), r.g.R.IntN(5)
	return func(coll string) bson.D {
		out := bson.D{{Key: "inline", Value: 1}}
		switch kind {
		case 0:
			out = bson.D{{Key: "replace", Value: "mo_" + coll}}
		case 1:
			out = bson.D{{Key: "merge", Value: "mr_" + coll}}
		case 2:
			out = bson.D{{Key: "reduce", Value: "mr_" + coll}}
		}
		return bson.D{{Key: "mapReduce", Value: coll}, {Key: "map", Value: bson.JavaScript("function() { emit(this._id % 7, typeof this.v == 'number' ? this.v : 1) }")},
			{Key: "reduce", Value: bson.JavaScript("function(k, v) { return Array.sum(v) }")}, {Key: "query", Value: query}, {Key: "out", Value: out}}
	}
}

// written is an aggregate that writes its results into a collection, sharded or not; the read after it is stored's. What is
// written at "g", part of a shard key, does not change with the document.
func (r *sameRound) written(coll string, seed uint64) bson.D {
	g := querytest.New(seed)
	g.Arrays, g.Mixed = r.g.Arrays, r.g.Mixed
	fields := bson.D{{Key: "v", Value: 1}, {Key: "g", Value: bson.D{{Key: "$mod", Value: bson.A{"$_id", 5}}}}, {Key: "n", Value: 1}, {Key: "u", Value: "$_id"}}
	stages := bson.A{bson.D{{Key: "$match", Value: g.Filter()}}, bson.D{{Key: "$project", Value: fields}}}
	if g.Chance(0.3) {
		stages = append(stages, bson.D{{Key: "$out", Value: pick[any](g, "out_"+coll, bson.D{{Key: "db", Value: "db"}, {Key: "coll", Value: "out_" + coll}})}})
	} else {
		matched := pick[any](g, "replace", "merge", "keepExisting", bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "times", Value: bson.D{{Key: "$add", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$times", 0}}}, "$$new.g"}}}}}}}},
			bson.A{bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$mergeObjects", Value: bson.A{"$$ROOT", bson.D{{Key: "was", Value: "$$v"}}}}}}}})
		into := pick(g, "to_", "by_u_")
		spec := bson.D{{Key: "into", Value: into + coll}, {Key: "whenMatched", Value: matched}, {Key: "whenNotMatched", Value: pick(g, "insert", "insert", "discard")}}
		if _, ok := matched.(bson.A); ok {
			spec = append(spec, bson.E{Key: "let", Value: bson.D{{Key: "new", Value: "$$ROOT"}, {Key: "v", Value: "$v"}}})
		}
		if into == "by_u_" {
			spec = append(spec, bson.E{Key: "on", Value: pick[any](g, "u", bson.A{"u"})})
		}
		stages = append(stages, bson.D{{Key: "$merge", Value: spec}})
	}
	return bson.D{{Key: "aggregate", Value: coll}, {Key: "pipeline", Value: stages}, {Key: "cursor", Value: bson.D{}}}
}

// stored compares what was written into the other collections.
func (r *sameRound) stored() {
	r.t.Helper()
	for _, prefix := range targets[3:] {
		r.check(func(coll string) bson.D { return all(prefix + coll) }, true, false)
	}
}

// keyed is a write that upserts, changes shard keys, or runs several commands in one transaction.
func (r *sameRound) keyed() func(coll string) bson.D {
	g := r.g
	if g.Chance(0.25) {
		return r.transaction()
	}
	one := r.one(true)
	return func(coll string) bson.D {
		r.number++
		return append(on(coll, one), bson.E{Key: "lsid", Value: session(coll)}, bson.E{Key: "txnNumber", Value: r.number})
	}
}

// session is the session in which a copy is written to.
func session(coll string) bson.D {
	sum := sha256.Sum256([]byte(coll))
	return bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: sum[:16]}}}
}

// on is a command for a collection.
func on(coll string, cmd bson.D) bson.D {
	return append(bson.D{{Key: cmd[0].Key, Value: coll}}, cmd[1:]...)
}

// one is a command that writes one document.
func (r *sameRound) one(write bool) bson.D {
	g := r.g
	if !write {
		return bson.D{{Key: "find", Value: ""}, {Key: "filter", Value: g.Filter()}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "batchSize", Value: 1000}}
	}
	id := g.R.IntN(80)
	filter := bson.D{{Key: "_id", Value: id}}
	update := func(q bson.D, u any, more ...bson.E) bson.D {
		return bson.D{{Key: "update", Value: ""}, {Key: "updates", Value: bson.A{append(bson.D{{Key: "q", Value: q}, {Key: "u", Value: u}}, more...)}}}
	}
	key := func() bson.D { return bson.D{{Key: "k", Value: r.key()}, {Key: "g", Value: g.R.IntN(5)}} }
	switch g.R.IntN(12) {
	case 9:
		return update(filter, pick[any](g, bson.D{{Key: "$set", Value: bson.D{{Key: "o.k", Value: r.key()}}}}, bson.D{{Key: "$set", Value: bson.D{{Key: "o", Value: bson.D{{Key: "k", Value: r.key()}, {Key: "g", Value: g.R.IntN(4)}}}}}},
			bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "o", Value: bson.D{{Key: "k", Value: "$k"}, {Key: "g", Value: "$g"}}}}}}}))
	case 10: // an upsert by all of the shard keys
		r.next++
		q := append(bson.D{{Key: "_id", Value: 5000 + r.next}, {Key: "o.k", Value: r.key()}, {Key: "o.g", Value: g.R.IntN(4)}}, key()...)
		return update(q, pick[any](g, bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: 1}}}}, bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: bson.D{{Key: "$add", Value: bson.A{"$_id", 1}}}}}}}}), bson.E{Key: "upsert", Value: true})
	case 11:
		return r.letWrite(filter, g.R.IntN(9))
	case 0, 1: // an update that may move the document
		return update(filter, bson.D{{Key: "$set", Value: key()[g.R.IntN(2):]}, {Key: "$inc", Value: bson.D{{Key: "v", Value: 1}}}})
	case 2:
		return update(filter, bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "k", Value: bson.D{{Key: "$mod", Value: bson.A{"$v", 50}}}}}}}})
	case 3:
		return bson.D{{Key: "findAndModify", Value: ""}, {Key: "query", Value: g.Filter()}, {Key: "sort", Value: append(g.Sort()[:1], bson.E{Key: "_id", Value: 1})},
			{Key: "update", Value: bson.D{{Key: "$set", Value: key()}}}, {Key: "new", Value: g.Chance(0.5)}, {Key: "fields", Value: bson.D{{Key: "k", Value: 1}, {Key: "g", Value: 1}}}}
	case 4: // an upsert, with or without a whole shard key
		r.next++
		q := bson.D{{Key: "_id", Value: pick(g, id, 2000+r.next)}}
		if g.Chance(0.5) {
			q = append(bson.D{{Key: "_id", Value: 2000 + r.next}}, key()...)
		}
		u := any(bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "made", Value: true}}}, {Key: "$inc", Value: bson.D{{Key: "v", Value: 1}}}})
		if g.Chance(0.3) {
			u = append(bson.D{{Key: "v", Value: 3}}, key()...)
		}
		return update(q, u, bson.E{Key: "upsert", Value: true})
	case 5:
		r.next++
		return bson.D{{Key: "findAndModify", Value: ""}, {Key: "query", Value: bson.D{{Key: "_id", Value: 3000 + r.next}, {Key: "v", Value: 1}}}, {Key: "sort", Value: bson.D{{Key: "v", Value: 1}}},
			{Key: "update", Value: bson.D{{Key: "$set", Value: key()}}}, {Key: "upsert", Value: true}, {Key: "new", Value: g.Chance(0.5)}}
	case 6:
		filters := bson.A{pick(g, bson.D{{Key: "e.x", Value: bson.D{{Key: "$gt", Value: g.R.IntN(4)}}}}, bson.D{{Key: "e", Value: bson.D{{Key: "$type", Value: "object"}}}})}
		return update(append(filter, bson.E{Key: "n", Value: bson.D{{Key: "$type", Value: "array"}}}), bson.D{{Key: "$set", Value: bson.D{{Key: "n.$[e].z", Value: g.Number()}}}}, bson.E{Key: "arrayFilters", Value: filters})
	case 7:
		return update(g.Filter(), g.Update(), bson.E{Key: "sort", Value: append(g.Sort()[:1], bson.E{Key: "_id", Value: -1})})
	}
	r.next++
	return bson.D{{Key: "insert", Value: ""}, {Key: "documents", Value: bson.A{append(append(g.Doc(4000+r.next), key()...), bson.E{Key: "v", Value: 2})}}}
}

// key is a value of the range copy's shard key.
func (r *sameRound) key() any {
	return pick[any](r.g, r.g.R.IntN(50), r.g.R.IntN(50), r.g.R.IntN(50), float64(r.g.R.IntN(50))+0.5, "s", nil)
}

// transact runs commands in one transaction and returns all their results.
func (r *sameRound) transact(coll, end string, ops bson.A) (o outcome) {
	r.number++
	r.within = bson.D{{Key: "lsid", Value: session(coll)}, {Key: "txnNumber", Value: r.number}, {Key: "autocommit", Value: false}}
	defer func() { r.within = nil }()
	txn := func(cmd bson.D, first bool) bson.D {
		cmd = append(cmd[:len(cmd):len(cmd)], r.within...)
		if first {
			cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
		}
		return cmd
	}
	for i, op := range ops {
		step := r.outcome(coll, txn(op.(bson.D), i == 0))
		o.docs = append(o.docs, step.docs...)
		if o.code, o.msg = step.code, step.msg; o.code != 0 {
			r.do("admin", txn(bson.D{{Key: "abortTransaction", Value: 1}}, false)) // most errors have aborted it, some have not
			return o
		}
	}
	for _, d := range o.docs {
		if d.T == value.Array && strings.Contains(value.Show(d), "errmsg") {
			return o // a write error has aborted it
		}
	}
	r.must("admin", txn(bson.D{{Key: end, Value: 1}}, false))
	return o
}

// hideRecordIDs replaces record ids, which differ between the copies, by a placeholder.
func hideRecordIDs(docs []value.Value) {
	for i, d := range docs {
		if d.T != value.Document || value.Lookup(d.Doc(), "$recordId").IsMissing() {
			continue
		}
		var f []value.Field
		for k, v := range value.Elements(d.Doc()) {
			if k == "$recordId" {
				v = value.NewBool(true)
			}
			f = append(f, value.F(k, v))
		}
		docs[i] = value.NewDocument(value.Doc(f...))
	}
}
