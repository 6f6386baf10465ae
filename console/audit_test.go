package console

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
)

func auditEvent(atype, ns string) []byte {
	return value.Doc(value.F("atype", value.NewString(atype)), value.F("ts", value.NewDateTime(1628521505372)), value.F("uuid", value.NewBinary(4, make([]byte, 16))),
		value.F("users", value.NewArray(value.ArrayOf())), value.F("param", value.NewDocument(value.Doc(value.F("ns", value.NewString(ns)), value.F("n", value.NewInt64(7))))),
		value.F("result", value.NewInt32(0)))
}

// Filters are written as in the manual's examples (Configure Audit Filters).
func TestAuditFilters(t *testing.T) {
	for _, tc := range []struct{ filter, through string }{
		{"", "createCollection:test.c createCollection:other.c authenticate:test "},
		{`{ atype: { $in: [ "createCollection", "dropCollection" ] } }`, "createCollection:test.c createCollection:other.c "},
		{`{ atype: { $in: [ "createCollection" ] }, "param.ns": /^test\./ }`, "createCollection:test.c "},
		{`{ $or: [ { atype: 'authenticate' }, { "param.ns": "other.c" } ] }`, "createCollection:other.c authenticate:test "},
		{`{ "param.ns": /^TEST$/i, result: 0 }`, "authenticate:test "},
		{`{ "users.user": "nobody" }`, ""},
		{`{ "param.n": { $gt: 7.5 } }`, ""},
	} {
		m, err := compileAuditFilter(tc.filter)
		if err != nil {
			t.Errorf("%s: %v", tc.filter, err)
			continue
		}
		got := ""
		for _, e := range [][2]string{{"createCollection", "test.c"}, {"createCollection", "other.c"}, {"authenticate", "test"}} {
			if m == nil {
				got += e[0] + ":" + e[1] + " "
			} else if ok, err := m.Match(auditEvent(e[0], e[1])); err != nil {
				t.Errorf("%s: %v", tc.filter, err)
			} else if ok {
				got += e[0] + ":" + e[1] + " "
			}
		}
		if got != tc.through {
			t.Errorf("%s passes %q, want %q", tc.filter, got, tc.through)
		}
	}
	for _, bad := range []string{"x", "{", "{ a: }", "{ a: b }", `{ a: "x }`, "{ a: /x }", "[1]", "{ $where: 'true' }", "{ $nope: 1 }", "{}}", strings.Repeat("{a:", 200)} {
		if _, err := compileAuditFilter(bad); err == nil {
			t.Errorf("%q is accepted as a filter", bad)
		}
	}
}

func FuzzAuditFilter(f *testing.F) {
	for _, s := range []string{`{ atype: { $in: [ "a", 'b' ] }, "p.ns": /^t\/x/i }`, `{a:-1.5e3,b:[true,null,{c:"\u00e9\n"}]}`, "{", `{"$date":1}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := compileAuditFilter(s)
		if err == nil && m != nil {
			_, _ = m.Match(auditEvent("createCollection", "a.b"))
		}
	})
}

func TestAuditOptionsFit(t *testing.T) {
	for _, tc := range []struct {
		o    AuditOptions
		want string // part of the error; empty if there is none
	}{
		{AuditOptions{}, ""},
		{AuditOptions{Destination: "console"}, ""},
		{AuditOptions{Destination: "syslog", Format: "JSON"}, ""},
		{AuditOptions{Destination: "file", Format: "BSON", Path: "x"}, ""},
		{AuditOptions{Path: "x"}, "auditLog.destination must be"},
		{AuditOptions{Filter: "{}"}, "auditLog.destination must be"},
		{AuditOptions{Destination: "printer"}, "invalid auditLog.destination"},
		{AuditOptions{Destination: "file", Format: "JSON"}, "auditLog.path must be"},
		{AuditOptions{Destination: "file", Path: "x"}, "auditLog.format must be"},
		{AuditOptions{Destination: "file", Path: "x", Format: "XML"}, "invalid auditLog.format"},
		{AuditOptions{Destination: "console", Path: "x"}, "auditLog.path is allowed only"},
		{AuditOptions{Destination: "console", Format: "BSON"}, "auditLog.format BSON"},
		{AuditOptions{Destination: "console", Filter: "{a:"}, "auditLog.filter"},
	} {
		err := tc.o.Check()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%+v: %v, want %q", tc.o, err, tc.want)
		}
	}
}

func TestAuditFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit")
	l, err := OpenAudit(AuditOptions{Destination: "file", Format: "JSON", Path: path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Record(auditEvent("createCollection", "a\n{\"atype\":\"forged\"}.b"))
	want := `{ "atype" : "createCollection", "ts" : { "$date" : "2021-08-09T15:05:05.372+00:00" }, "uuid" : { "$binary" : "AAAAAAAAAAAAAAAAAAAAAA==", "$type" : "04" }, ` +
		`"users" : [], "param" : { "ns" : "a\n{\"atype\":\"forged\"}.b", "n" : { "$numberLong" : "7" } }, "result" : 0 }` + "\n"
	if b, _ := os.ReadFile(path); string(b) != want {
		t.Errorf("got  %swant %s", b, want)
	}
	names := map[string]bool{}
	for range 3 { // within a second, or nearly
		kept, rotated, err := l.Rotate()
		if err != nil || !rotated || names[kept] {
			t.Fatalf("rotated to %q: %v %v", kept, rotated, err)
		}
		names[kept] = true
		l.Record(auditEvent("rotateLog", "x"))
	}
	if b, _ := os.ReadFile(path); strings.Count(string(b), "\n") != 1 {
		t.Errorf("the new file: %s", b)
	}
	for kept := range names {
		if b, err := os.ReadFile(kept); err != nil || strings.Count(string(b), "\n") != 1 {
			t.Errorf("%s: %q %v", kept, b, err)
		}
	}
	binary := filepath.Join(dir, "bson")
	if l, err = OpenAudit(AuditOptions{Destination: "file", Format: "BSON", Path: binary, Filter: "{atype:'b'}"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"a", "b", "c", "b"} {
		l.Record(auditEvent(a, "x"))
	}
	raw, _ := os.ReadFile(binary)
	n := 0
	for ; len(raw) >= 5; n++ {
		doc := bson.Raw(raw)
		size := int(raw[0]) | int(raw[1])<<8
		if a, _ := doc[:size].Lookup("atype").StringValueOK(); a != "b" {
			t.Errorf("event %s", doc[:size])
		}
		raw = raw[size:]
	}
	if n != 2 {
		t.Errorf("%d events", n)
	}
}
