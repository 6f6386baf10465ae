package agg

import (
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
)

// fieldReader reads several top-level fields of a document in one walk, instead of one walk for each.
type fieldReader struct {
	names []string
	vals  []value.Value
}

// slot is where an operand comes from: a field of a reader, or a constant (at < 0).
type slot struct {
	at    int
	konst value.Value
}

// slotOf makes a slot for an expression that is a top-level field or a constant.
func (r *fieldReader) slotOf(e *expr.Expr) (slot, bool) {
	if c, ok := e.Constant(); ok {
		return slot{-1, c}, true
	}
	path, ok := e.FieldPath()
	if !ok || strings.Contains(path, ".") {
		return slot{}, false
	}
	for i, n := range r.names {
		if n == path {
			return slot{at: i}, true
		}
	}
	r.names = append(r.names, path)
	r.vals = append(r.vals, value.Value{})
	return slot{at: len(r.names) - 1}, true
}

func (r *fieldReader) read(doc []byte) {
	clear(r.vals)
	left := len(r.names)
	for it := value.Walk(doc); left > 0; {
		key, v, ok := it.Next()
		if !ok {
			return
		}
		for i, name := range r.names {
			if string(key) == name && r.vals[i].T == value.Missing {
				r.vals[i] = v
				left--
				break
			}
		}
	}
}

func (r *fieldReader) get(s *slot) value.Value {
	if s.at < 0 {
		return s.konst
	}
	return r.vals[s.at]
}

// simpleGroup are the operands of a $group whose key and arguments are top-level fields and constants.
type simpleGroup struct {
	reader fieldReader
	id     slot
	args   []slot
}

func (s *groupStage) simple() *simpleGroup {
	g := &simpleGroup{args: make([]slot, len(s.fields))}
	var ok bool
	if g.id, ok = g.reader.slotOf(s.id); !ok || s.merging {
		return nil
	}
	for i, f := range s.fields {
		if f.acc.Sort() != nil {
			return nil
		}
		if g.args[i], ok = g.reader.slotOf(f.acc.Arg); !ok {
			return nil
		}
	}
	return g
}
