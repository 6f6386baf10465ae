package migration

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// What is cloned is stored in units of bounded size, in documents and in bytes; a document that is larger has one of its own.
func TestCloneUnitsAreBounded(t *testing.T) {
	doc := func(kb int) []byte {
		return value.Doc(value.F("s", value.NewString(strings.Repeat("x", kb<<10))))
	}
	for _, x := range []struct {
		name  string
		sizes []int // of the documents, in KB
		limit int64
		want  int
	}{
		{"few", []int{1, 1, 1}, 0, 3},
		{"by number", []int{1, 1, 1}, 2, 2},
		{"by size", []int{200, 200, 200, 200, 200}, 0, 3},
		{"by size before number", []int{200, 200, 200, 200, 200}, 4, 3},
		{"a large one", []int{5000, 1}, 0, 1},
		{"before a large one", []int{1, 5000, 1}, 0, 1},
	} {
		var docs [][]byte
		for _, kb := range x.sizes {
			docs = append(docs, doc(kb))
		}
		if got := len(cloneUnit(docs, x.limit, cloneUnitBytes)); got != x.want {
			t.Errorf("%s: %d of %d documents, want %d", x.name, got, len(docs), x.want)
		}
	}
}
