package agg

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/agg/accum"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$group", rules{traits: language}, one(parseGroup))
	register("$count", rules{traits: language}, parseCount)
	register("$sortByCount", rules{traits: language}, parseSortByCount)
}

// groupStage is $group. With partial set it returns unfinished states (the shards' part); with merging set it reads them.
type groupStage struct {
	id      *expr.Expr
	idSpec  value.Value
	fields  []groupField
	partial bool
	merging bool
}

type groupField struct {
	name string
	acc  *accum.Spec
}

func parseGroup(o *Options, v value.Value) (*groupStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.New(15947, "a group's fields must be specified in an object")
	}
	s := &groupStage{}
	for k, e := range value.Elements(v.Doc()) {
		var err error
		switch {
		case k == "_id":
			if s.id != nil {
				return nil, mongoerr.New(15948, "a group's _id may only be specified once")
			}
			err = s.parseID(o, e)
		case o.FromRouter && k == "$doingMerge":
			s.merging = e.Truthy()
		case o.FromRouter && k == "$willBeMerged":
			s.partial = e.Truthy()
		default:
			var field groupField
			field, err = parseGroupField(o, k, e)
			s.fields = append(s.fields, field)
		}
		if err != nil {
			return nil, err
		}
	}
	if s.id == nil {
		return nil, mongoerr.New(15955, "a group specification must include an _id")
	}
	return s, nil
}

func (s *groupStage) parseID(o *Options, v value.Value) (err error) {
	s.idSpec = v
	if v.T == value.Document {
		for k, e := range value.Elements(v.Doc()) {
			if strings.HasPrefix(k, "$") {
				break
			}
			if e.T.Numeric() || e.T == value.Boolean {
				return mongoerr.New(17390, "$group does not support inclusion-style expressions")
			}
		}
	}
	s.id, err = expr.Compile(v, o.scope())
	return err
}

// parseGroupField reads one output field: {<accumulator>: <argument>}.
func parseGroupField(o *Options, name string, v value.Value) (groupField, error) {
	switch {
	case strings.Contains(name, "."):
		return groupField{}, mongoerr.Newf(40235, "The field name '%s' cannot contain '.'", name)
	case strings.HasPrefix(name, "$"):
		return groupField{}, mongoerr.Newf(40236, "The field name '%s' cannot be an operator name", name)
	case v.T != value.Document || value.Count(v.Doc()) == 0:
		return groupField{}, mongoerr.Newf(40234, "The field '%s' must be an accumulator object", name)
	}
	it := value.Walk(v.Doc())
	k, arg, _ := it.Next()
	switch {
	case len(k) == 0 || k[0] != '$':
		return groupField{}, mongoerr.Newf(40234, "The field '%s' must be an accumulator object", name)
	case value.Count(v.Doc()) != 1:
		return groupField{}, mongoerr.Newf(40238, "The field '%s' must specify one accumulator", name)
	case arg.T == value.Array:
		return groupField{}, mongoerr.Newf(40237, "The %s accumulator is a unary operator", k)
	}
	acc, err := accum.Parse(string(k), arg, o.scope())
	return groupField{name, acc}, err
}

// halves has the shards group what they have, and the merger their partial groups.
func (s *groupStage) halves() halves {
	if s.partial || s.merging {
		return halves{merge: []Stage{s}}
	}
	half, whole := *s, *s
	half.partial, whole.merging = true, true
	return halves{shard: []Stage{&half}, merge: []Stage{&whole}}
}

func (s *groupStage) Name() string { return "$group" }
func (s *groupStage) Spec() value.Value {
	fs := []value.Field{f("_id", s.id.Serialize())}
	for _, g := range s.fields {
		fs = append(fs, f(g.name, g.acc.Serialize()))
	}
	if s.partial {
		fs = append(fs, f("$willBeMerged", value.NewBool(true)))
	}
	if s.merging {
		fs = append(fs, f("$doingMerge", value.NewBool(true)))
	}
	return doc(fs...)
}

func (s *groupStage) open(x *exec, src Source) (Source, error) {
	return &groupSource{x: x, s: s, src: src, memory: x.opts.limitOf("$group"), frame: x.frame(), collator: x.opts.collator(), groupTable: groupTable{index: map[string]int32{}, ints: map[int64]int32{}}, wrap: !x.last && !s.partial, slot: x.slot, simple: s.simple()}, nil
}

// groupSource reads its whole input, then returns one document per group in the order in which the groups appeared.
type groupSource struct {
	x        *exec
	s        *groupStage
	src      Source
	frame    *expr.Frame
	collator value.Collator

	groupTable

	ready  bool
	wrap   bool         // see wrapKeys
	slot   bool         // see groupError
	simple *simpleGroup // nil if the operands need evaluation
	at     int
	buf    []byte
	runs   []SpillFile
	memory int64 // the maximum number of bytes that it may hold
	stats  SpillStats
	merged *groupMerger
}

