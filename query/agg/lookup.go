package agg

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$lookup", rules{traits: Slow}, one(parseLookup))
	register("$unionWith", rules{traits: Slow | NotInTransaction}, one(parseUnionWith))
	register("$facet", rules{noFacet: true, traits: Slow}, one(parseFacet))
}

// maxArray limits a document in the output; maxJoined one between two stages.
const (
	maxArray  = 16 << 20
	maxJoined = 100 << 20
)

// subPipeline is a pipeline over another collection.
type subPipeline struct {
	ns     Namespace // Coll is empty if the pipeline makes its own documents
	stages []value.Value
	opts   *Options
}

// run opens the sub-pipeline with additional stages at the beginning (after those of a view).
func (s *subPipeline) run(ctx context.Context, x *exec, scope *expr.Scope, before ...value.Value) (Source, error) {
	ns, view := s.ns, []value.Value(nil)
	if ns.Coll != "" {
		var err error
		if ns, view, err = x.host.Resolve(ctx, ns); err != nil {
			return nil, err
		}
	}
	o := *s.opts
	o.NS, o.Host, o.Scope = ns, x.host, scope
	o.ViewStages = len(view) + len(before)
	stages := slices.Concat(view, before, s.stages)
	if ns.Coll == "" && len(before) > 0 { // the stage that makes the documents remains first
		stages = slices.Concat(s.stages[:1], before, s.stages[1:])
	}
	p, err := parseStages(stages, &o)
	if err != nil {
		return nil, err
	}
	return x.open(ctx, p, ns)
}

// open optimises a pipeline and runs it over a collection.
func (x *exec) open(ctx context.Context, p *Pipeline, ns Namespace) (Source, error) {
	p.Optimize()
	if p.GeneratesDocuments() {
		return p.Run(nil)
	}
	if near := p.GeoNear(); near != nil && near.Key() == "" {
		if finder, ok := x.host.(NearFinder); ok {
			path, err := finder.NearPath(ns)
			if err != nil {
				return nil, err
			}
			near.SetKey(path)
		}
	}
	if r, ok := x.host.(HeadRunner); ok && p.ranksItself() {
		return p.runOn(ctx, r, ns)
	}
	push := p.Pushdown()
	src, err := x.host.Find(ctx, ns, push.Query)
	if err != nil {
		return nil, err
	}
	return push.Rest.Run(src)
}

// lookupStage is $lookup.
type lookupStage struct {
	sub            subPipeline
	arg            value.Value
	as             []string
	local, foreign string
	localPath      []string
	lets           []letVar
	correlated     bool // the sub-pipeline reads a variable
	unwound        bool // the next stage is an $unwind of as
}

func parseLookup(o *Options, v value.Value) (*lookupStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "the $lookup stage specification must be an object, but found %s", v.T.Name())
	}
	s := &lookupStage{arg: v}
	if err := noDuplicates("$lookup", v.Doc()); err != nil {
		return nil, err
	}
	var let value.Value
	var as string
	from, pipeline := value.Lookup(v.Doc(), "from"), value.Lookup(v.Doc(), "pipeline")
	if pipeline.T == value.Null {
		return nil, mongoerr.New(mongoerr.TypeMismatch, "A pipeline must be an array of objects")
	}
	if err := s.parseFrom(o, from, pipeline); err != nil {
		return nil, err
	}
	for k, e := range value.Elements(v.Doc()) {
		var err error
		switch k {
		case "from", "pipeline":
		case "as":
			err = stringField(&as, "$lookup.as", e)
		case "let":
			if !e.IsNullish() {
				if let = e; e.T != value.Document {
					err = wrongType("$lookup.let", e.T.Name(), "object")
				}
			}
		case "localField":
			err = stringField(&s.local, "$lookup.localField", e)
		case "foreignField":
			err = stringField(&s.foreign, "$lookup.foreignField", e)
		case "_internalUnwind", "_internalCollation":
		default:
			err = unknownField("$lookup." + k)
		}
		if err != nil {
			return nil, err
		}
	}
	if value.Lookup(v.Doc(), "as").IsNullish() {
		return nil, missingField("$lookup.as")
	}
	if err := s.parsePaths(as); err != nil {
		return nil, err
	}
	return s, s.parseSub(o, let, pipeline)
}

