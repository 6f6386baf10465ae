package queryanalysis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fakeNode is a member of a set whose primary is another node.
type fakeNode struct {
	lone, inCluster bool
	asked           []string // the commands that the primary received
	reply           []byte   // the primary's reply
}

func (n *fakeNode) Lone() bool      { return n.lone }
func (n *fakeNode) InCluster() bool { return n.inCluster }
func (n *fakeNode) Own() cluster.Peer {
	return cluster.LocalPeer(func(context.Context, *wire.Message, []byte) ([]byte, error) {
		return nil, mongoerr.New(mongoerr.InternalError, "own")
	})
}
func (n *fakeNode) Primary() cluster.Peer {
	return cluster.LocalPeer(func(_ context.Context, m *wire.Message, dst []byte) ([]byte, error) {
		n.asked = append(n.asked, value.ShowDoc(m.Body))
		return append(dst, n.reply...), nil
	})
}
func (n *fakeNode) Warn(string, error) {}

// stored are the documents of config.queryAnalyzers.
type stored [][]byte

func (s stored) Each(ns string, f func(doc []byte) error) error {
	if ns != "config.queryAnalyzers" {
		return nil
	}
	for _, d := range s {
		if err := f(d); err != nil {
			return err
		}
	}
	return nil
}

// bench is a manager over a store with configurations, whose time the test moves.
type bench struct {
	*Manager
	t    *testing.T
	node *fakeNode
	at   time.Time
}

func newBench(t *testing.T, configurations ...string) *bench {
	t.Helper()
	var docs stored
	for _, c := range configurations {
		docs = append(docs, valuetest.Doc(t, c))
	}
	b := &bench{t: t, node: &fakeNode{}, at: time.Unix(1000, 0)}
	b.Manager = New(Options{Docs: docs, Service: command.NewService(command.Shard), Params: cluster.NewParams(), Host: func() string { return "h:1" }, Now: func() time.Time { return b.at }}, b.node)
	return b
}

// refresh reports a sampler's queries, and returns the rates that it gets, by namespace.
func (b *bench) refresh(sampler string, queries float64) string {
	b.t.Helper()
	reply, m := value.Begin(nil)
	reply, err := b.runRefresh(nil, &msg.RefreshQueryAnalyzer{Sampler: sampler, Queries: value.NewDouble(queries)}, reply)
	if err != nil {
		b.t.Fatal(err)
	}
	var got []string
	for _, c := range value.Values(value.Lookup(value.End(reply, m), "configurations").Doc()) {
		got = append(got, fmt.Sprintf("%s %.4g", value.Lookup(c.Doc(), "ns").Str(), value.Lookup(c.Doc(), "samplesPerSecond").AsFloat64()))
	}
	return strings.Join(got, ", ")
}

const (
	ten  = `{"_id": "db.ten", "mode": "full", "samplesPerSecond": 10, "collUuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}}`
	four = `{"_id": "db.four", "mode": "full", "samplesPerSecond": 4, "collUuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAg==", "subType": "04"}}}`
	off  = `{"_id": "db.off", "mode": "off", "collUuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAw==", "subType": "04"}}}`
)

// The rate of a collection is divided among the samplers in proportion to their queries, so that all together take it.
func TestRatesAreShared(t *testing.T) {
	b := newBench(t, four, off, ten)
	for _, step := range []struct {
		why     string
		wait    time.Duration
		sampler string
		queries float64
		want    string
	}{
		{"alone", 0, "a", 30, "db.four 4, db.ten 10"},
		{"a second one with a third of the queries of the first", 0, "b", 10, "db.four 1, db.ten 2.5"},
		{"the first has the rest", 0, "a", 30, "db.four 3, db.ten 7.5"},
		{"one without queries has no share beside others", 0, "c", 0, "db.four 0, db.ten 0"},
		{"as many as the others together", 0, "c", 40, "db.four 2, db.ten 5"},
		{"all have reported within three intervals", 29 * time.Second, "b", 10, "db.four 0.5, db.ten 1.25"},
		{"the others have not", 2 * time.Second, "b", 10, "db.four 4, db.ten 10"},
		{"one that was away has its share again", time.Second, "a", 30, "db.four 3, db.ten 7.5"},
	} {
		b.at = b.at.Add(step.wait)
		if got := b.refresh(step.sampler, step.queries); got != step.want {
			t.Errorf("%s: %s, want %s", step.why, got, step.want)
		}
	}
	// Nobody has queries: equal shares.
	b = newBench(t, ten)
	b.refresh("a", 0)
	if got := b.refresh("b", 0); got != "db.ten 5" {
		t.Errorf("two samplers without queries: %s", got)
	}
	// The interval is a parameter.
	b.Params.Store("queryAnalysisSamplerConfigurationRefreshSecs", value.NewInt32(1))
	b.at = b.at.Add(4 * time.Second)
	if got := b.refresh("b", 5); got != "db.ten 10" {
		t.Errorf("after four intervals of a second: %s", got)
	}
}

