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

func FuzzParseToken(f *testing.F) {
	f.Add("8265A1B2C3000000072B0429296E1404")
	f.Fuzz(func(_ *testing.T, data string) {
		_, _ = ParseToken(value.Doc(value.F("_data", value.NewString(data)))) // does not panic
	})
}
