package router_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/querytest"
	"github.com/shoaldb/shoal/query/value"
)

// How TestRandomCommandsWhateverThePlacement creates its copies and moves their chunks.

// targets are prefixes of the collections that a round creates besides a copy; those after the copy itself are written to.
var targets = []string{"view2_", "view_", "", "to_", "out_", "by_u_", "mr_", "mo_"}

// shard gives each copy but the first a shard key, and some of them zones.
func (r *sameRound) shard() {
	kinds := []bson.D{
		{{Key: "k", Value: 1}}, {{Key: "_id", Value: "hashed"}}, {{Key: "g", Value: 1}, {Key: "k", Value: 1}}, {{Key: "g", Value: 1}, {Key: "k", Value: "hashed"}},
		{{Key: "k", Value: "hashed"}}, {{Key: "o.k", Value: 1}}, {{Key: "o.k", Value: "hashed"}}, {{Key: "o.g", Value: 1}, {Key: "o.k", Value: 1}},
		{{Key: "g", Value: "hashed"}, {Key: "k", Value: 1}}, {{Key: "_id", Value: 1}}, {{Key: "o.k", Value: 1}, {Key: "_id", Value: 1}},
	}
	if r.collation != nil {
		kinds = slices.DeleteFunc(kinds, func(k bson.D) bool { return k[0] == bson.E{Key: "_id", Value: 1} }) // its index is not a simple one
	}
	r.keys = []bson.D{nil}
	for i, n := range r.g.R.Perm(len(kinds))[:3] {
		key, ns := kinds[n], "db."+r.names[i+1]
		r.keys = append(r.keys, key)
		if key[0].Value == 1 && r.g.Chance(0.3) {
			bound := func(at any) bson.D {
				out := bson.D{{Key: key[0].Key, Value: at}}
				for _, e := range key[1:] {
					out = append(out, bson.E{Key: e.Key, Value: bson.MinKey{}})
				}
				return out
			}
			r.must("admin", bson.D{{Key: "addShardToZone", Value: "shard1"}, {Key: "zone", Value: "z1"}})
			r.must("admin", bson.D{{Key: "addShardToZone", Value: "shard2"}, {Key: "zone", Value: "z2"}})
			r.must("admin", bson.D{{Key: "updateZoneKeyRange", Value: ns}, {Key: "min", Value: bound(1)}, {Key: "max", Value: bound(2)}, {Key: "zone", Value: "z1"}})
			r.must("admin", bson.D{{Key: "updateZoneKeyRange", Value: ns}, {Key: "min", Value: bound(20)}, {Key: "max", Value: bound("s")}, {Key: "zone", Value: "z2"}})
		}
		simple := bson.D{{Key: "locale", Value: "simple"}}
		r.must("admin", bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: key}, {Key: "collation", Value: simple}})
	}
}

// keyValue is a value for a field of shard keys.
func (r *sameRound) keyValue(i int) any {
	switch g := r.g; g.R.IntN(14) {
	case 0:
		return nil
	case 1:
		return fmt.Sprint("s", i)
	case 2:
		return float64(i) + 0.5
	case 3:
		return g.Scalar()
	case 4:
		return pick[any](g, math.NaN(), bson.MinKey{}, bson.MaxKey{}, math.Copysign(0, -1), bson.DateTime(-1e15), int64(i), bson.D{{Key: "x", Value: i}}, "", math.Inf(-1))
	default:
		return int32(g.R.IntN(50))
	}
}

// insertDocs fills the copies.
func (r *sameRound) insertDocs() {
	g := r.g
	for i := range 40 + g.R.IntN(40) {
		d := append(g.Doc(i), bson.E{Key: "v", Value: float64(g.R.IntN(20)) / 2})
		if !g.Chance(0.05) {
			d = append(d, bson.E{Key: "k", Value: r.keyValue(i)})
		}
		switch {
		case g.Chance(0.05):
			d = append(d, bson.E{Key: "g", Value: g.Scalar()})
		case !g.Chance(0.05):
			d = append(d, bson.E{Key: "g", Value: int32(i % 4)})
		}
		switch {
		case g.Chance(0.05):
			d = append(d, bson.E{Key: "o", Value: g.Scalar()})
		case !g.Chance(0.05):
			d = append(d, bson.E{Key: "o", Value: bson.D{{Key: "k", Value: r.keyValue(i)}, {Key: "g", Value: int32(i % 3)}}})
		}
		r.docs = append(r.docs, d)
	}
	for _, n := range r.names {
		r.must("db", bson.D{{Key: "insert", Value: n}, {Key: "documents", Value: r.docs}})
	}
}

