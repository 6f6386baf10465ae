package viewquery

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestStages runs testdata/*: a case is a command's body; its output is one stage per line, and the hint if there is one.
func TestStages(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			body := valuetest.Doc(t, d.Input)
			skip, _ := value.Lookup(body, "skip").AsInt64()
			limit, _ := value.Lookup(body, "limit").AsInt64()
			var stages []value.Value
			var hint value.Value
			var err error
			switch d.Cmd {
			case "find":
				stages, hint, err = Find(body, skip, limit)
			case "count":
				stages = Count(body, skip, limit)
			case "distinct":
				stages = Distinct(body)
			default:
				d.Fatalf(t, "no command %q", d.Cmd)
			}
			if err != nil {
				return fmt.Sprintf("error %d: %s\n", mongoerr.CodeOf(err), mongoerr.From(err).Message)
			}
			var out strings.Builder
			for _, st := range stages {
				fmt.Fprintln(&out, value.Show(st))
			}
			if !hint.IsMissing() {
				fmt.Fprintln(&out, "hint", value.Show(hint))
			}
			return out.String()
		})
	})
}
