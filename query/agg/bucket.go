package agg

import (
	"context"
	"math"

	"github.com/shoaldb/shoal/query/agg/accum"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/expr/decimal"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$bucket", rules{traits: language}, parseBucket)
	register("$bucketAuto", rules{traits: language}, one(parseBucketAuto))
}

func isExpression(v value.Value) bool {
	if v.T == value.Document {
		it := value.Walk(v.Doc())
		k, _, ok := it.Next()
		return ok && len(k) > 0 && k[0] == '$'
	}
	_, ok := fieldOf(v)
	return ok
}

// parseBucket turns $bucket into a $group by a $switch over the boundaries, and a $sort.
func parseBucket(o *Options, v value.Value) ([]Stage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(40201, "Argument to $bucket stage must be an object, but found type: %s.", v.T.Name())
	}
	var groupBy, fallback value.Value
	var bounds []value.Value
	output := doc(f("count", doc(f("$sum", value.NewInt32(1)))))
	hasBounds := false
	for k, e := range value.Elements(v.Doc()) {
		switch k {
		case "groupBy":
			if groupBy = e; !isExpression(e) {
				return nil, mongoerr.Newf(40202, "The $bucket 'groupBy' field must be defined as a $-prefixed path or an expression, but found: %s.", expr.Show(e))
			}
		case "boundaries":
			var err error
			if bounds, err = parseBoundaries(o, e); err != nil {
				return nil, err
			}
			hasBounds = true
		case "default":
			c, err := expr.Compile(e, o.scope())
			if err != nil {
				return nil, err
			}
			var ok bool
			if fallback, ok = c.Constant(); !ok {
				return nil, mongoerr.Newf(40195, "The $bucket 'default' field must be a constant expression, but found: %s.", expr.Show(e))
			}
			if fallback.T == value.Missing {
				fallback = value.NewNull()
			}
		case "output":
			if output = e; e.T != value.Document {
				return nil, mongoerr.Newf(40196, "The $bucket 'output' field must be an object, but found type: %s.", e.T.Name())
			}
		default:
			return nil, mongoerr.Newf(40197, "Unrecognized option to $bucket: %s.", k)
		}
	}
	if groupBy.T == value.Missing || !hasBounds {
		return nil, mongoerr.New(40198, "$bucket requires 'groupBy' and 'boundaries' to be specified.")
	}
	if fallback.T != value.Missing && value.CompareCollated(fallback, bounds[0], o.collator()) >= 0 &&
		value.CompareCollated(fallback, bounds[len(bounds)-1], o.collator()) < 0 {
		return nil, mongoerr.New(40199, "The $bucket 'default' field must be less than the lowest boundary or greater than or equal to the highest boundary.")
	}
	return bucketStages(o, groupBy, fallback, output, bounds)
}

func parseBoundaries(o *Options, v value.Value) ([]value.Value, error) {
	if v.T != value.Array {
		return nil, mongoerr.Newf(40200, "The $bucket 'boundaries' field must be an array, but found type: %s.", v.T.Name())
	}
	var out []value.Value
	for _, b := range value.Values(v.Doc()) {
		c, err := expr.Compile(b, o.scope())
		if err != nil {
			return nil, err
		}
		k, ok := c.Constant()
		if !ok || c.System() {
			return nil, mongoerr.Newf(40191, "The $bucket 'boundaries' field must be an array of constant values, but found value: %s.", expr.Show(b))
		}
		if k.T == value.Missing {
			k = value.NewNull()
		}
		out = append(out, k)
	}
	if len(out) < 2 {
		return nil, mongoerr.Newf(40192, "The $bucket 'boundaries' field must have at least 2 values, but found %d value(s).", len(out))
	}
	for i := 1; i < len(out); i++ {
		a, b := out[i-1], out[i]
		if !value.SameKind(a.T, b.T) {
			return nil, mongoerr.Newf(40193, "All values in the the 'boundaries' option to $bucket must have the same type. Found conflicting types %s and %s.", a.T.Name(), b.T.Name())
		}
		if value.CompareCollated(a, b, o.collator()) >= 0 {
			return nil, mongoerr.Newf(40194, "The 'boundaries' option to $bucket must be sorted, but elements %d and %d are not in ascending order (%s is not less than %s).", i-1, i, expr.Show(a), expr.Show(b))
		}
	}
	return out, nil
}