// views creates a view on each copy, and a view on that.
func (r *sameRound) views() {
	g := r.g
	set := func() bson.D { return bson.D{{Key: "$set", Value: bson.D{{Key: "e", Value: g.Expr(2)}}}} }
	first := bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "v", Value: bson.D{{Key: "$gte", Value: 2}}}}}}, set()}
	match, last := bson.D{{Key: "$match", Value: g.Filter()}}, set()
	for _, n := range r.names {
		join := bson.D{{Key: "$lookup", Value: bson.D{{Key: "from", Value: pick(g, n, "view_"+n)}, {Key: "localField", Value: "link"}, {Key: "foreignField", Value: "_id"}, {Key: "as", Value: "l"},
			{Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "v", Value: bson.D{{Key: "$gte", Value: 2}}}}}}, bson.D{{Key: "$project", Value: bson.D{{Key: "v", Value: 1}}}}, bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}}}}}}}
		for _, v := range []bson.D{
			{{Key: "create", Value: "view_" + n}, {Key: "viewOn", Value: n}, {Key: "pipeline", Value: first}},
			{{Key: "create", Value: "view2_" + n}, {Key: "viewOn", Value: "view_" + n}, {Key: "pipeline", Value: bson.A{match, join, last}}},
		} {
			if r.collation != nil {
				v = append(v, bson.E{Key: "collation", Value: r.collation})
			}
			r.must("db", v)
		}
	}
}

// keyOf is the value of a document at a path of a shard key.
func keyOf(d bson.D, path string) any {
	name, rest, deeper := strings.Cut(path, ".")
	for _, e := range d {
		if e.Key != name {
			continue
		}
		if in, ok := e.Value.(bson.D); ok && deeper {
			return keyOf(in, rest)
		}
		if !deeper {
			return e.Value
		}
	}
	return nil
}

// move moves a chunk to another shard, sometimes after splitting it.
func (r *sameRound) move() {
	g := r.g
	i := 1 + g.R.IntN(3)
	d := r.docs[g.R.IntN(len(r.docs))].(bson.D)
	find, middle := bson.D{}, bson.D{}
	for _, e := range r.keys[i] {
		v := keyOf(d, e.Key)
		find = append(find, bson.E{Key: e.Key, Value: v})
		if e.Value == "hashed" {
			v = int64(g.R.Uint64())
		}
		middle = append(middle, bson.E{Key: e.Key, Value: v})
	}
	if g.Chance(0.4) {
		r.do("admin", bson.D{{Key: "split", Value: "db." + r.names[i]}, {Key: "middle", Value: middle}})
	}
	to := bson.E{Key: "to", Value: fmt.Sprint("shard", g.R.IntN(3))}
	reply := r.do("admin", bson.D{{Key: "moveChunk", Value: "db." + r.names[i]}, {Key: "find", Value: find}, to, {Key: "_waitForDelete", Value: !r.restless}})
	r.note(fmt.Sprint("move ", r.names[i], find, to, value.ShowDoc(reply)))
}

// moving moves chunks continuously, in some rounds, until the function that it returns is called.
func (r *sameRound) moving() (rest func()) {
	if r.seed%5 != 0 {
		return func() {}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	g := querytest.New(r.g.R.Uint64())
	client := command.NewClient(2, "test", "test", nil)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			i := 1 + g.R.IntN(3)
			find := bson.D{}
			d := r.docs[g.R.IntN(len(r.docs))].(bson.D)
			for _, e := range r.keys[i] {
				find = append(find, bson.E{Key: e.Key, Value: keyOf(d, e.Key)})
			}
			r.doAs(client, "admin", bson.D{{Key: "moveChunk", Value: "db." + r.names[i]}, {Key: "find", Value: find}, {Key: "to", Value: pick(g, "shard0", "shard1", "shard2")}})
		}
	}()
	return func() { close(stop); <-done }
}

// note keeps the latest actions for a failure's message.
func (r *sameRound) note(s string) { r.last = append(r.last[max(0, len(r.last)-7):], s) }

