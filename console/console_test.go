package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
)

var timestamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d`)

// written runs f against a log and returns what it wrote, with the times blanked; every line must be JSON.
func written(t *testing.T, f func(*Log)) string {
	t.Helper()
	var b bytes.Buffer
	f(New(&b))
	for _, line := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		if line != "" && !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
	return timestamp.ReplaceAllString(b.String(), "T")
}

func TestShapeOfLines(t *testing.T) {
	remote := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}
	doc, err := bson.Marshal(bson.D{{Key: "driver", Value: bson.D{{Key: "name", Value: "x"}}}, {Key: "n", Value: int64(3)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		f          func(*Log)
	}{
		{"ready", `{"t":{"$date":"T"},"s":"I",  "c":"NETWORK",  "id":23016,   "svc":"-", "ctx":"listener","msg":"Waiting for connections","attr":{"port":27017,"ssl":"off"}}`,
			func(l *Log) { l.Waiting("listener", 27017, false) }},
		{"starting", `{"t":{"$date":"T"},"s":"I",  "c":"STORAGE",  "id":4615611, "svc":"-", "ctx":"initandlisten","msg":"MongoDB starting","attr":{"pid":7,"port":27017,"dbPath":"/data/db","architecture":"64-bit","host":"h"}}`,
			func(l *Log) { l.Starting(7, 27017, "/data/db", "h") }},
		{"accepted", `{"t":{"$date":"T"},"s":"I",  "c":"NETWORK",  "id":22943,   "svc":"-", "ctx":"listener","msg":"Connection accepted","attr":{"remote":"127.0.0.1:4711","isLoadBalanced":false,"connectionId":3,"connectionCount":2}}`,
			func(l *Log) { l.Accepted(remote, false, 3, 2) }},
		{"metadata", `{"t":{"$date":"T"},"s":"I",  "c":"NETWORK",  "id":51800,   "svc":"-", "ctx":"conn3","msg":"client metadata","attr":{"remote":"127.0.0.1:4711","client":"conn3","negotiatedCompressors":["zstd"],"doc":{"driver":{"name":"x"},"n":3}}}`,
			func(l *Log) { l.ClientMetadata(remote, 3, []string{"zstd"}, doc) }},
		{"slow", `{"t":{"$date":"T"},"s":"I",  "c":"COMMAND",  "id":51803,   "svc":"-", "ctx":"conn3","msg":"Slow query","attr":{"driver":{"name":"x"},"n":3}}`,
			func(l *Log) { l.Slow(3, Command, doc) }},
		{"no attributes", `{"t":{"$date":"T"},"s":"I",  "c":"CONTROL",  "id":20698,   "svc":"-", "ctx":"-","msg":"***** SERVER RESTARTED *****"}`,
			func(l *Log) { l.Restarted() }},
		{"warning", `{"t":{"$date":"T"},"s":"W",  "c":"-",        "id":1,       "svc":"-", "ctx":"c","msg":"m","attr":{"error":"e"},"tags":["startupWarnings"]}`,
			func(l *Log) { l.Warning(Default, 1, "c", "m").Err(errors.New("e")).StartupWarning().Write() }},
		{"escapes", `{"t":{"$date":"T"},"s":"E",  "c":"REPL",     "id":12345678, "svc":"-", "ctx":"c","msg":"a\"b\\\n\u0001\ufffdü","attr":{"f":1.0,"b":true,"ms":{"$numberDouble":"NaN"}}}`,
			func(l *Log) {
				nan := 0.0
				l.Error(Replication, 12345678, "c", "a\"b\\\n\x01\xffü").Float("f", 1).Bool("b", true).Float("ms", nan/nan).Write()
			}},
	} {
		if got := strings.TrimSpace(written(t, tc.f)); got != tc.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tc.name, got, tc.want)
		}
	}
}

func TestDocumentsAreRelaxedExtendedJSON(t *testing.T) {
	dec, _ := bson.ParseDecimal128("1.50")
	oid, _ := bson.ObjectIDFromHex("0102030405060708090a0b0c")
	d := bson.D{
		{Key: "d", Value: 2.5}, {Key: "a", Value: bson.A{int32(1), "x", nil, bson.D{}}}, {Key: "o", Value: oid},
		{Key: "when", Value: bson.DateTime(86400000)}, {Key: "old", Value: bson.DateTime(-1)},
		{Key: "ts", Value: bson.Timestamp{T: 5, I: 6}}, {Key: "dec", Value: dec}, {Key: "re", Value: bson.Regex{Pattern: "a", Options: "i"}},
		{Key: "bin", Value: bson.Binary{Subtype: 0, Data: []byte("ab")}}, {Key: "u", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
		{Key: "min", Value: bson.MinKey{}}, {Key: "code", Value: bson.JavaScript("f")},
		{Key: "scope", Value: bson.CodeWithScope{Code: "f", Scope: bson.D{{Key: "x", Value: int32(1)}}}},
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	got := string(AppendDocument(nil, raw))
	want := `{"d":2.5,"a":[1,"x",null,{}],"o":{"$oid":"0102030405060708090a0b0c"},"when":{"$date":"1970-01-02T00:00:00.000Z"},` +
		`"old":{"$date":{"$numberLong":"-1"}},"ts":{"$timestamp":{"t":5,"i":6}},"dec":{"$numberDecimal":"1.50"},` +
		`"re":{"$regularExpression":{"pattern":"a","options":"i"}},"bin":{"$binary":{"base64":"YWI=","subType":"00"}},` +
		`"u":{"$uuid":"00000000-0000-0000-0000-000000000000"},"min":{"$minKey":1},"code":{"$code":"f"},"scope":{"$code":"f","$scope":{"x":1}}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A name that a client chooses, for itself or a collection, can neither begin a line nor control a reader's terminal, in the server's log and in the audit log.
func TestNamesForgeNoLines(t *testing.T) {
	name := "\x00\n\r\x1b[2J\x7f\u0080\u0085\u009b31m\u2028\u2029\u202a\u202enna\u2066\u2069\xff\xc2"
	const kept = "ü\u00a0\u2027\u202f\u2065\u206a漢😀"
	doc, err := bson.Marshal(bson.D{{Key: "atype", Value: name + kept}, {Key: strings.TrimPrefix(name, "\x00"), Value: bson.A{name}}})
	if err != nil {
		t.Fatal(err)
	}
	for what, line := range map[string]string{
		"the log":   written(t, func(l *Log) { l.Error(Replication, 1, "conn1", name+kept).Str("ns", name).Doc("command", doc).Write() }),
		"the audit": string(AppendAudit(nil, doc)),
	} {
		line = strings.TrimSuffix(line, "\n")
		if !strings.Contains(line, kept) || !json.Valid([]byte(line)) {
			t.Errorf("%s: %q", what, line)
		}
		for _, r := range line {
			if unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Bidi_Control) && !strings.ContainsRune(kept, r) {
				t.Errorf("%s has %U: %q", what, r, line)
			}
		}
	}
}

