package command

import (
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command/querystats"
	"github.com/shoaldb/shoal/query/shape"
	"github.com/shoaldb/shoal/query/value"
)

// QueryRun is one execution of a query for which statistics are kept: the command that began it, and the getMores of its
// cursor. It is recorded when both the cursor and the command that works on it have ended. nil is a query without
// statistics.
type QueryRun struct {
	store *querystats.Store

	mu struct {
		sync.Mutex
		key     []byte
		metrics querystats.Metrics
		kind    string // the collection's kind, as in the key
		held    bool   // whether a cursor holds it
		busy    bool   // whether a command works on it
		ended   bool   // whether its cursor is closed
		failed  bool   // whether a command failed: then it is not recorded
	}
}

// shapedCommand reports whether statistics are kept for a command.
func shapedCommand(name string) bool {
	return name == "find" || name == "aggregate" || name == "distinct"
}

// useQueryStats makes the service keep statistics as the parameters require.
func (s *Service) useQueryStats(p *cluster.Params) {
	s.Queries = querystats.New()
	p.OnChange("internalQueryStatsRateLimit", func(v value.Value) { s.Queries.SetLimit(value.SafeInt64(v)) })
	p.OnChange("internalQueryStatsCacheSize", func(v value.Value) {
		n, _ := cluster.ParseMemory(v.Str(), MemTotalMB()<<20) // checked when it was set
		s.Queries.SetMaxBytes(n)
	})
}

// beginQuery starts statistics for the operation's query, if they are wanted. A request from a node of the cluster
// is part of a query that its router records; queries on encrypted fields are not recorded.
func (s *Service) beginQuery(op *Op) {
	if s.Queries == nil || !s.Queries.On() || !shapedCommand(op.Req.Spec.Name) || op.Client.InProcess || op.Client.Internal {
		return
	}
	if !value.Lookup(op.Req.Body, "encryptionInformation").IsMissing() || !s.Queries.Admit(op.Start) {
		return
	}
	op.Query = &QueryRun{store: s.Queries}
	op.Query.mu.busy = true
}

// endQuery adds what the operation did, and records the execution if it is over.
func (op *Op) endQuery(err error) {
	q := op.Query
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.busy = false
	q.mu.failed = q.mu.failed || err != nil
	m, d := &q.mu.metrics, op.Worked()
	if q.mu.key == nil && err == nil {
		q.mu.key = op.queryKey(q.mu.kind)
		m.First = d
	}
	m.Total += d
	m.Returned += op.Stats.NReturned
	m.Keys += op.Stats.KeysExamined
	m.Docs += op.Stats.DocsExamined
	m.SortStage = m.SortStage || op.Stats.HasSortStage
	m.UsedDisk = m.UsedDisk || op.Stats.UsedDisk
	m.MultiPlanner = m.MultiPlanner || op.Stats.FromMultiPlanner
	m.FromPlanner = m.FromPlanner || op.Stats.FromPlanCache
	if !q.mu.held || q.mu.ended {
		q.record()
	}
}

// record adds the execution to the store. It is called once; the lock must be held.
func (q *QueryRun) record() {
	if !q.mu.failed {
		q.store.Record(q.mu.key, &q.mu.metrics, time.Now())
	}
}

// HoldQuery returns the query for the cursor that the operation opens, which has to Close it.
func (op *Op) HoldQuery() *QueryRun {
	if op.Query != nil {
		op.Query.mu.Lock()
		op.Query.mu.held = true
		op.Query.mu.Unlock()
	}
	return op.Query
}

// ResumeQuery makes the operation a part of its cursor's query.
func (op *Op) ResumeQuery(q *QueryRun) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.ended {
		return // killed a moment ago, and recorded already
	}
	q.mu.busy = true
	op.Query = q
}

// Close is called when the query's cursor is closed.
func (q *QueryRun) Close() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.ended {
		return
	}
	if q.mu.ended = true; !q.mu.busy {
		q.record()
	}
}

// On records what kind of collection the query reads: "collection", "view", "timeseries", "nonExistent". The first
// call wins: a view reads a collection.
func (q *QueryRun) On(kind string) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.kind == "" {
		q.mu.kind = kind
	}
}

// queryMetricsOption asks a member for the statistics of a command.
const queryMetricsOption = "includeQueryStatsMetrics"

// QueryMetricsField is the field of a member's reply with these statistics.
const QueryMetricsField = "$queryStatsMetrics"

// reportQuery adds statistics to the reply if a router has asked for them; the router sums them up.
func (op *Op) reportQuery() {
	if op.Req.Spec.Kind != Read || !(op.Client.InProcess || op.Client.Internal) || !op.Req.Shared(queryMetricsOption).Truthy() {
		return
	}
	st := &op.Stats
	op.AddTopLevel(QueryMetricsField, value.NewDocument(value.Doc(value.F("docsReturned", value.NewInt64(st.NReturned)),
		value.F("keysExamined", value.NewInt64(st.KeysExamined)), value.F("docsExamined", value.NewInt64(st.DocsExamined)),
		value.F("hasSortStage", value.NewBool(st.HasSortStage)), value.F("usedDisk", value.NewBool(st.UsedDisk)),
		value.F("fromMultiPlanner", value.NewBool(st.FromMultiPlanner)), value.F("fromPlanCache", value.NewBool(st.FromPlanCache)),
		value.F("collectionType", value.NewString(st.CollType)))))
}