func (s *lookupStage) parsePaths(as string) (err error) {
	if s.as, err = fieldPath(as); err != nil {
		return err
	}
	if s.local != "" {
		if s.localPath, err = fieldPath(s.local); err != nil {
			return err
		}
	}
	if s.foreign != "" {
		_, err = fieldPath(s.foreign)
	}
	return err
}

func (s *lookupStage) parseSub(o *Options, let, pipeline value.Value) error {
	switch {
	case (s.local == "") != (s.foreign == ""):
		return mongoerr.New(mongoerr.FailedToParse, "$lookup requires both or neither of 'localField' and 'foreignField' to be specified")
	case pipeline.T == value.Missing && s.local == "":
		return mongoerr.New(mongoerr.FailedToParse, "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be specified")
	case pipeline.T == value.Missing && let.T != value.Missing:
		return mongoerr.New(mongoerr.FailedToParse, "$lookup with a 'let' argument must also specify 'pipeline'")
	case pipeline.T == value.Missing:
		s.sub.opts = o.sub(inLookup, s.sub.ns)
		return nil
	case pipeline.T != value.Array:
		return mongoerr.New(mongoerr.TypeMismatch, "A pipeline must be an array of objects")
	}
	scope := o.scope().Nested()
	for k, e := range value.Elements(let.Doc()) {
		if err := checkVariable(k); err != nil {
			return err
		}
		c, err := expr.Compile(e, o.scope())
		if err != nil {
			return err
		}
		s.lets = append(s.lets, letVar{k, c})
		s.correlated = s.correlated || bytes.Contains(pipeline.Doc(), []byte("$$"+k))
	}
	for _, l := range s.lets {
		scope.Define(l.name)
	}
	s.sub.stages = value.Values(pipeline.Doc())
	s.sub.opts = o.sub(inLookup, s.sub.ns)
	check := *s.sub.opts
	check.Scope, check.unbound = scope, true
	_, err := parseStages(s.sub.stages, &check)
	return err
}

func (s *lookupStage) parseFrom(o *Options, from, pipeline value.Value) error {
	s.sub.ns.DB = o.NS.DB
	documents := false
	if pipeline.T == value.Array {
		if first := value.Values(pipeline.Doc()); len(first) > 0 && first[0].T == value.Document {
			documents = value.Lookup(first[0].Doc(), "$documents").T != value.Missing
		}
	}
	switch from.T {
	case value.Missing:
		if !documents {
			return mongoerr.New(mongoerr.FailedToParse, "must specify 'pipeline' when 'from' is empty")
		}
		return nil
	case value.String:
		if documents {
			return mongoerr.New(mongoerr.InvalidNamespace, "'$documents' can only be run in a $lookup without 'from'")
		}
		s.sub.ns.Coll = from.Str()
		return checkNamespace(s.sub.ns)
	case value.Document:
		return s.parseFromObject(from)
	}
	return mongoerr.Newf(mongoerr.FailedToParse, "$lookup argument 'from: %s' must be a string, is type %s", value.Show(from), from.T.Name())
}

// parseFromObject reads {db, coll}, a form that is allowed only for internal collections.
func (s *lookupStage) parseFromObject(from value.Value) error {
	ns := Namespace{}
	for k, e := range value.Elements(from.Doc()) {
		switch {
		case k != "db" && k != "coll":
			return unknownField("from." + k)
		case e.T != value.String:
			return wrongType("from."+k, e.T.Name(), "string")
		case k == "db":
			ns.DB = e.Str()
		default:
			ns.Coll = e.Str()
		}
	}
	ok := ns.DB == "config" && (strings.HasPrefix(ns.Coll, "cache.chunks") || ns.Coll == "collections" || ns.Coll == "databases") ||
		ns.DB == "local" && ns.Coll == "oplog.rs"
	if !ok {
		return mongoerr.Newf(mongoerr.FailedToParse, "$lookup with syntax {from: {db:<>, coll:<>},..} is not supported for db: %s and coll: %s", ns.DB, ns.Coll)
	}
	s.sub.ns = ns
	return nil
}

func (s *lookupStage) Name() string      { return "$lookup" }
func (s *lookupStage) Spec() value.Value { return s.arg }
func (s *lookupStage) namespaces() (reads, writes []Namespace) {
	return s.sub.namespaces()
}

func (s *subPipeline) namespaces() (reads, writes []Namespace) {
	if s.ns.Coll != "" {
		reads = append(reads, s.ns)
	}
	return append(reads, Reads(s.stages, s.opts)...), nil
}