func TestVerbosityIsInherited(t *testing.T) {
	l := New(io.Discard)
	l.SetVerbosity("storage", 2)
	for _, tc := range []struct {
		c     Component
		level int
		want  bool
	}{{Journal, 2, true}, {Journal, 3, false}, {Storage, 2, true}, {Query, 1, false}, {Query, 0, true}} {
		if got := l.On(tc.c, tc.level); got != tc.want {
			t.Errorf("component %s, level %d: %v", components[tc.c].short, tc.level, got)
		}
	}
	l.SetVerbosity("storage.journal", 0)
	l.SetVerbosity("", 1)
	if l.On(Journal, 1) || !l.On(Query, 1) || l.Debug(2, Query, 1, "", "") != nil {
		t.Error("a component's own verbosity, or the root's, is not followed")
	}
	if l.SetVerbosity("nothing", 1) {
		t.Error("an unknown component was accepted")
	}
	var tree struct {
		Verbosity int32
		Storage   struct {
			Verbosity int32
			Journal   struct{ Verbosity int32 }
		}
	}
	if err := bson.Unmarshal(l.AppendVerbosity(nil), &tree); err != nil {
		t.Fatal(err)
	}
	if tree.Verbosity != 1 || tree.Storage.Verbosity != 2 || tree.Storage.Journal.Verbosity != 0 {
		t.Errorf("tree %+v", tree)
	}
}