func bucketStages(o *Options, groupBy, fallback, output value.Value, bounds []value.Value) ([]Stage, error) {
	literal := func(v value.Value) value.Value { return doc(f("$const", v)) }
	var branches []value.Value
	for i := 1; i < len(bounds); i++ {
		branches = append(branches, doc(
			f("case", doc(f("$and", array(doc(f("$gte", array(groupBy, literal(bounds[i-1])))), doc(f("$lt", array(groupBy, literal(bounds[i])))))))),
			f("then", literal(bounds[i-1]))))
	}
	sw := []value.Field{f("branches", array(branches...))}
	if fallback.T != value.Missing {
		sw = append(sw, f("default", literal(fallback)))
	}
	fs := []value.Field{f("_id", doc(f("$switch", doc(sw...))))}
	for k, e := range value.Elements(output.Doc()) {
		if k == "_id" {
			return nil, mongoerr.New(15948, "a group's _id may only be specified once")
		}
		fs = append(fs, f(k, e))
	}
	group, err := parseGroup(o, doc(fs...))
	if err != nil {
		return nil, err
	}
	sort, err := parseSort(o, doc(f("_id", value.NewInt32(1))))
	return []Stage{group, sort}, err
}

// bucketAutoStage is $bucketAuto.
type bucketAutoStage struct {
	groupBy *expr.Expr
	n       int
	fields  []groupField
	round   *rounder
	arg     value.Value
}

func parseBucketAuto(o *Options, v value.Value) (*bucketAutoStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(40240, "The argument to $bucketAuto must be an object, but found type: %s.", v.T.Name())
	}
	s := &bucketAutoStage{arg: v}
	output := doc(f("count", doc(f("$sum", value.NewInt32(1)))))
	for k, e := range value.Elements(v.Doc()) {
		var err error
		switch k {
		case "groupBy":
			if !isExpression(e) {
				return nil, mongoerr.Newf(40239, "The $bucketAuto 'groupBy' field must be defined as a $-prefixed path or an expression object, but found: %s.", expr.Show(e))
			}
			s.groupBy, err = expr.Compile(e, o.scope())
		case "buckets":
			s.n, err = bucketCount(e)
		case "output":
			if output = e; e.T != value.Document {
				err = mongoerr.Newf(40244, "The $bucketAuto 'output' field must be an object, but found type: %s.", e.T.Name())
			}
		case "granularity":
			if e.T != value.String {
				return nil, mongoerr.Newf(40261, "The $bucketAuto 'granularity' field must be a string, but found type: %s.", e.T.Name())
			}
			s.round, err = newRounder(e.Str())
		default:
			err = mongoerr.Newf(40245, "Unrecognized option to $bucketAuto: %s", k)
		}
		if err != nil {
			return nil, err
		}
	}
	if s.groupBy == nil || s.n == 0 {
		return nil, mongoerr.New(40246, "$bucketAuto requires 'groupBy' and 'buckets' to be specified.")
	}
	if value.Count(output.Doc()) == 0 {
		output = doc(f("count", doc(f("$sum", value.NewInt32(1)))))
	}
	for k, e := range value.Elements(output.Doc()) {
		field, err := parseGroupField(o, k, e)
		if err != nil {
			return nil, err
		}
		s.fields = append(s.fields, field)
	}
	return s, nil
}