// Reads finds the collections that unparsed stages read besides the pipeline's own, without those of views among them.
func Reads(stages []value.Value, o *Options) (all []Namespace) {
	for _, st := range stages {
		all = append(all, stageReads(st, o)...)
	}
	return all
}

// stageReads finds the collections that an unparsed stage reads.
func stageReads(st value.Value, o *Options) []Namespace {
	it := value.Walk(st.Doc())
	k, arg, ok := it.Next()
	r := registry[string(k)]
	if !ok || r == nil || string(k) != "$lookup" && string(k) != "$unionWith" && string(k) != "$graphLookup" && string(k) != "$facet" {
		return nil
	}
	o2 := *o
	o2.Scope = nil
	stages, err := r.parse(&o2, arg)
	if err != nil {
		return nil
	}
	var out []Namespace
	for _, s := range stages {
		if n, ok := s.(foreign); ok {
			reads, _ := n.namespaces()
			out = append(out, reads...)
		}
	}
	return out
}

func (s *lookupStage) open(x *exec, src Source) (Source, error) {
	return &lookupSource{Source: src, x: x, s: s, frame: x.frame(), unwound: s.unwound}, nil
}

type lookupSource struct {
	Source
	x      *exec
	s      *lookupStage
	frame  *expr.Frame
	buf    []byte
	arr    []byte
	cached []byte // the joined array, if it is the same for all documents
	// unwound means that the next stage unwinds the array, so that no document has to contain it as a whole.
	unwound bool

	resolved bool // whether the following fields are set
	on       Namespace
	view     bool
	table    *joinTable // nil if there is a query for each document
}

func (l *lookupSource) Next(ctx context.Context) (Doc, bool, error) {
	d, ok, err := l.Source.Next(ctx)
	if err != nil || !ok {
		return d, ok, err
	}
	arr := l.cached
	if arr == nil {
		if arr, err = l.join(ctx, d); err != nil {
			return d, false, err
		}
	}
	l.buf = setPath(l.buf[:0], d.Raw, l.s.as, value.NewArray(arr))
	return Doc{Raw: l.buf, Meta: d.Meta}, true, nil
}

// join collects the matches in the other collection for one document.
func (l *lookupSource) join(ctx context.Context, d Doc) ([]byte, error) {
	if l.s.local != "" && len(l.s.sub.stages) == 0 {
		if src, err := l.equality(ctx, d); src != nil || err != nil {
			if err != nil {
				return nil, err
			}
			return l.collect(ctx, src)
		}
	}
	setRoot(l.frame, d)
	scope := l.x.opts.scope()
	if len(l.s.lets) > 0 {
		scope = scope.Nested()
		for _, v := range l.s.lets {
			val, err := v.e.Eval(l.frame)
			if err != nil {
				return nil, err
			}
			scope.DefineConst(v.name, val)
		}
	}
	var before []value.Value
	if l.s.local != "" {
		before = []value.Value{doc(f("$match", value.NewDocument(joinFilter(l.s.foreign, localValue(d.Raw, l.s.localPath)))))}
	}
	src, err := l.s.sub.run(ctx, l.x, scope, before...)
	if err != nil {
		return nil, err
	}
	return l.collect(ctx, src)
}

// equality opens a join by fields alone: from a table in memory, or by a query of the other collection. It
// returns nil if the other collection is a view.
func (l *lookupSource) equality(ctx context.Context, d Doc) (Source, error) {
	if !l.resolved {
		on, view, err := l.x.host.Resolve(ctx, l.s.sub.ns)
		if err != nil {
			return nil, err
		}
		l.resolved, l.on, l.view = true, on, view != nil
		if !l.view {
			if l.table, err = l.tryTable(ctx, on); err != nil {
				return nil, err
			}
		}
	}
	if l.view {
		return nil, nil
	}
	v := localValue(d.Raw, l.s.localPath)
	filter := joinFilter(l.s.foreign, v)
	if l.table != nil {
		return l.table.find(v, filter)
	}
	return l.x.host.Find(ctx, l.on, Query{Filter: filter, Collation: l.x.opts.Collation})
}

