package analyzer

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// bench is an analyzer over a simulated deployment whose contents a test sets.
type bench struct {
	t       *testing.T
	service *command.Service
	params  *cluster.Params

	collection string            // the entry of db.c in listCollections, "" if it does not exist
	later      string            // the entry from the second listCollections on, if set
	stats      string            // the reply to collStats
	indexes    []string          // the entries of listIndexes
	multikey   string            // the name of an index that is multikey
	inserted   []string          // documents, in the order of the index by which the monotonicity is measured
	counted    string            // the result of counting the key's values
	keys       []string          // the keys of the documents that are drawn to find split points
	samples    map[string]string // the documents of the collections of the database config, as a JSON array
	was        string            // the configuration that configureQueryAnalyzer replaces

	calls []string // the commands that were run
	open  map[int64][]value.Value
	lists int
}

const plain = `{"name": "c", "type": "collection", "options": {}, "info": {"uuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}}}`

func newBench(t *testing.T) *bench {
	b := &bench{t: t, service: command.NewService(command.Shard), params: cluster.NewParams(), collection: plain, stats: `{"count": 1000, "avgObjSize": 50, "ok": 1}`,
		indexes: []string{`{"name": "a_1", "key": {"a": 1}}`}, counted: `{"docs": 1000, "distinct": 100, "most": []}`, samples: map[string]string{}, open: map[int64][]value.Value{}}
	b.service.Table.Add(New(b, b.params).Specs()...)
	return b
}

func (b *bench) Supports(string) error { return nil }
func (b *bench) Data() cluster.Peer    { return cluster.LocalPeer(b.call) }
func (b *bench) Config() cluster.Peer  { return cluster.LocalPeer(b.call) }
func (b *bench) Keepers(context.Context) ([]cluster.Peer, error) {
	return []cluster.Peer{b.Data()}, nil
}
func (b *bench) Owner(*command.Op, string) (cluster.Peer, error) { return b.Data(), nil }
func (b *bench) docs(texts ...string) (out []value.Value) {
	for _, s := range texts {
		out = append(out, value.NewDocument(valuetest.Doc(b.t, s)))
	}
	return out
}

// batch returns a reply with at most two documents; a cursor has the others.
func (b *bench) batch(ns, name string, docs []value.Value) []byte {
	id := int64(0)
	if len(docs) > 2 {
		id = int64(len(b.open) + 1)
		b.open[id], docs = docs[2:], docs[:2]
	}
	cursor := value.Doc(value.F("id", value.NewInt64(id)), value.F("ns", value.NewString(ns)), value.F(name, value.NewArray(value.ArrayOf(docs...))))
	return value.Doc(value.F("cursor", value.NewDocument(cursor)), value.F("ok", value.NewInt32(1)))
}

func (b *bench) call(_ context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	it := value.Walk(m.Body)
	name, arg, _ := it.Next()
	b.calls = append(b.calls, valuetest.JSON(b.t, m.Body))
	var reply []byte
	switch cmd := string(name); {
	case cmd == "listCollections":
		b.lists++
		list := b.docs(b.collection)
		if b.lists > 1 && b.later != "" {
			list = b.docs(b.later)
		}
		if value.Lookup(list[0].Doc(), "name").IsMissing() {
			list = nil
		}
		reply = b.batch("db.$cmd.listCollections", "firstBatch", list)
	case cmd == "collStats":
		reply = valuetest.Doc(b.t, b.stats)
	case cmd == "listIndexes":
		reply = b.batch("db.c", "firstBatch", b.docs(b.indexes...))
	case cmd == "explain":
		many := value.Lookup(arg.Doc(), "hint").Str() == b.multikey
		reply = valuetest.Doc(b.t, fmt.Sprintf(`{"queryPlanner": {"winningPlan": {"inputStages": [{"isMultiKey": %v}]}}, "ok": 1}`, many))
	case cmd == "aggregate" && strings.Contains(b.calls[len(b.calls)-1], `"$sample"`):
		reply = b.batch("db.c", "firstBatch", b.docs(b.keys...))
	case cmd == "aggregate":
		reply = b.batch("db.c", "firstBatch", b.docs(b.counted))
	case cmd == "find" && value.Lookup(m.Body, "$db").Str() == "config":
		var list []value.Value
		if s := b.samples[arg.Str()]; s != "" {
			for _, d := range valuetest.Docs(b.t, s) {
				list = append(list, value.NewDocument(d))
			}
		}
		reply = b.batch("config."+arg.Str(), "firstBatch", list)
	case cmd == "find":
		reply = b.batch("db.c", "firstBatch", b.docs(b.inserted...))
	case cmd == "getMore":
		rest := b.open[arg.Int64()]
		delete(b.open, arg.Int64())
		reply = b.batch("db.c", "nextBatch", rest)
	case cmd == "findAndModify":
		reply = valuetest.Doc(b.t, `{"value": null, "ok": 1}`)
		if b.was != "" {
			reply = valuetest.Doc(b.t, `{"value": `+b.was+`, "ok": 1}`)
		}
	case cmd == "delete":
		reply = valuetest.Doc(b.t, `{"n": 1, "ok": 1}`)
	default:
		return nil, mongoerr.Newf(mongoerr.CommandNotFound, "%s", cmd)
	}
	return append(dst, reply...), nil
}