// Nothing is configured, or everything is switched off: the reply is an empty list, by which samplers stop.
func TestNoConfigurations(t *testing.T) {
	for _, stored := range [][]string{nil, {off}} {
		if got := newBench(t, stored...).refresh("a", 5); got != "" {
			t.Errorf("with %s: %s", stored, got)
		}
	}
}

// Members of a set fetch their configurations from its primary. A standalone server has none, and a shard leaves the sampling to routers.
func TestWhoSamples(t *testing.T) {
	reply := value.Doc(value.F("configurations", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(
		value.F("ns", value.NewString("db.ten")), value.F("collectionUuid", value.NewBinary(4, make([]byte, 16))), value.F("samplesPerSecond", value.NewDouble(2.5))))))), value.F("ok", value.NewInt32(1)))
	for _, c := range []struct {
		name            string
		lone, inCluster bool
		sampled         int
	}{{"a member", false, false, 1}, {"a lone server", true, false, 0}, {"a shard", false, true, 0}} {
		b := newBench(t)
		*b.node = fakeNode{lone: c.lone, inCluster: c.inCluster, reply: reply}
		list, err := b.Refresh(t.Context())
		if err != nil || len(list) != c.sampled || len(b.node.asked) != c.sampled {
			t.Errorf("%s: %v, %v, asked: %s", c.name, list, err, b.node.asked)
		}
		if c.sampled > 0 && (list[0].NS != "db.ten" || list[0].Rate != 2.5 || !strings.Contains(b.node.asked[0], `name: "h:1"`)) {
			t.Errorf("%s: %v, asked: %s", c.name, list, b.node.asked)
		}
		err = b.Supports("analyzeShardKey")
		if refused := mongoerr.CodeOf(err) == mongoerr.IllegalOperation; refused != (c.lone || c.inCluster) || err != nil && !refused {
			t.Errorf("%s: analyzeShardKey: %v", c.name, err)
		}
	}
}

// Samples are stored, and configurations changed, on the primary; an analysis reads on the member that runs it.
func TestWhereCommandsGo(t *testing.T) {
	b := newBench(t)
	b.node.reply = value.Doc(value.F("ok", value.NewInt32(1)))
	keeper, err := b.Keeper(t.Context(), "db.ten")
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range []cluster.Peer{keeper, b.Config()} {
		if _, err := cluster.Run(t.Context(), p, value.Doc(value.F("ping", value.NewInt32(1)))); err != nil || len(b.node.asked) != i+1 {
			t.Errorf("the primary was asked %d times, %v", len(b.node.asked), err)
		}
	}
	keepers, err := b.Keepers(t.Context())
	if err != nil || len(keepers) != 1 {
		t.Fatalf("%d keepers, %v", len(keepers), err)
	}
	owner, err := b.Owner(nil, "db.ten")
	if err != nil {
		t.Fatal(err)
	}
	asked := len(b.node.asked)
	for _, p := range []cluster.Peer{keepers[0], owner, b.Data()} {
		if _, err := cluster.Run(t.Context(), p, value.Doc(value.F("ping", value.NewInt32(1)))); err == nil || len(b.node.asked) != asked {
			t.Errorf("a read of the analysis was sent to the primary: %s", b.node.asked)
		}
	}
}

// Only members of a cluster ask for configurations, and only primaries have them.
func TestRowOfTheRefresh(t *testing.T) {
	for _, s := range newBench(t).Specs() {
		if s.Name == "_refreshQueryAnalyzerConfiguration" {
			if !s.Internal || !s.PrimaryOnly || s.Roles&command.Config == 0 || s.Roles&command.Router != 0 {
				t.Errorf("%+v", s)
			}
			return
		}
	}
	t.Error("there is no such row")
}
