package analyzer

import (
	"sort"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/targeting"
	"github.com/shoaldb/shoal/command/sampling"
	"github.com/shoaldb/shoal/query/value"
)

// tally counts where sampled queries of one kind would have gone.
type tally struct {
	names                               []string // the names of the commands in the reply
	byName                              map[string]int64
	total, single, multi, scatter       int64
	ranges                              []int64
	keyUpdates, oneWithout, manyWithout int64
}

func newTally(ranges int, names ...string) *tally {
	return &tally{names: names, byName: map[string]int64{}, ranges: make([]int64, ranges)}
}

// query has the parts of a sampled query that determine which ranges it targets.
type query struct {
	filter   []byte
	collated bool
	many     bool // it may write several documents
}

// distribution appends readDistribution and writeDistribution.
func (x *analysis) distribution(dst []byte) ([]byte, error) {
	var splits [][]value.Value
	var reads, writes *tally
	begin := func() error {
		var err error
		if splits, err = x.splitPoints(); err == nil {
			reads, writes = x.tallies(len(splits) + 1)
		}
		return err
	}
	reads, writes = x.tallies(0)
	keepers, err := x.d.Keepers(x.op)
	if err != nil {
		return dst, err
	}
	for _, p := range keepers {
		var failed error
		err := each(x.op, p, "config", x.samples(sampling.Queries), func(doc []byte) {
			if splits == nil && failed == nil {
				failed = begin()
			}
			if failed == nil {
				x.count(reads, writes, splits, doc)
			}
		})
		if err == nil {
			err = failed
		}
		if err != nil {
			return dst, err
		}
	}
	for _, p := range keepers {
		err := each(x.op, p, "config", x.samples(sampling.Diffs), func(doc []byte) { x.countDiff(writes, doc) })
		if err != nil {
			return dst, err
		}
	}
	dst = value.Append(dst, "readDistribution", value.NewDocument(reads.doc("Reads", nil)))
	return value.Append(dst, "writeDistribution", value.NewDocument(writes.doc("Writes", writes))), nil
}

func (x *analysis) tallies(ranges int) (reads, writes *tally) {
	return newTally(ranges, "find", "aggregate", "count", "distinct"), newTally(ranges, "update", "delete", "findAndModify")
}

// samples returns the command that reads the samples of the collection.
func (x *analysis) samples(coll string) []byte {
	return cluster.Find{NS: "config." + coll, Filter: value.Doc(value.F("collectionUuid", x.coll.uuid)), BatchSize: 10000}.Doc()
}

// splitPoints samples documents and returns keys that divide them into ranges of about equal numbers.
func (x *analysis) splitPoints() ([][]value.Value, error) {
	ranges := x.params.Int("analyzeShardKeyNumRanges")
	size := ranges * x.params.Int("analyzeShardKeyNumSamplesPerRange")
	var keys [][]value.Value
	err := each(x.op, x.d.Data(), x.coll.db, x.aggregate(nil,
		value.NewDocument(value.Doc(value.F("$sample", value.NewDocument(value.Doc(value.F("size", value.NewInt64(size))))))),
		value.NewDocument(value.Doc(value.F("$replaceWith", x.shardKey())))), func(doc []byte) {
		key := x.values(doc)
		if cluster.CheckKeyValues(key) == nil {
			keys = append(keys, key)
		}
	})
	if err != nil {
		return nil, err
	}
	sort.Slice(keys, func(i, j int) bool { return cluster.CompareKeys(keys[i], keys[j]) < 0 })
	out := [][]value.Value{}
	for i := int64(1); i < ranges; i++ {
		at := int(i * int64(len(keys)) / ranges)
		if at > 0 && at < len(keys) && cluster.CompareKeys(keys[at], keys[0]) > 0 && (len(out) == 0 || cluster.CompareKeys(keys[at], out[len(out)-1]) > 0) {
			out = append(out, keys[at])
		}
	}
	return out, nil
}

