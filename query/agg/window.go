package agg

import (
	"context"
	"strings"

	"github.com/shoaldb/shoal/query/agg/accum"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/sortkey"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$setWindowFields", rules{traits: language | Slow}, one(parseSetWindowFields))
}

// windowStage is $setWindowFields.
type windowStage struct {
	partitionBy *expr.Expr
	sort        *sortkey.Pattern
	ordered     bool // sortBy was given, if only as an empty document
	outputs     []windowOutput
	arg         value.Value
}

type windowOutput struct {
	path []string
	fn   windowFunc
}

// windowFunc computes one output for all documents of a partition.
type windowFunc interface {
	compute(p *partition) ([]value.Value, error)
}

// partition is the documents with one value of partitionBy, in order.
type partition struct {
	stage *windowStage
	docs  *docList
	keys  [][]value.Value
	frame *expr.Frame
}

// values evaluates an expression for each document.
func (p *partition) values(e *expr.Expr) ([]value.Value, error) {
	out := make([]value.Value, p.docs.len())
	for i := range out {
		if err := p.frame.Check(); err != nil {
			return nil, err
		}
		d, err := p.docs.get(i)
		if err != nil {
			return nil, err
		}
		setRoot(p.frame, d)
		v, err := e.Eval(p.frame)
		if err != nil {
			return nil, err
		}
		out[i] = v.Clone()
	}
	return out, nil
}

func parseSetWindowFields(o *Options, v value.Value) (*windowStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "the $setWindowFields stage specification must be an object, found %s", v.T.Name())
	}
	s := &windowStage{arg: v}
	var output value.Value
	for k, e := range value.Elements(v.Doc()) {
		var err error
		switch k {
		case "partitionBy":
			s.partitionBy, err = expr.Compile(e, o.scope())
		case "sortBy":
			if e.IsNullish() {
				continue
			}
			if e.T != value.Document {
				return nil, wrongType("$setWindowFields.sortBy", e.T.Name(), "object")
			}
			s.ordered = true
			if value.Count(e.Doc()) > 0 {
				s.sort, err = sortkey.Parse(e.Doc(), o.collator())
			}
		case "output":
			if output = e; e.T != value.Document {
				return nil, wrongType("$setWindowFields.output", e.T.Name(), "object")
			}
		default:
			return nil, unknownField("$setWindowFields." + k)
		}
		if err != nil {
			return nil, err
		}
	}
	if output.T == value.Missing {
		return nil, missingField("$setWindowFields.output")
	}
	for k, e := range value.Elements(output.Doc()) {
		out, err := s.parseOutput(o, k, e)
		if err != nil {
			return nil, err
		}
		s.outputs = append(s.outputs, out)
	}
	return s, nil
}

func (s *windowStage) parseOutput(o *Options, name string, v value.Value) (out windowOutput, err error) {
	if out.path, err = fieldPath(name); err != nil {
		return out, err
	}
	if v.T != value.Document {
		return out, mongoerr.Newf(mongoerr.FailedToParse, "The field '%s' must be an object", name)
	}
	var fn string
	var arg, win value.Value
	for k := range value.Elements(v.Doc()) {
		if (k == "$rank" || k == "$denseRank" || k == "$documentNumber") && value.Count(v.Doc()) > 1 {
			return out, mongoerr.New(5371601, "Rank style window functions take no other arguments")
		}
	}
	for k, e := range value.Elements(v.Doc()) {
		switch {
		case k == "window":
			win = e
		case !strings.HasPrefix(k, "$"):
			return out, mongoerr.Newf(mongoerr.FailedToParse, "Window function found an unknown argument: %s", k)
		case fn != "":
			return out, mongoerr.Newf(mongoerr.FailedToParse, "Cannot specify two functions in window function spec: %s and %s", fn, k)
		default:
			fn, arg = k, e
		}
	}
	if fn == "" {
		return out, mongoerr.New(mongoerr.FailedToParse, "Expected a $-prefixed window function, e.g. {$sum: …}")
	}
	bounds, err := parseBounds(win)
	if err != nil {
		return out, err
	}
	out.fn, err = s.parseFunction(o, fn, arg, bounds)
	return out, err
}

