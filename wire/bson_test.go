package wire

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

func marshal(tb testing.TB, v any) []byte {
	tb.Helper()
	b, err := bson.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// everyType has an element of each type.
func everyType(tb testing.TB) []byte {
	dec, _ := bson.ParseDecimal128("1.5")
	return marshal(tb, bson.D{
		{Key: "double", Value: 1.5}, {Key: "string", Value: "text"}, {Key: "doc", Value: bson.D{{Key: "a", Value: 1}}},
		{Key: "array", Value: bson.A{1, "b", bson.D{}}}, {Key: "bin", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
		{Key: "old", Value: bson.Binary{Subtype: 2, Data: []byte("ab")}}, {Key: "undef", Value: bson.Undefined{}},
		{Key: "oid", Value: bson.NewObjectID()}, {Key: "bool", Value: true}, {Key: "date", Value: time.Now()},
		{Key: "null", Value: nil}, {Key: "regex", Value: bson.Regex{Pattern: "^a", Options: "i"}},
		{Key: "ptr", Value: bson.DBPointer{DB: "a.b", Pointer: bson.NewObjectID()}},
		{Key: "code", Value: bson.JavaScript("1")}, {Key: "symbol", Value: bson.Symbol("s")},
		{Key: "scope", Value: bson.CodeWithScope{Code: "x", Scope: bson.D{{Key: "x", Value: 1}}}},
		{Key: "int", Value: int32(1)}, {Key: "ts", Value: bson.Timestamp{T: 1, I: 2}}, {Key: "long", Value: int64(1)},
		{Key: "dec", Value: dec}, {Key: "max", Value: bson.MaxKey{}}, {Key: "min", Value: bson.MinKey{}}, {Key: "", Value: 1},
	})
}

func nested(depth int) []byte {
	doc := []byte{5, 0, 0, 0, 0}
	for range depth - 1 {
		b := append([]byte{0, 0, 0, 0, 3, 'a', 0}, doc...)
		doc = append(b, 0)
		binary.LittleEndian.PutUint32(doc, uint32(len(doc)))
	}
	return doc
}

func TestValidateAcceptsWhatIsWellFormed(t *testing.T) {
	for name, doc := range map[string][]byte{
		"empty": {5, 0, 0, 0, 0}, "every type": everyType(t), "depth 200": nested(MaxDepth + 1),
		"not UTF-8": marshal(t, bson.D{{Key: "a\xff", Value: "\xc3\x28"}}),
	} {
		if err := Validate(doc); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, hex string
		code      mongoerr.Code
	}{
		{"nothing", "", mongoerr.InvalidBSON},
		{"length past the end", "0600000000", mongoerr.InvalidBSON},
		{"length short of the end", "0500000000 00", mongoerr.InvalidBSON},
		{"no terminator", "0500000001", mongoerr.InvalidBSON},
		{"unknown type", "08000000 14 61 00 00", mongoerr.InvalidBSON},
		{"key without end", "08000000 10 61 61 00", mongoerr.InvalidBSON},
		{"int cut short", "0a000000 10 61 00 0000 00", mongoerr.InvalidBSON},
		{"int over the end", "0b000000 10 61 00 010203 00", mongoerr.InvalidBSON},
		{"bool of 2", "09000000 08 61 00 02 00", mongoerr.InvalidBSON},
		{"bool missing", "08000000 08 61 00 00", mongoerr.InvalidBSON},
		{"string of length 0", "0c000000 02 61 00 00000000 00", mongoerr.InvalidBSON},
		{"string of length -1", "0d000000 02 61 00 ffffffff 00 00", mongoerr.InvalidBSON},
		{"string too long", "0e000000 02 61 00 03000000 6200 00", mongoerr.InvalidBSON},
		{"string without zero", "0e000000 02 61 00 02000000 6262 00", mongoerr.InvalidBSON},
		{"binary of length -1", "0d000000 05 61 00 ffffffff 00 00", mongoerr.InvalidBSON},
		{"binary too long", "0d000000 05 61 00 01000000 00 00", mongoerr.InvalidBSON},
		{"document too long", "0d000000 03 61 00 06000000 00 00", mongoerr.InvalidBSON},
		{"document of length 4", "0d000000 03 61 00 04000000 00 00", mongoerr.InvalidBSON},
		{"document without zero", "0d000000 03 61 00 05000000 01 00", mongoerr.InvalidBSON},
		{"regex without end", "0a000000 0b 61 00 6100 00", mongoerr.InvalidBSON},
		{"pointer cut short", "11000000 0c 61 00 02000000 6200 0000 00 00", mongoerr.InvalidBSON},
		{"scope lies", "17000000 0f 61 00 0f000000 02000000 6200 0500000001 00", mongoerr.InvalidBSON},
		{"too deep", hex.EncodeToString(nested(MaxDepth + 2)), mongoerr.Overflow},
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(tc.hex, " ", ""))
		if err != nil {
			t.Fatal(tc.name, err)
		}
		if got := mongoerr.CodeOf(Validate(b)); got != tc.code {
			t.Errorf("%s: code %d", tc.name, got)
		}
	}
}

func TestEveryTruncationIsRefused(t *testing.T) {
	doc := everyType(t)
	for n := range doc {
		cut := append([]byte(nil), doc[:n]...)
		if Validate(cut) == nil {
			t.Errorf("cut to %d bytes it passes", n)
		}
		if n < 5 {
			continue
		}
		binary.LittleEndian.PutUint32(cut, uint32(n)) // a document that claims to be complete
		_ = Validate(cut)
	}
}

func TestValidateUTF8(t *testing.T) {
	for _, tc := range []struct {
		doc bson.D
		ok  bool
	}{
		{bson.D{{Key: "a", Value: "ü"}}, true},
		{bson.D{{Key: "a\xff", Value: 1}}, false},
		{bson.D{{Key: "a", Value: bson.A{"\xc3\x28"}}}, false},
	} {
		if err := ValidateUTF8(marshal(t, tc.doc)); (err == nil) != tc.ok {
			t.Errorf("%v: %v", tc.doc, err)
		}
	}
}

// FuzzValidate: no input panics, and what passes can be walked to its end by skipElement.
func FuzzValidate(f *testing.F) {
	f.Add(everyType(f))
	f.Add(nested(5))
	f.Fuzz(func(t *testing.T, b []byte) {
		if Validate(b) != nil {
			return
		}
		_ = ValidateUTF8(b)
		for rest := b[4 : len(b)-1]; len(rest) > 0; {
			_, n := skipElement(rest)
			rest = rest[n:]
		}
		if err := bson.Raw(b).Validate(); err != nil && !strings.Contains(err.Error(), "ubtype") {
			t.Logf("the driver refuses %x: %v", b, err)
		}
	})
}

// FuzzParseMessage: no frame panics, and what parses survives being framed and parsed again.
func FuzzParseMessage(f *testing.F) {
	m := &Message{RequestID: 1, Flags: ChecksumPresent, Body: doc("insert", 1),
		Seqs: []Sequence{{ID: "documents", Docs: append(doc("a", 1), doc("b", 2)...)}}}
	f.Add(AppendMessage(nil, m))
	f.Add(AppendQuery(nil, 2, "admin", doc("isMaster", 1)))
	for id := range CompressorID(numCompressors) {
		packed, err := appendCompressed(nil, id, AppendMessage(nil, m))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseMessage(b)
		if err != nil || m.OpCode != OpMsg {
			return
		}
		again, err := ParseMessage(AppendMessage(nil, m))
		if err != nil {
			t.Fatalf("framed again: %v", err)
		}
		if string(again.Body) != string(m.Body) || len(again.Seqs) != len(m.Seqs) || again.Flags != m.Flags {
			t.Fatalf("%+v became %+v", m, again)
		}
	})
}
