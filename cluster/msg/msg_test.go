package msg

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/cluster/version"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fresh returns an empty message of m's type.
func fresh(m Message) Message {
	return reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
}

func nameOf(m Message) string { return reflect.TypeOf(m).Elem().Name() }

// each runs a test for every type, with its description.
func each(t *testing.T, f func(t *testing.T, m Message, d Desc)) {
	for _, m := range All() {
		t.Run(nameOf(m), func(t *testing.T) { f(t, m, Describe(m)) })
	}
}

// Random documents built from a message's description survive parsing and encoding unchanged.
func TestRoundTrip(t *testing.T) {
	each(t, func(t *testing.T, m Message, d Desc) {
		for seed := range uint64(200) {
			r := rand.New(rand.NewPCG(seed, 1))
			doc := randomMessage(r, d)
			one := fresh(m)
			if err := Parse(doc, one); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, value.Show(value.NewDocument(doc)))
			}
			again := Doc(one)
			if !bytes.Equal(doc, again) {
				t.Fatalf("seed %d:\n%s\nbecame\n%s", seed, value.Show(value.NewDocument(doc)), value.Show(value.NewDocument(again)))
			}
			two := fresh(m)
			if err := Parse(again, two); err != nil || !reflect.DeepEqual(one, two) {
				t.Fatalf("seed %d: %v\n%+v\n%+v", seed, err, one, two)
			}
		}
	})
}

// A truncated document is an error, wherever it is cut and whatever length it declares.
func TestTruncatedDocuments(t *testing.T) {
	each(t, func(t *testing.T, m Message, d Desc) {
		doc := randomMessage(rand.New(rand.NewPCG(1, 2)), d)
		for n := range len(doc) {
			if Parse(doc[:n], fresh(m)) == nil {
				t.Fatalf("%d bytes of %d were accepted as a whole document", n, len(doc))
			}
			if n < 5 {
				continue
			}
			cut := bytes.Clone(doc[:n])
			binary.LittleEndian.PutUint32(cut, uint32(n))
			cut[n-1] = 0
			_ = Parse(cut, fresh(m)) // it may be whole by chance
		}
	})
}

func TestUnknownAndRepeatedFields(t *testing.T) {
	each(t, func(t *testing.T, m Message, d Desc) {
		doc := randomMessage(rand.New(rand.NewPCG(1, 3)), d)
		wantCode(t, Parse(with(doc, value.F("noSuchField", value.NewInt32(1))), fresh(m)), mongoerr.IDLUnknownField)
		if d.Name != "" {
			wantCode(t, Parse(with(doc, value.F("maxTimeMS", value.NewInt32(1))), fresh(m)), 0)
		} else {
			wantCode(t, Parse(with(doc, value.F("ok", value.NewInt32(1))), fresh(m)), 0)
		}
		for k, v := range value.Elements(doc) {
			if k != "$db" {
				wantCode(t, Parse(with(doc, value.F(k, v)), fresh(m)), mongoerr.IDLDuplicateField)
			}
		}
	})
}

// A required field must be there, and every field must have its type.
func TestMissingFieldsAndWrongTypes(t *testing.T) {
	each(t, func(t *testing.T, m Message, d Desc) {
		doc := full(rand.New(rand.NewPCG(1, 4)), d)
		if d.Name != "" && d.Value != Any {
			wantCode(t, Parse(replaced(doc, d.Name, value.NewRegex("a", "")), fresh(m)), mongoerr.TypeMismatch)
			wantCode(t, Parse(replaced(doc, d.Name, value.Value{}), fresh(m)), mongoerr.CommandNotFound)
		}
		for _, f := range d.Fields {
			want := mongoerr.Code(0)
			if f.Required {
				want = mongoerr.IDLFailedToParse
			}
			wantCode(t, Parse(replaced(doc, f.Name, value.Value{}), fresh(m)), want)
			if f.Kind != Any {
				wantCode(t, Parse(replaced(doc, f.Name, value.NewNull()), fresh(m)), want)
				wantCode(t, Parse(replaced(doc, f.Name, value.NewRegex("a", "")), fresh(m)), mongoerr.TypeMismatch)
			}
			if f.Kind == Documents || f.Kind == Strings {
				wantCode(t, Parse(replaced(doc, f.Name, value.NewArray(value.ArrayOf(value.NewMinKey()))), fresh(m)), mongoerr.TypeMismatch)
			}
			if f.Sub != nil {
				odd := value.NewDocument(with(value.Lookup(doc, f.Name).Doc(), value.F("noSuchField", value.NewNull())))
				if f.Kind == Documents {
					one := appendFields(rand.New(rand.NewPCG(1, 5)), value.Doc()[:4], f.Sub, true)
					odd = value.NewArray(value.ArrayOf(value.NewDocument(with(value.End(one, 0), value.F("noSuchField", value.NewNull())))))
				}
				wantCode(t, Parse(replaced(doc, f.Name, odd), fresh(m)), mongoerr.IDLUnknownField)
			}
		}
	})
}

// Every type that describes a command or a reply is in All, and no two describe the same command.
func TestAllTypesAreRegistered(t *testing.T) {
	listed := map[string]bool{}
	commands := map[string]string{}
	for _, m := range All() {
		listed[nameOf(m)] = true
		if d := Describe(m); d.Name != "" {
			if other := commands[d.Name]; other != "" {
				t.Errorf("%s and %s are both %s", other, nameOf(m), d.Name)
			}
			commands[d.Name] = nameOf(m)
		}
	}
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || fn.Name.Name != "fields" {
				continue
			}
			name := fn.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name
			if part := startsNothing(fn); part == listed[name] {
				t.Errorf("%s: part of other messages %v, listed %v", name, part, listed[name])
			}
		}
	}
}

