package agg

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$limit", rules{traits: language | Selects}, one(parseLimit))
	register("$skip", rules{traits: language | Selects}, one(parseSkip))
	register("$sample", rules{traits: language | Selects}, one(parseSample))
	register("$unwind", rules{traits: language | Slow}, one(parseUnwind))
	register("$replaceRoot", rules{traits: language}, one(parseReplaceRoot))
	register("$replaceWith", rules{traits: language}, one(parseReplaceWith))
}

// limitStage is $limit.
type limitStage struct{ n int64 }

// countArgument reads the non-negative integer of $limit and $skip.
func countArgument(name string, v value.Value, code mongoerr.Code) (int64, error) {
	bad := func(what string) (int64, error) {
		return 0, mongoerr.Newf(code, "invalid argument to %s stage: Expected %s in: %s: %s", name, what, name, value.Show(v))
	}
	if !v.T.Numeric() {
		return bad("a number")
	}
	n, ok := v.AsInt64()
	switch {
	case !ok && v.IsNaN():
		return bad("an integer, but found NaN")
	case !ok:
		if f := v.AsFloat64(); f == math.Trunc(f) {
			return bad("a number that can be represented as a 64-bit integer")
		}
		return bad("an integer")
	case n < 0:
		return bad("a non-negative number")
	}
	return n, nil
}

func parseLimit(_ *Options, v value.Value) (*limitStage, error) {
	n, err := countArgument("$limit", v, 5107201)
	if err == nil && n == 0 {
		err = mongoerr.New(15958, "the limit must be positive")
	}
	return &limitStage{n}, err
}

func (s *limitStage) halves() halves { return halves{shard: []Stage{s}, merge: []Stage{s}} }

func (s *limitStage) Name() string      { return "$limit" }
func (s *limitStage) Spec() value.Value { return value.NewInt64(s.n) }
func (s *limitStage) open(_ *exec, src Source) (Source, error) {
	return &limitSource{Source: src, left: s.n}, nil
}

type limitSource struct {
	Source
	left int64
}

func (s *limitSource) Next(ctx context.Context) (Doc, bool, error) {
	if s.left == 0 {
		return Doc{}, false, nil
	}
	s.left--
	return s.Source.Next(ctx)
}

// skipStage is $skip.
type skipStage struct{ n int64 }

func parseSkip(_ *Options, v value.Value) (*skipStage, error) {
	n, err := countArgument("$skip", v, 5107200)
	return &skipStage{n}, err
}

func (s *skipStage) Name() string      { return "$skip" }
func (s *skipStage) Spec() value.Value { return value.NewInt64(s.n) }
func (s *skipStage) open(_ *exec, src Source) (Source, error) {
	return &skipSource{Source: src, left: s.n}, nil
}

type skipSource struct {
	Source
	left int64
}

func (s *skipSource) Next(ctx context.Context) (Doc, bool, error) {
	for ; s.left > 0; s.left-- {
		if _, ok, err := s.Source.Next(ctx); err != nil || !ok {
			return Doc{}, false, err
		}
	}
	return s.Source.Next(ctx)
}

// sampleStage is $sample: reservoir sampling over the whole input.
type sampleStage struct{ n int64 }

func parseSample(_ *Options, v value.Value) (*sampleStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.New(28745, "the $sample stage specification must be an object")
	}
	var size value.Value
	for k, e := range value.Elements(v.Doc()) {
		if k != "size" {
			return nil, mongoerr.Newf(28748, "unrecognized option to $sample: %s", k)
		}
		if size = e; !e.T.Numeric() {
			return nil, mongoerr.New(28746, "size argument to $sample must be a number")
		}
	}
	if size.T == value.Missing {
		return nil, mongoerr.New(28749, "$sample stage must specify a size")
	}
	n, ok := size.AsInt64()
	if !ok {
		x := wholeNumber(size)
		if n = math.MaxInt64; x < math.MaxInt64 {
			n = int64(x)
		}
		if math.IsNaN(x) {
			n = 0
		}
	}
	if n <= 0 {
		return nil, mongoerr.New(28747, "size argument to $sample must be a positive integer")
	}
	return &sampleStage{n}, nil
}

func (s *sampleStage) halves() halves { return halves{shard: []Stage{s}, merge: []Stage{s}} }

func (s *sampleStage) Name() string      { return "$sample" }
func (s *sampleStage) Spec() value.Value { return doc(f("size", value.NewInt64(s.n))) }
func (s *sampleStage) open(x *exec, src Source) (Source, error) {
	random := x.opts.scope().Env().Rand
	if random == nil {
		random = rand.Float64
	}
	return &lazySource{src: src, fill: func(ctx context.Context) ([]Doc, error) {
		type picked struct {
			d   Doc
			key float64
		}
		var kept []picked
		var seen int64
		for {
			d, ok, err := src.Next(ctx)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			seen++
			if int64(len(kept)) < s.n {
				kept = append(kept, picked{d.clone(), random()})
			} else if j := int64(random() * float64(seen)); j < s.n {
				kept[j] = picked{d.clone(), random()}
			}
		}
		sort.Slice(kept, func(i, j int) bool { return kept[i].key < kept[j].key })
		out := make([]Doc, len(kept))
		for i, k := range kept {
			out[i] = k.d
		}
		return out, nil
	}}, nil
}