// groupTable has the groups in memory.
type groupTable struct {
	index  map[string]int32 // group key bytes → group
	ints   map[int64]int32  // groups of integer keys, which need no key bytes
	ids    []value.Value
	states []accum.State // len(s.fields) for each group
	sums   []*accum.Sum  // the same, if simple.sums
	key    []byte
	bytes  int64
}

// SpillStats implements SpillReporter.
func (g *groupSource) SpillStats() SpillStats {
	st := g.stats
	for _, f := range g.s.fields {
		st.Fields = append(st.Fields, f.name)
	}
	return st
}

func (g *groupSource) Close() {
	g.src.Close()
	if g.merged != nil {
		g.merged.close()
	}
	for _, r := range g.runs {
		_ = r.Close()
	}
}

func (g *groupSource) Next(ctx context.Context) (Doc, bool, error) {
	if !g.ready {
		if err := g.fill(ctx); err != nil {
			return Doc{}, false, err
		}
		g.ready = true
	}
	if g.merged != nil {
		return g.merged.next()
	}
	if g.at == len(g.ids) {
		return Doc{}, false, nil
	}
	n := len(g.s.fields)
	d, err := g.emit(g.ids[g.at], g.states[g.at*n:(g.at+1)*n])
	g.at++
	return d, err == nil, err
}

// emit writes a group's document.
func (g *groupSource) emit(id value.Value, states []accum.State) (Doc, error) {
	dst, mark := value.Begin(g.buf[:0])
	if g.wrap {
		id = wrapKeys(id)
	}
	dst = value.Append(dst, "_id", id)
	for i, st := range states {
		v, err := value.Value{}, error(nil)
		if g.s.partial {
			v, err = st.Partial()
		} else {
			v, err = st.Result()
		}
		if err != nil {
			return Doc{}, err
		}
		if g.wrap {
			v = wrapKeys(v)
		}
		dst = value.Append(dst, g.s.fields[i].name, v)
	}
	g.buf = value.End(dst, mark)
	return Doc{Raw: g.buf}, nil
}

// wrapKeys does what 8.2 does to results of $group that are passed to another stage: MinKey and MaxKey, alone or
// as elements of an array, become {"": MinKey}, and code becomes a string.
func wrapKeys(v value.Value) value.Value {
	switch v.T {
	case value.MinKey, value.MaxKey:
		return doc(f("", v))
	case value.JavaScript:
		return value.NewStringBytes(v.Bytes())
	case value.Array:
		if it := value.Walk(v.Doc()); !holdsKeys(it) {
			return v
		}
		elems := value.Values(v.Doc())
		for i, e := range elems {
			if e.T == value.MinKey || e.T == value.MaxKey {
				elems[i] = wrapKeys(e)
			}
		}
		return array(elems...)
	}
	return v
}

func holdsKeys(it value.Iter) bool {
	for {
		_, e, ok := it.Next()
		if !ok || e.T == value.MinKey || e.T == value.MaxKey {
			return ok
		}
	}
}

// groupError gives errors of expressions the codes that they have inside a $group. A $switch without a match has one of its own where the 8.2 line's
// slot-based engine runs the $group: a $bucket that a document lies outside of, for example.
func (g *groupSource) groupError(err error) error {
	e := mongoerr.From(err)
	switch {
	case e.Code == mongoerr.BadValue && strings.Contains(e.Message, "$divide by zero"):
		return mongoerr.New(4848401, e.Message)
	case e.Code == 16610:
		return mongoerr.New(4848403, e.Message)
	case e.Code == 40066 && g.slot:
		return mongoerr.New(7158303, e.Message)
	}
	return err
}

func (g *groupSource) fill(ctx context.Context) error {
	for n := 0; ; n++ {
		if n&0xFF == 0xFF && ctx.Err() != nil {
			return ctx.Err()
		}
		d, ok, err := g.src.Next(ctx)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := g.add(d); err != nil {
			return err
		}
		if g.stats.Memory = max(g.stats.Memory, g.bytes); g.bytes > g.memory {
			if err := g.spill(); err != nil {
				return err
			}
		}
	}
	if len(g.runs) == 0 {
		return nil
	}
	if err := g.spill(); err != nil {
		return err
	}
	var err error
	g.merged, err = newGroupMerger(g)
	return err
}

