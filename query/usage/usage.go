package usage

import (
	"slices"
	"sync/atomic"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/agg/accum"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// Table counts the uses of a fixed set of names.
type Table struct {
	names []string
	n     map[string]*atomic.Int64
}

func newTable(names []string) Table {
	t := Table{n: make(map[string]*atomic.Int64, len(names))}
	for _, name := range names {
		if len(name) > 2 && name[1] == '_' {
			continue // the server's own
		}
		t.names = append(t.names, name)
		t.n[name] = new(atomic.Int64)
	}
	slices.Sort(t.names)
	return t
}

func (t *Table) count(name []byte) {
	if c := t.n[string(name)]; c != nil {
		c.Add(1)
	}
}

// Doc returns a document of all names with their counts.
func (t *Table) Doc() []byte {
	dst, m := value.Begin(nil)
	for _, name := range t.names {
		dst = value.Append(dst, name, value.NewInt64(t.n[name].Load()))
	}
	return value.End(dst, m)
}

// Counters are the counts of one node.
type Counters struct {
	Stages, Expressions, Match, Group, Window Table
}

// New makes counters of the whole language.
func New() *Counters {
	return &Counters{Stages: newTable(agg.StageNames()), Expressions: newTable(expr.Operators()), Match: newTable(match.Operators()),
		Group: newTable(accum.Names()), Window: newTable(agg.WindowFunctions())}
}

// Operators returns metrics.operatorCounters.
func (c *Counters) Operators() []byte {
	t := func(name string, t *Table) value.Field { return value.F(name, value.NewDocument(t.Doc())) }
	return value.Doc(t("expressions", &c.Expressions), t("groupAccumulators", &c.Group), t("match", &c.Match), t("windowAccumulators", &c.Window))
}

// Count counts what a command uses, or one statement of a command that has several.
func (c *Counters) Count(doc []byte) {
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return
		}
		switch string(k) {
		case "filter", "query", "q":
			c.filter(v)
		case "projection", "fields", "let":
			c.expression(v)
		case "pipeline":
			c.pipeline(v)
		case "u", "update", "updateMods":
			if v.T == value.Array {
				c.pipeline(v)
			}
		}
	}
}

// filter counts the operators of a find filter.
func (c *Counters) filter(v value.Value) {
	if v.T != value.Document {
		return
	}
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return
		}
		if len(k) == 0 || k[0] != '$' {
			if e.T == value.Document {
				c.predicates(e)
			}
			continue
		}
		c.Match.count(k)
		switch {
		case string(k) == "$expr":
			c.expression(e)
		case e.T == value.Array: // $and, $or, $nor
			for list := value.Walk(e.Doc()); ; {
				_, one, ok := list.Next()
				if !ok {
					break
				}
				c.filter(one)
			}
		}
	}
}

// predicates counts the operators on a path; a document without them is a value.
func (c *Counters) predicates(v value.Value) {
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok || len(k) == 0 || k[0] != '$' {
			return
		}
		c.Match.count(k)
		switch string(k) {
		case "$not":
			if e.T == value.Document {
				c.predicates(e)
			}
		case "$elemMatch":
			c.elemMatch(e)
		case "$all":
			for list := value.Walk(e.Doc()); ; {
				_, one, ok := list.Next()
				if !ok {
					break
				}
				if one.T == value.Document {
					c.predicates(one)
				}
			}
		}
	}
}

func (c *Counters) elemMatch(v value.Value) {
	if v.T != value.Document {
		return
	}
	it := value.Walk(v.Doc())
	switch k, _, ok := it.Next(); {
	case !ok:
	case len(k) > 0 && k[0] == '$' && string(k) != "$and" && string(k) != "$or" && string(k) != "$nor":
		c.predicates(v)
	default:
		c.filter(v)
	}
}

// expression counts the operators of an expression, or of a document of expressions.
func (c *Counters) expression(v value.Value) {
	if v.T != value.Document && v.T != value.Array {
		return
	}
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return
		}
		if v.T == value.Document && len(k) > 0 && k[0] == '$' {
			c.Expressions.count(k)
			if string(k) == "$literal" || string(k) == "$const" {
				continue
			}
		}
		c.expression(e)
	}
}

// pipeline counts stages, including those of pipelines within them.
func (c *Counters) pipeline(v value.Value) {
	if v.T != value.Array {
		return
	}
	for it := value.Walk(v.Doc()); ; {
		_, s, ok := it.Next()
		if !ok {
			return
		}
		if s.T != value.Document {
			continue
		}
		in := value.Walk(s.Doc())
		if name, arg, ok := in.Next(); ok {
			c.Stages.count(name)
			c.stage(string(name), arg)
		}
	}
}

func (c *Counters) stage(name string, arg value.Value) {
	switch name {
	case "$match":
		c.filter(arg)
	case "$group":
		c.outputs(arg, &c.Group)
	case "$bucket", "$bucketAuto":
		c.outputs(value.Lookup(arg.Doc(), "output"), &c.Group)
		c.expression(value.Lookup(arg.Doc(), "groupBy"))
	case "$setWindowFields":
		c.outputs(value.Lookup(arg.Doc(), "output"), &c.Window)
		c.expression(value.Lookup(arg.Doc(), "partitionBy"))
	case "$facet":
		c.pipelines(arg)
	case "$lookup", "$unionWith":
		c.expression(value.Lookup(arg.Doc(), "let"))
		c.pipeline(value.Lookup(arg.Doc(), "pipeline"))
	case "$graphLookup":
		c.expression(value.Lookup(arg.Doc(), "startWith"))
		c.filter(value.Lookup(arg.Doc(), "restrictSearchWithMatch"))
	case "$geoNear":
		c.filter(value.Lookup(arg.Doc(), "query"))
	case "$rankFusion", "$scoreFusion":
		c.pipelines(value.Lookup(value.Lookup(arg.Doc(), "input").Doc(), "pipelines"))
	case "$merge":
		c.pipeline(value.Lookup(arg.Doc(), "whenMatched"))
	default:
		c.expression(arg)
	}
}

// pipelines counts the stages in a document of pipelines.
func (c *Counters) pipelines(v value.Value) {
	for it := value.Walk(v.Doc()); ; {
		_, p, ok := it.Next()
		if !ok {
			return
		}
		c.pipeline(p)
	}
}

// outputs counts the accumulators of a stage's output fields, and the operators in their arguments.
func (c *Counters) outputs(v value.Value, t *Table) {
	if v.T != value.Document {
		return
	}
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return
		}
		if string(k) == "_id" || e.T != value.Document {
			c.expression(e)
			continue
		}
		for in := value.Walk(e.Doc()); ; {
			name, arg, ok := in.Next()
			if !ok {
				break
			}
			t.count(name)
			if string(name) != "window" {
				c.expression(arg)
			}
		}
	}
}
