package agg

import (
	"context"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$geoNear", rules{noFacet: true, traits: Plain}, one(parseGeoNear))
}

// GeoNearStage is $geoNear. The query planner finds and orders the documents (by the query that filter returns); the stage
// only adds the distances.
type GeoNearStage struct {
	spec             value.Value
	near             value.Value
	minimum, maximum value.Value // numbers, Missing for none
	distance, locs   []string    // paths of results, nil for none
	key              string
	query            []byte
	spherical        bool
	multiplier       float64
	opts             *Options
}

func parseGeoNear(o *Options, v value.Value) (*GeoNearStage, error) {
	if v.T != value.Document && v.T != value.Array {
		return nil, mongoerr.Newf(10065, "invalid parameter: expected an object ($geoNear)")
	}
	s := &GeoNearStage{spec: v, multiplier: 1, opts: o}
	if value.Lookup(v.Doc(), "near").IsMissing() {
		return nil, mongoerr.New(5860400, "$geoNear requires a 'near' argument")
	}
	for k, e := range value.Elements(v.Doc()) {
		if err := s.option(o, k, e); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *GeoNearStage) option(o *Options, name string, v value.Value) (err error) {
	switch name {
	case "near":
		return s.readNear(o, v)
	case "distanceField":
		if v.T != value.String {
			return mongoerr.New(16606, "$geoNear requires that the 'distanceField' option is a String")
		}
		s.distance, err = resultPath(v)
	case "includeLocs":
		if v.T != value.String {
			return mongoerr.New(16607, "$geoNear requires that 'includeLocs' option is a String")
		}
		s.locs, err = resultPath(v)
	case "minDistance":
		s.minimum, err = constantDistance(o, name, v, 7555701)
	case "maxDistance":
		s.maximum, err = constantDistance(o, name, v, 7555702)
	case "distanceMultiplier":
		if !v.T.Numeric() {
			return mongoerr.New(mongoerr.TypeMismatch, "$geoNear distanceMultiplier must be a number")
		}
		if s.multiplier = v.AsFloat64(); !(s.multiplier >= 0) {
			return mongoerr.New(mongoerr.BadValue, "distanceMultiplier must be nonnegative")
		}
	case "query":
		return s.readQuery(o, v)
	case "spherical":
		s.spherical = v.Truthy()
	case "key":
		return s.readKey(v)
	case "uniqueDocs", "includeNearMetadata": // accepted without effect
	case "limit", "num", "start":
		codes := map[string]mongoerr.Code{"limit": 50858, "num": 50857, "start": 50856}
		return mongoerr.Newf(codes[name], "$geoNear no longer supports the '%s' parameter. Use a $limit stage instead.", name)
	default:
		return mongoerr.Newf(mongoerr.BadValue, "Unknown argument to $geoNear: %s", name)
	}
	return err
}

// resultPath reads the path of a result field.
func resultPath(v value.Value) ([]string, error) {
	parts, err := fieldPath(v.Str())
	if err == nil && len(parts) >= maxPathDepth {
		err = mongoerr.Newf(5984700, "a field path of $geoNear has less than %d components", maxPathDepth)
	}
	return parts, err
}

func (s *GeoNearStage) readNear(o *Options, v value.Value) error {
	e, err := expr.Compile(v, o.scope())
	if err != nil {
		return err
	}
	c, ok := e.Constant()
	if !ok && o.unbound {
		s.near = v
		return nil
	}
	if !ok {
		return mongoerr.New(5860402, "$geoNear requires a constant near argument, but found a non-constant expression")
	}
	if c.T != value.Document && c.T != value.Array {
		return mongoerr.New(5860401, "$geoNear requires near argument to be a GeoJSON object or a legacy point(array)")
	}
	s.near = c.Clone()
	return nil
}

// constantDistance reads a bound, which may be an expression that needs no document.
func constantDistance(o *Options, name string, v value.Value, notConstant mongoerr.Code) (value.Value, error) {
	e, err := expr.Compile(v, o.scope())
	if err != nil {
		return value.Value{}, err
	}
	c, ok := e.Constant()
	if !ok && o.unbound {
		return v, nil
	}
	if !ok {
		return value.Value{}, mongoerr.Newf(notConstant, "$geoNear requires a constant %s argument, but found a non-constant expression", name)
	}
	if !c.T.Numeric() {
		return value.Value{}, mongoerr.Newf(mongoerr.TypeMismatch, "$geoNear requires that %s must be a number", name)
	}
	if !(c.AsFloat64() >= 0) {
		return value.Value{}, mongoerr.Newf(mongoerr.BadValue, "%s must be nonnegative", name)
	}
	return c, nil
}

func (s *GeoNearStage) readQuery(o *Options, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.New(mongoerr.TypeMismatch, "$geoNear requires that the 'query' option is an object")
	}
	s.query = v.Doc()
	if value.Lookup(s.query, "$text").T != value.Missing {
		return mongoerr.New(mongoerr.BadValue, "$text is not allowed within a $geoNear")
	}
	_, err := newMatch(o, s.query) // only what $match accepts is allowed here
	return err
}

