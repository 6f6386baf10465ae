package distinct

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestPaths: arrays are unwound at every step of the path, but an array within an array only where the path names its index.
func TestPaths(t *testing.T) {
	docs := valuetest.Docs(t, `[{"a": 1, "d": {"x": 2}},
		{"a": {"$numberDouble": "1.0"}, "d": [{"x": 2}, {"x": [3, [4]]}, 5, [{"x": 6}]]},
		{"a": [1, null, [1]], "d": {"x": null}},
		{"b": 1, "d": {"y": 1}}]`)
	for _, c := range []struct{ path, want string }{
		{"a", `[ null, 1, [ 1 ] ]`},
		{"d.x", `[ null, 2, 3, [ 4 ] ]`},
		{"d.1.x", `[ 3, [ 4 ] ]`},
		{"d.3.x", `[ 6 ]`},
		{"d.01.x", `[ ]`},
		{"nothing", `[ ]`},
	} {
		v := New(c.path, nil)
		for _, doc := range docs {
			if err := v.AddDocument(doc); err != nil {
				t.Fatal(err)
			}
		}
		if got := value.Show(value.NewArray(v.Sorted())); got != c.want {
			t.Errorf("%s: %s, want %s", c.path, got, c.want)
		}
	}
}

// TestCap: a result too large for the reply is an error, not a truncated reply.
func TestCap(t *testing.T) {
	v := New("a", nil)
	add := func(first byte) error {
		text := string([]byte{first}) + strings.Repeat("x", 1<<20)
		return v.AddArray(value.ArrayOf(value.NewString(text), value.NewString(text)))
	}
	for i := byte(0); i < 15; i++ {
		if err := add('a' + i); err != nil {
			t.Fatalf("%d MiB: %v", i+1, err)
		}
	}
	if err := add('z'); mongoerr.CodeOf(err) != 17217 {
		t.Fatalf("16 MiB: %v, want 17217", err)
	}
}
