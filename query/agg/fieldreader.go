package agg

import (
	"strings"

	"github.com/shoaldb/shoal/query/agg/accum"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
)

// fieldReader reads several top-level fields of a document in one walk, instead of one walk for each.
type fieldReader struct {
	fields value.Fields
	at     []int  // the position of each field in doc
	doc    []byte // the document read last
}

// slot is the source of an operand: a field of a reader, or a constant (at < 0).
type slot struct {
	at       int
	constant value.Value
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
	at := r.fields.Add(path)
	r.at = make([]int, r.fields.Len())
	return slot{at: at}, true
}

func (r *fieldReader) read(doc []byte) {
	r.doc = doc
	r.fields.Locate(doc, r.at)
}

func (r *fieldReader) get(s *slot) value.Value {
	if s.at < 0 {
		return s.constant
	}
	return r.fields.Value(r.doc, r.at[s.at], s.at)
}

// simpleGroup are the operands of a $group whose key and arguments are top-level fields and constants.
type simpleGroup struct {
	reader fieldReader
	id     slot
	args   []slot
	sums   bool // all accumulators are sums and averages
}

// addTo adds the operand to a sum.
func (s *slot) addTo(sum *accum.Sum, r *fieldReader) {
	if s.at < 0 {
		_, _ = sum.Add(s.constant, nil) // a sum has no errors
	} else if at := r.at[s.at]; at != 0 {
		sum.AddElement(r.fields.Element(r.doc, at, s.at))
	}
}

func (s *groupStage) simple() *simpleGroup {
	g := &simpleGroup{args: make([]slot, len(s.fields)), sums: true}
	var ok bool
	if g.id, ok = g.reader.slotOf(s.id); !ok || s.merging {
		return nil
	}
	for i, f := range s.fields {
		g.sums = g.sums && f.acc.Sums()
		if f.acc.Sort() != nil {
			return nil
		}
		if g.args[i], ok = g.reader.slotOf(f.acc.Arg); !ok {
			return nil
		}
	}
	return g
}