func (s *GeoNearStage) readKey(v value.Value) error {
	if v.T != value.String {
		return mongoerr.Newf(mongoerr.TypeMismatch, "$geoNear parameter 'key' must be of type string but found type: %s", v.T.Name())
	}
	if s.key = v.Str(); s.key == "" {
		return mongoerr.New(mongoerr.BadValue, "$geoNear parameter 'key' cannot be the empty string")
	}
	parts, err := fieldPath(s.key)
	if err == nil && len(parts) > maxKeyDepth {
		err = mongoerr.Newf(5729100, "$geoNear parameter 'key' is too long: a path has at most %d components", maxKeyDepth)
	}
	return err
}

// maxKeyDepth leaves room for the operators around a path in documents of limited depth.
const maxKeyDepth = 180

// GeoNear returns the $geoNear that a pipeline begins with, nil if there is none.
func (p *Pipeline) GeoNear() *GeoNearStage {
	if len(p.stages) == 0 {
		return nil
	}
	s, _ := p.stages[0].(*GeoNearStage)
	return s
}

// Key returns the path of the locations, "" if the existing indexes determine it.
func (s *GeoNearStage) Key() string { return s.key }

// SetKey sets the path for a specification that names none.
func (s *GeoNearStage) SetKey(path string) { s.key = path }

func (s *GeoNearStage) halves() halves { return halves{shard: []Stage{s}, sort: s.mergeSort()} }

func (s *GeoNearStage) Name() string      { return "$geoNear" }
func (s *GeoNearStage) Spec() value.Value { return s.spec }

// mergeSort returns the order in which the streams of several shards are merged: by the distance in the documents' metadata.
func (s *GeoNearStage) mergeSort() []byte {
	return value.Doc(f(packedMeta+".geoNearDistance", value.NewInt32(1)))
}

// nearOperators returns the equivalent query operators on a path.
func (s *GeoNearStage) nearOperators() []byte {
	name := "$near"
	if s.spherical {
		name = "$nearSphere"
	}
	fs := []value.Field{f(name, s.near)}
	if s.minimum.T != value.Missing {
		fs = append(fs, f("$minDistance", s.minimum))
	}
	if s.maximum.T != value.Missing {
		fs = append(fs, f("$maxDistance", s.maximum))
	}
	return value.Doc(fs...)
}

// filter returns the query whose results, in their order, are those of the stage.
func (s *GeoNearStage) filter() []byte {
	near := f(s.key, value.NewDocument(s.nearOperators()))
	if len(s.query) <= 5 {
		return value.Doc(near)
	}
	query := value.NewDocument(s.query)
	if inlined := inlineVariables(s.query, s.opts.scope()); inlined != nil {
		query = value.NewDocument(inlined)
	}
	return value.Doc(f("$and", array(value.NewDocument(value.Doc(near)), query)))
}

func (s *GeoNearStage) open(x *exec, src Source) (Source, error) {
	m, err := match.Compile(value.Doc(f(s.key, value.NewDocument(s.nearOperators()))), nil)
	if err != nil {
		return nil, err
	}
	return &geoNearSource{Source: src, s: s, near: m.GeoNear()}, nil
}

type geoNearSource struct {
	Source
	s    *GeoNearStage
	near *match.Node
}

func (s *geoNearSource) Next(ctx context.Context) (Doc, bool, error) {
	d, ok, err := s.Source.Next(ctx)
	if err != nil || !ok {
		return d, ok, err
	}
	far, at, ok := s.near.Distance(d.Raw)
	if !ok {
		return d, true, nil
	}
	m := Meta{}
	if d.Meta != nil {
		m = *d.Meta
	}
	m.GeoDistance, m.GeoPoint = value.NewDouble(far*s.s.multiplier), at.Raw.Clone()
	raw := d.Raw
	if s.s.distance != nil {
		raw = setPath(nil, raw, s.s.distance, m.GeoDistance)
	}
	if s.s.locs != nil {
		raw = setPath(nil, raw, s.s.locs, m.GeoPoint)
	}
	return Doc{Raw: raw, Meta: &m}, true, nil
}
