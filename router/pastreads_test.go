package router_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

const pastKeys = 24

// pastRound changes a sharded collection and its placement, and knows the value of every key at every time.
type pastRound struct {
	*testCluster
	g     *rand.Rand
	now   map[int]int
	was   []pastState
	value int
	txn   int
	known map[int]bson.Timestamp // per key, the time from which its chunk's owners are known; absent for always
}

type pastState struct {
	at  bson.Timestamp
	all map[int]int
}

// chunks lists the bounds of the collection's chunks as numbers, 0 and pastKeys for the ends, and their shards.
func (r *pastRound) chunks() (bounds []int, shards []string, since []bson.Timestamp) {
	for i, x := range r.testCluster.all("config", `{"find": "chunks", "sort": {"min": 1}}`) {
		lo := 0
		if i > 0 {
			lo = int(get(get(x, "min"), "k").(int32))
		}
		bounds, shards = append(bounds, lo), append(shards, get(x, "shard").(string))
		since = append(since, get(x, "onCurrentShardSince").(bson.Timestamp))
	}
	return append(bounds, pastKeys), shards, since
}

// end shows one end of a range.
func end(k int) string {
	switch k {
	case 0:
		return `{"k": {"$minKey": 1}}`
	case pastKeys:
		return `{"k": {"$maxKey": 1}}`
	}
	return fmt.Sprintf(`{"k": %d}`, k)
}