// run runs a command on the database admin.
func (b *bench) run(cmd string) []byte {
	b.t.Helper()
	body := valuetest.Doc(b.t, cmd)
	body = append(append(body[:len(body)-1:len(body)-1], value.Append(nil, "$db", value.NewString("admin"))...), 0)
	body = value.End(body[:len(body)-1], 0)
	return b.service.Run(b.t.Context(), command.NewClient(1, "test:1", "test:27017", nil), &wire.Message{Body: body}, nil)
}

// at returns the value at a path of a reply as JSON, "" if it is missing.
func at(t *testing.T, reply []byte, path string) string {
	t.Helper()
	v := value.NewDocument(reply)
	for _, name := range strings.Split(path, ".") {
		v = value.Lookup(v.Doc(), name)
	}
	if v.IsMissing() {
		return ""
	}
	text := valuetest.JSON(t, value.Doc(value.F("v", v)))
	return text[len(`{"v":`) : len(text)-1]
}

// expect compares the values of a reply at paths.
func (b *bench) expect(reply []byte, want map[string]string) {
	b.t.Helper()
	for path, w := range want {
		if got := at(b.t, reply, path); got != w {
			b.t.Errorf("%s: got %s, want %s, in %s", path, got, w, valuetest.JSON(b.t, reply))
		}
	}
}

// sent returns the calls of a command.
func (b *bench) sent(name string) (out []string) {
	for _, c := range b.calls {
		if strings.HasPrefix(c, `{"`+name+`":`) {
			out = append(out, c)
		}
	}
	return out
}

func TestWhatCannotBeAnalyzed(t *testing.T) {
	with := func(from, to string) string { return strings.Replace(plain, from, to, 1) }
	for _, c := range []struct {
		name, collection, analyze, configure string
		code                                 mongoerr.Code
	}{
		{"a missing collection", `{}`, "db.c", "db.c", mongoerr.NamespaceNotFound},
		{"a view", with(`"collection"`, `"view"`), "db.c", "db.c", mongoerr.CommandNotSupportedOnView},
		{"a time series", with(`"collection"`, `"timeseries"`), "db.c", "db.c", mongoerr.IllegalOperation},
		{"an encrypted collection", with(`"options": {}`, `"options": {"encryptedFields": {}}`), "db.c", "db.c", mongoerr.IllegalOperation},
		{"a database of the server's own", plain, "config.c", "local.c", mongoerr.IllegalOperation},
		{"a system collection", plain, "db.system.js", "db.system.buckets.c", mongoerr.IllegalOperation},
		{"no collection's name", plain, "db", "db.", mongoerr.InvalidNamespace},
	} {
		for _, cmd := range []string{`{"analyzeShardKey": "` + c.analyze + `", "key": {"a": 1}}`, `{"configureQueryAnalyzer": "` + c.configure + `", "mode": "full", "samplesPerSecond": 1}`} {
			b := newBench(t)
			b.collection = c.collection
			if err := cluster.ReplyError(b.run(cmd)); mongoerr.CodeOf(err) != c.code {
				t.Errorf("%s: %s: %v", c.name, cmd, err)
			}
			if len(b.sent("findAndModify")) > 0 {
				t.Errorf("%s: a configuration was stored", c.name)
			}
		}
	}
}

