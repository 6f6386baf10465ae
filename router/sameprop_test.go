package router_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/querytest"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// sameRound is one set of documents held four times: unsharded, and sharded by three keys of several kinds, with their
// chunks spread over three shards.
type sameRound struct {
	*testCluster
	t     *testing.T
	g     *querytest.Gen
	seed  uint64
	names []string // the first is not sharded
	keys  []bson.D // shard keys of the copies, nil for the first
	docs  bson.A
	last  []string // the latest writes
	next  int      // the next new _id
	apart bool     // a write failed on some copies: they cannot be compared any more

	collation bson.D // the collections' own, nil for none
	number    int64  // of the latest retryable write or transaction
	within    bson.D // the fields that mark commands of the open transaction
	restless  bool   // chunks move between the batches of a cursor
}

func (c *testCluster) do(db string, cmd bson.D) []byte {
	c.t.Helper()
	return c.doAs(c.client, db, cmd)
}

func (c *testCluster) doAs(client *command.Client, db string, cmd bson.D) []byte {
	body, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: db}))
	if err != nil {
		panic(err) // a bug in the test, maybe on another goroutine
	}
	return c.router.Run(context.Background(), client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil)
}

// must is do for a command that has to succeed.
func (r *sameRound) must(db string, cmd bson.D) {
	r.t.Helper()
	if reply := r.do(db, cmd); value.Lookup(reply, "ok").AsFloat64() != 1 || !value.Lookup(reply, "writeErrors").IsMissing() {
		r.t.Fatalf("%v: %s", cmd, value.ShowDoc(reply))
	}
}

func newSameRound(t *testing.T, c *testCluster, seed uint64) *sameRound {
	r := &sameRound{testCluster: c, t: t, g: querytest.New(seed), seed: seed, restless: seed%3 == 0}
	g := r.g
	g.Geo, g.Text = g.Chance(0.3), g.Chance(0.3)
	if g.Chance(0.2) {
		r.collation = g.Collation()
	}
	for i := range 4 {
		r.names = append(r.names, fmt.Sprint("c", i, "of", seed))
	}
	for _, n := range r.names {
		if r.collation != nil {
			r.must("db", bson.D{{Key: "create", Value: n}, {Key: "collation", Value: r.collation}})
		}
	}
	r.shard()
	r.insertDocs()
	text := g.Text
	g.Text = false // there is one text index to a collection, special's
	r.index()
	g.Text = text
	r.special()
	r.views()
	for range 5 {
		r.move()
	}
	g.Keys = []string{"k", "g", "o.k", "o.g"}
	return r
}

// index creates different indexes on the copies: the chosen plan may differ from shard to shard.
func (r *sameRound) index() {
	for _, n := range r.names {
		for i := range r.g.R.IntN(3) {
			spec := r.g.Index()
			for _, e := range spec {
				if e.Key == "unique" {
					spec = spec[:1]
				}
			}
			r.do("db", bson.D{{Key: "createIndexes", Value: n}, {Key: "indexes", Value: bson.A{append(spec, bson.E{Key: "name", Value: fmt.Sprint("x", i)})}}})
		}
	}
}

func pick[T any](g *querytest.Gen, from ...T) T { return from[g.R.IntN(len(from))] }

// orphans inserts documents on shards that do not own them, as a failed migration may leave them.
func (r *sameRound) orphans() {
	live := r.outcome(r.names[0], all(r.names[0])).docs // in their current state: an owner of an earlier state would not have an orphan
	for _, n := range r.names[1:] {
		for _, id := range []string{"shard0", "shard1", "shard2"} {
			p := r.shards[id]
			direct := func(cmd bson.D) []byte {
				raw, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: "db"}))
				if err != nil {
					r.t.Fatal(err)
				}
				reply, err := cluster.Run(context.Background(), p, raw)
				if err != nil {
					r.t.Fatalf("%s: %v", id, err)
				}
				return reply
			}
			have := map[int64]bool{}
			reply := direct(bson.D{{Key: "find", Value: n}, {Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "batchSize", Value: 1000}})
			for _, d := range value.Values(value.Lookup(value.Lookup(reply, "cursor").Doc(), "firstBatch").Doc()) {
				i, _ := value.Lookup(d.Doc(), "_id").AsInt64()
				have[i] = true
			}
			var add bson.A
			for _, d := range live {
				if i, _ := value.Lookup(d.Doc(), "_id").AsInt64(); !have[i] && r.g.Chance(0.3) {
					b, mark := value.Begin(nil)
					b = append(b, d.Doc()[4:len(d.Doc())-1]...)
					add = append(add, bson.Raw(value.End(value.Append(b, "orphan", value.NewBool(true)), mark)))
				}
			}
			if len(have) > 0 && len(add) > 0 {
				direct(bson.D{{Key: "insert", Value: n}, {Key: "documents", Value: add}})
			}
		}
	}
}

