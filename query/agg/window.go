package agg

import (
	"context"
	"slices"
	"sort"
	"strings"

	"github.com/shoaldb/shoal/query/agg/accum"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/sortkey"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$setWindowFields", rules{}, one(parseSetWindowFields))
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
	docs  []Doc
	keys  [][]value.Value
	frame *expr.Frame
}

// values evaluates an expression for each document.
func (p *partition) values(e *expr.Expr) ([]value.Value, error) {
	out := make([]value.Value, len(p.docs))
	for i, d := range p.docs {
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
	return &windowSource{Source: src, s: s, x: x}, nil
}

// windowSource gives the documents of one partition after the other. Documents with their outputs are made as they are
// asked for: many of them may share one large output.
type windowSource struct {
	Source
	s       *windowStage
	x       *exec
	read    bool
	parts   []*partition    // the first is the one being given
	results [][]value.Value // its outputs, nil before they are computed
	next    int
}

func (w *windowSource) Next(ctx context.Context) (Doc, bool, error) {
	if !w.read {
		parts, err := w.s.partitions(ctx, w.x, w.Source)
		if err != nil {
			return Doc{}, false, err
		}
		w.read, w.parts = true, parts
	}
	for len(w.parts) > 0 && w.next == len(w.parts[0].docs) {
		w.parts[0] = nil
		w.parts, w.results, w.next = w.parts[1:], nil, 0
	}
	if len(w.parts) == 0 {
		return Doc{}, false, nil
	}
	p := w.parts[0]
	if w.results == nil {
		w.results = make([][]value.Value, len(w.s.outputs))
		for i, o := range w.s.outputs {
			var err error
			if w.results[i], err = o.fn.compute(p); err != nil {
				return Doc{}, false, err
			}
		}
	}
	d := p.docs[w.next]
	raw := d.Raw
	for i, o := range w.s.outputs {
		raw = setPath(make([]byte, 0, len(raw)+len(w.results[i][w.next].Bytes())+32), raw, o.path, w.results[i][w.next])
	}
	w.next++
	return Doc{Raw: raw, Meta: d.Meta}, true, nil
}

// partitions reads the input and groups it; partitions come in the order of their values, documents in that of sortBy.
func (s *windowStage) partitions(ctx context.Context, x *exec, src Source) ([]*partition, error) {
	frame := x.frame()
	index := map[string]*partition{}
	var parts []*partition
	var values []value.Value
	var key []byte
	var held int64
	for {
		d, ok, err := src.Next(ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		d = d.clone()
		if held += int64(len(d.Raw)) + 128; held > 4*x.opts.limit() {
			return nil, mongoerr.Newf(5414201, "Exceeded memory limit in DocumentSourceSetWindowFields, used %d bytes but max allowed is %d", held, 4*x.opts.limit())
		}
		v := value.NewNull()
		if s.partitionBy != nil {
			setRoot(frame, d)
			if v, err = s.partitionBy.Eval(frame); err != nil {
				return nil, err
			}
			if v.T == value.Array {
				return nil, mongoerr.New(mongoerr.TypeMismatch, "An expression used to partition cannot evaluate to value of type array")
			}
			if v.T == value.Missing {
				v = value.NewNull()
			}
		}
		key = value.AppendGroupKey(key[:0], v, x.opts.collator())
		p := index[string(key)]
		if p == nil {
			p = &partition{stage: s, frame: frame}
			index[string(key)] = p
			parts, values = append(parts, p), append(values, v.Clone())
		}
		p.docs = append(p.docs, d)
	}
	order := make([]int, len(parts))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool {
		return value.CompareCollated(values[order[i]], values[order[j]], x.opts.collator()) < 0
	})
	out := make([]*partition, len(parts))
	for i, at := range order {
		out[i] = parts[at]
		if err := out[i].sortDocs(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (p *partition) sortDocs() error {
	if p.stage.sort == nil {
		return nil
	}
	items := make([]sortItem, len(p.docs))
	for i, d := range p.docs {
		key, err := p.stage.sort.Key(nil, d.Raw, d.Meta.Meta)
		if err != nil {
			return err
		}
		items[i] = sortItem{doc: d, key: key}
	}
	slices.SortStableFunc(items, func(a, b sortItem) int { return p.stage.sort.Compare(a.key, b.key) })
	p.keys = make([][]value.Value, len(items))
	for i, it := range items {
		p.docs[i], p.keys[i] = it.doc, it.key
	}
	return nil
}

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
		if state != nil && lo == from && hi >= to { // the window only grew
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
				setRoot(p.frame, p.docs[to])
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

// maxOutputs bounds the values that a window function computes for one partition.
const maxOutputs = 400 << 20

func (w *accumWindow) fresh(p *partition) (accum.State, error) {
	p.frame.SetRoot(emptyDocument)
	return w.spec.New(p.frame)
}
