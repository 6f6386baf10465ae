package agg

import (
	"context"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$graphLookup", rules{traits: Slow}, one(parseGraphLookup))
}

// graphStage is $graphLookup: a breadth-first walk over another collection.
type graphStage struct {
	sub      subPipeline
	arg      value.Value
	as       []string
	start    *expr.Expr
	to       string
	from     []string
	depth    []string
	maxDepth int64 // -1 for none
	restrict []byte
}

func parseGraphLookup(o *Options, v value.Value) (*graphStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "the $graphLookup stage specification must be an object, but found %s", v.T.Name())
	}
	if value.Lookup(v.Doc(), "from").T == value.Missing {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "missing 'from' option to $graphLookup stage specification: %s", value.ShowDoc(v.Doc()))
	}
	s := &graphStage{arg: v, maxDepth: -1}
	s.sub.ns.DB = o.NS.DB
	for k, e := range value.Elements(v.Doc()) {
		if err := s.field(o, k, e); err != nil {
			return nil, err
		}
	}
	if s.sub.ns.Coll == "" || s.as == nil || s.start == nil || s.to == "" || s.from == nil {
		return nil, mongoerr.New(40105, "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and 'connectToField' to be specified.")
	}
	s.sub.opts = o.sub(inLookup, s.sub.ns)
	return s, checkNamespace(s.sub.ns)
}

func (s *graphStage) field(o *Options, k string, e value.Value) (err error) {
	switch k {
	case "startWith":
		s.start, err = expr.Compile(e, o.scope())
		return err
	case "maxDepth":
		if !e.T.Numeric() {
			return mongoerr.Newf(40100, "maxDepth must be numeric, found type: %s", e.T.Name())
		}
		var ok bool
		if s.maxDepth, ok = e.AsInt64(); !ok {
			return mongoerr.Newf(40102, "maxDepth could not be represented as a long long: %s", expr.Show(e))
		}
		if s.maxDepth < 0 {
			return mongoerr.Newf(40101, "maxDepth requires a nonnegative argument, found: %d", s.maxDepth)
		}
		return nil
	case "restrictSearchWithMatch":
		if e.T != value.Document {
			return mongoerr.Newf(40185, "restrictSearchWithMatch must be an object, found %s", e.T.Name())
		}
		s.restrict = e.Doc()
		_, err = newMatch(o, s.restrict)
		return err
	case "from", "as", "connectFromField", "connectToField", "depthField":
	default:
		return mongoerr.Newf(40104, "Unknown argument to $graphLookup: %s", k)
	}
	if e.T != value.String {
		return mongoerr.Newf(40103, "expected string as argument for %s, found: %s", k, e.T.Name())
	}
	if k == "from" {
		s.sub.ns.Coll = e.Str()
		return nil
	}
	path, err := fieldPath(e.Str())
	switch k {
	case "as":
		s.as = path
	case "connectFromField":
		s.from = path
	case "connectToField":
		s.to = e.Str()
	default:
		s.depth = path
	}
	return err
}

func (s *graphStage) Name() string      { return "$graphLookup" }
func (s *graphStage) Spec() value.Value { return s.arg }
func (s *graphStage) namespaces() (reads, writes []Namespace) {
	return s.sub.namespaces()
}

func (s *graphStage) open(x *exec, src Source) (Source, error) {
	return &graphSource{Source: src, x: x, s: s, frame: x.frame()}, nil
}

type graphSource struct {
	Source
	x     *exec
	s     *graphStage
	frame *expr.Frame
	buf   []byte
	stats SpillStats
}

func (g *graphSource) Next(ctx context.Context) (Doc, bool, error) {
	d, ok, err := g.Source.Next(ctx)
	if err != nil || !ok {
		return d, ok, err
	}
	setRoot(g.frame, d)
	start, err := g.s.start.Eval(g.frame)
	if err != nil {
		return d, false, err
	}
	found, err := g.walk(ctx, start.Clone())
	if err != nil {
		return d, false, err
	}
	defer found.close()
	list, mark := value.Begin(nil)
	for i := range found.len() {
		at, err := found.get(i)
		if err != nil {
			return d, false, err
		}
		list = value.AppendIndex(list, i, value.NewDocument(at.Raw))
	}
	g.buf = setPath(g.buf[:0], d.Raw, g.s.as, value.NewArray(value.End(list, mark)))
	return Doc{Raw: g.buf, Meta: d.Meta}, true, nil
}

// SpillStats implements SpillReporter.
func (g *graphSource) SpillStats() SpillStats { return g.stats }

// walk visits level by level; asked has the values searched for, seen the documents found, by _id.
func (g *graphSource) walk(ctx context.Context, start value.Value) (*docList, error) {
	coll := g.x.opts.collator()
	asked, seen := map[string]bool{}, map[string]bool{}
	var key []byte
	var stop error
	add := func(frontier []value.Value, v value.Value) []value.Value {
		if stop == nil {
			stop = g.frame.Check()
		}
		if v.T == value.Undefined {
			v = value.NewNull()
		}
		key = value.AppendGroupKey(key[:0], v, coll)
		if asked[string(key)] {
			return frontier
		}
		asked[string(key)] = true
		return append(frontier, v)
	}
	spread := func(frontier []value.Value, v value.Value) []value.Value {
		switch v.T {
		case value.Missing:
			return frontier
		case value.Array:
			for _, e := range value.Values(v.Doc()) {
				if frontier = add(frontier, e); stop != nil {
					break
				}
			}
			return frontier
		}
		return add(frontier, v)
	}
	out := newDocList(g.x, "$graphLookup", &g.stats)
	frontier := spread(nil, start)
	for depth := int64(0); len(frontier) > 0 && (g.s.maxDepth < 0 || depth <= g.s.maxDepth); depth++ {
		docs, err := g.level(ctx, frontier, stop)
		if err != nil {
			out.close()
			return nil, err
		}
		frontier = nil
		for _, d := range docs {
			key = value.AppendGroupKey(key[:0], value.Lookup(d, "_id"), nil)
			if seen[string(key)] {
				continue
			}
			seen[string(key)] = true
			frontier = spread(frontier, localValue(d, g.s.from))
			if g.s.depth != nil {
				d = setPath(nil, d, g.s.depth, value.NewInt64(depth))
			}
			if err := out.add(Doc{Raw: d}); err != nil {
				out.close()
				if mongoerr.CodeOf(err) == mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed {
					err = mongoerr.New(40099, "$graphLookup reached maximum memory consumption")
				}
				return nil, err
			}
		}
	}
	return out, nil
}

// maxFrontier limits the number of values that are searched for at once.
const maxFrontier = 100_000

// level finds the documents that the frontier leads to.
func (g *graphSource) level(ctx context.Context, frontier []value.Value, stop error) (docs [][]byte, err error) {
	for len(frontier) > 0 && stop == nil {
		n := min(len(frontier), maxFrontier)
		found, err := g.search(ctx, frontier[:n])
		if err != nil {
			return nil, err
		}
		docs, frontier = append(docs, found...), frontier[n:]
	}
	return docs, stop
}

func (g *graphSource) search(ctx context.Context, frontier []value.Value) ([][]byte, error) {
	filter := value.NewDocument(joinFilter(g.s.to, array(frontier...)))
	if g.s.restrict != nil {
		filter = doc(f("$and", array(filter, value.NewDocument(g.s.restrict))))
	}
	src, err := g.s.sub.run(ctx, g.x, g.x.opts.scope(), doc(f("$match", filter)))
	if err != nil {
		return nil, err
	}
	return Drain(ctx, src)
}
