package expr

import (
	"testing"

	"github.com/shoaldb/shoal/query/value/valuetest"
)

// operands are the names of operands that operators take.
var operands = []string{"input", "in", "as", "cond", "vars", "if", "then", "else", "branches", "case", "default", "date", "timezone", "format", "unit", "startDate",
	"endDate", "startOfWeek", "binSize", "amount", "dateString", "onError", "onNull", "to", "type", "subtype", "byteOrder", "base", "year", "month", "isoWeekYear", "initialValue",
	"inputs", "useLongestLength", "defaults", "regex", "options", "find", "replacement", "chars", "field", "value", "n", "sortBy", "p", "method", "body", "args", "lang", "limit"}

// FuzzExpression: no expression may do worse than fail, to compile or to evaluate, within its operation's time.
func FuzzExpression(f *testing.F) {
	names := append(Operators(), operands...)
	f.Fuzz(func(t *testing.T, in []byte) {
		g := valuetest.NewGenerator(in, names)
		scope := NewScope(&Env{NowMS: 1700000000000, ClusterTime: 7 << 32, Work: &valuetest.Budget{Left: 200}})
		e, err := Compile(g.Value(), scope)
		if err != nil {
			return
		}
		e.Deps()
		_ = e.Serialize()
		frame := NewFrame(scope)
		for _, d := range valuetest.Subjects() {
			frame.SetRoot(d)
			_, _ = e.Eval(frame)
		}
	})
}
