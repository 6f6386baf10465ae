package expr

import (
	"bytes"
	"errors"
	"testing"
	"time"

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

// TestSetsStop: set operators stop when the operation does, and when a set becomes too large.
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

// TestIndexOfCPIsLinear: a text in which nearly every position begins like the search string.
func TestIndexOfCPIsLinear(t *testing.T) {
	text, sub := bytes.Repeat([]byte("a"), 4<<20), append(bytes.Repeat([]byte("a"), 256<<10), 'b')
	begin := time.Now()
	if i := indexOfCP(text, sub, 0, -1); i != -1 || time.Since(begin) > 5*time.Second {
		t.Errorf("%d after %s", i, time.Since(begin))
	}
	for _, c := range []struct{ start, end, want int }{{0, -1, 2}, {2, -1, 2}, {3, -1, 4}, {3, 4, -1}, {3, 5, 4}, {9, -1, -1}} {
		if i := indexOfCP([]byte("aéxyxy"), []byte("xy"), c.start, c.end); i != c.want {
			t.Errorf("from %d to %d: %d, want %d", c.start, c.end, i, c.want)
		}
	}
}