func (s *windowStage) parseFunction(o *Options, name string, arg value.Value, b *bounds) (windowFunc, error) {
	if parse := windowOnly[name]; parse != nil {
		return parse(s, o, name, arg, b)
	}
	if !accum.Known(name) || name == "$mergeObjects" || name == "$accumulator" {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "Unrecognized window function, %s", name)
	}
	spec, err := accum.ParseWindow(name, arg, o.scope())
	if err != nil {
		return nil, err
	}
	if (name == "$stdDevPop" || name == "$stdDevSamp") && !b.lo.unbounded {
		return &slidingDev{e: spec.Arg, b: b, sample: name == "$stdDevSamp"}, b.check(s)
	}
	return &accumWindow{spec: spec, bounds: b}, b.check(s)
}

func (s *windowStage) Name() string      { return "$setWindowFields" }
func (s *windowStage) Spec() value.Value { return s.arg }
func (s *windowStage) open(x *exec, src Source) (Source, error) {
	by, width := newWindowOrder(s, x)
	return &windowSource{Source: src, s: s, x: x, sorted: newSorter(x, src, by, width, 0, "$setWindowFields")}, nil
}

// windowSource yields the documents of one partition after the other. The input is sorted by partition and sortBy first;
// what does not fit into memory is in files. Documents with their outputs are made on demand: many of them may share one
// large output.
type windowSource struct {
	Source
	s       *windowStage
	x       *exec
	sorted  *sortSource
	ahead   *sortItem // the first document of the next partition
	part    *partition
	results [][]value.Value // its outputs
	next    int
	stats   SpillStats
}

// SpillStats implements SpillReporter.
func (w *windowSource) SpillStats() SpillStats {
	all := w.sorted.stats
	all.Memory = max(all.Memory, w.stats.Memory)
	all.Spills, all.Records, all.Bytes = all.Spills+w.stats.Spills, all.Records+w.stats.Records, all.Bytes+w.stats.Bytes
	return all
}

func (w *windowSource) Close() {
	w.sorted.Close()
	if w.part != nil {
		w.part.docs.close()
	}
}

func (w *windowSource) Next(ctx context.Context) (Doc, bool, error) {
	if w.part == nil || w.next == w.part.docs.len() {
		if ok, err := w.nextPartition(ctx); err != nil || !ok {
			return Doc{}, false, err
		}
	}
	d, err := w.part.docs.get(w.next)
	if err != nil {
		return Doc{}, false, err
	}
	raw := d.Raw
	for i, o := range w.s.outputs {
		raw = setPath(make([]byte, 0, len(raw)+len(w.results[i][w.next].Bytes())+32), raw, o.path, w.results[i][w.next])
	}
	w.next++
	return Doc{Raw: raw, Meta: d.Meta}, true, nil
}

// nextPartition reads a partition and computes its outputs; false at the end.
func (w *windowSource) nextPartition(ctx context.Context) (bool, error) {
	if w.part != nil {
		w.part.docs.close()
	}
	w.part, w.results, w.next = nil, nil, 0
	first, err := w.take(ctx)
	if err != nil || first == nil {
		return false, err
	}
	by := w.sorted.p.(*windowOrder)
	p := &partition{stage: w.s, docs: newDocList(w.x, "$setWindowFields", &w.stats), frame: w.x.frame()}
	w.part = p
	for it := first; it != nil; {
		if by.otherPartition(first.key, it.key) {
			w.ahead = it
			break
		}
		if err := p.docs.add(it.doc); err != nil {
			return false, err
		}
		if w.s.sort != nil {
			p.keys = append(p.keys, cloneKey(it.key[by.skip:]))
		}
		if it, err = w.take(ctx); err != nil {
			return false, err
		}
	}
	w.results = make([][]value.Value, len(w.s.outputs))
	for i, o := range w.s.outputs {
		if w.results[i], err = o.fn.compute(p); err != nil {
			return false, err
		}
	}
	return true, nil
}

// take returns the next sorted document, nil at the end.
func (w *windowSource) take(ctx context.Context) (*sortItem, error) {
	if it := w.ahead; it != nil {
		w.ahead = nil
		return it, nil
	}
	it, ok, err := w.sorted.nextItem(ctx)
	if err != nil || !ok {
		return nil, err
	}
	return &it, nil
}

