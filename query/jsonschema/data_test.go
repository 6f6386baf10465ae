package jsonschema

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestSchemas runs testdata/*: the schema of a case is its first line, documents follow, one a line. The output is a line
// for each: valid, or errInfo.details; or the error of the schema.
func TestSchemas(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			lines := strings.Split(d.Input, "\n")
			s, err := Compile(valuetest.Doc(t, lines[0]))
			if err != nil {
				e := mongoerr.From(err)
				return fmt.Sprintf("error %d: %s\n", e.Code, e.Message)
			}
			var out strings.Builder
			for _, line := range lines[1:] {
				doc := valuetest.Doc(t, line)
				why := s.Explain(doc)
				if matches(s, doc) != (why == nil) {
					t.Errorf("%s: matched and explained differently", line)
				}
				if why == nil {
					out.WriteString("valid\n")
				} else {
					out.WriteString(value.ShowDoc(why) + "\n")
				}
			}
			return out.String()
		})
	})
}
