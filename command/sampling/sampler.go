package sampling

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// The collections of the config database that hold configurations, samples, and what sampled updates changed.
const (
	Configurations = "queryAnalyzers"
	Queries        = "sampledQueries"
	Diffs          = "sampledQueriesDiff"
)

// Configuration has a sampler's settings for one collection.
type Configuration struct {
	NS      string
	UUID    value.Value
	Rate    float64 // samples per second of this sampler
	Started time.Time
}

// Sampler decides which queries of a service are sampled, and holds the samples until they are stored.
type Sampler struct {
	params *cluster.Params
	now    func() time.Time
	table  atomic.Pointer[map[string]*source] // nil while nothing is sampled

	mu struct {
		sync.Mutex
		waiting []sample
		bytes   int64
		started int64 // configurations since the start
	}
	totals counts
	last   Backend // of Stop; nil for none
}

// source is a collection that is sampled.
type source struct {
	Configuration
	counts
	mu     sync.Mutex
	tokens float64
	filled time.Time
}

type counts struct{ reads, writes, readBytes, writeBytes atomic.Int64 }

// sample is a buffered document.
type sample struct {
	ns   string
	coll string
	doc  []byte
}

// New returns a sampler that samples nothing.
func New(params *cluster.Params, now func() time.Time) *Sampler {
	return &Sampler{params: params, now: now}
}

// On reports whether any collection is sampled.
func (s *Sampler) On() bool { return s != nil && s.table.Load() != nil }

// Install replaces the configurations. The counts of a collection are kept as long as its UUID is the same.
func (s *Sampler) Install(list []Configuration) {
	if len(list) == 0 {
		s.table.Store(nil)
		return
	}
	var old map[string]*source
	if t := s.table.Load(); t != nil {
		old = *t
	}
	next := make(map[string]*source, len(list))
	for _, c := range list {
		x := old[c.NS]
		if x != nil && value.Compare(x.UUID, c.UUID) == 0 && x.Started.Equal(c.Started) {
			x.mu.Lock()
			x.Rate = c.Rate
			x.mu.Unlock()
		} else {
			x = &source{Configuration: c, filled: s.now()}
			x.tokens = c.Rate // as after a second without queries
			s.mu.Lock()
			s.mu.started++
			s.mu.Unlock()
		}
		next[c.NS] = x
	}
	s.table.Store(&next)
}

// burst is the number of seconds whose unused rate a collection may use later.
const burst = 2

// admit takes a token from the collection's rate limiter; false if there is none.
func (x *source) admit(now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tokens = min(x.tokens+x.Rate*now.Sub(x.filled).Seconds(), max(1, x.Rate*burst))
	x.filled = now
	if x.tokens < 1 || x.Rate == 0 {
		return false
	}
	x.tokens--
	return true
}

// Query is a command as the sampler sees it.
type Query struct {
	Name, DB string
	Body     []byte
	Seqs     []wire.Sequence
}

// Sample samples a query if the rate allows it. If the query is a write whose changes are to be sampled, too, it returns the command
// with the sample's id in the statement; else nil.
func (s *Sampler) Sample(q *Query) *Query {
	t := s.table.Load()
	if t == nil {
		return nil
	}
	if q.Name == "bulkWrite" {
		return s.sampleBulk(*t, q)
	}
	it := value.Walk(q.Body)
	_, coll, _ := it.Next()
	if coll.T != value.String {
		return nil
	}
	x := (*t)[q.DB+"."+coll.Str()]
	if x == nil || !x.admit(s.now()) {
		return nil
	}
	id := value.NewBinary(4, newID())
	switch q.Name {
	case "find", "aggregate", "count", "distinct":
		s.keep(x, id, q.Name, readCommand(q), false)
	case "findAndModify":
		s.keep(x, id, q.Name, modifyCommand(q.Body), true)
		if value.Lookup(q.Body, "remove").Truthy() {
			return nil
		}
		body := append(append([]byte(nil), q.Body[:len(q.Body)-1]...), value.Append(nil, "sampleId", id)...)
		return &Query{Name: q.Name, DB: q.DB, Body: value.End(body, 0), Seqs: q.Seqs}
	case "update", "delete":
		return s.sampleStatement(x, id, q)
	}
	return nil
}

func newID() []byte {
	id := cluster.NewUUID()
	return id[:]
}

// listOf maps commands to the field that has their list of statements.
var listOf = map[string]string{"update": "updates", "delete": "deletes", "bulkWrite": "ops"}

// sampleStatement samples one statement of an update or a delete, chosen at random, so that all statements of many commands
// are equally likely.
func (s *Sampler) sampleStatement(x *source, id value.Value, q *Query) *Query {
	list := statements(q, listOf[q.Name])
	if len(list) == 0 {
		return nil
	}
	i := rand.IntN(len(list))
	s.keep(x, id, q.Name, writeCommand(q, list[i]), true)
	if q.Name != "update" || value.Lookup(list[i], "multi").Truthy() {
		return nil
	}
	return withID(q, list, i, id)
}

