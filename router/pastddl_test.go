package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ddlCase is a change of the catalog, made while a collection x of a database on shard0 has 30 documents.
type ddlCase struct {
	name  string
	start func(c *testCluster, db string)
	ddl   func(c *testCluster, db string)
	reads string // the namespace that is read, x if empty
	mixed bool   // in between there is something else in it than before and after
}

func ddlCases() []ddlCase {
	run := func(db string, cmds ...string) func(c *testCluster, d string) {
		return func(c *testCluster, d string) {
			for _, cmd := range cmds {
				on := d
				if db != "" {
					on = db
				}
				c.run(on, strings.ReplaceAll(cmd, "DB", d))
			}
		}
	}
	then := func(all ...func(c *testCluster, db string)) func(c *testCluster, db string) {
		return func(c *testCluster, db string) {
			for _, f := range all {
				f(c, db)
			}
		}
	}
	admin := func(cmds ...string) func(c *testCluster, db string) { return run("admin", cmds...) }
	ten := func(coll string) string {
		var docs []string
		for i := range 10 {
			docs = append(docs, fmt.Sprintf(`{"_id": %d, "k": %d}`, i+1000, i+1000))
		}
		return fmt.Sprintf(`{"insert": %q, "documents": [%s]}`, coll, strings.Join(docs, ","))
	}
	shard := func(coll string) func(c *testCluster, db string) {
		ns := "DB." + coll
		return admin(`{"shardCollection": "`+ns+`", "key": {"_id": 1}}`, `{"split": "`+ns+`", "middle": {"_id": 0}}`, `{"moveChunk": "`+ns+`", "find": {"_id": 5}, "to": "shard1"}`)
	}
	alone, sharded := func(*testCluster, string) {}, shard("x")
	placed := admin(`{"moveCollection": "DB.x", "toShard": "shard1"}`)
	drop, dropAll := run("", `{"drop": "x"}`), run("", `{"dropDatabase": 1}`)
	again := run("", ten("x"))
	elsewhere := admin(`{"enableSharding": "DB", "primaryShard": "shard2"}`)
	rename := admin(`{"renameCollection": "DB.x", "to": "DB.y"}`)
	over := then(run("", ten("z")), admin(`{"renameCollection": "DB.z", "to": "DB.x", "dropTarget": true}`))
	moved := admin(`{"movePrimary": "DB", "to": "shard1"}`)
	var out []ddlCase
	for _, s := range []struct {
		name  string
		start func(c *testCluster, db string)
	}{{"sharded", sharded}, {"unsharded", alone}, {"placed", placed}} {
		for _, d := range []ddlCase{
			{name: "drop", ddl: drop},
			{name: "drop and insert", ddl: then(drop, again), mixed: true},
			{name: "drop and shard again", ddl: then(drop, shard("x"), again), mixed: true},
			{name: "rename", ddl: rename},
			{name: "rename, new name", ddl: rename, reads: "y"},
			{name: "rename and back", ddl: then(rename, admin(`{"renameCollection": "DB.y", "to": "DB.x"}`)), mixed: true},
			{name: "rename over", ddl: over},
			{name: "rename sharded over", ddl: then(shard("z"), over)},
			{name: "dropDatabase", ddl: dropAll},
			{name: "dropDatabase and insert elsewhere", ddl: then(dropAll, elsewhere, again), mixed: true},
			{name: "dropDatabase and shard elsewhere", ddl: then(dropAll, elsewhere, shard("x"), again), mixed: true},
			{name: "movePrimary", ddl: moved},
			{name: "movePrimary and back", ddl: then(moved, run("", `{"delete": "x", "deletes": [{"q": {"k": {"$gt": 3}}, "limit": 0}]}`), admin(`{"movePrimary": "DB", "to": "shard0"}`)), mixed: true},
			{name: "movePrimary and drop", ddl: then(moved, drop)},
			{name: "view in its place", ddl: then(drop, run("", `{"create": "x", "viewOn": "one", "pipeline": []}`)), mixed: true},
		} {
			d.name, d.start = s.name+", "+d.name, s.start
			out = append(out, d)
		}
	}
	out = append(out, []ddlCase{
		{name: "sharded, reshardCollection", start: sharded, ddl: admin(`{"reshardCollection": "DB.x", "key": {"k": 1}, "numInitialChunks": 1}`)},
		{name: "sharded, refine and move", start: sharded, ddl: then(run("", `{"createIndexes": "x", "indexes": [{"key": {"_id": 1, "k": 1}, "name": "n"}]}`),
			admin(`{"refineCollectionShardKey": "DB.x", "key": {"_id": 1, "k": 1}}`, `{"moveChunk": "DB.x", "find": {"_id": -5, "k": 0}, "to": "shard2"}`))},
		{name: "sharded, unshardCollection", start: sharded, ddl: admin(`{"unshardCollection": "DB.x", "toShard": "shard2"}`)},
		{name: "sharded, unshard home", start: sharded, ddl: admin(`{"unshardCollection": "DB.x", "toShard": "shard0"}`, `{"untrackUnshardedCollection": "DB.x"}`)},
		{name: "unsharded, moveCollection", start: alone, ddl: placed},
		{name: "unsharded, moveCollection and back", start: alone, ddl: then(placed, admin(`{"moveCollection": "DB.x", "toShard": "shard0"}`, `{"untrackUnshardedCollection": "DB.x"}`))},
		{name: "unsharded, shardCollection", start: alone, ddl: sharded},
		{name: "unsharded, shardCollection and drop", start: alone, ddl: then(sharded, drop)},
		{name: "unsharded, convertToCapped", start: alone, ddl: run("", `{"convertToCapped": "x", "size": 1000000}`)},
		{name: "placed, convertToCapped", start: placed, ddl: run("", `{"convertToCapped": "x", "size": 1000000}`)},
		{name: "placed, moveCollection", start: placed, ddl: admin(`{"moveCollection": "DB.x", "toShard": "shard2"}`)},
		{name: "placed, untrack", start: placed, ddl: admin(`{"moveCollection": "DB.x", "toShard": "shard0"}`, `{"untrackUnshardedCollection": "DB.x"}`)},
		{name: "placed, shardCollection", start: placed, ddl: sharded},
		{name: "view, drop below", start: then(sharded, run("", `{"create": "v", "viewOn": "x", "pipeline": [{"$match": {"k": {"$gte": 3}}}]}`)), ddl: drop, reads: "v"},
		{name: "view, rename below", start: then(sharded, run("", `{"create": "v", "viewOn": "x", "pipeline": [{"$match": {"k": {"$gte": 3}}}]}`)), ddl: rename, reads: "v"},
		{name: "view, drop both", start: then(sharded, run("", `{"create": "v", "viewOn": "x", "pipeline": []}`)), ddl: then(run("", `{"drop": "v"}`), drop), reads: "v"},
		{name: "view, drop it", start: then(alone, run("", `{"create": "v", "viewOn": "x", "pipeline": []}`)), ddl: run("", `{"drop": "v"}`), reads: "v"},
		{name: "view, movePrimary", start: then(alone, run("", `{"create": "v", "viewOn": "x", "pipeline": []}`)), ddl: moved, reads: "v"},
		{name: "view, shard below", start: then(alone, run("", `{"create": "v", "viewOn": "x", "pipeline": []}`)), ddl: sharded, reads: "v"},
	}...)
	return out
}

