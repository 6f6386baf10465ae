package text

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestSearches runs testdata/*: a case has an index (weights, default_language, language_override) and documents, which
// stay until the next index, or a query, whose output is a line for each document that it finds, with its score.
func TestSearches(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var x *Index
		var docs [][]byte
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			lines := strings.Split(d.Input, "\n")
			if d.Cmd == "index" {
				x, docs = NewIndex(valuetest.Doc(t, lines[0])), nil
				for _, line := range lines[1:] {
					docs = append(docs, valuetest.Doc(t, line))
				}
				return ""
			}
			q, err := ParseQuery(value.NewDocument(valuetest.Doc(t, lines[0])))
			if err != nil {
				e := mongoerr.From(err)
				return fmt.Sprintf("error %d: %s\n", e.Code, e.Message)
			}
			q.Bind(x)
			var out strings.Builder
			for _, doc := range docs {
				if score, ok := q.Score(doc); ok {
					fmt.Fprintf(&out, "%s %.4g\n", value.Show(value.Lookup(doc, "_id")), score)
				}
			}
			return out.String()
		})
	})
}
