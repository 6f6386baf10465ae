package plan

import (
	"crypto/sha256"
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
	match.AlwaysTrue: "at", match.GeoNear: "gn", match.Text: "te", match.Schema: "js", match.SampleRate: "sr"}

// Shape is what queries that may share a plan have in common: operators and paths of the filter, sort, projection and
// collation, without the values compared with.
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

// ShapeHash is planCacheShapeHash (and queryHash): eight hexadecimal digits.
func ShapeHash(shape string) string { return digits(shape) }

// CacheKey is planCacheKey: the shape, and which indexes the query could use at all.
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

// QueryShapeHash is queryShapeHash: the command and its parts with each literal replaced by its type, in the client's
// own order. parts are the command's fields that belong to the shape, by name ("filter" is read as a filter, the rest is
// taken as it is).
func QueryShapeHash(ns, command string, filter []byte, parts ...value.Field) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s ", command, ns)
	clauses := filterShape(filter)
	b.WriteString(strings.Join(clauses, " & "))
	for _, p := range parts {
		if p.Val.T != value.Missing {
			fmt.Fprintf(&b, " %s:%x", p.Key, value.AppendPayload(nil, p.Val))
		}
	}
	sum := sha256.Sum256([]byte(b.String()))
	return strings.ToUpper(hex.EncodeToString(sum[:]))
}

// filterShape gives a filter's conjuncts.
func filterShape(filter []byte) (out []string) {
	for k, v := range value.Elements(filter) {
		switch {
		case k == "$and" && v.T == value.Array:
			for _, e := range value.Values(v.Doc()) {
				out = append(out, filterShape(e.Doc())...)
			}
		case (k == "$or" || k == "$nor") && v.T == value.Array:
			var branches []string
			for _, e := range value.Values(v.Doc()) {
				branches = append(branches, strings.Join(filterShape(e.Doc()), " & "))
			}
			out = append(out, k+"("+strings.Join(branches, " | ")+")")
		case k == "$comment":
		case k == "$expr":
			out = append(out, k+exprShape(v))
		case k == "$jsonSchema":
			out = append(out, fmt.Sprintf("%s%x", k, v.Doc()))
		case strings.HasPrefix(k, "$"):
			out = append(out, k+literalShape(v))
		case v.T == value.Document && isOperators(v.Doc()):
			for _, o := range operatorShape(v.Doc()) {
				out = append(out, k+" "+o)
			}
		case v.T == value.Regex:
			out = append(out, k+" $regex?string")
		default:
			out = append(out, k+" $eq"+literalShape(v))
		}
	}
	return out
}

func isOperators(doc []byte) bool {
	for k := range value.Elements(doc) {
		return strings.HasPrefix(k, "$") && k != "$ref" && k != "$id"
	}
	return false
}

// operatorShape gives the operators under one path, rewritten as the server does before it takes the shape.
func operatorShape(doc []byte) (out []string) {
	for k, v := range value.Elements(doc) {
		switch k {
		case "$ne":
			out = append(out, "$not($eq"+literalShape(v)+")")
		case "$nin":
			out = append(out, "$not($in"+literalShape(v)+")")
		case "$exists":
			if v.Truthy() {
				out = append(out, "$exists")
			} else {
				out = append(out, "$not($exists)")
			}
		case "$all":
			for _, e := range value.Values(v.Doc()) {
				if e.T == value.Document && isOperators(e.Doc()) {
					out = append(out, operatorShape(e.Doc())...)
				} else {
					out = append(out, "$eq"+literalShape(e))
				}
			}
		case "$not":
			if v.T == value.Document {
				out = append(out, "$not("+strings.Join(operatorShape(v.Doc()), " & ")+")")
			} else {
				out = append(out, "$not($regex?string)")
			}
		case "$elemMatch":
			if isOperators(v.Doc()) {
				out = append(out, "$elemMatch("+strings.Join(operatorShape(v.Doc()), " & ")+")")
			} else {
				out = append(out, "$elemMatch{"+strings.Join(filterShape(v.Doc()), " & ")+"}")
			}
		case "$type":
			types := []value.Value{v}
			if v.T == value.Array {
				types = value.Values(v.Doc())
			}
			out = append(out, fmt.Sprintf("$type%x", value.ArrayOf(types...)))
		case "$options":
		default:
			out = append(out, k+literalShape(v))
		}
	}
	return out
}

func literalShape(v value.Value) string {
	switch {
	case v.T.Numeric():
		return "?number"
	case v.T == value.Array:
		kinds := map[string]bool{}
		one := ""
		for _, e := range value.Values(v.Doc()) {
			one = literalShape(e)
			kinds[one] = true
		}
		if len(kinds) == 1 {
			return "?array<" + one + ">"
		}
		return "?array<>"
	}
	return "?" + v.T.Name()
}

// exprShape keeps operators and paths of an expression.
func exprShape(v value.Value) string {
	switch v.T {
	case value.Document:
		var parts []string
		for k, e := range value.Elements(v.Doc()) {
			if k == "$literal" || k == "$const" {
				return literalShape(e)
			}
			parts = append(parts, k+exprShape(e))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case value.Array:
		var parts []string
		for _, e := range value.Values(v.Doc()) {
			parts = append(parts, exprShape(e))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case value.String:
		if strings.HasPrefix(v.Str(), "$") {
			return v.Str()
		}
	}
	return literalShape(v)
}