// pastRead is a command that reads a collection, without its end, and shows what it returned.
type pastRead struct {
	name, cmd string
	outside   bool // transactions may not use it
}

// pastReads are reads of the collection NS.
var pastReads = []pastRead{
	{name: "find", cmd: `{"find": "NS", "batchSize": 1000`},
	{name: "find one", cmd: `{"find": "NS", "filter": {"_id": 5}`},
	{name: "aggregate", cmd: `{"aggregate": "NS", "cursor": {"batchSize": 1000}, "pipeline": [{"$match": {"k": {"$gte": 0}}}]`},
	{name: "group", cmd: `{"aggregate": "NS", "cursor": {}, "pipeline": [{"$group": {"_id": null, "n": {"$sum": 1}, "k": {"$sum": "$k"}}}]`},
	{name: "distinct", cmd: `{"distinct": "NS", "key": "k"`},
	{name: "lookup", cmd: `{"aggregate": "one", "cursor": {"batchSize": 1000}, "pipeline": [{"$lookup": {"from": "NS", "pipeline": [], "as": "x"}}, {"$unwind": "$x"}, {"$replaceRoot": {"newRoot": "$x"}}]`},
	{name: "unionWith", cmd: `{"aggregate": "one", "cursor": {"batchSize": 1000}, "pipeline": [{"$match": {"_id": 7}}, {"$unionWith": "NS"}]`, outside: true},
	{name: "graphLookup", cmd: `{"aggregate": "one", "cursor": {"batchSize": 1000}, "pipeline": [{"$graphLookup": {"from": "NS", "startWith": 3, "connectFromField": "none", "connectToField": "k", "as": "x"}}, {"$unwind": "$x"}, {"$replaceRoot": {"newRoot": "$x"}}]`},
}