// lazySource is a blocking stage that makes its whole output at once.
type lazySource struct {
	src  Source // closed with it; may be nil
	fill func(ctx context.Context) ([]Doc, error)
	out  []Doc
	done bool
}

func (s *lazySource) Next(ctx context.Context) (Doc, bool, error) {
	if !s.done {
		out, err := s.fill(ctx)
		if err != nil {
			return Doc{}, false, err
		}
		s.out, s.done = out, true
	}
	if len(s.out) == 0 {
		return Doc{}, false, nil
	}
	d := s.out[0]
	s.out[0] = Doc{}
	s.out = s.out[1:]
	return d, true, nil
}

func (s *lazySource) Close() {
	if s.src != nil {
		s.src.Close()
	}
}

// rootStage is $replaceRoot and $replaceWith.
type rootStage struct{ e *expr.Expr }

func parseReplaceRoot(o *Options, v value.Value) (*rootStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(40229, "expected an object as specification for $replaceRoot stage, got %s", v.T.Name())
	}
	var root value.Value
	for k, e := range value.Elements(v.Doc()) {
		if k != "newRoot" {
			return nil, unknownField("$replaceRoot." + k)
		}
		root = e
	}
	if root.T == value.Missing {
		return nil, missingField("$replaceRoot.newRoot")
	}
	return parseReplaceWith(o, root)
}

func parseReplaceWith(o *Options, v value.Value) (*rootStage, error) {
	e, err := expr.Compile(v, o.scope())
	return &rootStage{e}, err
}

func (s *rootStage) halves() halves { return halves{streams: true} }

func (s *rootStage) Name() string      { return "$replaceRoot" }
func (s *rootStage) Spec() value.Value { return doc(f("newRoot", s.e.Serialize())) }
func (s *rootStage) open(x *exec, src Source) (Source, error) {
	return &rootSource{Source: src, e: s.e, frame: x.frame()}, nil
}

type rootSource struct {
	Source
	e     *expr.Expr
	frame *expr.Frame
}

// read returns a document with only the top-level fields that the expression reads.
func (s *rootSource) read(doc []byte) []byte {
	d := s.e.Deps()
	if d.Whole {
		return doc
	}
	out, m := value.Begin(nil)
	for k, v := range value.Elements(doc) {
		if slices.ContainsFunc(d.Paths, func(p string) bool { return p == k || strings.HasPrefix(p, k+".") }) {
			out = value.Append(out, k, v)
		}
	}
	return value.End(out, m)
}

func (s *rootSource) Next(ctx context.Context) (Doc, bool, error) {
	d, ok, err := s.Source.Next(ctx)
	if err != nil || !ok {
		return d, ok, err
	}
	setRoot(s.frame, d)
	v, err := s.e.Eval(s.frame)
	if err != nil {
		return d, false, err
	}
	if v.T != value.Document {
		return d, false, mongoerr.Newf(40228, "'newRoot' expression  must evaluate to an object, but resulting value was: %s. Type of "+
			"resulting value: '%s'. Input document: %s", expr.Show(v), v.T.Name(), expr.Show(value.NewDocument(s.read(d.Raw))))
	}
	if len(v.Doc()) > maxInternal {
		return d, false, mongoerr.Newf(10334, "BSONObj size: %d is invalid. Size must be between 0 and %d", len(v.Doc()), maxInternal)
	}
	return Doc{Raw: v.Doc(), Meta: d.Meta}, true, nil
}

// maxInternal is the maximum size of a document inside the server: the 16 MB of a stored one plus a command's overhead.
const maxInternal = maxArray + 16<<10

// setRoot sets the document and its metadata for expressions.
func setRoot(f *expr.Frame, d Doc) {
	f.SetRoot(d.Raw)
	if d.Meta != nil {
		f.SetMeta(d.Meta)
	}
}

// unwindStage is $unwind.
type unwindStage struct {
	path     []string
	dotted   string
	preserve bool
	index    []string
	indexAs  string
}

func parseUnwind(_ *Options, v value.Value) (*unwindStage, error) {
	s := &unwindStage{}
	path := v
	if v.T == value.Document {
		path = value.Value{}
		for k, e := range value.Elements(v.Doc()) {
			switch k {
			case "path":
				if path = e; e.T != value.String {
					return nil, mongoerr.Newf(28808, "expected a string as the path for $unwind stage, got %s", e.T.Name())
				}
			case "preserveNullAndEmptyArrays":
				if e.T != value.Boolean {
					return nil, mongoerr.Newf(28809, "expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got %s", e.T.Name())
				}
				s.preserve = e.Bool()
			case "includeArrayIndex":
				if err := s.setIndex(e); err != nil {
					return nil, err
				}
			default:
				return nil, mongoerr.Newf(28811, "unrecognized option to $unwind stage: %s", k)
			}
		}
		if path.T == value.Missing {
			return nil, mongoerr.New(28812, "no path specified to $unwind stage")
		}
	} else if v.T != value.String {
		return nil, mongoerr.Newf(15981, "expected either a string or an object as specification for $unwind stage, got %s", v.T.Name())
	}
	dotted, ok := fieldOf(path)
	if path.Str() == "" {
		return nil, mongoerr.New(28812, "no path specified to $unwind stage")
	}
	if !ok {
		return nil, mongoerr.Newf(28818, "path option to $unwind stage should be prefixed with a '$': %s", path.Str())
	}
	var err error
	s.dotted = dotted
	if strings.IndexByte(dotted, 0) >= 0 {
		return nil, mongoerr.New(16419, "field path must not contain embedded null characters")
	}
	s.path, err = fieldPath(dotted)
	return s, err
}