func bucketCount(v value.Value) (int, error) {
	if !v.T.Numeric() {
		return 0, mongoerr.Newf(40241, "The $bucketAuto 'buckets' field must be a numeric value, but found type: %s.", v.T.Name())
	}
	n, ok := v.AsInt64()
	switch {
	case !ok || n > math.MaxInt32 || n < math.MinInt32:
		return 0, mongoerr.Newf(40242, "The $bucketAuto 'buckets' field must be representable as a 32-bit integer, but found %s.", expr.Show(v))
	case n <= 0:
		return 0, mongoerr.Newf(40243, "The $bucketAuto 'buckets' field must be greater than 0, but found: %d.", n)
	}
	return int(n), nil
}

func (s *bucketAutoStage) Name() string      { return "$bucketAuto" }
func (s *bucketAutoStage) Spec() value.Value { return s.arg }

// deps returns what the stage reads; it passes nothing else on.
func (s *bucketAutoStage) deps() (paths []string, whole, stop bool) {
	d := s.groupBy.Deps()
	paths, whole = d.Paths, d.Whole || len(d.Meta) > 0
	for _, g := range s.fields {
		for _, e := range g.acc.Exprs() {
			d := e.Deps()
			paths, whole = append(paths, d.Paths...), whole || d.Whole || len(d.Meta) > 0
		}
		whole = whole || g.acc.Sort() != nil
	}
	return paths, whole, true
}

func (s *bucketAutoStage) open(x *exec, src Source) (Source, error) {
	sorted := newSorter(x, src, &bucketOrder{s: s, frame: x.frame(), coll: x.opts.collator()}, 1, 0, "$bucketAuto")
	fill := func(ctx context.Context) ([]Doc, error) {
		b := &bucketing{s: s, frame: x.frame(), coll: x.opts.collator(), sorted: sorted}
		return b.run(ctx)
	}
	return &bucketSource{lazySource{src: sorted, fill: fill}, sorted}, nil
}

type bucketSource struct {
	lazySource
	sorted *sortSource
}

// SpillStats implements SpillReporter.
func (s *bucketSource) SpillStats() SpillStats { return s.sorted.stats }

// bucketOrder sorts by groupBy.
type bucketOrder struct {
	s     *bucketAutoStage
	frame *expr.Frame
	coll  value.Collator
}

// Key implements ordering.
func (o *bucketOrder) Key(dst []value.Value, doc []byte, meta func(kind string) value.Value) ([]value.Value, error) {
	o.frame.SetRoot(doc)
	o.frame.SetMeta(metaFunc(meta))
	key, err := o.s.groupBy.Eval(o.frame)
	if err != nil {
		return dst, err
	}
	if key.T == value.Missing {
		key = value.NewNull()
	}
	if o.s.round != nil {
		if err := o.s.round.check(key); err != nil {
			return dst, err
		}
	}
	return append(dst, key.Clone()), nil
}

// Compare implements ordering.
func (o *bucketOrder) Compare(a, b []value.Value) int {
	return value.CompareCollated(a[0], b[0], o.coll)
}

// autoBucket is one bucket: its boundaries and the states of its accumulators.
type autoBucket struct {
	min, max value.Value
	results  []value.Value
}

// bucketing divides documents, which arrive in the order of groupBy, into buckets.
type bucketing struct {
	s      *bucketAutoStage
	frame  *expr.Frame
	coll   value.Collator
	sorted *sortSource
	next   sortItem // the first document that is not in a bucket yet
	more   bool     // whether there is one
}