// shown returns what a read returned: its documents or values in order, or its error.
func shown(m bson.M) string {
	if code, failed := m["code"].(int32); failed {
		labels, _ := m["errorLabels"].(bson.A)
		return fmt.Sprintf("%v %v", mongoerr.Code(code).Name(), labels)
	}
	docs, ok := m["values"].(bson.A)
	if !ok {
		docs = get(m["cursor"], "firstBatch").(bson.A)
	}
	var out []string
	for _, d := range docs {
		out = append(out, show(d))
	}
	slices.Sort(out)
	return fmt.Sprintf("%d: %s", len(out), strings.Join(out, " "))
}

// at returns the read concern of a read at a cluster time.
func at(ts uint64) string {
	return fmt.Sprintf(`, "readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}`, ts>>32, uint32(ts))
}

// txnOn returns the elements of a statement of a transaction in a session of its own.
func txnOn(session int, more string) string {
	return fmt.Sprintf(`, "lsid": {"id": {"$binary": {"base64": "%021dA==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}, "autocommit": false%s`, session, more)
}

// refusals are the errors by which a statement of a transaction that began before a DDL may be refused.
var refusals = []string{"SnapshotUnavailable", "StaleChunkHistory", "SnapshotTooOld", "MigrationConflict", "StaleConfig", "StaleDbVersion"}

// A read at a cluster time before a DDL used the current placement: it returned nothing of a collection whose database has moved to another primary shard since,
// and of one that was dropped, renamed, resharded or created again only the documents on the primary shard, without an error. So did transactions that had begun
// before.
func TestReadsAtATimeBeforeADDL(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "oth", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "oth.s", "key": {"_id": 1}}`)
	for i, s := range []string{"shard1", "shard2"} {
		c.run("admin", fmt.Sprintf(`{"split": "oth.s", "middle": {"_id": %d}}`, 10*i))
		c.run("admin", fmt.Sprintf(`{"moveChunk": "oth.s", "find": {"_id": %d}, "to": %q}`, 10*i, s))
	}
	c.run("oth", `{"insert": "s", "documents": [{"_id": -1}, {"_id": 1}, {"_id": 11}]}`)
	session := 0
	for i, x := range ddlCases() {
		t.Run(x.name, func(t *testing.T) {
			c := *c
			c.t = t
			checkPast(&c, fmt.Sprintf("d%d", i), x, &session)
		})
	}
}

func checkPast(c *testCluster, db string, x ddlCase, session *int) {
	t := c.t
	ns := x.reads
	if ns == "" {
		ns = "x"
	}
	c.run("admin", `{"enableSharding": "`+db+`", "primaryShard": "shard0"}`)
	c.run(db, `{"insert": "one", "documents": [{"_id": 1}]}`)
	var docs []string
	for i := range 30 {
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "k": %d}`, i-10, i))
	}
	early := c.clock.ClusterTime()
	c.run(db, `{"insert": "x", "documents": [{"_id": 100, "k": 100}]}`) // exists before it is sharded
	x.start(c, db)
	c.run(db, `{"delete": "x", "deletes": [{"q": {}, "limit": 0}]}`)
	c.run(db, `{"insert": "x", "documents": [`+strings.Join(docs, ",")+`]}`)
	stale := c.through()
	var want []string
	read := func(c *testCluster, r pastRead, more string) string {
		return shown(c.raw(db, strings.ReplaceAll(r.cmd, "NS", ns)+more+"}"))
	}
	for _, r := range pastReads {
		want = append(want, read(c, r, ""))
		if got := read(stale, r, ""); got != want[len(want)-1] {
			t.Fatalf("%s before: %s through one router, %s through another", r.name, want[len(want)-1], got)
		}
	}
	before := c.clock.ClusterTime()
	open := openBefore(c, stale, session)
	x.ddl(c, db)
	after := c.clock.ClusterTime()
	if !x.mixed {
		c.probe(before, after, func(ts uint64) {
			i := int(ts % uint64(len(pastReads)))
			r := pastReads[i]
			if got := read(c, r, at(ts)); got != want[i] && got != read(c, r, "") && !strings.HasPrefix(got, "SnapshotUnavailable") {
				t.Errorf("%s at %d|%d in the middle of the DDL (%d|%d to %d|%d): %s, want %s or %s", r.name, ts>>32, uint32(ts), before>>32, uint32(before), after>>32, uint32(after),
					got, want[i], read(c, r, ""))
			}
		})
	}
	for _, through := range []struct {
		name string
		c    *testCluster
	}{{"stale", stale}, {"knowing", c}, {"new", c.through()}, {"stale again", stale}} {
		for i, r := range pastReads {
			now := read(through.c, r, "")
			if got := read(through.c, r, at(before)); got != want[i] {
				t.Errorf("%s before the DDL through the %s router: %s, want %s", r.name, through.name, got, want[i])
			}
			if got := read(through.c, r, at(after)); got != now {
				t.Errorf("%s after the DDL through the %s router: %s, want %s", r.name, through.name, got, now)
			}
			if got := read(through.c, r, at(early)); !strings.HasPrefix(got, "0:") {
				t.Errorf("%s before the collection through the %s router: %s", r.name, through.name, got)
			}
			if r.outside {
				continue
			}
			*session++
			if got := read(through.c, r, txnOn(*session, `, "startTransaction": true`)+at(before)); got != want[i] {
				t.Errorf("%s in a transaction before the DDL through the %s router: %s, want %s", r.name, through.name, got, want[i])
			}
		}
	}
	for _, o := range open {
		for i, r := range pastReads {
			if r.outside {
				continue
			}
			now, got := read(c, r, ""), read(o.c, r, txnOn(o.session, ""))
			code, labels, _ := strings.Cut(got, " ")
			switch {
			case got == want[i], !o.snapshot && got == now:
				continue
			case o.snapshot, !slices.Contains(refusals, code) || !strings.Contains(labels, "TransientTransactionError"):
				t.Errorf("%s in a transaction begun before (snapshot %v): %s, want %s", r.name, o.snapshot, got, want[i])
			}
			break // the transaction has ended
		}
	}
}