func (s *unwindStage) setIndex(e value.Value) (err error) {
	if e.T != value.String || e.Str() == "" {
		return mongoerr.Newf(28810, "expected a non-empty string for the includeArrayIndex  option to $unwind stage, got %s", e.T.Name())
	}
	if e.Str()[0] == '$' {
		return mongoerr.Newf(28822, "includeArrayIndex option to $unwind stage should not be prefixed with a '$': %s", e.Str())
	}
	s.indexAs = e.Str()
	s.index, err = fieldPath(s.indexAs)
	return err
}

func (s *unwindStage) halves() halves { return halves{streams: true} }

func (s *unwindStage) Name() string { return "$unwind" }
func (s *unwindStage) Spec() value.Value {
	fs := []value.Field{f("path", str("$"+s.dotted))}
	if s.preserve {
		fs = append(fs, f("preserveNullAndEmptyArrays", value.NewBool(true)))
	}
	if s.indexAs != "" {
		fs = append(fs, f("includeArrayIndex", str(s.indexAs)))
	}
	return doc(fs...)
}

func (s *unwindStage) open(_ *exec, src Source) (Source, error) {
	return &unwindSource{Source: src, s: s}, nil
}

type unwindSource struct {
	Source
	s    *unwindStage
	doc  Doc
	arr  value.Iter
	pos  int64
	open bool
	buf  []byte
}

func (u *unwindSource) Next(ctx context.Context) (Doc, bool, error) {
	for {
		if u.open {
			if _, e, ok := u.arr.Next(); ok {
				u.pos++
				return u.emit(e, value.NewInt64(u.pos-1)), true, nil
			}
			u.open = false
		}
		d, ok, err := u.Source.Next(ctx)
		if err != nil || !ok {
			return d, ok, err
		}
		v := lookupPath(d.Raw, u.s.path)
		u.doc = d
		switch {
		case v.T == value.Array && value.Count(v.Doc()) > 0:
			u.arr, u.pos, u.open = value.Walk(v.Doc()), 0, true
		case v.T == value.Array:
			if u.s.preserve {
				return u.emit(value.Value{}, value.NewNull()), true, nil
			}
		case v.IsNullish():
			if u.s.preserve {
				return u.emit(v, value.NewNull()), true, nil
			}
		default:
			return u.emit(v, value.NewNull()), true, nil
		}
	}
}

func (u *unwindSource) emit(v, index value.Value) Doc {
	if v.T == value.Missing && u.s.index == nil && lookupPath(u.doc.Raw, u.s.path).T == value.Missing {
		return u.doc
	}
	u.buf = setPath(u.buf[:0], u.doc.Raw, u.s.path, v)
	if u.s.index != nil {
		u.buf = setPath(nil, u.buf, u.s.index, index)
	}
	return Doc{Raw: u.buf, Meta: u.doc.Meta}
}

// lookupPath follows a path through documents; it returns Missing if there is an array in the path.
func lookupPath(doc []byte, path []string) value.Value {
	for i, p := range path {
		v := value.Lookup(doc, p)
		if i == len(path)-1 || v.T != value.Document {
			if i < len(path)-1 {
				return value.Value{}
			}
			return v
		}
		doc = v.Doc()
	}
	return value.Value{}
}

// setPath appends doc with the field at path set to v (removed if v is Missing); values along the path that are not
// documents are replaced by documents.
func setPath(dst, doc []byte, path []string, v value.Value) []byte {
	dst, mark := value.Begin(dst)
	found := false
	for it := value.Walk(doc); ; {
		raw, k, old, ok := it.NextRaw()
		if !ok {
			break
		}
		if found || string(k) != path[0] {
			dst = append(dst, raw...)
			continue
		}
		found = true
		dst = setElement(dst, path, old, v)
	}
	if !found {
		dst = setElement(dst, path, value.Value{}, v)
	}
	return value.End(dst, mark)
}

func setElement(dst []byte, path []string, old, v value.Value) []byte {
	if len(path) == 1 {
		return value.Append(dst, path[0], v)
	}
	if old.T != value.Document {
		if v.T == value.Missing {
			return value.Append(dst, path[0], old)
		}
		old = value.NewDocument(value.Doc())
	}
	dst = append(append(append(dst, byte(value.Document)), path[0]...), 0)
	return setPath(dst, old.Doc(), path[1:], v)
}