// arrays checks that no copy accepts a document with an array in its shard key.
func (r *sameRound) arrays() {
	list := bson.A{r.g.R.IntN(9)}
	doc := pick(r.g, bson.D{{Key: "k", Value: list}, {Key: "g", Value: list}, {Key: "o", Value: list}}, bson.D{{Key: "k", Value: bson.A{}}, {Key: "g", Value: list}, {Key: "o", Value: bson.A{bson.D{{Key: "k", Value: 1}}, bson.D{{Key: "g", Value: 2}}}}},
		bson.D{{Key: "k", Value: list}, {Key: "g", Value: bson.A{}}, {Key: "o", Value: bson.D{{Key: "k", Value: list}, {Key: "g", Value: 1}}}})
	for i, n := range r.names {
		if i == 0 || strings.HasPrefix(r.keys[i][0].Key, "_id") {
			continue
		}
		reply := r.do("db", bson.D{{Key: "insert", Value: n}, {Key: "documents", Value: bson.A{append(bson.D{{Key: "_id", Value: 9000}}, doc...)}}})
		if n, _ := value.Lookup(reply, "n").AsInt64(); n != 0 || value.Lookup(reply, "writeErrors").IsMissing() {
			r.t.Fatalf("%v went into a collection sharded by %v: %s", doc, r.keys[i], value.ShowDoc(reply))
		}
	}
}

// mergeModes writes results of which some exist already, with $merge's modes that fail then: all copies fail alike.
func (r *sameRound) mergeModes() {
	g := r.g
	var have bson.A
	for i := range 3 {
		have = append(have, bson.D{{Key: "_id", Value: g.R.IntN(20)*3 + i}, {Key: "v", Value: -1}})
	}
	modes := bson.D{{Key: "whenMatched", Value: "fail"}, {Key: "whenNotMatched", Value: "insert"}}
	if g.Chance(0.5) {
		modes = bson.D{{Key: "whenMatched", Value: pick(g, "replace", "merge", "keepExisting")}, {Key: "whenNotMatched", Value: "fail"}}
	}
	low := g.R.IntN(60)
	among := bson.D{{Key: "$match", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: low}, {Key: "$lt", Value: low + 3}}}}}}
	fields := bson.D{{Key: "$project", Value: bson.D{{Key: "v", Value: 1}}}}
	for _, n := range r.names {
		r.must("db", bson.D{{Key: "insert", Value: "fails_" + n}, {Key: "documents", Value: have}})
	}
	run := func(coll string) bson.D {
		return bson.D{{Key: "aggregate", Value: coll}, {Key: "pipeline", Value: bson.A{among, fields, bson.D{{Key: "$merge", Value: append(bson.D{{Key: "into", Value: "fails_" + coll}}, modes...)}}}}, {Key: "cursor", Value: bson.D{}}}
	}
	r.check(run, false, false)
	for _, n := range r.names {
		r.must("db", bson.D{{Key: "drop", Value: "fails_" + n}})
	}
}

// transaction returns a command with several reads and writes in one transaction.
func (r *sameRound) transaction() func(coll string) bson.D {
	g := r.g
	var ops []func(coll string) bson.D
	for range 1 + g.R.IntN(5) {
		if g.Chance(0.3) {
			if cmd, _, cut := r.readOf(true); !cut {
				ops = append(ops, cmd)
				continue
			}
		}
		op := r.one(g.Chance(0.8))
		ops = append(ops, func(coll string) bson.D { return on(coll, op) })
	}
	end := pick(g, "commitTransaction", "commitTransaction", "abortTransaction")
	return func(coll string) bson.D {
		var list bson.A
		for _, op := range ops {
			list = append(list, op(coll))
		}
		return bson.D{{Key: "transaction", Value: end}, {Key: "ops", Value: list}}
	}
}

// letWrite is a write whose filter and update use a variable of the command.
func (r *sameRound) letWrite(filter bson.D, lim int) bson.D {
	g := r.g
	lets := bson.E{Key: "let", Value: bson.D{{Key: "lim", Value: lim}}}
	above := bson.E{Key: "$expr", Value: bson.D{{Key: pick(g, "$gt", "$lte"), Value: bson.A{"$v", "$$lim"}}}}
	set := bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "c", Value: bson.D{{Key: "$add", Value: bson.A{"$v", "$$lim"}}}}}}}}
	switch g.R.IntN(4) {
	case 0:
		return bson.D{{Key: "delete", Value: ""}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: append(filter, above)}, {Key: "limit", Value: 1}}}}, lets}
	case 1:
		return bson.D{{Key: "findAndModify", Value: ""}, {Key: "query", Value: bson.D{above}}, {Key: "sort", Value: bson.D{{Key: "v", Value: 1}, {Key: "_id", Value: 1}}}, {Key: "update", Value: set}, {Key: "new", Value: true}, lets}
	case 2:
		return bson.D{{Key: "findAndModify", Value: ""}, {Key: "query", Value: append(g.Filter(), above)}, {Key: "sort", Value: bson.D{{Key: "_id", Value: -1}}}, {Key: "remove", Value: true}, {Key: "fields", Value: bson.D{{Key: "v", Value: 1}}}, lets}
	}
	return bson.D{{Key: "update", Value: ""}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: append(filter, above)}, {Key: "u", Value: set}}}}, lets}
}