// probe calls f with the cluster times between two, as far as their increments go.
func (c *testCluster) probe(from, to uint64, f func(ts uint64)) {
	const most = 500
	first := to>>32<<32 + 1 // of the last second
	for ts := from; ts < min(to, from+most); ts++ {
		f(ts)
	}
	for ts := max(first, from); ts < min(to, first+most); ts++ {
		f(ts)
	}
}

// openTxn is a transaction that has a snapshot on every shard.
type openTxn struct {
	c        *testCluster
	session  int
	snapshot bool
}

// openBefore begins transactions through several routers.
func openBefore(c, stale *testCluster, session *int) (open []openTxn) {
	for _, through := range []*testCluster{c, stale} {
		for _, level := range []string{"snapshot", "local", "majority"} {
			*session++
			m := through.run("oth", `{"find": "s", "readConcern": {"level": "`+level+`"}`+txnOn(*session, `, "startTransaction": true`)+`}`)
			if n := len(get(m["cursor"], "firstBatch").(bson.A)); n != 3 {
				c.t.Fatalf("%d documents of three", n)
			}
			open = append(open, openTxn{through, *session, level == "snapshot"})
		}
	}
	return open
}

// Documents of one version, 40 of them, are renamed, moved, sharded, resharded and replaced as a whole by those of the next version. Readers read both of the
// names that they may have, at one time: a past one, the present, or one in the middle of a DDL. They must find the 40 documents of one version under one of the
// names, or be refused; refused is only what is read as of a time in the middle of a DDL.
func TestReadsAtAnyTimeWhileDDLRuns(t *testing.T) {
	rounds := 30
	if n, err := strconv.Atoi(os.Getenv("SHOAL_PROPERTY_ROUNDS")); err == nil {
		rounds *= n
	}
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	w := &whole{testCluster: c, g: rand.New(rand.NewPCG(1, 1)), name: "x"}
	w.fill("x")
	begin := c.clock.ClusterTime()
	var readers sync.WaitGroup
	done := make(chan struct{})
	var seen, refused, wrong atomic.Int64
	var between quietTimes
	between.add(begin, begin)
	for i := range 4 {
		through, g := c.through(), rand.New(rand.NewPCG(2, uint64(i)))
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				at := c.clock.ClusterTime()
				switch g.IntN(3) {
				case 0: // the clock is of this process: its increments are few
					at = begin + g.Uint64N(at-begin+1)
				case 1:
					at = between.one(g)
				}
				switch versions, err := through.bothAt(at, g.IntN(2) == 0); {
				case err != "" && slices.Contains(refusals, err) && !between.has(at):
					refused.Add(1)
				case err != "" || len(versions) != 1:
					wrong.Add(1)
					t.Errorf("at %d|%d: %v %s", at>>32, uint32(at), versions, err)
				default:
					seen.Add(1)
				}
			}
		})
	}
	for range rounds {
		w.change()
		end := c.clock.ClusterTime()
		between.add(end, c.clock.ClusterTime())
	}
	await.True(t, "reads of now", func() bool {
		versions, err := c.bothAt(c.clock.ClusterTime(), false)
		return err == "" && len(versions) == 1
	})
	close(done)
	readers.Wait()
	t.Logf("%d reads, %d refused, %d wrong", seen.Load(), refused.Load(), wrong.Load())
}

// whole is a collection of documents of one version.
type whole struct {
	*testCluster
	g       *rand.Rand
	name    string
	version int
	sharded bool
}

