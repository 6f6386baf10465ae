package changestream

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// These are the bytes that tools parse: a time, version 2, type, index, flag, UUID, and the identifier.
func TestTokensAreInTheDocumentedFormat(t *testing.T) {
	if got, want := MarkAt(0x65A1B2C300000007).Data(), "8265A1B2C3000000072B0429296E1404"; got != want {
		t.Errorf("a high-water mark is %s, want %s", got, want)
	}
	var uuid [16]byte
	for i := range uuid {
		uuid[i] = byte(i)
	}
	id := value.Doc(value.F("operationType", value.NewString("insert")),
		value.F("documentKey", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(1))))))
	token := makeToken(0x65A1B2C300000007, EventToken, 2, value.NewBinary(4, uuid[:]), value.NewDocument(id))
	want := "8265A1B2C300000007" + "2B04" + "2C0100" + "2B04" + "6E" + "5A1004000102030405060708090A0B0C0D0E0F" +
		"463C6F7065726174696F6E54797065003C696E7365727400" + "46646F63756D656E744B657900461E5F6964002B02000004"
	if got := token.Data(); got != want {
		t.Errorf("an event's token is\n%s, want\n%s", got, want)
	}
	got, err := ParseToken(value.Doc(value.F("_data", value.NewString(strings.ToLower(token.Data())))))
	if err != nil || got.Compare(token) != 0 || got.Type != EventToken || got.TxnOpIndex != 2 || got.FromInvalidate {
		t.Errorf("it is read as %+v, %v", got, err)
	}
}

func TestDamagedTokens(t *testing.T) {
	data := makeToken(7<<32, EventToken, 0, value.NewNull(), value.NewDocument(value.Doc(value.F("a", value.NewDouble(1.5))))).Data()
	for _, c := range []struct {
		data string
		code mongoerr.Code
	}{
		{data, 0}, {data[:len(data)-2], 0}, {data + "00", 0}, {data + "FF", 0},
		{data[:len(data)-4], mongoerr.Overflow}, {data[:10], mongoerr.Overflow}, {"00", 50811}, {"", 40649}, {"8", mongoerr.FailedToParse},
	} {
		if _, err := ParseToken(value.Doc(value.F("_data", value.NewString(c.data)))); err == nil && c.code != 0 || err != nil && mongoerr.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want code %d", c.data, err, c.code)
		}
	}
}

// The work for a token grows with the document in it, however deep that is. It doubled with each level, and a document of thirty
// levels, as _id or in a view, stopped the reader of the oplog for all streams.
func TestTokensOfNestedDocuments(t *testing.T) {
	nested := func(depth int) value.Value {
		v := value.NewInt32(1)
		for i := range depth {
			if i%3 == 0 {
				v = value.NewArray(value.ArrayOf(v))
			} else {
				v = value.NewDocument(value.Doc(value.F("a", v)))
			}
		}
		return v
	}
	allocs := func(depth int) float64 {
		v := nested(depth)
		return testing.AllocsPerRun(1, func() { makeToken(7<<32, EventToken, 0, value.NewNull(), v) })
	}
	if few, more := allocs(6), allocs(12); more > 4*few+4 {
		t.Fatalf("%v allocations at six levels, %v at twelve", few, more)
	}
	token := makeToken(7<<32, EventToken, 0, value.NewNull(), nested(180))
	if got, err := ParseToken(token.Document()); err != nil || got.Compare(token) != 0 {
		t.Errorf("a token of 180 levels is read as %v, %v", got, err)
	}
}

// What documents compare before the names is the first byte of the field's own key, but for numbers and booleans, which share theirs.
func TestKindsAreTheTagsOfKeys(t *testing.T) {
	doc := value.Doc(value.F("a", value.NewString("s")))
	for _, v := range []value.Value{
		value.NewString("s"), value.NewSymbol([]byte("s")), value.NewDocument(doc), value.NewArray(value.ArrayOf(value.NewNull())), value.NewBinary(0, doc),
		value.NewObjectID([12]byte{}), value.NewDateTime(1), value.NewTimestampU64(1), value.NewRegex("a", ""), value.NewDBPointer("d.c", [12]byte{}),
		value.NewJavaScript([]byte("x")), value.NewCodeWithScope("x", doc), value.NewNull(), value.NewUndefined(), value.NewMinKey(), value.NewMaxKey(), {},
	} {
		if got, want := kinds[v.T], appendKey(nil, &typeBits{}, v)[0]; got != want {
			t.Errorf("the kind of %s is %#x, its key begins with %#x", v.T.Name(), got, want)
		}
	}
	for _, v := range []value.Value{value.NewInt32(1), value.NewInt64(1), value.NewDouble(-1), {T: value.Decimal128}} {
		if kinds[v.T] != keyNaN {
			t.Errorf("the kind of %s is %#x", v.T.Name(), kinds[v.T])
		}
	}
	if kinds[value.Boolean] != keyFalse {
		t.Errorf("the kind of booleans is %#x", kinds[value.Boolean])
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("8265A1B2C3000000072B0429296E1404")
	f.Fuzz(func(_ *testing.T, data string) {
		_, _ = ParseToken(value.Doc(value.F("_data", value.NewString(data)))) // does not panic
	})
}