func (b *bucketing) run(ctx context.Context) ([]Doc, error) {
	if err := b.sorted.prepare(ctx); err != nil {
		return nil, err
	}
	if err := b.advance(ctx); err != nil {
		return nil, err
	}
	size := max(int64(math.Round(float64(b.sorted.seq)/float64(b.s.n))), 1)
	var out []*autoBucket
	for b.more && len(out) < b.s.n {
		take := size
		if len(out) == b.s.n-1 {
			take = math.MaxInt64
		}
		var before *autoBucket
		if len(out) > 0 {
			before = out[len(out)-1]
		}
		one, err := b.bucket(ctx, take, before)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	docs := make([]Doc, 0, len(out))
	for _, one := range out {
		fs := []value.Field{f("_id", doc(f("min", one.min), f("max", one.max)))}
		for i, v := range one.results {
			fs = append(fs, f(b.s.fields[i].name, v))
		}
		docs = append(docs, Doc{Raw: value.Doc(fs...)})
	}
	return docs, nil
}

func (b *bucketing) advance(ctx context.Context) (err error) {
	b.next, b.more, err = b.sorted.nextItem(ctx)
	return err
}

// bucket fills a bucket with take documents and those after them that the bucket's boundary also covers.
func (b *bucketing) bucket(ctx context.Context, take int64, before *autoBucket) (*autoBucket, error) {
	states, err := b.states()
	if err != nil {
		return nil, err
	}
	one := &autoBucket{min: b.next.key[0].Clone()}
	for ; take > 0 && b.more; take-- {
		one.max = b.next.key[0].Clone()
		if err := b.add(ctx, states); err != nil {
			return nil, err
		}
	}
	covered := func(key value.Value) bool { return value.CompareCollated(key, one.max, b.coll) == 0 }
	if round := b.s.round; round != nil {
		one.max = round.up(one.max)
		covered = func(key value.Value) bool {
			c := value.Compare(key, one.max)
			return c < 0 || c == 0 && one.max.AsFloat64() == 0
		}
		if before == nil {
			one.min = round.down(one.min)
		} else {
			one.min = before.max
		}
	} else if before != nil {
		before.max = one.min
	}
	for b.more && covered(b.next.key[0]) {
		if err := b.add(ctx, states); err != nil {
			return nil, err
		}
	}
	for _, st := range states {
		v, err := st.Result()
		if err != nil {
			return nil, err
		}
		one.results = append(one.results, v.Clone())
	}
	return one, nil
}

func (b *bucketing) states() ([]accum.State, error) {
	states := make([]accum.State, len(b.s.fields))
	b.frame.SetRoot(emptyDocument)
	for i := range states {
		var err error
		if states[i], err = b.s.fields[i].acc.New(b.frame); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// add adds the next document to a bucket.
func (b *bucketing) add(ctx context.Context, states []accum.State) error {
	setRoot(b.frame, b.next.doc)
	for i := range states {
		v, err := b.s.fields[i].acc.Arg.Eval(b.frame)
		if err != nil {
			return err
		}
		if _, err := states[i].Add(v, b.frame); err != nil {
			return err
		}
	}
	return b.advance(ctx)
}

// rounder rounds to a series of preferred numbers; an empty series means powers of two.
type rounder struct{ series []float64 }

var renard80 = []float64{
	1.00, 1.03, 1.06, 1.09, 1.12, 1.15, 1.18, 1.22, 1.25, 1.28, 1.32, 1.36, 1.40, 1.45, 1.50, 1.55, 1.60, 1.65, 1.70, 1.75,
	1.80, 1.85, 1.90, 1.95, 2.00, 2.06, 2.12, 2.18, 2.24, 2.30, 2.36, 2.43, 2.50, 2.58, 2.65, 2.72, 2.80, 2.90, 3.00, 3.07,
	3.15, 3.25, 3.35, 3.45, 3.55, 3.65, 3.75, 3.87, 4.00, 4.12, 4.25, 4.37, 4.50, 4.62, 4.75, 4.87, 5.00, 5.15, 5.30, 5.45,
	5.60, 5.80, 6.00, 6.15, 6.30, 6.50, 6.70, 6.90, 7.10, 7.30, 7.50, 7.75, 8.00, 8.25, 8.50, 8.75, 9.00, 9.25, 9.50, 9.75}

func newRounder(name string) (*rounder, error) {
	switch name {
	case "POWERSOF2":
		return &rounder{}, nil
	case "1-2-5":
		return &rounder{[]float64{10, 20, 50}}, nil
	case "R5":
		return &rounder{[]float64{10, 16, 25, 40, 63}}, nil
	case "R10":
		return &rounder{[]float64{10, 12.5, 16, 20, 25, 31.5, 40, 50, 63, 80}}, nil
	case "R20":
		return &rounder{[]float64{10, 11.2, 12.5, 14, 16, 18, 20, 22.4, 25, 28, 31.5, 35.5, 40, 45, 50, 56, 63, 71, 80, 90}}, nil
	case "R40":
		return &rounder{[]float64{10, 10.6, 11.2, 11.8, 12.5, 13.2, 14, 15, 16, 17, 18, 19, 20, 21.2, 22.4, 23.6, 25, 26.5, 28, 30,
			31.5, 33.5, 35.5, 37.5, 40, 42.5, 45, 47.5, 50, 53, 56, 60, 63, 67, 71, 75, 80, 85, 90, 95}}, nil
	case "R80":
		return &rounder{renard80}, nil
	case "E6":
		return &rounder{[]float64{10, 15, 22, 33, 47, 68}}, nil
	case "E12":
		return &rounder{[]float64{10, 12, 15, 18, 22, 27, 33, 39, 47, 56, 68, 82}}, nil
	case "E24":
		return &rounder{[]float64{10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91}}, nil
	case "E48":
		return &rounder{eSeries(48)}, nil
	case "E96":
		return &rounder{eSeries(96)}, nil
	case "E192":
		return &rounder{eSeries(192)}, nil
	}
	return nil, mongoerr.Newf(40257, "Unknown rounding granularity '%s'", name)
}

// eSeries computes the finer E series; 9.20 is the standard's one exception.
func eSeries(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = math.Round(100 * math.Pow(10, float64(i)/float64(n)))
		if n == 192 && out[i] == 919 {
			out[i] = 920
		}
	}
	return out
}

func (r *rounder) check(v value.Value) error {
	switch {
	case !v.T.Numeric():
		return mongoerr.Newf(40258, "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a value with type: %s", v.T.Name())
	case v.IsNaN():
		return mongoerr.New(40259, "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a NaN")
	case v.AsFloat64() < 0:
		return mongoerr.New(40260, "$bucketAuto can specify a 'granularity' with non-negative numbers only, but found a negative number")
	}
	return nil
}

// up returns the least preferred number above v, down the greatest below it; zero remains zero.
func (r *rounder) up(v value.Value) value.Value { return r.round(v, true) }

func (r *rounder) down(v value.Value) value.Value { return r.round(v, false) }

func (r *rounder) round(v value.Value, up bool) value.Value {
	x := v.AsFloat64()
	if x == 0 || math.IsInf(x, 0) {
		return v
	}
	var out float64
	if r.series == nil {
		if up {
			out = math.Pow(2, math.Floor(math.Log2(x))+1)
		} else {
			out = math.Pow(2, math.Ceil(math.Log2(x))-1)
		}
	} else {
		out = r.step(x, up)
	}
	if v.T == value.Decimal128 {
		return decimal.Value(decimal.FromDoubleExact(out))
	}
	if r.series == nil && v.T != value.Double && out == math.Trunc(out) {
		if v.T == value.Int32 && out <= math.MaxInt32 {
			return value.NewInt32(int32(out))
		}
		return value.NewInt64(int64(out))
	}
	return value.NewDouble(out)
}

// step finds the decade, ]first, next decade's first] downwards and [last of the former, last[ upwards, and the number in it.
func (r *rounder) step(x float64, up bool) float64 {
	first, last := r.series[0], r.series[len(r.series)-1]
	scale := 1.0
	for up && x >= last*scale || !up && x > first*scale*10 {
		scale *= 10
	}
	for up && x < first*scale || !up && x <= first*scale {
		scale /= 10
	}
	if up {
		for _, s := range r.series {
			if s*scale > x {
				return s * scale
			}
		}
		return first * scale * 10
	}
	for i := len(r.series) - 1; i >= 0; i-- {
		if r.series[i]*scale < x {
			return r.series[i] * scale
		}
	}
	return last * scale / 10
}