// fill makes a collection of the next version, sharded or not.
func (w *whole) fill(name string) {
	if w.sharded = w.g.IntN(2) == 0; w.sharded {
		w.run("admin", `{"shardCollection": "d.`+name+`", "key": {"_id": 1}}`)
		w.run("admin", `{"split": "d.`+name+`", "middle": {"_id": 20}}`)
		w.run("admin", fmt.Sprintf(`{"moveChunk": "d.%s", "find": {"_id": 20}, "to": "shard%d"}`, name, w.g.IntN(3)))
	}
	w.version++
	var docs []string
	for i := range 40 {
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "k": %d, "v": %d}`, i, i, w.version))
	}
	w.run("d", fmt.Sprintf(`{"insert": %q, "documents": [%s]}`, name, strings.Join(docs, ",")))
}

// change makes one change of the catalog.
func (w *whole) change() {
	shard := fmt.Sprintf("shard%d", w.g.IntN(3))
	other := map[string]string{"x": "y", "y": "x"}[w.name]
	switch n := w.g.IntN(8); {
	case n == 0:
		w.run("admin", fmt.Sprintf(`{"renameCollection": "d.%s", "to": "d.%s"}`, w.name, other))
		w.name = other
	case n == 1:
		w.fill("z")
		w.run("admin", fmt.Sprintf(`{"renameCollection": "d.z", "to": "d.%s", "dropTarget": true}`, w.name))
	case n == 2:
		w.run("admin", `{"movePrimary": "d", "to": "`+shard+`"}`)
	case n == 3 && w.sharded:
		w.run("admin", fmt.Sprintf(`{"moveRange": "d.%s", "min": {"_id": 20}, "max": {"_id": {"$maxKey": 1}}, "toShard": %q}`, w.name, shard))
	case n <= 4 && w.sharded:
		w.run("admin", fmt.Sprintf(`{"unshardCollection": "d.%s", "toShard": %q}`, w.name, shard))
		w.sharded = false
	case n <= 4:
		w.run("admin", fmt.Sprintf(`{"shardCollection": "d.%s", "key": {"_id": 1}}`, w.name))
		w.run("admin", fmt.Sprintf(`{"split": "d.%s", "middle": {"_id": 20}}`, w.name))
		w.sharded = true
	case n == 5 && w.sharded:
		w.run("admin", fmt.Sprintf(`{"reshardCollection": "d.%s", "key": {"_id": 1}, "forceRedistribution": true, "numInitialChunks": 2}`, w.name))
		w.run("admin", fmt.Sprintf(`{"moveRange": "d.%s", "min": {"_id": 20}, "max": {"_id": {"$maxKey": 1}}, "toShard": %q}`, w.name, shard))
	case !w.sharded:
		w.run("admin", fmt.Sprintf(`{"moveCollection": "d.%s", "toShard": %q}`, w.name, shard))
	}
}

// quietTimes are cluster times at which no DDL ran: from the end of one to the beginning of the next.
type quietTimes struct {
	mu    sync.Mutex
	spans [][2]uint64
}

func (q *quietTimes) add(from, to uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spans = append(q.spans, [2]uint64{from, to})
}

// has reports whether no DDL ran at a time.
func (q *quietTimes) has(ts uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.spans, func(s [2]uint64) bool { return s[0] <= ts && ts <= s[1] })
}

// one returns a time at which no DDL ran.
func (q *quietTimes) one(g *rand.Rand) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.spans[g.IntN(len(q.spans))]
	return s[0] + g.Uint64N(s[1]-s[0]+1)
}

// bothAt returns the versions of the documents that are under both names at a time, once for each whole set, and the error of the read.
func (c *testCluster) bothAt(ts uint64, aggregate bool) (versions []string, refusal string) {
	of := map[string]int{}
	for _, name := range []string{"x", "y"} {
		cmd := `{"find": "` + name + `", "batchSize": 100`
		if aggregate {
			cmd = `{"aggregate": "` + name + `", "cursor": {"batchSize": 100}, "pipeline": []`
		}
		m := c.raw("d", cmd+at(ts)+"}")
		if m["ok"] != 1.0 {
			return nil, mongoerr.Code(m["code"].(int32)).Name()
		}
		for _, d := range get(m["cursor"], "firstBatch").(bson.A) {
			of[fmt.Sprintf("%s %v", name, get(d, "v"))]++
		}
	}
	for v, n := range of {
		if n != 40 {
			v = fmt.Sprintf("%d of %s", n, v)
			versions = append(versions, v)
		}
		versions = append(versions, v)
	}
	return versions, ""
}

// A shard refuses a read at a cluster time with versions of another time than that, even if they are the current ones: a router that does not read the history
// of the catalog would get a part of the collection, or nothing. With the versions of that time it answers.
func TestShardsRefuseReadsAtATimeWithVersionsOfNow(t *testing.T) {
	for _, x := range []struct {
		name    string
		sharded bool
		ddl     []string
	}{
		{"drop", true, []string{`{"drop": "x", "$db": "d"}`}},
		{"rename", true, []string{`{"renameCollection": "d.x", "to": "d.y", "$db": "admin"}`}},
		{"reshardCollection", true, []string{`{"reshardCollection": "d.x", "key": {"k": 1}, "numInitialChunks": 1, "$db": "admin"}`}},
		{"unshardCollection", true, []string{`{"unshardCollection": "d.x", "toShard": "shard2", "$db": "admin"}`}},
		{"movePrimary", false, []string{`{"movePrimary": "d", "to": "shard1", "$db": "admin"}`}},
		{"moveCollection", false, []string{`{"moveCollection": "d.x", "toShard": "shard1", "$db": "admin"}`}},
		{"dropDatabase", true, []string{`{"dropDatabase": 1, "$db": "d"}`, `{"enableSharding": "d", "primaryShard": "shard2", "$db": "admin"}`}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newTestCluster(t, 3)
			c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
			c.run("d", `{"insert": "x", "documents": [{"_id": -1, "k": 1}]}`)
			if x.sharded {
				c.run("admin", `{"shardCollection": "d.x", "key": {"_id": 1}}`)
				c.run("admin", `{"split": "d.x", "middle": {"_id": 0}}`)
				c.run("admin", `{"moveChunk": "d.x", "find": {"_id": 5}, "to": "shard1"}`)
			}
			c.run("d", `{"insert": "x", "documents": [{"_id": 1, "k": 2}]}`)
			before := c.clock.ClusterTime()
			placement := func(ts uint64) *cluster.CollectionInfo {
				t.Helper()
				info, err := c.r.Catalog.CollectionAt(t.Context(), "d.x", ts)
				if err != nil {
					t.Fatal(err)
				}
				return info
			}
			if placement(0).Past() {
				t.Error("the placement of now is one of the past")
			}
			for _, cmd := range x.ddl {
				var m bson.D
				if err := bson.UnmarshalExtJSON([]byte(cmd), false, &m); err != nil {
					t.Fatal(err)
				}
				c.run(get(m, "$db").(string), cmd)
			}
			read := func(info *cluster.CollectionInfo, shard string) string {
				body := doc(t, `{"find": "x", "$db": "d"`+at(before)+`}`)
				raw, err := bson.Marshal(body)
				if err != nil {
					t.Fatal(err)
				}
				raw = value.End(append(raw[:len(raw)-1], info.Suffix(shard)...), 0)
				reply, err := cluster.Run(t.Context(), c.shards[shard], raw)
				if err != nil {
					return mongoerr.CodeOf(err).Name()
				}
				return shown(decode(t, reply))
			}
			c.r.Catalog.Clear()
			now, then := placement(0), placement(before)
			for _, shard := range now.Shards() {
				if got := read(now, shard); got != "StaleConfig" && got != "StaleDbVersion" {
					t.Errorf("%s with the versions of now: %s", shard, got)
				}
			}
			total := 0
			for _, shard := range then.Shards() {
				got := read(then, shard)
				n := 0
				if _, err := fmt.Sscan(got, &n); err != nil {
					t.Errorf("%s with the versions of then: %s", shard, got)
				}
				total += n
			}
			if total != 2 {
				t.Errorf("%d of 2 documents with the versions of then", total)
			}
		})
	}
}

// A read at a time before a shard left the cluster is refused if it needs that shard.
func TestReadsAtATimeBeforeAShardWasRemoved(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.x", "key": {"_id": 1}}`)
	c.run("admin", `{"split": "d.x", "middle": {"_id": 0}}`)
	c.run("admin", `{"moveChunk": "d.x", "find": {"_id": 5}, "to": "shard2"}`)
	c.run("d", `{"insert": "x", "documents": [{"_id": -1}, {"_id": 1}]}`)
	before := c.clock.ClusterTime()
	c.run("d", `{"drop": "x"}`)
	c.run("admin", `{"removeShard": "shard2"}`)
	await.True(t, "the end of shard2", func() bool {
		if _, err := c.config.BalancerRound(t.Context()); err != nil {
			t.Fatal(err)
		}
		return c.run("admin", `{"removeShard": "shard2"}`)["state"] == "completed"
	})
	for range 2 {
		if got := shown(c.raw("d", `{"find": "x"`+at(before)+`}`)); !strings.HasPrefix(got, "SnapshotUnavailable") {
			t.Errorf("everything: %s", got)
		}
		if got := shown(c.raw("d", `{"find": "x", "filter": {"_id": -1}`+at(before)+`}`)); got != `1: {"_id":-1}` {
			t.Errorf("what was on another shard: %s", got)
		}
	}
}

// A time series collection is a view on its buckets, at a time before it was dropped, renamed, or sharded, too.
func TestReadsOfTimeSeriesAtATimeBeforeADDL(t *testing.T) {
	const series = `"timeseries": {"timeField": "t", "metaField": "m"}`
	for _, x := range []struct{ name, start, ddl, db string }{
		{"drop", `{"shardCollection": "db.ts", "key": {"m.s": 1}, ` + series + `}`, `{"drop": "ts"}`, "db"},
		{"dropDatabase", `{"shardCollection": "db.ts", "key": {"m.s": 1}, ` + series + `}`, `{"dropDatabase": 1}`, "db"},
		{"shardCollection", "", `{"shardCollection": "db.ts", "key": {"m.s": 1}}`, "admin"},
		{"movePrimary", "", `{"movePrimary": "db", "to": "shard1"}`, "admin"},
		{"moveCollection", "", `{"moveCollection": "db.ts", "toShard": "shard1"}`, "admin"},
		{"drop unsharded", "", `{"drop": "ts"}`, "db"},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newTestCluster(t, 2)
			c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
			if x.start == "" {
				c.run("db", `{"create": "ts", `+series+`}`)
				c.run("db", `{"createIndexes": "ts", "indexes": [{"key": {"m.s": 1}, "name": "s"}]}`)
			} else {
				c.run("admin", x.start)
				c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 2}}`)
				c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 2}, "to": "shard1"}`)
			}
			c.run("db", `{"insert": "one", "documents": [{"_id": 1}]}`)
			c.measure(4, 3)
			stale := c.through()
			reads := []string{`{"find": "ts", "projection": {"v": 1, "_id": 0}`, `{"distinct": "ts", "key": "m.s"`, `{"aggregate": "ts", "cursor": {}, "pipeline": [{"$group": {"_id": "$m.s", "v": {"$sum": "$v"}}}]`,
				`{"aggregate": "one", "cursor": {}, "pipeline": [{"$lookup": {"from": "ts", "pipeline": [], "as": "x"}}, {"$unwind": "$x"}, {"$group": {"_id": "$x.m.s", "v": {"$sum": "$x.v"}}}]`}
			var want []string
			for _, r := range reads {
				want = append(want, shown(stale.raw("db", r+"}")))
			}
			before := c.clock.ClusterTime()
			c.run(x.db, x.ddl)
			after := c.clock.ClusterTime()
			for name, through := range map[string]*testCluster{"stale": stale, "knowing": c, "new": c.through()} {
				for i, r := range reads {
					now := shown(through.raw("db", r+"}"))
					if got := shown(through.raw("db", r+at(before)+"}")); got != want[i] {
						t.Errorf("%s before through the %s router: %s, want %s", r, name, got, want[i])
					}
					if got := shown(through.raw("db", r+at(after)+"}")); got != now {
						t.Errorf("%s after through the %s router: %s, want %s", r, name, got, now)
					}
				}
			}
		})
	}
}