// sampleBulk samples one operation of a bulkWrite, chosen at random.
func (s *Sampler) sampleBulk(t map[string]*source, q *Query) *Query {
	ops, infos := statements(q, "ops"), statements(q, "nsInfo")
	if len(ops) == 0 {
		return nil
	}
	i := rand.IntN(len(ops))
	it := value.Walk(ops[i])
	kind, on, _ := it.Next()
	at, ok := on.AsInt64()
	if string(kind) == "insert" || !ok || at < 0 || at >= int64(len(infos)) {
		return nil
	}
	x := t[value.Lookup(infos[at], "ns").Str()]
	if x == nil || !x.admit(s.now()) {
		return nil
	}
	id := value.NewBinary(4, newID())
	name := string(kind)
	s.keep(x, id, name, bulkCommand(q, name, x.NS, ops[i]), true)
	if name != "update" || value.Lookup(ops[i], "multi").Truthy() {
		return nil
	}
	return withID(q, ops, i, id)
}

// withID returns a copy of the command in which one statement has the sample's id.
func withID(q *Query, list [][]byte, i int, id value.Value) *Query {
	field := listOf[q.Name]
	st := append(append([]byte(nil), list[i][:len(list[i])-1]...), value.Append(nil, "sampleId", id)...)
	list[i] = value.End(st, 0)
	var docs []byte
	for _, d := range list {
		docs = append(docs, d...)
	}
	out := &Query{Name: q.Name, DB: q.DB, Body: q.Body, Seqs: []wire.Sequence{{ID: field, Docs: docs}}}
	for _, o := range q.Seqs {
		if o.ID != field {
			out.Seqs = append(out.Seqs, o)
		}
	}
	if !value.Lookup(q.Body, field).IsMissing() {
		out.Body = without(q.Body, field)
	}
	return out
}

// expiry returns the time at which a sample taken now expires.
func (s *Sampler) expiry() value.Value {
	return value.NewTime(s.now().Add(time.Duration(s.params.Int("queryAnalysisSampleExpirationSecs")) * time.Second))
}

// keep buffers a sampled query.
func (s *Sampler) keep(x *source, id value.Value, name string, cmd []byte, write bool) {
	doc := value.Doc(value.F("_id", id), value.F("ns", value.NewString(x.NS)), value.F("collectionUuid", x.UUID),
		value.F("cmdName", value.NewString(name)), value.F("cmd", value.NewDocument(cmd)), value.F("expireAt", s.expiry()))
	if !s.buffer(sample{x.NS, Queries, doc}) {
		return
	}
	for _, c := range []*counts{&x.counts, &s.totals} {
		if write {
			c.writes.Add(1)
			c.writeBytes.Add(int64(len(doc)))
		} else {
			c.reads.Add(1)
			c.readBytes.Add(int64(len(doc)))
		}
	}
}

// NoteDiff buffers the Diff of a sampled update.
func (s *Sampler) NoteDiff(ns string, uuid [16]byte, id value.Value, diff []byte) {
	s.buffer(sample{ns, Diffs, value.Doc(value.F("_id", id.Clone()), value.F("ns", value.NewString(ns)), value.F("collectionUuid", value.NewBinary(4, uuid[:])),
		value.F("diff", value.NewDocument(diff)), value.F("expireAt", s.expiry()))})
}

// buffer adds a document to the buffer, if there is room.
func (s *Sampler) buffer(d sample) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.bytes+int64(len(d.doc)) > s.params.Int("queryAnalysisWriterMaxMemoryUsageBytes") {
		return false
	}
	s.mu.waiting = append(s.mu.waiting, d)
	s.mu.bytes += int64(len(d.doc))
	return true
}

// take empties the buffer and returns its contents.
func (s *Sampler) take() []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.mu.waiting
	s.mu.waiting, s.mu.bytes = nil, 0
	return out
}

// Tasks returns the descriptions of the sampled collections for $currentOp.
func (s *Sampler) Tasks(time.Time) (out [][]value.Field) {
	t := s.table.Load()
	if t == nil {
		return nil
	}
	for _, x := range *t {
		x.mu.Lock()
		rate := x.Rate
		x.mu.Unlock()
		out = append(out, []value.Field{value.F("desc", value.NewString("query analyzer")), value.F("ns", value.NewString(x.NS)), value.F("collUuid", x.UUID),
			value.F("samplesPerSecond", value.NewDouble(rate)), value.F("startTime", value.NewTime(x.Started)),
			value.F("sampledReadsCount", value.NewInt64(x.reads.Load())), value.F("sampledWritesCount", value.NewInt64(x.writes.Load())),
			value.F("sampledReadsBytes", value.NewInt64(x.readBytes.Load())), value.F("sampledWritesBytes", value.NewInt64(x.writeBytes.Load()))})
	}
	return out
}

// Status returns serverStatus's section queryAnalyzers.
func (s *Sampler) Status() []byte {
	active := 0
	if t := s.table.Load(); t != nil {
		active = len(*t)
	}
	s.mu.Lock()
	all := s.mu.started
	s.mu.Unlock()
	c := &s.totals
	return value.Doc(value.F("activeCollections", value.NewInt64(int64(active))), value.F("totalCollections", value.NewInt64(all)),
		value.F("totalSampledReadsCount", value.NewInt64(c.reads.Load())), value.F("totalSampledWritesCount", value.NewInt64(c.writes.Load())),
		value.F("totalSampledReadsBytes", value.NewInt64(c.readBytes.Load())), value.F("totalSampledWritesBytes", value.NewInt64(c.writeBytes.Load())))
}