func cloneKey(key []value.Value) []value.Value {
	out := make([]value.Value, len(key))
	for i, v := range key {
		out[i] = v.Clone()
	}
	return out
}

// windowOrder sorts by partition, then by sortBy.
type windowOrder struct {
	s     *windowStage
	skip  int // 1 if the key begins with the partition
	frame *expr.Frame
	coll  value.Collator
}

func newWindowOrder(s *windowStage, x *exec) (o *windowOrder, width int) {
	o = &windowOrder{s: s, frame: x.frame(), coll: x.opts.collator()}
	if s.partitionBy != nil {
		o.skip = 1
	}
	width = o.skip
	if s.sort != nil {
		width += len(s.sort.Parts)
	}
	return o, width
}

// Key implements ordering.
func (o *windowOrder) Key(dst []value.Value, doc []byte, meta func(kind string) value.Value) ([]value.Value, error) {
	if o.skip > 0 {
		o.frame.SetRoot(doc)
		o.frame.SetMeta(metaFunc(meta))
		v, err := o.s.partitionBy.Eval(o.frame)
		switch {
		case err != nil:
			return dst, err
		case v.T == value.Array:
			return dst, mongoerr.New(mongoerr.TypeMismatch, "An expression used to partition cannot evaluate to value of type array")
		case v.T == value.Missing:
			v = value.NewNull()
		}
		dst = append(dst, v.Clone())
	}
	if o.s.sort == nil {
		return dst, nil
	}
	return o.s.sort.Key(dst, doc, meta)
}

// Compare implements ordering.
func (o *windowOrder) Compare(a, b []value.Value) int {
	if o.skip > 0 {
		if c := value.CompareCollated(a[0], b[0], o.coll); c != 0 {
			return c
		}
	}
	if o.s.sort == nil {
		return 0
	}
	return o.s.sort.Compare(a[o.skip:], b[o.skip:])
}

func (o *windowOrder) otherPartition(a, b []value.Value) bool {
	return o.skip > 0 && value.CompareCollated(a[0], b[0], o.coll) != 0
}

// metaFunc adapts a function to expr.Metadata.
type metaFunc func(kind string) value.Value

// Meta implements expr.Metadata.
func (f metaFunc) Meta(kind string) value.Value { return f(kind) }

// accumWindow runs an accumulator over each document's window.
type accumWindow struct {
	spec   *accum.Spec
	bounds *bounds
}

func (w *accumWindow) compute(p *partition) ([]value.Value, error) {
	in, err := p.values(w.spec.Arg)
	if err != nil {
		return nil, err
	}
	out := make([]value.Value, len(in))
	var state accum.State
	from, to, held := 0, 0, 0
	for i := range in {
		lo, hi, err := w.bounds.window(p, i)
		if err != nil {
			return nil, err
		}
		if state != nil && lo == from && hi >= to { // the window has only grown
			if hi == to {
				out[i] = out[i-1]
				continue
			}
		} else {
			if state, err = w.fresh(p); err != nil {
				return nil, err
			}
			from, to = lo, lo
		}
		for ; to < hi; to++ {
			if w.spec.Sort() != nil {
				d, err := p.docs.get(to)
				if err != nil {
					return nil, err
				}
				setRoot(p.frame, d)
			}
			if _, err := state.Add(in[to], p.frame); err != nil {
				return nil, err
			}
		}
		v, err := state.Result()
		if err != nil {
			return nil, err
		}
		out[i] = v.Clone()
		if held += len(out[i].Bytes()); held > maxOutputs {
			return nil, mongoerr.Newf(5414201, "Exceeded memory limit in DocumentSourceSetWindowFields, used %d bytes but max allowed is %d", held, maxOutputs)
		}
		if err := p.frame.Check(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// maxOutputs limits the size of the values that a window function computes for one partition.
const maxOutputs = 400 << 20

func (w *accumWindow) fresh(p *partition) (accum.State, error) {
	p.frame.SetRoot(emptyDocument)
	return w.spec.New(p.frame)
}