// outcome is the result of a command: an error, or its documents.
type outcome struct {
	code int64
	msg  string
	docs []value.Value
}

// refused reports whether an index refused a document (parallel arrays, an array to be hashed): the copies have
// different indexes. Nor can a document move to a shard that has an orphan of it.
func (o outcome) refused() bool {
	text := o.msg
	for _, d := range o.docs {
		if d.T == value.Array || d.T == value.Document && !value.Lookup(d.Doc(), "errmsg").IsMissing() { // writeErrors, or one of a bulkWrite's
			text += value.Show(d)
		}
	}
	return strings.Contains(text, "cannot index parallel arrays") || strings.Contains(text, "index cannot be multikey") || strings.Contains(text, "hashed indexes do not currently support array values") ||
		strings.Contains(text, "There is either an orphan for this document")
}

// against describes how an outcome differs from the expected one.
func (o outcome) against(want outcome) string {
	if o.code != 0 || want.code != 0 {
		return fmt.Sprintf("error %d %s, unsharded %d %s", o.code, o.msg, want.code, want.msg)
	}
	return querytest.Diff(querytest.SortFields(o.docs), querytest.SortFields(want.docs))
}

func (r *sameRound) outcome(coll string, cmd bson.D) (o outcome) {
	r.t.Helper()
	if name, ok := cmd[0].Value.(string); ok {
		coll = name // a view on it
	}
	reply := r.do("db", cmd)
	failed := func() bool {
		if value.Lookup(reply, "ok").AsFloat64() == 1 {
			return false
		}
		o.code, _ = value.Lookup(reply, "code").AsInt64()
		o.msg = value.Lookup(reply, "errmsg").Str()
		return true
	}
	if failed() {
		return o
	}
	cur := value.Lookup(reply, "cursor")
	if cur.T != value.Document {
		for _, f := range []string{"n", "nModified", "value", "writeErrors"} {
			o.docs = append(o.docs, value.Lookup(reply, f))
		}
		o.docs = append(o.docs, value.Values(value.Lookup(reply, "upserted").Doc())...)
		if v := value.Lookup(reply, "lastErrorObject"); v.T == value.Document {
			o.docs = append(o.docs, v)
		}
		if v := value.Lookup(reply, "results"); v.T == value.Array { // of mapReduce
			o.docs = value.Values(v.Doc())
		}
		if v := value.Lookup(reply, "values"); v.T == value.Array {
			o.docs = value.Values(v.Doc())
		}
		return o
	}
	for batch := "firstBatch"; ; batch = "nextBatch" {
		o.docs = append(o.docs, value.Values(value.Lookup(cur.Doc(), batch).Doc())...)
		id, _ := value.Lookup(cur.Doc(), "id").AsInt64()
		if id == 0 {
			return o
		}
		if r.restless && r.within == nil && coll != r.names[0] && r.g.Chance(0.2) {
			r.move()
		}
		reply = r.do("db", append(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: coll}, {Key: "batchSize", Value: 1 + r.g.R.IntN(40)}}, r.within...))
		if failed() {
			return o
		}
		cur = value.Lookup(reply, "cursor")
	}
}

// read is a command that reads, for each collection, and whether its results have one order and one error.
func (r *sameRound) read() (cmd func(coll string) bson.D, ordered, cut bool) {
	onView := r.g.Chance(0.2) && r.collation == nil
	if !onView && r.g.Chance(0.25) {
		return r.special1()
	}
	one, ordered, cut := r.readOf(!onView)
	if !onView {
		return one, ordered, cut
	}
	prefix := pick(r.g, "view_", "view2_")
	return func(coll string) bson.D { return one(prefix + coll) }, ordered, cut
}

