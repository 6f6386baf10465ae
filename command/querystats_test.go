package command

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/shoaldb/shoal/command/querystats"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

func queryOp(t testing.TB, s *Service, cmd string) *Op {
	t.Helper()
	body := valuetest.Doc(t, cmd)
	it := value.Walk(body)
	name, arg, _ := it.Next()
	op := &Op{Service: s, Client: NewClient(1, "", "", nil), Start: time.Now()}
	op.Req = Request{Spec: &Spec{Name: string(name), Kind: Read}, DB: "d", Body: body, Cmd: arg}
	return op
}

func queryService() *Service {
	s := NewService(Shard)
	s.Queries = querystats.New()
	s.Queries.SetMaxBytes(1 << 20)
	return s
}

func count(t *testing.T, s *Service) (entries int, executions int64) {
	t.Helper()
	for _, d := range s.QueryStats(value.Doc()) {
		entries++
		executions += value.Lookup(value.Lookup(d, "metrics").Doc(), "execCount").Int64()
	}
	return entries, executions
}

// While nothing is recorded, a query allocates nothing for statistics.
func TestQueryStatsOffAllocateNothing(t *testing.T) {
	s := queryService()
	op := queryOp(t, s, `{"find":"c","filter":{"a":1}}`)
	if n := testing.AllocsPerRun(100, func() { s.beginQuery(op); op.reportQuery() }); n != 0 || op.Query != nil {
		t.Errorf("%v allocations", n)
	}
}

// A query is recorded once, when its cursor and its last command have ended, in either order, and not if a command failed.
func TestQueryIsRecordedOnce(t *testing.T) {
	s := queryService()
	s.Queries.SetLimit(-1)
	for i := range 200 {
		op := queryOp(t, s, `{"find":"c","filter":{"a":1}}`)
		s.beginQuery(op)
		q := op.HoldQuery()
		op.endQuery(nil)
		if i == 0 {
			if n, _ := count(t, s); n != 0 {
				t.Fatal("recorded with its cursor open")
			}
		}
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			q.Close()
			q.Close()
		}()
		more := queryOp(t, s, `{"getMore":{"$numberLong":"1"}}`)
		if more.ResumeQuery(q); more.Query != nil {
			more.endQuery(nil)
		}
		wg.Wait()
	}
	if n, runs := count(t, s); n != 1 || runs != 200 {
		t.Errorf("%d entries of %d executions", n, runs)
	}
	op := queryOp(t, s, `{"find":"c","filter":{"b":1}}`)
	s.beginQuery(op)
	op.endQuery(errors.New("failed"))
	if n, _ := count(t, s); n != 1 {
		t.Error("a query that failed is recorded")
	}
}

// Queries between nodes of the cluster and encrypted queries are not recorded, and cluster times do not create separate keys.
func TestQueryKeys(t *testing.T) {
	s := queryService()
	s.Queries.SetLimit(-1)
	for _, cmd := range []string{`{"find":"c","encryptionInformation":{}}`, `{"insert":"c"}`, `{"count":"c"}`} {
		op := queryOp(t, s, cmd)
		if s.beginQuery(op); op.Query != nil {
			t.Errorf("%s is recorded", cmd)
		}
	}
	op := queryOp(t, s, `{"find":"c"}`)
	op.Client.Internal = true
	if s.beginQuery(op); op.Query != nil {
		t.Error("a shard's part is recorded")
	}
	for _, ts := range []string{"1", "2"} {
		op := queryOp(t, s, `{"find":"c","comment":"`+ts+`","maxTimeMS":`+ts+`,"hint":{"a":1},"batchSize":`+ts+`}`)
		op.Req.ReadConcern = &ReadConcern{Doc: valuetest.Doc(t, `{"level":"local","afterClusterTime":{"$timestamp":{"t":`+ts+`,"i":1}}}`)}
		s.beginQuery(op)
		op.endQuery(nil)
	}
	docs := s.QueryStats(value.Doc())
	if len(docs) != 1 {
		t.Fatalf("%d keys", len(docs))
	}
	const want = `{ level: "local", afterClusterTime: "?timestamp" }`
	key := value.Lookup(docs[0], "key").Doc()
	if got := value.Show(value.Lookup(key, "readConcern")); got != want {
		t.Error(got)
	}
	for name, want := range map[string]string{"comment": `"?string"`, "maxTimeMS": `"?number"`, "batchSize": `"?number"`, "hint": `{ a: 1 }`} {
		if got := value.Show(value.Lookup(key, name)); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func BenchmarkQueryRecorded(b *testing.B) {
	s := queryService()
	s.Queries.SetLimit(-1)
	op := queryOp(b, s, `{"find":"c","filter":{"_id":1},"lsid":{"id":{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAA==","subType":"04"}}},"$db":"d"}`)
	b.ReportAllocs()
	for b.Loop() {
		s.beginQuery(op)
		op.endQuery(nil)
		op.Query = nil
	}
}