// add adds one document to its group.
func (g *groupSource) add(d Doc) error {
	if g.simple != nil {
		return g.addSimple(d)
	}
	setRoot(g.frame, d)
	var id value.Value
	var err error
	if g.s.merging {
		id = value.Lookup(d.Raw, "_id")
	} else if id, err = g.s.id.Eval(g.frame); err != nil {
		return g.groupError(err)
	}
	at, err := g.find(id, d)
	if err != nil {
		return err
	}
	fields := g.s.fields
	states := g.states[int(at)*len(fields):]
	for i := range fields {
		var grew int
		if g.s.merging {
			grew, err = states[i].Merge(value.Lookup(d.Raw, fields[i].name))
		} else {
			v, e := fields[i].acc.Arg.Eval(g.frame)
			if e != nil {
				return g.groupError(e)
			}
			grew, err = states[i].Add(v, g.frame)
		}
		if err != nil {
			return err
		}
		g.bytes += int64(grew)
	}
	return nil
}

// addSimple is add for operands that are fields: one walk over the document reads them all.
func (g *groupSource) addSimple(d Doc) error {
	r := &g.simple.reader
	r.read(d.Raw)
	at, err := g.find(r.get(&g.simple.id), d)
	if err != nil {
		return err
	}
	if g.simple.sums {
		sums := g.sums[int(at)*len(g.s.fields):]
		for i := range g.simple.args {
			g.simple.args[i].addTo(sums[i], r)
		}
		return nil
	}
	states := g.states[int(at)*len(g.s.fields):]
	for i := range g.simple.args {
		grew, err := states[i].Add(r.get(&g.simple.args[i]), g.frame)
		if err != nil {
			return err
		}
		g.bytes += int64(grew)
	}
	return nil
}

// find returns the number of id's group, which it creates if it is new.
func (g *groupSource) find(id value.Value, d Doc) (int32, error) {
	switch id.T {
	case value.Missing:
		id = value.NewNull()
	case value.Int32, value.Int64:
		if at, ok := g.ints[id.Int64()]; ok {
			return at, nil
		}
		at, err := g.findKey(id, d)
		if err == nil && len(g.ints) < maxInts {
			g.ints[id.Int64()] = at
		}
		return at, err
	}
	return g.findKey(id, d)
}

// maxInts limits the integers whose groups are found without key bytes.
const maxInts = 4096

func (g *groupSource) findKey(id value.Value, d Doc) (int32, error) {
	g.key = value.AppendGroupKey(g.key[:0], id, g.collator)
	if at, ok := g.index[string(g.key)]; ok {
		return at, nil
	}
	return g.create(id, d)
}

// create starts a group.
func (g *groupSource) create(id value.Value, d Doc) (int32, error) {
	at := int32(len(g.ids))
	g.index[string(g.key)] = at
	id = id.Clone()
	g.ids = append(g.ids, id)
	g.bytes += int64(len(g.key)+len(id.Bytes())) + 96 + 112*int64(len(g.s.fields))
	states, err := g.newStates(g.states, id)
	if err != nil {
		return at, err
	}
	g.states = states
	if g.simple != nil && g.simple.sums {
		for _, st := range states[len(g.sums):] {
			g.sums = append(g.sums, st.(*accum.Sum))
		}
	}
	setRoot(g.frame, d)
	return at, nil
}

// newStates appends new states for a group; the n of $topN and similar accumulators may depend on the group's key.
func (g *groupSource) newStates(dst []accum.State, id value.Value) ([]accum.State, error) {
	root := emptyDocument
	if id.T == value.Document {
		root = id.Doc()
	}
	g.frame.SetRoot(root)
	for i := range g.s.fields {
		st, err := g.s.fields[i].acc.New(g.frame)
		if err != nil {
			return dst, err
		}
		dst = append(dst, st)
	}
	return dst, nil
}

var emptyDocument = value.Doc()