// startsNothing reports whether a description is only a part of others: it names neither a command nor the command that it replies to.
func startsNothing(fn *ast.FuncDecl) bool {
	starts := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"command", "on", "in", "plain", "value", "reply"}, s.Sel.Name) {
			starts = true
		}
		return true
	})
	return !starts
}

func wantCode(t *testing.T, err error, want mongoerr.Code) {
	t.Helper()
	if got := mongoerr.CodeOf(err); got != want {
		t.Errorf("%v, not error %s", err, want.Name())
	}
}

// with returns a document with one more element.
func with(doc []byte, f value.Field) []byte {
	return value.End(value.Append(bytes.Clone(doc[:len(doc)-1]), f.Key, f.Val), 0)
}

// replaced returns a document with another value of one element, or without that element.
func replaced(doc []byte, name string, v value.Value) []byte {
	dst, m := value.Begin(nil)
	for k, old := range value.Elements(doc) {
		if k == name {
			old = v
		}
		dst = value.Append(dst, k, old)
	}
	return value.End(dst, m)
}

// randomMessage creates a document from a description, with some of the optional fields.
func randomMessage(r *rand.Rand, d Desc) []byte { return makeMessage(r, d, false) }

// full is like randomMessage, with every field.
func full(r *rand.Rand, d Desc) []byte { return makeMessage(r, d, true) }

func makeMessage(r *rand.Rand, d Desc, all bool) []byte {
	dst, m := value.Begin(nil)
	if d.Name != "" {
		v := randomValue(r, d.Value)
		if d.Value == Flag {
			v = value.NewInt32(1)
		}
		dst = value.Append(dst, d.Name, v)
	}
	dst = appendFields(r, dst, d.Fields, all)
	if d.Name != "" {
		dst = value.Append(dst, "$db", value.NewString("admin"))
	}
	return value.End(dst, m)
}

func appendFields(r *rand.Rand, dst []byte, fields []Field, all bool) []byte {
	for _, f := range fields {
		switch {
		case !f.Required && !all && r.IntN(2) == 0:
		case f.Sub != nil && f.Kind == Documents:
			var m, n int
			dst, m = value.BeginKey(dst, value.Array, f.Name)
			for i := range r.IntN(4) {
				dst, n = value.BeginKey(dst, value.Document, fmt.Sprint(i))
				dst = value.End(appendFields(r, dst, f.Sub, all), n)
			}
			dst = value.End(dst, m)
		case f.Sub != nil:
			var m int
			dst, m = value.BeginKey(dst, value.Document, f.Name)
			dst = value.End(appendFields(r, dst, f.Sub, all), m)
		case f.Kind == Flag:
			dst = value.Append(dst, f.Name, value.NewBool(!f.Default))
		default:
			dst = value.Append(dst, f.Name, randomValue(r, f.Kind))
		}
	}
	return dst
}

// randomValue returns a value of a kind that is not the default.
func randomValue(r *rand.Rand, k Kind) value.Value {
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(1 + r.IntN(255))
		}
		return b
	}
	list := func(one Kind) value.Value {
		vs := make([]value.Value, r.IntN(4))
		for i := range vs {
			vs[i] = randomValue(r, one)
		}
		return value.NewArray(value.ArrayOf(vs...))
	}
	switch k {
	case String:
		return value.NewString(strings.Repeat("é.", r.IntN(3)) + fmt.Sprint(r.IntN(1000)))
	case Document:
		return value.NewDocument(value.Doc(value.F(fmt.Sprint("f", r.IntN(9)), randomValue(r, Any))))
	case Array:
		return list(Any)
	case Documents:
		return list(Document)
	case Strings:
		return list(String)
	case Bool, Flag:
		return value.NewBool(true)
	case Int:
		return value.NewInt32(int32(1 + r.IntN(1<<30)))
	case Long:
		return value.NewInt64(1 + r.Int64N(1<<60))
	case Timestamp:
		return value.NewTimestampU64(1 + r.Uint64N(1<<63))
	case ObjectID:
		return value.NewObjectID([12]byte(random(12)))
	case UUID:
		return value.NewBinary(4, random(16))
	case Binary:
		return value.NewBinary(0, random(r.IntN(40)))
	case Version:
		v := version.Chunk{Epoch: version.Epoch(random(12)), Timestamp: r.Uint64(), Major: r.Uint32(), Minor: r.Uint32()}
		return value.NewDocument(v.Doc())
	}
	return randomValue(r, Kind(1+r.IntN(int(Version)))) // any other kind
}

// FuzzParse parses one document as each of the messages: none panics, and what is accepted encodes to the same document.
func FuzzParse(f *testing.F) {
	for i, m := range All() {
		f.Add(uint8(i), randomMessage(rand.New(rand.NewPCG(uint64(i), 5)), Describe(m)))
	}
	f.Fuzz(func(t *testing.T, which uint8, doc []byte) {
		m := All()[int(which)%len(All())]
		if Parse(doc, m) != nil {
			return
		}
		again := Doc(m)
		back := fresh(m)
		if err := Parse(again, back); err != nil {
			t.Fatalf("%T: a message that was parsed is refused once it is encoded: %v", m, err)
		}
		if !bytes.Equal(Doc(back), again) {
			t.Fatalf("%T: %x became %x", m, again, Doc(back))
		}
	})
}