// Secondaries answer at a time before a DDL, after it and in its middle, as primaries do, whether they have applied it or not.
func TestReadsAtATimeBeforeADDLOnSecondaries(t *testing.T) {
	c := newTestCluster(t, 1)
	x := c.addSet("shardx")
	near, others := c.dial, atomic.Int64{}
	c.dial = func(set string, hosts []string) (cluster.Peer, error) {
		p, err := near(set, hosts)
		if err != nil || set != "shardx" && !strings.HasPrefix(strings.Join(hosts, ""), "shardx:") {
			return p, err
		}
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			return x.servers[fmt.Sprintf("shardx:%d", 27019+others.Add(1)%2)].Peer().Call(ctx, m, dst)
		}), nil
	}
	second := c.through()
	c.dial = near
	for i, ddl := range []struct{ name, cmd string }{
		{"drop", `{"drop": "x"}`}, {"rename", `{"renameCollection": "DB.x", "to": "DB.y"}`}, {"dropDatabase", `{"dropDatabase": 1}`},
		{"reshardCollection", `{"reshardCollection": "DB.x", "key": {"k": 1}, "numInitialChunks": 1}`}, {"unshardCollection", `{"unshardCollection": "DB.x", "toShard": "shard0"}`},
		{"movePrimary", `{"movePrimary": "DB", "to": "shard0"}`}, {"moveCollection", `{"moveCollection": "DB.x", "toShard": "shard0"}`},
	} {
		t.Run(ddl.name, func(t *testing.T) {
			db := fmt.Sprintf("d%d", i)
			c.run("admin", `{"enableSharding": "`+db+`", "primaryShard": "shardx"}`)
			if !strings.HasPrefix(ddl.name, "move") {
				c.run("admin", `{"shardCollection": "`+db+`.x", "key": {"_id": 1}}`)
				c.run("admin", `{"split": "`+db+`.x", "middle": {"_id": 0}}`)
				c.run("admin", `{"moveChunk": "`+db+`.x", "find": {"_id": -5}, "to": "shard0"}`)
			}
			c.run(db, `{"insert": "x", "documents": [{"_id": -1, "k": 1}, {"_id": 1, "k": 2}, {"_id": 2, "k": 3}]}`)
			reads := []string{`{"find": "x"`, `{"distinct": "x", "key": "k"`, `{"aggregate": "x", "cursor": {}, "pipeline": [{"$group": {"_id": null, "n": {"$sum": 1}}}]`}
			on := func(through *testCluster, i int, ts uint64) string {
				return shown(through.raw(db, reads[i]+at(ts)+`, "$readPreference": {"mode": "secondary"}}`))
			}
			before := c.clock.ClusterTime()
			var want, now []string
			for i := range reads {
				want = append(want, on(second, i, before))
				if !strings.HasPrefix(want[i], "3:") && i != 2 {
					t.Fatalf("before: %s", want[i])
				}
			}
			cmd, to := strings.ReplaceAll(ddl.cmd, "DB", db), "admin"
			if strings.HasPrefix(ddl.name, "drop") {
				to = db
			}
			c.run(to, cmd)
			after := c.clock.ClusterTime()
			for i := range reads {
				now = append(now, on(c, i, after))
			}
			c.probe(before, after, func(ts uint64) {
				for i := range reads {
					if got := on(second, i, ts); got != want[i] && got != now[i] && !strings.HasPrefix(got, "SnapshotUnavailable") {
						t.Errorf("%s at %d|%d in the middle of the DDL: %s, want %s or %s", reads[i], ts>>32, uint32(ts), got, want[i], now[i])
					}
				}
			})
			for i := range reads {
				if got := on(second, i, before); got != want[i] {
					t.Errorf("%s before the DDL: %s, want %s", reads[i], got, want[i])
				}
				if got := on(second, i, after); got != now[i] {
					t.Errorf("%s after the DDL: %s, want %s", reads[i], got, now[i])
				}
			}
		})
	}
}

