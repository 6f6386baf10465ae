package value

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// Fields and FieldName find what Lookup finds: in documents with names of all lengths, some twice, and cut short.
func TestFieldsAgreeWithLookup(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	names := []string{"", "a", "b", "ab", "abcdef", "abcdefg", "abcdefgh", "abcdefghi", "abcdefghj", strings.Repeat("x", 40)}
	var fields Fields
	for _, n := range names {
		fields.Add(n)
	}
	at := make([]int, fields.Len())
	for range 2000 {
		var fs []Field
		for range r.IntN(8) {
			v := []Value{NewInt32(r.Int32()), NewNull(), NewString(strings.Repeat("s", r.IntN(9))), NewDouble(1.5), NewBool(true), NewDocument(Doc())}[r.IntN(6)]
			fs = append(fs, F(names[r.IntN(len(names))], v))
		}
		doc := Doc(fs...)
		if r.IntN(4) == 0 {
			doc = doc[:r.IntN(len(doc)+1)]
		}
		fields.Locate(doc, at)
		for i, n := range names {
			want := Lookup(doc, n)
			name := NewFieldName(n)
			if got := name.Lookup(doc); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%x: FieldName %q: %v, want %v", doc, n, got, want)
			}
			if got := fields.Value(doc, at[i], i); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%x: Fields %q: %v, want %v", doc, n, got, want)
			}
		}
	}
}
