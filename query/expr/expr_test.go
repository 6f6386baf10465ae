package expr

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestData runs the files of testdata. A case's first line is an expression in extended JSON, the rest the
// document; the output is the value in canonical extended JSON, or the error.
func TestData(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			first, rest, _ := strings.Cut(d.Input, "\n")
			s := testScope()
			v := valuetest.Value(t, first)
			e, err := Compile(v, s)
			if err != nil {
				return showError(err)
			}
			switch d.Cmd {
			case "eval":
				f := NewFrame(s)
				doc := value.Doc()
				if strings.TrimSpace(rest) != "" {
					doc = valuetest.Value(t, rest).Doc()
				}
				f.SetRoot(doc)
				out, err := e.Eval(f)
				if err != nil {
					return showError(err)
				}
				return toJSON(t, out)
			case "constant":
				k, ok := e.Constant()
				if !ok {
					return "not constant\n"
				}
				return toJSON(t, k)
			case "show":
				return toJSON(t, e.Serialize())
			case "deps":
				deps := e.Deps()
				return fmt.Sprintf("paths %v whole %v meta %v rand %v\n", deps.Paths, deps.Whole, deps.Meta, deps.Rand)
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

func testScope() *Scope {
	s := NewScope(&Env{NowMS: 1700000000000, ClusterTime: 1700000000<<32 | 7, WallMS: func() int64 { return 1700000001000 }, Rand: func() float64 { return 0.25 }})
	s.DefineConst("outer", value.NewDocument(value.Doc(value.F("a", value.NewInt32(5)))))
	return s
}

func toJSON(t *testing.T, v value.Value) string {
	t.Helper()
	if v.T == value.Missing {
		return "missing\n"
	}
	out, err := bson.MarshalExtJSON(bson.Raw(value.Doc(value.F("v", v))), true, false)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(out), `{"v":`), "}") + "\n"
}

func showError(err error) string {
	e := mongoerr.From(err)
	return fmt.Sprintf("error %d %s: %s\n", e.Code, e.Code.Name(), e.Message)
}

// TestFrameReuse checks that values of one document do not leak into the next, and that variables keep their values.
func TestFrameReuse(t *testing.T) {
	s := testScope()
	id := s.Define("v")
	e, err := Compile(valuetest.Value(t, `{"$concat": ["$a", "-", "$$v"]}`), s)
	if err != nil {
		t.Fatal(err)
	}
	f := NewFrame(s)
	f.SetVar(id, value.NewString("x"))
	for _, c := range []struct{ doc, want string }{{`{"a": "first"}`, "first-x"}, {`{"a": "2"}`, "2-x"}, {`{"a": "third one"}`, "third one-x"}} {
		f.SetRoot(valuetest.Value(t, c.doc).Doc())
		v, err := e.Eval(f)
		if err != nil || v.Str() != c.want {
			t.Errorf("%s: %q, %v; want %q", c.doc, v.Str(), err, c.want)
		}
	}
}

// TestNoConstants checks commands that provide no runtime constants to expressions.
func TestNoConstants(t *testing.T) {
	s := NewScope(&Env{NoConstants: true})
	_, err := Compile(value.NewString("$$NOW"), s)
	if mongoerr.CodeOf(err) != 51144 {
		t.Errorf("$$NOW: %v", err)
	}
	if _, err := Compile(value.NewString("$$ROOT"), s); err != nil {
		t.Errorf("$$ROOT: %v", err)
	}
}

// TestOperatorsDocumented checks that every registered operator is reachable: it has a name and a parser for its operands.
func TestOperatorsDocumented(t *testing.T) {
	names := Operators()
	if len(names) < 150 {
		t.Errorf("%d operators", len(names))
	}
	for _, name := range names {
		op := operators[name]
		if name[0] != '$' || op.parse == nil && op.eval == nil {
			t.Errorf("operator %s has no row that works", name)
		}
	}
}

// TestClock checks that an expression kept beyond one operation reads the time again.
func TestClock(t *testing.T) {
	now := int64(1)
	s := NewScope(&Env{Clock: func() (int64, uint64) { now++; return now, uint64(now) << 32 }})
	e, err := Compile(valuetest.Value(t, `{"n": "$$NOW", "c": "$$CLUSTER_TIME"}`), s)
	if err != nil {
		t.Fatal(err)
	}
	f := NewFrame(s)
	a, _ := e.Eval(f)
	if got := toJSON(t, a); got != `{"n":{"$date":{"$numberLong":"2"}},"c":{"$timestamp":{"t":3,"i":0}}}`+"\n" {
		t.Error(got)
	}
	b, _ := e.Eval(f)
	if value.Lookup(b.Doc(), "n").DateTime() != 4 {
		t.Error("the clock stood still")
	}
}