func TestRingsKeepTheLatest(t *testing.T) {
	l := New(io.Discard)
	l.Warning(Control, 1, "c", "first").StartupWarning().Write()
	for range ringLines {
		l.Info(Control, 2, "c", "later").Write()
	}
	total, lines, ok := l.Ring("global")
	if !ok || total != ringLines+1 || len(lines) != ringLines || strings.Contains(lines[0], "first") {
		t.Errorf("%d lines of %d", len(lines), total)
	}
	if total, lines, _ := l.Ring("startupWarnings"); total != 1 || !strings.Contains(lines[0], "first") {
		t.Errorf("startup warnings: %q", lines)
	}
	if _, _, ok := l.Ring("other"); ok {
		t.Error("a ring of another name")
	}
}

func TestLongLinesAreCut(t *testing.T) {
	var out bytes.Buffer
	l := New(&out)
	long := strings.Repeat("é", 20<<10)
	doc := value.Doc(value.F("a", value.NewInt32(1)), value.F("b", value.NewDocument(value.Doc(value.F("s", value.NewString(long)), value.F("t", value.NewInt32(2))))))
	l.Info(Control, 2, "c", "m").Doc("command", doc).Int("n", 3).Write()
	var line struct {
		Attr struct {
			Command struct {
				A int
				B map[string]any
			}
			N int
		}
		Truncated struct {
			Command struct {
				B struct{ S struct{ Type string } }
			}
		}
		Size struct{ Command int }
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	if out.Len() > 12<<10 || line.Attr.Command.A != 1 || len(line.Attr.Command.B) != 1 || line.Attr.N != 3 ||
		line.Truncated.Command.B.S.Type != "string" || line.Size.Command != len(doc) {
		t.Errorf("%d bytes: %+v", out.Len(), line)
	}
	if _, lines, _ := l.Ring("global"); len(lines[0]) > lineBytes || !utf8.ValidString(lines[0]) {
		t.Errorf("getLog gives %d bytes", len(lines[0]))
	}
}

func TestFilesAreRotated(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	if err := os.WriteFile(path, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := New(io.Discard)
	if err := l.Configure(Options{Path: path, Append: true}); err != nil {
		t.Fatal(err)
	}
	l.Restarted()
	if b, _ := os.ReadFile(path); !bytes.HasPrefix(b, []byte("old\n{")) {
		t.Errorf("appended: %s", b)
	}
	if err := l.Rotate(); err != nil {
		t.Fatal(err)
	}
	l.Exiting("c", 0)
	if b, _ := os.ReadFile(path); bytes.Contains(b, []byte("old")) || !bytes.Contains(b, []byte(`"exitCode":0`)) {
		t.Errorf("rotated: %s", b)
	}
	files, _ := os.ReadDir(dir)
	if len(files) != 2 {
		t.Errorf("%d files", len(files))
	}
}

func TestQuietDropsConnections(t *testing.T) {
	got := written(t, func(l *Log) {
		l.SetQuiet(true)
		l.Accepted(&net.TCPAddr{}, false, 1, 1)
		l.Ended(&net.TCPAddr{}, false, 1, 0)
	})
	if got != "" {
		t.Errorf("written: %s", got)
	}
}

func BenchmarkBelowLevel(b *testing.B) {
	l := New(io.Discard)
	b.ReportAllocs()
	for b.Loop() {
		l.Debug(1, Query, 1, "ctx", "msg").Str("a", "b").Int("n", 1).Write()
	}
}

func BenchmarkLine(b *testing.B) {
	l := New(io.Discard)
	b.ReportAllocs()
	for b.Loop() {
		l.Info(Query, 1, "ctx", "msg").Str("a", "b").Int("n", 1).Write()
	}
}

// Events that packages log with zerolog become lines of the log, with their fields as attributes.
func TestZero(t *testing.T) {
	var out bytes.Buffer
	l := New(&out)
	z := l.Zero(Replication, 21392, "ReplCoord").With().Str("member", "a:1").Logger()
	z.Warn().Int("n", 3).Err(errors.New("no \"way\"")).Strs("who", []string{"b", "c"}).Msg("it is late")
	z.Debug().Msg("too much detail")
	want := `"s":"W",  "c":"REPL",     "id":21392,   "svc":"-", "ctx":"ReplCoord","msg":"it is late","attr":{"member":"a:1","n":3,"error":"no \"way\"","who":["b","c"]}}`
	if got := out.String(); !strings.HasSuffix(strings.TrimSpace(got), want) || strings.Count(got, "\n") != 1 {
		t.Errorf("%s\nwant %s", got, want)
	}
}
