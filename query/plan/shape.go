package plan

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// codes are the operators' names in a plan cache shape.
var codes = map[match.Kind]string{match.And: "an", match.Or: "or", match.ElemMatchObject: "eo", match.ElemMatchValue: "ev", match.Size: "sz",
	match.Eq: "eq", match.Lte: "le", match.Lt: "lt", match.Gt: "gt", match.Gte: "ge", match.RegexMatch: "re", match.Mod: "mo",
	match.Exists: "ex", match.In: "in", match.BitsAllSet: "ls", match.BitsAllClear: "lc", match.BitsAnySet: "ys", match.BitsAnyClear: "yc",
	match.Not: "nt", match.Nor: "nr", match.TypeIs: "ty", match.Geo: "go", match.Where: "wh", match.Expr: "xp", match.AlwaysFalse: "af",
	match.AlwaysTrue: "at", match.GeoNear: "gn", match.Text: "te", match.Schema: "js", match.SampleRate: "sr",
	match.ExprEq: "xe", match.ExprGt: "xg", match.ExprGte: "xge", match.ExprLt: "xl", match.ExprLte: "xle"}

// Shape returns what queries that may share a plan have in common: operators and paths of the filter, sort,
// projection and collation, without the operands.
func (q *Query) Shape() string {
	b := make([]byte, 0, 128)
	if q.Filter != nil {
		b = appendShape(b, q.Filter.Root())
	}
	for _, s := range q.Sort {
		dir := byte('a')
		switch {
		case s.Meta:
			dir = 'm'
		case s.Desc:
			dir = 'd'
		}
		b = append(append(append(b, '~', dir), s.Path...), ',')
	}
	if p := q.Projection; p != nil {
		b = append(b, '|')
		if !p.Inclusion || p.Whole {
			b = append(b, '*')
		}
		paths := slices.Clone(p.Paths)
		if len(paths) == 0 {
			for k := range value.Elements(p.Raw) {
				paths = append(paths, k)
			}
		}
		slices.Sort(paths)
		b = append(b, strings.Join(paths, ",")...)
	}
	if q.CollationDoc != nil {
		b = append(append(b, '#'), q.CollationDoc...)
	}
	switch {
	case q.Count:
		b = append(b, "@count"...)
	case q.Distinct != "":
		b = append(append(b, "@distinct "...), q.Distinct...)
	}
	return string(b)
}

func appendShape(b []byte, n *match.Node) []byte {
	b = append(append(b, codes[n.Kind]...), n.Path...)
	switch n.Kind {
	case match.RegexMatch, match.In:
		for _, r := range n.Regexes {
			b = append(append(append(b, '/'), r.Options...), '/')
		}
	case match.Schema:
		b = append(b, n.Serialize()...)
	}
	switch {
	case len(n.Children) == 0:
		return b
	case len(n.Children) == 1:
		return append(appendShape(append(b, '['), n.Children[0]), ']')
	}
	parts := make([]string, len(n.Children)) // their order depends on values, too
	for i, c := range n.Children {
		parts[i] = string(appendShape(nil, c))
	}
	slices.Sort(parts)
	return append(append(append(b, '['), strings.Join(parts, ",")...), ']')
}

// ShapeHash returns planCacheShapeHash (and queryHash): eight hexadecimal digits.
func ShapeHash(shape string) string { return digits(shape) }

// CacheKey returns planCacheKey: the shape, and which indexes the query could use at all.
func (q *Query) CacheKey(c *Collection, shape string) string {
	p := &planner{q: q, c: c}
	if q.Filter != nil {
		p.parts = conjuncts(q.Filter.Root())
	}
	b := []byte(shape)
	for _, x := range c.Indexes {
		if !p.usable(x) {
			continue
		}
		b = append(b, '<')
		b = append(b, x.Name...)
		if x.Partial != nil || x.Sparse || x.CollationDoc != nil {
			conj := newConjunction(q.Filter, p.parts)
			b = fmt.Append(b, p.partialFits(x, p.parts), p.collationFits(x, conj))
		}
	}
	return digits(string(b))
}

func digits(s string) string {
	h := fnv.New32a()
	h.Write([]byte(s))
	return strings.ToUpper(hex.EncodeToString(binary.BigEndian.AppendUint32(nil, h.Sum32())))
}