// AskQueryMetrics returns the element that a router appends to a command for a shard, nil if it wants no statistics.
func (op *Op) AskQueryMetrics(body []byte) []byte {
	if op == nil || op.Query == nil {
		return nil
	}
	it := value.Walk(body)
	name, _, _ := it.Next()
	if !shapedCommand(string(name)) && string(name) != "getMore" || !value.Lookup(body, queryMetricsOption).IsMissing() {
		return nil
	}
	return askMetrics
}

var askMetrics = value.Append(nil, queryMetricsOption, value.NewBool(true))

// TakeQueryMetrics adds the statistics in a shard's reply, if there are any, to the operation's query. If the reply is
// passed on, its documents count as returned to the client.
func (op *Op) TakeQueryMetrics(reply []byte, passedOn bool) {
	if op == nil || op.Query == nil {
		return
	}
	doc := value.Lookup(reply, QueryMetricsField).Doc()
	if doc == nil {
		return
	}
	figure := func(name string) int64 { return value.Lookup(doc, name).Int64() }
	q := op.Query
	q.On(value.Lookup(doc, "collectionType").Str())
	q.mu.Lock()
	defer q.mu.Unlock()
	m := &q.mu.metrics
	if passedOn {
		m.Returned += figure("docsReturned")
	}
	m.Keys += figure("keysExamined")
	m.Docs += figure("docsExamined")
	m.SortStage = m.SortStage || value.Lookup(doc, "hasSortStage").Bool()
	m.UsedDisk = m.UsedDisk || value.Lookup(doc, "usedDisk").Bool()
	m.MultiPlanner = m.MultiPlanner || value.Lookup(doc, "fromMultiPlanner").Bool()
	m.FromPlanner = m.FromPlanner || value.Lookup(doc, "fromPlanCache").Bool()
}

// queryKey returns the key under which the operation's query is recorded.
func (op *Op) queryKey(kind string) []byte {
	r := &op.Req
	dst, m := value.Begin(make([]byte, 0, 1024))
	dst = append(append(dst, byte(value.Document)), "queryShape\x00"...)
	dst, _ = shape.Command(dst, r.DB, r.Body)
	if doc, _ := op.Client.Metadata(); doc != nil {
		dst = value.Append(dst, "client", value.NewDocument(doc))
	}
	if kind == "" {
		kind = op.Stats.CollType
	}
	if r.Cmd.T != value.String {
		kind = "virtual"
	}
	dst = value.Append(dst, "collectionType", value.NewString(kind))
	for _, name := range []string{"comment", "maxTimeMS", "batchSize"} {
		dst = appendType(dst, name, value.Lookup(r.Body, name))
	}
	if c := value.Lookup(r.Body, "cursor"); c.T == value.Document {
		var cm int
		dst, cm = value.BeginKey(dst, value.Document, "cursor")
		dst = value.End(appendType(dst, "batchSize", value.Lookup(c.Doc(), "batchSize")), cm)
	}
	for _, name := range []string{"noCursorTimeout", "allowPartialResults", "apiVersion", "apiStrict", "apiDeprecationErrors"} {
		dst = value.Append(dst, name, value.Lookup(r.Body, name))
	}
	dst = value.Append(dst, "readPreference", value.Lookup(r.Body, "$readPreference"))
	if r.ReadConcern != nil && !r.ReadConcern.ByDefault {
		dst = appendReadConcernKey(dst, r.ReadConcern.Doc)
	}
	if h := value.Lookup(r.Body, "hint"); r.Spec.Name != "aggregate" && !h.IsNullish() {
		dst = shape.AppendHint(dst, h)
	}
	return value.End(dst, m)
}

// appendType appends the type of an option's value, if it is given.
func appendType(dst []byte, name string, v value.Value) []byte {
	if v.IsMissing() {
		return dst
	}
	return shape.AppendLiteral(dst, name, v)
}

// appendReadConcernKey appends a read concern without its times, which differ with every query.
func appendReadConcernKey(dst, rc []byte) []byte {
	dst, m := value.BeginKey(dst, value.Document, "readConcern")
	for k, v := range value.Elements(rc) {
		if k == "afterClusterTime" || k == "atClusterTime" {
			dst = shape.AppendLiteral(dst, k, v)
		} else {
			dst = value.Append(dst, k, v)
		}
	}
	return value.End(dst, m)
}

// QueryStats returns the documents of the stage $queryStats with that argument.
func (s *Service) QueryStats(spec []byte) [][]byte {
	if s.Queries == nil {
		return nil
	}
	var name func(string) string
	if t := value.Lookup(spec, "transformIdentifiers"); t.T == value.Document {
		name = querystats.Hashed(value.Lookup(t.Doc(), "hmacKey").Bytes())
	}
	return s.Queries.Docs(time.Now, name)
}