// count adds a sampled query.
func (x *analysis) count(reads, writes *tally, splits [][]value.Value, doc []byte) {
	name := value.Lookup(doc, "cmdName").Str()
	cmd := value.Lookup(doc, "cmd").Doc()
	q := query{collated: x.coll.collated}
	to := writes
	collation := value.Lookup(cmd, "collation")
	switch name {
	case "update", "delete":
		list := value.Values(value.Lookup(cmd, map[string]string{"update": "updates", "delete": "deletes"}[name]).Doc())
		if len(list) == 0 {
			return
		}
		st := list[0].Doc()
		limit := value.Lookup(st, "limit")
		q.filter, q.many = value.Lookup(st, "q").Doc(), value.Lookup(st, "multi").Truthy() || name == "delete" && value.SafeInt64(limit) == 0
		collation = value.Lookup(st, "collation")
	case "findAndModify":
		q.filter = value.Lookup(cmd, "query").Doc()
	default:
		to, q.filter = reads, value.Lookup(cmd, "filter").Doc()
	}
	if q.filter == nil {
		q.filter = value.Doc()
	}
	if !collation.IsNullish() {
		q.collated = collates(collation)
	}
	to.total++
	to.byName[name]++
	x.place(to, splits, q)
}

// place counts the ranges that a query targets.
func (x *analysis) place(t *tally, splits [][]value.Value, q query) {
	if key, ok := targeting.ExactKey(x.key, q.filter, q.collated); ok {
		t.single++
		t.ranges[rangeOf(splits, key)]++
		return
	}
	if q.many {
		t.manyWithout++
	} else {
		t.oneWithout++
	}
	hit := make([]bool, len(t.ranges))
	all := false
	for _, r := range targeting.Ranges(x.key, q.filter, q.collated) {
		all = all || r.Low[0].T == value.MinKey && r.High[0].T == value.MaxKey
		for i, last := rangeOf(splits, r.Low), rangeOf(splits, r.High); i <= last; i++ {
			if i > 0 && i == last && !r.HighIncl && cluster.CompareKeys(r.High, splits[i-1]) == 0 && i > rangeOf(splits, r.Low) {
				break // the query's range ends where this one begins
			}
			hit[i] = true
		}
	}
	if all {
		t.scatter++
	} else {
		t.multi++
	}
	for i, h := range hit {
		if h {
			t.ranges[i]++
		}
	}
}

// rangeOf returns the range that a key belongs to: the number of split points that are not above it.
func rangeOf(splits [][]value.Value, key []value.Value) int {
	return sort.Search(len(splits), func(i int) bool { return cluster.CompareKeys(splits[i], key) > 0 })
}

// countDiff counts a sampled update if it has changed the key.
func (x *analysis) countDiff(t *tally, doc []byte) {
	diff := value.Lookup(doc, "diff").Doc()
	for _, p := range x.key.Parts {
		if sampling.Touches(diff, p.Path) {
			t.keyUpdates++
			return
		}
	}
}

// doc returns the tally in the form of the reply. writes is the tally itself if it counts writes, else nil.
func (t *tally) doc(what string, writes *tally) []byte {
	size := []value.Field{value.F("total", value.NewInt64(t.total))}
	for _, n := range t.names {
		size = append(size, value.F(n, value.NewInt64(t.byName[n])))
	}
	f := []value.Field{value.F("sampleSize", value.NewDocument(value.Doc(size...)))}
	if t.total == 0 {
		return value.Doc(f...)
	}
	percent := func(name string, n int64) {
		f = append(f, value.F(name, value.NewDouble(float64(n)/float64(t.total)*100)))
	}
	percent("percentageOfSingleShard"+what, t.single)
	percent("percentageOfMultiShard"+what, t.multi)
	percent("percentageOfScatterGather"+what, t.scatter)
	numbers := make([]value.Value, len(t.ranges))
	for i, n := range t.ranges {
		numbers[i] = value.NewInt64(n)
	}
	f = append(f, value.F("num"+what+"ByRange", value.NewArray(value.ArrayOf(numbers...))))
	if writes != nil {
		percent("percentageOfShardKeyUpdates", min(t.keyUpdates, t.total))
		percent("percentageOfSingleWritesWithoutShardKey", t.oneWithout)
		percent("percentageOfMultiWritesWithoutShardKey", t.manyWithout)
	}
	return value.Doc(f...)
}