// readOf is read for a collection or a view; a view accepts neither a collation nor projections that $project does not have.
func (r *sameRound) readOf(collection bool) (cmd func(coll string) bson.D, ordered, cut bool) {
	g := r.g
	var args bson.D
	name := "find"
	switch g.R.IntN(10) {
	case 0:
		name, args = "count", bson.D{{Key: "query", Value: g.Filter()}}
		if g.Chance(0.3) {
			args = append(args, bson.E{Key: "skip", Value: g.R.IntN(10)}, bson.E{Key: "limit", Value: g.R.IntN(20)})
		}
	case 1:
		name, args = "distinct", append(bson.D{{Key: "key", Value: g.Path()}, {Key: "query", Value: g.Filter()}}, r.exactly()...)
	case 2, 3, 4:
		args = bson.D{{Key: "filter", Value: g.Filter()}}
		if g.Chance(0.6) {
			ordered = true
			args = append(args, bson.E{Key: "sort", Value: append(g.Sort()[:1], bson.E{Key: "_id", Value: pick(g, 1, -1)})})
			if g.Chance(0.5) {
				cut = true
				args = append(args, bson.E{Key: "skip", Value: g.R.IntN(8)}, bson.E{Key: "limit", Value: g.R.IntN(20)})
			}
		}
		if p := g.Projection(); p != nil && collection {
			args = append(args, bson.E{Key: "projection", Value: p})
		}
		if c := g.Collation(); c != nil && collection {
			args = append(args, bson.E{Key: "collation", Value: c})
		}
		args = append(args, bson.E{Key: "batchSize", Value: g.R.IntN(30)})
	default:
		seed := g.R.Uint64()
		shape := func(coll string) (querytest.Pipeline, bson.D) {
			again := querytest.New(seed)
			again.Arrays, again.Mixed, again.Keys, again.Limit = g.Arrays, g.Mixed, g.Keys, true
			others := []string{coll, coll, r.names[0]}
			if r.collation == nil && collection {
				others = append(others, "view_"+coll)
			}
			p := again.Pipeline(5, others...)
			cmd := bson.D{{Key: "aggregate", Value: coll}, {Key: "pipeline", Value: p.Stages}, {Key: "cursor", Value: bson.D{{Key: "batchSize", Value: int(seed % 21)}}},
				{Key: "let", Value: bson.D{{Key: "lim", Value: int(seed % 7)}}}}
			return p, append(cmd, r.exactly()...)
		}
		p, _ := shape(r.names[0])
		return func(coll string) bson.D { _, cmd := shape(coll); return cmd }, p.Ordered, p.Cut
	}
	return func(coll string) bson.D { return append(bson.D{{Key: name, Value: coll}}, args...) }, ordered, cut
}

// exactly is the collation of commands that return one of several equal strings: without it, which one is undefined.
func (r *sameRound) exactly() bson.D {
	if r.collation == nil {
		return nil
	}
	return bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}}
}

// write is a command with the same effect whatever the placement.
func (r *sameRound) write() func(coll string) bson.D {
	g := r.g
	if g.Chance(0.5) {
		return r.keyed()
	}
	byID := bson.D{{Key: "_id", Value: g.R.IntN(80)}}
	filter, u := g.Filter(), g.Update()
	switch g.R.IntN(8) {
	case 0:
		return func(coll string) bson.D {
			return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: byID}, {Key: "u", Value: u}}, bson.D{{Key: "q", Value: filter}, {Key: "u", Value: u}, {Key: "multi", Value: true}}}}}
		}
	case 1, 2, 3:
		one := bson.D{{Key: "q", Value: filter}, {Key: "u", Value: u}, {Key: "multi", Value: true}}
		if c := g.Collation(); c != nil {
			one = append(one, bson.E{Key: "collation", Value: c})
		}
		return func(coll string) bson.D {
			return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{one}}}
		}
	case 4:
		limit := bson.D{{Key: "q", Value: byID}, {Key: "limit", Value: 1}}
		if g.Chance(0.3) {
			limit = bson.D{{Key: "q", Value: append(bson.D{{Key: "g", Value: 1}, {Key: "v", Value: 3}}, filter...)}, {Key: "limit", Value: 0}}
		}
		return func(coll string) bson.D {
			return bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{limit}}}
		}
	case 5, 6:
		args := bson.D{{Key: "query", Value: filter}, {Key: "sort", Value: append(g.Sort()[:1], bson.E{Key: "_id", Value: 1})}}
		if g.Chance(0.2) {
			args = append(args, bson.E{Key: "remove", Value: true})
		} else {
			args = append(args, bson.E{Key: "update", Value: u}, bson.E{Key: "new", Value: g.Chance(0.5)})
		}
		return func(coll string) bson.D { return append(bson.D{{Key: "findAndModify", Value: coll}}, args...) }
	}
	var ops bson.A
	for range 1 + g.R.IntN(4) {
		switch g.R.IntN(6) {
		case 3:
			ops = append(ops, bson.D{{Key: "delete", Value: 0}, {Key: "filter", Value: bson.D{{Key: "_id", Value: g.R.IntN(80)}, {Key: "v", Value: bson.D{{Key: "$gt", Value: 2}}}}}, {Key: "multi", Value: g.Chance(0.5)}})
		case 4:
			r.next++
			ops = append(ops, bson.D{{Key: "update", Value: 0}, {Key: "filter", Value: bson.D{{Key: "_id", Value: 6000 + r.next}, {Key: "k", Value: 3}, {Key: "g", Value: 1}, {Key: "o.k", Value: 5}, {Key: "o.g", Value: 1}}},
				{Key: "updateMods", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: 1}}}}}, {Key: "upsert", Value: true}})
		case 0:
			ops = append(ops, bson.D{{Key: "update", Value: 0}, {Key: "filter", Value: g.Filter()}, {Key: "updateMods", Value: g.Update()}, {Key: "multi", Value: true}})
		case 1:
			ops = append(ops, bson.D{{Key: "update", Value: 0}, {Key: "filter", Value: bson.D{{Key: "_id", Value: g.R.IntN(80)}}}, {Key: "updateMods", Value: g.Update()}})
		default:
			r.next++
			id := 1000 + r.next
			ops = append(ops, bson.D{{Key: "insert", Value: 0}, {Key: "document", Value: append(g.Doc(id), bson.E{Key: "k", Value: id % 50}, bson.E{Key: "g", Value: id % 4}, bson.E{Key: "v", Value: 1})}})
		}
	}
	return func(coll string) bson.D {
		return bson.D{{Key: "bulkWrite", Value: 1}, {Key: "ops", Value: ops}, {Key: "nsInfo", Value: bson.A{bson.D{{Key: "ns", Value: "db." + coll}}}}}
	}
}