// change makes one random change to the collection or its placement.
func (r *pastRound) change() {
	bounds, shards, since := r.chunks()
	i := r.g.IntN(len(shards))
	lo, hi := bounds[i], bounds[i+1]
	inside := func() int { return lo + r.g.IntN(hi-lo+1) }
	switch n := r.g.IntN(10); {
	case n < 4:
		k := r.g.IntN(pastKeys)
		r.value++
		m := r.run("d", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"k": %d}, "u": {"$set": {"v": %d}}, "upsert": true}]}`, k, r.value))
		r.now[k] = r.value
		r.note(m)
	case n < 5:
		k := r.g.IntN(pastKeys)
		_, ok := r.now[k]
		delete(r.now, k)
		if m := r.run("d", fmt.Sprintf(`{"delete": "c", "deletes": [{"q": {"k": %d}, "limit": 1}]}`, k)); ok {
			r.note(m) // if there is nothing to delete, it returns the time of the shard's last write
		}
	case n < 6:
		if at := inside(); at > lo && at < hi {
			r.run("admin", fmt.Sprintf(`{"split": "d.c", "middle": %s}`, end(at)))
		}
	case n < 7:
		if i+1 < len(shards) && shards[i+1] == shards[i] {
			r.run("admin", fmt.Sprintf(`{"mergeChunks": "d.c", "bounds": [%s, %s]}`, end(lo), end(bounds[i+2])))
			for k := lo; k < bounds[i+2]; k++ {
				r.known[k] = since[i]
				if since[i+1].After(since[i]) {
					r.known[k] = since[i+1]
				}
			}
		}
	default:
		from, to := inside(), inside()
		if from > to {
			from, to = to, from
		}
		if from == to {
			from, to = lo, hi
		}
		r.run("admin", fmt.Sprintf(`{"moveRange": "d.c", "min": %s, "max": %s, "toShard": "shard%d"}`, end(from), end(to), r.g.IntN(3)))
	}
}

func (r *pastRound) note(m bson.M) {
	r.was = append(r.was, pastState{m["operationTime"].(bson.Timestamp), maps.Clone(r.now)})
}

// read reads at an earlier time: one key, a range, or everything, also by an aggregate, from another router or a transaction.
func (r *pastRound) read() {
	i := r.g.IntN(len(r.was))
	s := r.was[i]
	lo, hi := r.g.IntN(pastKeys), pastKeys
	filter := fmt.Sprintf(`{"k": {"$gte": %d}}`, lo)
	switch r.g.IntN(3) {
	case 0:
		hi = lo + 1
		filter = fmt.Sprintf(`{"k": %d}`, lo)
	case 1:
		lo, filter = 0, `{"v": {"$gt": 0}}`
	}
	cmd := fmt.Sprintf(`{"find": "c", "filter": %s, "batchSize": %d`, filter, r.g.IntN(4)+2)
	if r.g.IntN(2) == 0 {
		cmd = fmt.Sprintf(`{"aggregate": "c", "cursor": {"batchSize": %d}, "pipeline": [{"$match": %s}]`, r.g.IntN(3), filter)
	}
	through := r.testCluster
	if r.g.IntN(4) == 0 {
		through = r.through()
	}
	concern := fmt.Sprintf(`, "readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}`, s.at.T, s.at.I)
	txn := ""
	if r.g.IntN(4) == 0 {
		r.txn++
		txn = fmt.Sprintf(`, %s, "txnNumber": {"$numberLong": "%d"}, "autocommit": false`, txnLSID, r.txn)
		cmd += txn + `, "startTransaction": true`
	}
	m := through.raw("d", cmd+concern+"}")
	if m["code"] == int32(mongoerr.StaleChunkHistory) {
		for k := lo; k < hi; k++ {
			if r.known[k].After(s.at) {
				return
			}
		}
	}
	if m["ok"] != 1.0 {
		r.t.Fatalf("%s at %d: %v", cmd, i, m)
	}
	var docs bson.A
	for cur, batch := m["cursor"], "firstBatch"; ; batch = "nextBatch" {
		docs = append(docs, get(cur, batch).(bson.A)...)
		id := get(cur, "id").(int64)
		if id == 0 {
			break
		}
		cur = through.run("d", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"%s}`, id, txn))["cursor"]
	}
	got := []string{}
	for _, d := range docs {
		got = append(got, fmt.Sprintf("%v:%v", get(d, "k"), get(d, "v")))
	}
	want := []string{}
	for k, v := range s.all {
		if k >= lo && k < hi {
			want = append(want, fmt.Sprintf("%d:%d", k, v))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.t.Fatalf("%s at state %d of %d:\ngot  %v\nwant %v", cmd, i, len(r.was), got, want)
	}
	if txn != "" {
		through.run("admin", `{"commitTransaction": 1`+txn+`}`)
	}
}

// Chunk history was not read: a chunk that arrived on a shard made it refuse every read of the collection at an earlier
// time, also of keys that had always been there, and a read of a range that had moved away was sent to the new owner.
func TestReadsOfThePastWhateverHasMovedSince(t *testing.T) {
	rounds := 4
	if n, err := strconv.Atoi(os.Getenv("SHOAL_PROPERTY_ROUNDS")); err == nil {
		rounds = n
	}
	first, _ := strconv.Atoi(os.Getenv("SHOAL_PROPERTY_SEED"))
	for seed := first; seed < first+rounds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			r := &pastRound{testCluster: newTestCluster(t, 3), g: rand.New(rand.NewPCG(uint64(seed), 1)), now: map[int]int{}, known: map[int]bson.Timestamp{}}
			r.run("admin", `{"shardCollection": "d.c", "key": {"k": 1}}`)
			r.note(r.run("d", `{"insert": "c", "documents": [{"k": 0, "v": 1}]}`))
			r.was[0].all = map[int]int{0: 1}
			r.now[0], r.value = 1, 1
			for range 60 {
				r.change()
				r.read()
			}
		})
	}
}

// A snapshot session, whose reads are all at the time of its first one, was refused once a range of its collection had moved.
func TestSnapshotSessionGoesOnAfterAMove(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	ts := c.run("db", `{"find": "c", "readConcern": {"level": "snapshot"}}`)
	at := get(ts["cursor"], "atClusterTime").(bson.Timestamp)
	read := func(more string) string {
		return fmt.Sprintf(`{"aggregate": "c", "cursor": {}, "pipeline": [%s{"$group": {"_id": null, "n": {"$sum": 1}, "s": {"$sum": "$g"}}}],
			"readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}}`, more, at.T, at.I)
	}
	before := show(c.all("db", read("")))
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 3}, "to": "shard1", "_waitForDelete": true}`)
	c.run("admin", `{"moveRange": "db.c", "min": {"k": 12}, "max": {"k": 14}, "toShard": "shard0", "_waitForDelete": true}`)
	c.run("db", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
	c.expect(c.all("db", read("")), before)
	c.expect(c.all("db", read(`{"$match": {"k": 13}}, `)), `[{"_id":null,"n":1,"s":1}]`)
	m := c.run("db", fmt.Sprintf(`{"distinct": "c", "key": "g", "readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}}`, at.T, at.I))
	c.expect(m["values"], `[0,1,2]`)
}
