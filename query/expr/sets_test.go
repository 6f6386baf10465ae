package expr

import (
	"errors"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

type stopAfter int

var errStopped = errors.New("stopped")

func (s *stopAfter) Check() error {
	if *s--; *s < 0 {
		return errStopped
	}
	return nil
}

// TestSetsStop: operators over sets end when the operation does, and where a set becomes too large.
func TestSetsStop(t *testing.T) {
	n := value.NewInt32(3000)
	many := value.NewDocument(value.Doc(value.F("$range", value.NewArray(value.ArrayOf(value.NewInt32(0), n)))))
	for _, op := range []string{"$setUnion", "$setIntersection", "$setDifference", "$setEquals", "$setIsSubset"} {
		work := stopAfter(1000)
		scope := NewScope(&Env{Work: &work})
		scope.DefineConst("a", value.NewArray(value.ArrayOf(numbers(3000)...)))
		args := value.NewArray(value.ArrayOf(many, value.NewString("$x")))
		e, err := Compile(value.NewDocument(value.Doc(value.F(op, args))), scope)
		if err != nil {
			t.Fatal(op, err)
		}
		f := NewFrame(scope)
		f.SetRoot(value.Doc(value.F("x", value.NewArray(value.ArrayOf(numbers(3000)...)))))
		if _, err := e.Eval(f); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		work = 3
		if _, err := e.Eval(f); !errors.Is(err, errStopped) {
			t.Errorf("%s goes on when it should stop: %v", op, err)
		}
	}
	scope := NewScope(&Env{})
	s := &set{f: NewFrame(scope), op: "$setUnion", bytes: maxEvalBytes + 1}
	if _, err := s.add(n); mongoerr.CodeOf(err) != mongoerr.ExceededMemoryLimit {
		t.Errorf("a set of %d bytes grows: %v", s.bytes, err)
	}
}

func numbers(n int) (out []value.Value) {
	for i := range n {
		out = append(out, value.NewInt32(int32(i)))
	}
	return out
}