// spill writes the groups so far, in the order of their keys, as documents {k: key, i: _id, s: [states]}.
func (g *groupSource) spill() error {
	if len(g.ids) == 0 {
		return nil
	}
	sp, err := g.x.spiller("$group", g.memory)
	if err != nil {
		return err
	}
	run, err := sp.Create()
	if err != nil {
		return err
	}
	g.runs = append(g.runs, run)
	g.stats.spilled(int64(len(g.ids)), g.bytes)
	keys := make([]string, 0, len(g.index))
	for k := range g.index {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	w := bufio.NewWriterSize(run, 64<<10)
	n := len(g.s.fields)
	parts := make([]value.Value, n)
	for _, k := range keys {
		at := int(g.index[k])
		for i, st := range g.states[at*n : (at+1)*n] {
			if parts[i], err = st.Partial(); err != nil {
				return err
			}
		}
		if _, err := w.Write(value.Doc(f("k", value.NewBinary(0, []byte(k))), f("i", g.ids[at]), f("s", array(parts...)))); err != nil {
			return err
		}
	}
	clear(g.index)
	clear(g.ints)
	g.ids, g.states, g.sums, g.bytes = nil, nil, nil, 0
	return w.Flush()
}

// groupMerger merges spilled runs: it yields groups in the order of their keys.
type groupMerger struct {
	g     *groupSource
	runs  []*groupRun
	files []io.ReadCloser
}

type groupRun struct {
	r    *bufio.Reader
	key  []byte
	head []byte
}

func newGroupMerger(g *groupSource) (*groupMerger, error) {
	m := &groupMerger{g: g}
	for _, file := range g.runs {
		rc, err := file.Reader()
		if err != nil {
			return m, err
		}
		m.files = append(m.files, rc)
		run := &groupRun{r: bufio.NewReaderSize(rc, 64<<10)}
		if ok, err := run.advance(); err != nil {
			return m, err
		} else if ok {
			m.runs = append(m.runs, run)
		}
	}
	return m, nil
}

func (r *groupRun) advance() (bool, error) {
	d, ok, err := readDocument(r.r)
	if err != nil || !ok {
		return false, err
	}
	r.head, r.key = d, value.Lookup(d, "k").Bytes()
	return true, nil
}

func (m *groupMerger) next() (Doc, bool, error) {
	if len(m.runs) == 0 {
		return Doc{}, false, nil
	}
	least := m.runs[0].key
	for _, r := range m.runs[1:] {
		if bytes.Compare(r.key, least) < 0 {
			least = r.key
		}
	}
	var id value.Value
	var states []accum.State
	for i := 0; i < len(m.runs); i++ {
		r := m.runs[i]
		if !bytes.Equal(r.key, least) {
			continue
		}
		var err error
		if states == nil {
			id = value.Lookup(r.head, "i")
			if states, err = m.g.newStates(nil, id); err != nil {
				return Doc{}, false, err
			}
		}
		for j, p := range value.Values(value.Lookup(r.head, "s").Doc()) {
			if _, err := states[j].Merge(p); err != nil {
				return Doc{}, false, err
			}
		}
		ok, err := r.advance()
		if err != nil {
			return Doc{}, false, err
		}
		if !ok {
			m.runs = slices.Delete(m.runs, i, i+1)
			i--
		}
	}
	d, err := m.g.emit(id, states)
	return d, err == nil, err
}

func (m *groupMerger) close() {
	for _, c := range m.files {
		_ = c.Close()
	}
}

// parseCount turns {$count: "n"} into a $group and a $project.
func parseCount(o *Options, v value.Value) ([]Stage, error) {
	if v.T != value.String {
		return nil, mongoerr.New(40156, "the count field must be a non-empty string")
	}
	name := v.Str()
	switch {
	case name == "":
		return nil, mongoerr.New(40157, "the count field must be a non-empty string")
	case name[0] == '$':
		return nil, mongoerr.New(40158, "the count field cannot be a $-prefixed path")
	case strings.Contains(name, "\x00"):
		return nil, mongoerr.New(40159, "the count field cannot contain a null byte")
	case strings.Contains(name, "."):
		return nil, mongoerr.New(40160, "the count field cannot contain '.'")
	case name == "_id":
		return nil, mongoerr.New(9039800, "the count field cannot be '_id'")
	}
	group, err := parseGroup(o, doc(f("_id", value.NewNull()), f(name, doc(f("$sum", value.NewInt32(1))))))
	if err != nil {
		return nil, err
	}
	project, err := registry["$project"].parse(o, doc(f(name, value.NewInt32(1)), f("_id", value.NewInt32(0))))
	return append([]Stage{group}, project...), err
}

// parseSortByCount turns {$sortByCount: <expression>} into a $group and a $sort.
func parseSortByCount(o *Options, v value.Value) ([]Stage, error) {
	switch v.T {
	case value.Document:
		it := value.Walk(v.Doc())
		if k, _, ok := it.Next(); !ok || len(k) == 0 || k[0] != '$' {
			return nil, mongoerr.New(40147, "the sortByCount field must be defined as a $-prefixed path or an expression inside an object")
		}
	case value.String:
		if _, ok := fieldOf(v); !ok {
			return nil, mongoerr.New(40148, "the sortByCount field must be defined as a $-prefixed path or an expression inside an object")
		}
	default:
		return nil, mongoerr.New(40149, "the sortByCount field must be specified as a string or as an object")
	}
	group, err := parseGroup(o, doc(f("_id", v), f("count", doc(f("$sum", value.NewInt32(1))))))
	if err != nil {
		return nil, err
	}
	sort, err := parseSort(o, doc(f("count", value.NewInt32(-1))))
	return []Stage{group, sort}, err
}