// collect reads a source into an array.
func (l *lookupSource) collect(ctx context.Context, src Source) ([]byte, error) {
	defer src.Close()
	dst, mark := value.Begin(l.arr[:0])
	for i := 0; ; i++ {
		in, ok, err := src.Next(ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if len(dst)+len(in.Raw) > maxJoined && !l.unwound {
			return nil, mongoerr.Newf(4568, "Total size of documents in %s matching pipeline's $lookup stage exceeds %d bytes",
				l.s.sub.ns.Coll, maxJoined)
		}
		dst = value.AppendIndex(dst, i, value.NewDocument(in.Raw))
	}
	l.arr = value.End(dst, mark)
	if l.s.local == "" && !l.s.correlated {
		l.cached = append([]byte(nil), l.arr...)
	}
	return l.arr, nil
}

// localValue reads localField: the value or, for a path through arrays, an array of the values found.
func localValue(doc []byte, path []string) value.Value {
	v := value.Lookup(doc, path[0])
	for rest := path[1:]; len(rest) > 0; rest = rest[1:] {
		switch v.T {
		case value.Document:
			v = value.Lookup(v.Doc(), rest[0])
		case value.Array:
			if e := value.Lookup(v.Doc(), rest[0]); e.T != value.Missing {
				v = e
				continue
			}
			var found []value.Value
			collectLocal(v, rest, &found)
			return array(found...)
		default:
			return value.Value{}
		}
	}
	return v
}

func collectLocal(arr value.Value, path []string, out *[]value.Value) {
	for it := value.Walk(arr.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return
		}
		if e.T != value.Document {
			continue
		}
		switch v := localValue(e.Doc(), path); v.T {
		case value.Missing:
		case value.Array:
			*out = append(*out, value.Values(v.Doc())...)
		default:
			*out = append(*out, v)
		}
	}
}

// joinFilter returns a filter for documents whose foreign field equals the local value, or one of its elements.
func joinFilter(foreign string, v value.Value) []byte {
	if v.T != value.Array {
		if v.IsNullish() {
			v = value.NewNull()
		}
		return value.Doc(f(foreign, doc(f("$eq", v))))
	}
	var plain, or []value.Value
	if value.Count(v.Doc()) == 0 {
		return value.Doc(f(foreign, doc(f("$eq", value.NewNull()))))
	}
	for _, e := range value.Values(v.Doc()) {
		if e.T == value.Regex { // $in would use it as a pattern
			or = append(or, doc(f(foreign, doc(f("$eq", e)))))
			continue
		}
		if e.T == value.Undefined {
			e = value.NewNull()
		}
		plain = append(plain, e)
	}
	in := f(foreign, doc(f("$in", array(plain...))))
	if or == nil {
		return value.Doc(in)
	}
	return value.Doc(f("$or", array(append(or, doc(in))...)))
}

// unionStage is $unionWith.
type unionStage struct {
	sub subPipeline
	arg value.Value
}

func parseUnionWith(o *Options, v value.Value) (*unionStage, error) {
	s := &unionStage{arg: v, sub: subPipeline{ns: Namespace{DB: o.NS.DB}}}
	var pipeline value.Value
	switch v.T {
	case value.String:
		if s.sub.ns.Coll = v.Str(); s.sub.ns.Coll == "" {
			return nil, mongoerr.Newf(mongoerr.InvalidNamespace, "Namespace %sis not a valid collection name", o.NS.DB)
		}
	case value.Document:
		for k, e := range value.Elements(v.Doc()) {
			switch k {
			case "coll":
				if e.T != value.String {
					return nil, wrongType("$unionWith.coll", e.T.Name(), "string")
				}
				s.sub.ns.Coll = e.Str()
			case "pipeline":
				if pipeline = e; e.T != value.Array {
					return nil, wrongType("$unionWith.pipeline", e.T.Name(), "array")
				}
			default:
				return nil, unknownField("$unionWith." + k)
			}
		}
	default:
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "the $unionWith stage specification must be an object or string, but found %s", v.T.Name())
	}
	s.sub.stages = value.Values(pipeline.Doc())
	if s.sub.ns.Coll == "" {
		if len(s.sub.stages) == 0 || value.Lookup(s.sub.stages[0].Doc(), "$documents").T == value.Missing {
			return nil, mongoerr.New(mongoerr.FailedToParse, "$unionWith stage without explicit collection must have a pipeline with $documents as first stage")
		}
	} else if err := checkNamespace(s.sub.ns); err != nil {
		return nil, err
	}
	s.sub.opts = o.sub(inUnion, s.sub.ns)
	_, err := parseStages(s.sub.stages, s.sub.opts)
	return s, err
}

