package valuetest

import (
	"encoding/json"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Doc reads a document written in relaxed extended JSON.
func Doc(t testing.TB, text string) []byte {
	t.Helper()
	var raw bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(text), false, &raw); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return raw
}

// Value reads a value written in relaxed extended JSON.
func Value(t testing.TB, text string) value.Value {
	t.Helper()
	return value.Lookup(Doc(t, `{"v": `+text+`}`), "v")
}

// Docs reads an array of documents.
func Docs(t testing.TB, text string) (out [][]byte) {
	t.Helper()
	for _, v := range value.Values(Value(t, text).Doc()) {
		out = append(out, v.Doc())
	}
	return out
}

// JSON prints a document as compact relaxed extended JSON.
func JSON(t testing.TB, doc []byte) string {
	t.Helper()
	out, err := bson.MarshalExtJSON(bson.Raw(doc), false, false)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(out) {
		t.Fatalf("no JSON: %s", out)
	}
	return string(out)
}
