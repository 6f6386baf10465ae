package geo

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestPlaces runs testdata/*: the first line of a case is {$operator: argument}, or for near the operators of one; the lines
// after it are {v: a stored value}. The output is a line for each: whether it matches, or its distance; or the error.
func TestPlaces(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			lines := strings.Split(d.Input, "\n")
			query := valuetest.Doc(t, lines[0])
			tell := answers(query)
			if d.Cmd == "near" {
				tell = distances(query)
			}
			var out strings.Builder
			for _, line := range lines[1:] {
				text := tell(value.Lookup(valuetest.Doc(t, line), "v"))
				out.WriteString(text + "\n")
				if strings.HasPrefix(text, "error") {
					break
				}
			}
			return out.String()
		})
	})
}

func refusal(err error) string {
	e := mongoerr.From(err)
	return fmt.Sprintf("error %d: %s", e.Code, e.Message)
}

func answers(query []byte) func(value.Value) string {
	it := value.Walk(query)
	name, arg, _ := it.Next()
	q, err := ParseQuery(string(name), arg, nil)
	return func(v value.Value) string {
		if err != nil {
			return refusal(err)
		}
		return fmt.Sprint(matches(q, v))
	}
}

func distances(query []byte) func(value.Value) string {
	n, err := ParseNear(query)
	return func(v value.Value) string {
		if err != nil {
			return refusal(err)
		}
		far, _, ok := n.Distance(v)
		if !ok || !n.InBounds(far) {
			return "not in reach"
		}
		return fmt.Sprintf("%.5g", far)
	}
}

func matches(q *Query, v value.Value) bool {
	ok, _ := q.Matches(v, nil)
	return ok
}