func TestArguments(t *testing.T) {
	for cmd, code := range map[string]mongoerr.Code{
		`{"analyzeShardKey": "db.c", "key": {"a": 1}, "keyCharacteristics": false, "readWriteDistribution": false}`: mongoerr.InvalidOptions,
		`{"analyzeShardKey": "db.c", "key": {"a": 1}, "sampleRate": 0.5, "sampleSize": 10}`:                         mongoerr.InvalidOptions,
		`{"analyzeShardKey": "db.c", "key": {"a": 1}, "sampleRate": 0.5, "keyCharacteristics": false}`:              mongoerr.InvalidOptions,
		`{"analyzeShardKey": "db.c", "key": {"a": 1}, "sampleRate": 0}`:                                             mongoerr.BadValue,
		`{"analyzeShardKey": "db.c", "key": {"a": 1}, "sampleRate": 1.01}`:                                          mongoerr.BadValue,
		`{"analyzeShardKey": "db.c", "key": {"a": 1}, "sampleRate": {"$numberDouble": "NaN"}}`:                      mongoerr.BadValue,
		`{"analyzeShardKey": "db.c", "key": {"a": 1}, "sampleSize": 0}`:                                             mongoerr.BadValue,
		`{"analyzeShardKey": "db.c", "key": {"a": 2}}`:                                                              mongoerr.BadValue,
		`{"analyzeShardKey": "db.c", "key": {}}`:                                                                    mongoerr.BadValue,
		`{"analyzeShardKey": "db.c", "key": {"a": 1}, "sampleRate": 1}`:                                             0,
		`{"configureQueryAnalyzer": "db.c", "mode": "some"}`:                                                        mongoerr.BadValue,
		`{"configureQueryAnalyzer": "db.c", "mode": "full"}`:                                                        mongoerr.InvalidOptions,
		`{"configureQueryAnalyzer": "db.c", "mode": "full", "samplesPerSecond": 50.1}`:                              mongoerr.InvalidOptions,
		`{"configureQueryAnalyzer": "db.c", "mode": "full", "samplesPerSecond": -1}`:                                mongoerr.InvalidOptions,
		`{"configureQueryAnalyzer": "db.c", "mode": "full", "samplesPerSecond": {"$numberDouble": "NaN"}}`:          mongoerr.InvalidOptions,
		`{"configureQueryAnalyzer": "db.c", "mode": "full", "samplesPerSecond": 50}`:                                0,
		`{"configureQueryAnalyzer": "db.c", "mode": "full", "samplesPerSecond": 0}`:                                 0,
	} {
		if err := cluster.ReplyError(newBench(t).run(cmd)); err == nil && code != 0 || err != nil && mongoerr.CodeOf(err) != code {
			t.Errorf("%s: %v", cmd, err)
		}
	}
}

func TestConfigurations(t *testing.T) {
	b := newBench(t)
	reply := b.run(`{"configureQueryAnalyzer": "db.c", "mode": "full", "samplesPerSecond": 5}`)
	b.expect(reply, map[string]string{"ns": `"db.c"`, "newConfiguration": `{"mode":"full","samplesPerSecond":5.0}`, "oldConfiguration": ""})
	// The configuration of an earlier collection of the name is no old configuration of this one.
	b.was = `{"mode": "full", "samplesPerSecond": 7, "collUuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAg==", "subType": "04"}}}`
	b.expect(b.run(`{"configureQueryAnalyzer": "db.c", "mode": "full", "samplesPerSecond": 5}`), map[string]string{"oldConfiguration": ""})
	b.was = strings.Replace(b.was, "AAg==", "AAQ==", 1)
	reply = b.run(`{"configureQueryAnalyzer": "db.c", "mode": "off"}`)
	b.expect(reply, map[string]string{"oldConfiguration": `{"mode":"full","samplesPerSecond":7.0}`, "newConfiguration": `{"mode":"off"}`})
	sent := b.sent("findAndModify")
	if last := sent[len(sent)-1]; strings.Contains(last, `"upsert":true`) || !strings.Contains(sent[0], `"upsert":true`) {
		t.Errorf("a configuration was stored for another mode than full: %s", sent)
	}
	if len(b.sent("delete")) != 0 {
		t.Error("a configuration was removed")
	}
}

// The collection is dropped, or replaced by another one, while its configuration is being stored: the drop cannot have removed the configuration.
func TestConfigurationOfADroppedCollection(t *testing.T) {
	for later, code := range map[string]mongoerr.Code{`{}`: mongoerr.NamespaceNotFound, strings.Replace(plain, "AAQ==", "AAg==", 1): mongoerr.ConflictingOperationInProgress} {
		b := newBench(t)
		b.later = later
		err := cluster.ReplyError(b.run(`{"configureQueryAnalyzer": "db.c", "mode": "full", "samplesPerSecond": 5}`))
		if removed := b.sent("delete"); mongoerr.CodeOf(err) != code || len(removed) != 1 || !strings.Contains(removed[0], `"collUuid":{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAQ=="`) {
			t.Errorf("%v, removed: %s", err, removed)
		}
	}
}