func (s *unionStage) Name() string      { return "$unionWith" }
func (s *unionStage) Spec() value.Value { return s.arg }
func (s *unionStage) namespaces() (reads, writes []Namespace) {
	return s.sub.namespaces()
}
func (s *unionStage) open(x *exec, src Source) (Source, error) {
	return &unionSource{first: src, x: x, s: s}, nil
}

type unionSource struct {
	first, second Source
	x             *exec
	s             *unionStage
}

func (u *unionSource) Next(ctx context.Context) (Doc, bool, error) {
	if u.second == nil {
		d, ok, err := u.first.Next(ctx)
		if err != nil || ok {
			return d, ok, err
		}
		if u.second, err = u.s.sub.run(ctx, u.x, u.x.opts.scope()); err != nil {
			return d, false, err
		}
	}
	return u.second.Next(ctx)
}

func (u *unionSource) Close() {
	u.first.Close()
	if u.second != nil {
		u.second.Close()
	}
}

// facetStage is $facet: each pipeline sees the whole input.
type facetStage struct {
	names []string
	pipes []*Pipeline
	arg   value.Value
}

func parseFacet(o *Options, v value.Value) (*facetStage, error) {
	if v.T != value.Document || value.Count(v.Doc()) == 0 {
		return nil, mongoerr.New(40169, "the $facet specification must be a non-empty object")
	}
	s := &facetStage{arg: v}
	for k, e := range value.Elements(v.Doc()) {
		if err := checkOutputName(k); err != nil {
			return nil, err
		}
		if e.T != value.Array {
			return nil, mongoerr.Newf(40170, "arguments to $facet must be arrays, %s is type %s", k, e.T.Name())
		}
		p, err := parseStages(value.Values(e.Doc()), o.sub(inFacet, o.NS))
		if err != nil {
			return nil, err
		}
		s.names, s.pipes = append(s.names, k), append(s.pipes, p)
	}
	return s, nil
}

func checkOutputName(k string) error {
	switch {
	case k == "":
		return mongoerr.New(15998, "FieldPath field names may not be empty strings.")
	case strings.Contains(k, "."):
		return mongoerr.Newf(16412, "FieldPath field names may not contain '.'. Consider using $getField or $setField.")
	}
	_, err := fieldPath(k)
	return err
}

func (s *facetStage) Name() string      { return "$facet" }
func (s *facetStage) Spec() value.Value { return s.arg }
func (s *facetStage) namespaces() (reads, writes []Namespace) {
	for _, p := range s.pipes {
		r, _ := p.Namespaces()
		reads = append(reads, r...)
	}
	return reads, nil
}

func (s *facetStage) open(x *exec, src Source) (Source, error) {
	return &lazySource{src: src, fill: func(ctx context.Context) ([]Doc, error) {
		var in []Doc
		var held int64
		for {
			d, ok, err := src.Next(ctx)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			in = append(in, d.clone())
			if held += int64(len(d.Raw)); held > x.opts.limit()*4 {
				return nil, mongoerr.New(mongoerr.ExceededMemoryLimit, "$facet used too much memory for its input and cannot spill to disk")
			}
		}
		dst, mark := value.Begin(nil)
		for i, p := range s.pipes {
			var err error
			if dst, err = s.run(ctx, x, dst, i, p, in); err != nil {
				return nil, err
			}
		}
		return []Doc{{Raw: value.End(dst, mark)}}, nil
	}}, nil
}

func (s *facetStage) run(ctx context.Context, x *exec, dst []byte, i int, p *Pipeline, in []Doc) ([]byte, error) {
	var src Source = &sliceSource{docs: in}
	for _, st := range p.stages {
		var err error
		if src, err = st.open(&exec{opts: p.opts, host: x.host}, src); err != nil {
			return dst, err
		}
	}
	defer src.Close()
	dst, arr := value.BeginKey(dst, value.Array, s.names[i])
	for n := 0; ; n++ {
		d, ok, err := src.Next(ctx)
		if err != nil {
			return dst, err
		}
		if !ok {
			return value.End(dst, arr), nil
		}
		if dst = value.AppendIndex(dst, n, value.NewDocument(d.Raw)); len(dst) > maxArray {
			return dst, mongoerr.Newf(10334, "document constructed by $facet is %d bytes, which exceeds the limit of %d bytes", len(dst), maxArray)
		}
	}
}