// A router that knew neither of a move nor of the DDL after it sent a read at a time in between to the former owner only, with a version of the right
// incarnation: the shard has to refuse any version that was not read as of that time or later.
func TestStaleRouterReadsAtATimeBetweenAMoveAndADDL(t *testing.T) {
	for i, ddl := range []string{
		`{"reshardCollection": "d.c", "key": {"k": 1}, "numInitialChunks": 1}`, `{"unshardCollection": "d.c", "toShard": "shard0"}`,
		`{"renameCollection": "d.c", "to": "d.other"}`, ``,
	} {
		c := newTestCluster(t, 2)
		c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
		c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
		c.run("admin", `{"split": "d.c", "middle": {"_id": 0}}`)
		c.run("d", `{"insert": "c", "documents": [{"_id": -1, "k": 1}, {"_id": 1, "k": 2}]}`)
		stale := c.through()
		read := `{"aggregate": "c", "cursor": {}, "pipeline": [{"$group": {"_id": null, "n": {"$sum": 1}}}]`
		want := shown(stale.raw("d", read+"}"))
		before := c.clock.ClusterTime()
		for _, key := range []int{1, -1}[:1+i%2] {
			c.run("admin", fmt.Sprintf(`{"moveChunk": "d.c", "find": {"_id": %d}, "to": "shard1"}`, key))
		}
		between := c.clock.ClusterTime()
		if ddl == "" {
			c.run("d", `{"drop": "c"}`)
		} else {
			c.run("admin", ddl)
		}
		for range 2 {
			if got := shown(stale.raw("d", read+at(between)+"}")); got != want {
				t.Errorf("before %s: %s, want %s", ddl, got, want)
			}
		}
		var all []uint64 // later ones first: what nodes have read for a later time must not be used for one during a move
		c.probe(before, between, func(ts uint64) { all = append(all, ts) })
		for _, ts := range slices.Backward(all) {
			for name, through := range map[string]*testCluster{"stale": stale, "knowing": c} {
				if got := shown(through.raw("d", read+at(ts)+"}")); got != want && !strings.HasPrefix(got, "SnapshotUnavailable") {
					t.Errorf("at %d|%d through the %s router, before %s: %s, want %s", ts>>32, uint32(ts), name, ddl, got, want)
				}
			}
		}
	}
}