// check runs a command on all copies.
func (r *sameRound) check(cmd func(coll string) bson.D, ordered, cut bool) {
	r.t.Helper()
	number := r.number
	run := func(coll string) outcome {
		r.number = number
		c := cmd(coll)
		if e, ok := c[len(c)-1].Value.(bson.A); ok && c[0].Key == "transaction" {
			return r.transact(coll, c[0].Value.(string), e)
		}
		if c[0].Key == "bulkWrite" {
			return r.outcomeIn("admin", coll, c)
		}
		return r.outcome(coll, c)
	}
	if c := cmd(r.names[0]); c[0].Key != "find" && c[0].Key != "aggregate" && c[0].Key != "count" && c[0].Key != "distinct" {
		text, _ := bson.MarshalExtJSON(c, false, false)
		r.last = append(r.last[max(0, len(r.last)-5):], string(text))
	}
	want := run(r.names[0])
	for _, n := range r.names[1:] {
		got := run(n)
		if got.refused() || want.refused() {
			r.apart = true
			return
		}
		same := got.code == want.code
		if got.code == 0 && want.code == 0 {
			hideRecordIDs(got.docs)
			hideRecordIDs(want.docs)
			same = querytest.Same(querytest.SortFields(got.docs), querytest.SortFields(want.docs), ordered)
		}
		if c := cmd(n); same && ordered && got.code == 0 && c[0].Key == "find" {
			same = querytest.Identical(querytest.SortFields(got.docs), querytest.SortFields(want.docs))
		}
		if !same && !(cut && (got.code != 0 || want.code != 0)) {
			text, _ := bson.MarshalExtJSON(cmd(n), false, false)
			r.t.Fatalf("%s\nsharded by %v\nbefore it %s\n%s", text, r.keys, strings.Join(r.last, "\n"), got.against(want))
		}
	}
}

func (r *sameRound) outcomeIn(_, coll string, cmd bson.D) (o outcome) {
	reply := r.do("admin", cmd)
	if value.Lookup(reply, "ok").AsFloat64() != 1 {
		o.code, _ = value.Lookup(reply, "code").AsInt64()
		o.msg = value.Lookup(reply, "errmsg").Str()
		return o
	}
	for _, f := range []string{"nErrors", "nInserted", "nMatched", "nModified", "nUpserted", "nDeleted"} {
		o.docs = append(o.docs, value.Lookup(reply, f))
	}
	o.docs = append(o.docs, value.Values(value.Lookup(value.Lookup(reply, "cursor").Doc(), "firstBatch").Doc())...)
	return o
}

// all reads a whole collection.
func all(coll string) bson.D {
	return bson.D{{Key: "find", Value: coll}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}}
}

// TestRandomCommandsWhateverThePlacement runs random reads and writes on a collection that is not sharded and on scattered
// copies of it, while chunks move, and with orphans: the results and the stored documents stay the same.
func TestRandomCommandsWhateverThePlacement(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	querytest.Rounds(t, 5*time.Second, func(t *testing.T, seed uint64) {
		r := newSameRound(t, c, seed)
		for part := 0; part < 3 && !r.apart; part++ {
			rest := r.moving()
			for range 25 {
				r.check(r.read())
			}
			rest()
			r.arrays()
			r.mergeModes()
			if part == 1 {
				r.orphans()
			} else {
				r.move()
			}
			for n := 0; n < 5 && !r.apart; n++ {
				if r.check(r.write(), false, false); !r.apart {
					r.check(all, true, false)
				}
				r.number++
			}
			r.stored()
		}
		for _, n := range r.names {
			for _, prefix := range targets {
				r.do("db", bson.D{{Key: "drop", Value: prefix + n}})
			}
		}
	})
}
