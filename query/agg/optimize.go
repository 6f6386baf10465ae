package agg

import (
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// rule is a named rewrite of the stages from i on; it reports whether it changed anything.
type rule struct {
	name  string
	apply func(p *Pipeline, i int) bool
}

// rewrites are tried in this order at each position until none applies.
var rewrites = []rule{
	{"merge adjacent matches", mergeMatches},
	{"match buckets before unpacking them", matchBuckets},
	{"match before sort", matchBeforeSort},
	{"match before stages that leave its fields alone", matchBeforeFields},
	{"match on a group's key before the group", matchBeforeGroup},
	{"match before and after a redaction", matchBeforeRedact},
	{"limit into sort", limitIntoSort},
	{"limit before skip", limitBeforeSkip},
	{"merge adjacent limits", mergeLimits},
	{"merge adjacent skips", mergeSkips},
	{"skip and limit before projections", cutBeforeFields},
}

// Optimize applies the rewrites to the pipeline.
func (p *Pipeline) Optimize() {
	p.stages = slices.Clone(p.stages)
	for i := 0; i < len(p.stages); {
		changed := false
		for _, r := range rewrites {
			if i < len(p.stages) && r.apply(p, i) {
				changed = true
			}
		}
		if !changed {
			i++
		} else if i > 0 {
			i--
		}
	}
}

// two returns the stages at i and i+1 if they have the given types.
func two[A, B Stage](p *Pipeline, i int) (a A, b B, ok bool) {
	if i+1 >= len(p.stages) {
		return a, b, false
	}
	a, ok = p.stages[i].(A)
	if !ok {
		return a, b, false
	}
	b, ok = p.stages[i+1].(B)
	return a, b, ok
}

// replace replaces n stages from i on.
func (p *Pipeline) replace(i, n int, with ...Stage) {
	p.stages = slices.Replace(p.stages, i, i+n, with...)
}

func mergeMatches(p *Pipeline, i int) bool {
	a, b, ok := two[*matchStage, *matchStage](p, i)
	if !ok || hasKind(b.m.Root(), match.Text) {
		return false
	}
	both, err := newMatch(p.opts, value.Doc(f("$and", array(value.NewDocument(a.filter), value.NewDocument(b.filter)))))
	if err != nil {
		return false
	}
	p.replace(i, 2, both)
	return true
}

func matchBeforeSort(p *Pipeline, i int) bool {
	s, m, ok := two[*sortStage, *matchStage](p, i)
	if !ok || s.limit != 0 {
		return false
	}
	p.replace(i, 2, m, s)
	return true
}

// matchBeforeFields moves the parts of a $match that do not depend on a stage before it.
func matchBeforeFields(p *Pipeline, i int) bool {
	if i+1 >= len(p.stages) {
		return false
	}
	m, ok := p.stages[i+1].(*matchStage)
	if !ok || m.text {
		return false
	}
	var apart func(path string) bool // whether the stage does not change a path
	var names map[string]string      // what the stage's fields were called before
	switch s := p.stages[i].(type) {
	case *unwindStage:
		apart = apartFrom(s.dotted, s.indexAs)
	case *lookupStage:
		apart = apartFrom(strings.Join(s.as, "."))
	case *graphStage:
		apart = apartFrom(strings.Join(s.as, "."), strings.Join(s.depth, "."))
	case *fieldsStage:
		if apart = s.leavesAlone(); apart == nil {
			return false
		}
		names = s.renames()
	default:
		return false
	}
	return p.moveMatch(i, m, func(filter []byte) []byte {
		one, err := newMatch(p.opts, filter)
		if err != nil {
			return nil
		}
		reads, whole := filterPaths(one.m)
		if whole || len(reads) == 0 {
			return nil
		}
		rename := false
		for _, r := range reads {
			head, _, _ := strings.Cut(r, ".")
			if _, renamed := names[head]; renamed {
				rename = true
			} else if !apart(r) {
				return nil
			}
		}
		if rename {
			return withNames(filter, names)
		}
		return filter
	})
}

// renames returns the top-level fields that the stage makes of other top-level fields, each with the other's name.
func (s *fieldsStage) renames() map[string]string {
	if s.spec.T != value.Document {
		return nil
	}
	var names map[string]string
	for k, v := range value.Elements(s.spec.Doc()) {
		if v.T != value.String || strings.Contains(k, ".") {
			continue
		}
		if from, is := strings.CutPrefix(v.Str(), "$"); is && from != "" && from[0] != '$' && !strings.Contains(from, ".") {
			if names == nil {
				names = map[string]string{}
			}
			names[k] = from
		}
	}
	return names
}

// withNames returns a filter with other names of top-level fields; nil if it reads fields otherwise than by paths.
func withNames(filter []byte, names map[string]string) []byte {
	dst, mark := value.Begin(nil)
	for k, v := range value.Elements(filter) {
		switch {
		case (k == "$and" || k == "$or" || k == "$nor") && v.T == value.Array:
			list := value.Values(v.Doc())
			for i, c := range list {
				renamed := withNames(c.Doc(), names)
				if renamed == nil {
					return nil
				}
				list[i] = value.NewDocument(renamed)
			}
			v = array(list...)
		case strings.HasPrefix(k, "$"):
			return nil
		default:
			head, rest, dotted := strings.Cut(k, ".")
			if from, ok := names[head]; ok {
				if k = from; dotted {
					k += "." + rest
				}
			}
		}
		dst = value.Append(dst, k, v)
	}
	return value.End(dst, mark)
}

// matchBeforeRedact repeats in front of a $redact what the documents have to contain in any case: it removes values, so that a
// condition that a value exists is also one on the document before. An index may serve it there.
func matchBeforeRedact(p *Pipeline, i int) bool {
	r, m, ok := two[*redactStage, *matchStage](p, i)
	if !ok || m.text || r.matched {
		return false
	}
	var first []value.Value
	for _, c := range conjuncts(m.filter) {
		if requiresValue(c) {
			first = append(first, value.NewDocument(c))
		}
	}
	if len(first) == 0 {
		return false
	}
	front, err := newMatch(p.opts, conjunction(first))
	if err != nil {
		return false
	}
	after := *r
	after.matched = true
	p.replace(i, 2, front, &after, m)
	return true
}

// requiresValue reports whether a condition compares a field with scalars. Elements of arrays may have other indexes before.
func requiresValue(condition []byte) bool {
	it := value.Walk(condition)
	k, v, ok := it.Next()
	if !ok || strings.HasPrefix(string(k), "$") || withoutNumbers(string(k)) != string(k) {
		return false
	}
	if v.T != value.Document {
		return isScalar(v)
	}
	if !value.IsCondition(v.Doc()) {
		return false
	}
	for op, x := range value.Elements(v.Doc()) {
		switch op {
		case "$eq", "$gt", "$gte", "$lt", "$lte":
			if !isScalar(x) {
				return false
			}
		case "$in":
			if x.T != value.Array || slices.ContainsFunc(value.Values(x.Doc()), func(e value.Value) bool { return !isScalar(e) }) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// isScalar reports whether a value is one that no missing field equals and that has no parts.
func isScalar(v value.Value) bool {
	switch v.T {
	case value.Missing, value.Null, value.Undefined, value.Array, value.Document, value.Regex, value.MinKey, value.MaxKey:
		return false
	}
	return true
}

// moveMatch moves the conjuncts of the $match at i+1 for which before returns a form in front of stage i, in that form.
func (p *Pipeline) moveMatch(i int, m *matchStage, before func(conjunct []byte) []byte) bool {
	var first, rest []value.Value
	for _, c := range conjuncts(m.filter) {
		if moved := before(c); moved != nil {
			first = append(first, value.NewDocument(moved))
		} else {
			rest = append(rest, value.NewDocument(c))
		}
	}
	if len(first) == 0 {
		return false
	}
	stages := make([]Stage, 0, 3)
	front, err := newMatch(p.opts, conjunction(first))
	if err != nil {
		return false
	}
	stages = append(stages, front, p.stages[i])
	if len(rest) > 0 {
		back, err := newMatch(p.opts, conjunction(rest))
		if err != nil {
			return false
		}
		stages = append(stages, back)
	}
	p.replace(i, 2, stages...)
	return true
}

// conjuncts returns the conditions of a filter, each a filter of its own.
func conjuncts(filter []byte) (out [][]byte) {
	for k, v := range value.Elements(filter) {
		if k == "$and" && v.T == value.Array {
			for _, e := range value.Values(v.Doc()) {
				out = append(out, conjuncts(e.Doc())...)
			}
			continue
		}
		out = append(out, value.Doc(f(k, v)))
	}
	return out
}

// conjunction joins conditions into one filter.
func conjunction(list []value.Value) []byte {
	if len(list) == 1 {
		return list[0].Doc()
	}
	return value.Doc(f("$and", array(list...)))
}

// apartFrom returns a function that reports whether a path is independent of all written ones: not the same, an ancestor
// or a descendant; "" writes nothing. A number in a path may be an index in an array, whose elements another path reaches
// without it.
func apartFrom(writes ...string) func(path string) bool {
	for i, w := range writes {
		writes[i] = withoutNumbers(w)
	}
	return func(r string) bool {
		r = withoutNumbers(r)
		for _, w := range writes {
			if w != "" && (r == w || strings.HasPrefix(r, w+".") || strings.HasPrefix(w, r+".")) {
				return false
			}
		}
		return true
	}
}

// withoutNumbers removes the components of a path that are numbers, except the first component.
func withoutNumbers(path string) string {
	if !strings.ContainsAny(path, "0123456789") {
		return path
	}
	head, rest, _ := strings.Cut(path, ".")
	for part := range strings.SplitSeq(rest, ".") {
		if part != "" && strings.Trim(part, "0123456789") != "" {
			head += "." + part
		}
	}
	return head
}

// leavesAlone returns a function that reports whether the stage passes a path on unchanged: it does not write it
// or, if it keeps only some fields, keeps its top-level field as a whole. nil if that is unknown.
func (s *fieldsStage) leavesAlone() func(path string) bool {
	if writes, ok := s.writes(); ok {
		return apartFrom(writes...)
	}
	if s.spec.T != value.Document {
		return nil
	}
	kept := map[string]bool{"_id": true}
	for k, v := range value.Elements(s.spec.Doc()) {
		kept[k] = (v.T.Numeric() || v.T == value.Boolean) && v.Truthy()
	}
	return func(path string) bool {
		head, _, _ := strings.Cut(path, ".")
		return kept[head]
	}
}

// matchBeforeGroup moves conditions on a group's key before the group, where the key is a field of the documents. A group
// treats a missing field as null, so only conditions that do so, too, may be moved.
func matchBeforeGroup(p *Pipeline, i int) bool {
	g, m, ok := two[*groupStage, *matchStage](p, i)
	if !ok || m.text || g.merging || g.partial {
		return false
	}
	path, ok := g.id.FieldPath()
	if !ok || strings.Contains(path, ".") {
		return false
	}
	return p.moveMatch(i, m, func(c []byte) []byte {
		v := value.Lookup(c, "_id")
		if v.IsMissing() || !comparesKeys(v) {
			return nil
		}
		return value.Doc(f(path, v))
	})
}

// comparesKeys reports whether a condition compares the key only with values that are not, and do not contain, null or undefined.
func comparesKeys(v value.Value) bool {
	if v.T != value.Document {
		return isScalar(v)
	}
	for k, e := range value.Elements(v.Doc()) {
		switch k {
		case "$eq", "$gt", "$gte", "$lt", "$lte":
			if !isScalar(e) {
				return false
			}
		case "$in":
			if e.T != value.Array {
				return false
			}
			for _, x := range value.Values(e.Doc()) {
				if !isScalar(x) {
					return false
				}
			}
		default:
			return false
		}
	}
	return value.Count(v.Doc()) > 0
}

// writes returns the paths that a stage sets or removes; ok is false if it keeps only some fields.
func (s *fieldsStage) writes() (paths []string, ok bool) {
	if s.p.Inclusion() {
		return nil, false
	}
	switch s.spec.T {
	case value.String:
		return []string{s.spec.Str()}, true
	case value.Array:
		for _, v := range value.Values(s.spec.Doc()) {
			paths = append(paths, v.Str())
		}
		return paths, true
	case value.Document:
		for k := range value.Elements(s.spec.Doc()) {
			head, _, _ := strings.Cut(k, ".")
			paths = append(paths, head)
		}
		return paths, true
	}
	return nil, false
}

func limitIntoSort(p *Pipeline, i int) bool {
	s, l, ok := two[*sortStage, *limitStage](p, i)
	if ok {
		n := l.n
		if s.limit != 0 {
			n = min(n, s.limit)
		}
		p.replace(i, 2, &sortStage{s.pattern, n})
		return true
	}
	// $sort, $skip, $limit: the sort need not keep more than skip+limit.
	s, k, ok := two[*sortStage, *skipStage](p, i)
	if !ok || i+2 >= len(p.stages) || s.limit != 0 {
		return false
	}
	if l, ok := p.stages[i+2].(*limitStage); ok && l.n+k.n > 0 {
		p.replace(i, 3, &sortStage{s.pattern, l.n + k.n}, k)
		return true
	}
	return false
}

func limitBeforeSkip(p *Pipeline, i int) bool {
	k, l, ok := two[*skipStage, *limitStage](p, i)
	if !ok || k.n+l.n < 0 {
		return false
	}
	p.replace(i, 2, &limitStage{k.n + l.n}, k)
	return true
}

func mergeLimits(p *Pipeline, i int) bool {
	a, b, ok := two[*limitStage, *limitStage](p, i)
	if ok {
		p.replace(i, 2, &limitStage{min(a.n, b.n)})
	}
	return ok
}

func mergeSkips(p *Pipeline, i int) bool {
	a, b, ok := two[*skipStage, *skipStage](p, i)
	if !ok || a.n+b.n < 0 {
		return false
	}
	p.replace(i, 2, &skipStage{a.n + b.n})
	return true
}

// cutBeforeFields moves $skip and $limit before stages that return exactly one document for each that they receive.
func cutBeforeFields(p *Pipeline, i int) bool {
	if i+1 >= len(p.stages) {
		return false
	}
	switch p.stages[i].(type) {
	case *fieldsStage, *rootStage:
	default:
		return false
	}
	switch p.stages[i+1].(type) {
	case *skipStage, *limitStage:
		p.replace(i, 2, p.stages[i+1], p.stages[i])
		return true
	}
	return false
}

// filterPaths returns the paths that a filter reads; whole is true if they are unknown.
func filterPaths(m *match.Matcher) (paths []string, whole bool) {
	var walk func(n *match.Node, prefix string)
	walk = func(n *match.Node, prefix string) {
		if n == nil {
			return
		}
		switch n.Kind {
		case match.Where, match.Text, match.Schema, match.SampleRate, match.GeoNear, match.AlwaysFalse, match.AlwaysTrue:
			whole = true
			return
		case match.Expr:
			d := n.Expr.Deps()
			paths, whole = append(paths, d.Paths...), whole || d.Whole || d.Rand || len(d.Meta) > 0
			return
		}
		if n.Path != "" && prefix == "" {
			paths = append(paths, n.Path)
		}
		for _, c := range n.Children {
			inner := prefix
			if n.Kind == match.ElemMatchObject || n.Kind == match.ElemMatchValue {
				inner = n.Path
			}
			walk(c, inner)
		}
	}
	walk(m.Root(), "")
	return paths, whole
}

// Pushdown is the work that the query planner below a pipeline can do for it, and the stages that
// remain.
type Pushdown struct {
	Query
	Rest *Pipeline
}

// Pushdown removes the leading stages that the planner can run: $match, then $sort, then $skip and $limit. Call
// Optimize before it.
func (p *Pipeline) Pushdown() Pushdown {
	out := Pushdown{Query: Query{Collation: p.opts.Collation}}
	rest := p.stages
	if g := p.GeoNear(); g != nil {
		out.Filter = g.filter()
		out.Rest = p
		return out
	}
	if len(rest) > 0 {
		if m, ok := rest[0].(*matchStage); ok {
			out.Filter, rest = inlineVariables(m.filter, p.opts.scope()), rest[1:]
		}
	}
	if len(rest) > 0 {
		if s, ok := rest[0].(*sortStage); ok && !sortsByMeta(s) {
			out.Sort, out.Limit, rest = s.pattern.Spec(), s.limit, rest[1:]
		}
	}
	for len(rest) > 0 {
		if l, ok := rest[0].(*limitStage); ok && out.Skip == 0 && (out.Limit == 0 || l.n < out.Limit) {
			out.Limit, rest = l.n, rest[1:]
			continue
		}
		if k, ok := rest[0].(*skipStage); ok && out.Skip == 0 && (out.Limit == 0 || out.Limit > k.n) {
			out.Skip = k.n
			if out.Limit > 0 {
				out.Limit -= k.n
			}
			rest = rest[1:]
		}
		break
	}
	out.Rest = &Pipeline{opts: p.opts, metas: p.metas, stages: rest}
	out.Fields = out.Rest.fields(out.Query)
	if g, ok := firstStage[*groupStage](rest); ok && len(g.fields) == 0 && !g.merging && out.Sort == nil && out.Limit == 0 && out.Skip == 0 {
		out.Distinct, _ = g.id.FieldPath()
	}
	return out
}

func firstStage[S Stage](stages []Stage) (s S, ok bool) {
	if len(stages) > 0 {
		s, ok = stages[0].(S)
	}
	return s, ok
}

func sortsByMeta(s *sortStage) bool {
	for _, part := range s.pattern.Parts {
		if part.Meta != "" {
			return true
		}
	}
	return false
}

// fields returns the top-level fields that the stages read, nil if they may read all.
func (p *Pipeline) fields(q Query) []string {
	need := map[string]bool{}
	add := func(paths []string) {
		for _, path := range paths {
			head, _, _ := strings.Cut(path, ".")
			need[head] = true
		}
	}
	for _, s := range p.stages {
		paths, whole, stop := deps(s)
		if whole {
			return nil
		}
		add(paths)
		if stop {
			out := make([]string, 0, len(need))
			for n := range need {
				out = append(out, n)
			}
			slices.Sort(out)
			return out
		}
	}
	return nil
}

// deps returns what a stage reads; stop means that it passes nothing else on.
func deps(s Stage) (paths []string, whole, stop bool) {
	switch s := s.(type) {
	case *limitStage, *skipStage:
		return nil, false, false
	case *matchStage:
		paths, whole = filterPaths(s.m)
		return paths, whole, false
	case *sortStage:
		for _, part := range s.pattern.Parts {
			paths = append(paths, part.Dotted())
		}
		return paths, sortsByMeta(s), false
	case *unwindStage:
		return []string{s.dotted}, false, false
	case *sampleStage:
		return nil, false, false
	case *rootStage:
		d := s.e.Deps()
		return d.Paths, d.Whole || len(d.Meta) > 0, true
	case *lookupStage:
		for _, l := range s.lets {
			d := l.e.Deps()
			paths, whole = append(paths, d.Paths...), whole || d.Whole
		}
		if s.local != "" {
			paths = append(paths, s.local)
		}
		return paths, whole, false
	case *bucketAutoStage:
		return s.deps()
	case *fieldsStage:
		paths, whole = s.p.Deps()
		if s.p.Inclusion() {
			return append(paths, "_id"), whole, true
		}
		return paths, whole, false
	case *groupStage:
		d := s.id.Deps()
		paths, whole = d.Paths, d.Whole || s.merging
		for _, g := range s.fields {
			for _, e := range g.acc.Exprs() {
				d := e.Deps()
				paths, whole = append(paths, d.Paths...), whole || d.Whole
			}
			if by := g.acc.Sort(); by != nil {
				for _, part := range by.Parts {
					paths, whole = append(paths, part.Dotted()), whole || part.Meta != ""
				}
			}
		}
		return paths, whole, true
	}
	return nil, true, false
}
