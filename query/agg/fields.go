package agg

import (
	"context"
	"strconv"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/projection"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$match", rules{traits: language | Selects}, one(parseMatch))
	register("$project", rules{traits: language}, one(fieldsParser("$project", projection.Project)))
	register("$addFields", rules{traits: language}, one(fieldsParser("$addFields", projection.AddFields)))
	register("$set", rules{traits: language}, one(fieldsParser("$set", projection.Set)))
	register("$unset", rules{traits: language}, one(fieldsParser("$unset", projection.Unset)))
	register("$redact", rules{traits: language}, one(parseRedact))
}

// matchStage is $match.
type matchStage struct {
	filter []byte
	m      *match.Matcher
	text   bool // it has $text, so it must come first
}

func parseMatch(o *Options, v value.Value) (*matchStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.New(15959, "the match filter must be an expression in an object")
	}
	return newMatch(o, v.Doc())
}

func newMatch(o *Options, filter []byte) (*matchStage, error) {
	s := &matchStage{filter: filter}
	if err := s.scan(filter); err != nil {
		return nil, err
	}
	var err error
	s.m, err = match.Compile(filter, &match.Options{Collator: o.collator(), Expr: o.scope(), Rand: o.scope().Env().Rand})
	return s, err
}

// scan refuses predicates that find accepts and $match does not.
func (s *matchStage) scan(filter []byte) error {
	for k, v := range value.Elements(filter) {
		switch k {
		case "$where":
			return mongoerr.New(mongoerr.BadValue, "$where is not allowed in this context")
		case "$near", "$nearSphere", "$geoNear":
			return mongoerr.New(5626500, "$geoNear, $near, and $nearSphere are not allowed in this context")
		case "$text":
			s.text = true
		case "$and", "$or", "$nor":
			for _, e := range value.Values(v.Doc()) {
				if e.T == value.Document {
					if err := s.scan(e.Doc()); err != nil {
						return err
					}
				}
			}
		case "$expr", "$jsonSchema", "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin":
		default:
			if v.T == value.Document {
				if err := s.scan(v.Doc()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func hasKind(n *match.Node, k match.Kind) bool {
	if n == nil {
		return false
	}
	if n.Kind == k {
		return true
	}
	for _, c := range n.Children {
		if hasKind(c, k) {
			return true
		}
	}
	return false
}

func (s *matchStage) halves() halves { return halves{streams: true} }

func (s *matchStage) Name() string      { return "$match" }
func (s *matchStage) Spec() value.Value { return value.NewDocument(s.filter) }
func (s *matchStage) open(_ *exec, src Source) (Source, error) {
	return &matchSource{Source: src, m: s.m.Fork()}, nil
}

type matchSource struct {
	Source
	m *match.Matcher
}

func (s *matchSource) Next(ctx context.Context) (Doc, bool, error) {
	for n := 0; ; n++ {
		if n&0xFF == 0xFF && ctx.Err() != nil {
			return Doc{}, false, ctx.Err()
		}
		d, ok, err := s.Source.Next(ctx)
		if err != nil || !ok {
			return d, ok, err
		}
		if hit, err := s.m.Match(d.Raw); err != nil || hit {
			return d, err == nil, err
		}
	}
}

// fieldsStage is $project, $addFields, $set and $unset.
type fieldsStage struct {
	name string
	kind projection.Stage
	p    *projection.Projection
	spec value.Value
}

func fieldsParser(name string, kind projection.Stage) func(*Options, value.Value) (*fieldsStage, error) {
	return func(o *Options, v value.Value) (*fieldsStage, error) {
		p, err := projection.CompileStage(kind, v, &projection.Options{Collator: o.collator(), Expr: o.scope()})
		return &fieldsStage{name, kind, p, v}, err
	}
}

func (s *fieldsStage) halves() halves { return halves{streams: true} }

func (s *fieldsStage) Name() string      { return s.name }
func (s *fieldsStage) Spec() value.Value { return s.spec }

// explain shows $unset as the $project it is.
func (s *fieldsStage) explain() value.Value {
	name := s.name
	if s.kind == projection.Unset {
		name = "$project"
	}
	return doc(f(name, value.NewDocument(s.p.Serialize())))
}

func (s *fieldsStage) open(_ *exec, src Source) (Source, error) {
	return &fieldsSource{Source: src, p: s.p.Fork()}, nil
}

type fieldsSource struct {
	Source
	p   *projection.Projection
	buf []byte
}

func (s *fieldsSource) Next(ctx context.Context) (Doc, bool, error) {
	d, ok, err := s.Source.Next(ctx)
	if err != nil || !ok {
		return d, ok, err
	}
	s.buf, err = s.p.Apply(s.buf[:0], d.Raw, projectionMeta(d.Meta))
	return Doc{Raw: s.buf, Meta: d.Meta}, err == nil, err
}

func projectionMeta(m *Meta) *projection.Meta {
	if m == nil {
		return nil
	}
	return &projection.Meta{TextScore: m.TextScore, RecordID: m.RecordID, SortKey: m.SortKey, IndexKey: m.IndexKey,
		GeoNearDistance: m.GeoDistance, GeoNearPoint: m.GeoPoint, SearchScore: m.SearchScore, RandVal: m.RandVal,
		Score: m.Meta("score"), ScoreDetails: m.ScoreDetails}
}

// redactStage is $redact.
type redactStage struct {
	e       *expr.Expr
	root    int
	matched bool // what follows has been repeated in front of it (matchBeforeRedact)
}

// The values that a $redact expression may return.
var sentinels = map[string]string{"KEEP": "keep", "PRUNE": "prune", "DESCEND": "descend"}

func parseRedact(o *Options, v value.Value) (*redactStage, error) {
	sc := o.scope().Nested()
	for name, word := range sentinels {
		sc.DefineConst(name, str(word))
	}
	s := &redactStage{root: sc.Define("ROOT")} // $$ROOT remains the whole document while $$CURRENT descends
	var err error
	s.e, err = expr.Compile(v, sc)
	return s, err
}

func (s *redactStage) halves() halves { return halves{streams: true} }

func (s *redactStage) Name() string      { return "$redact" }
func (s *redactStage) Spec() value.Value { return s.e.Serialize() }
func (s *redactStage) open(x *exec, src Source) (Source, error) {
	return &redactSource{Source: src, e: s.e, root: s.root, frame: x.frame()}, nil
}

type redactSource struct {
	Source
	e     *expr.Expr
	root  int
	frame *expr.Frame
	buf   []byte
}

func (s *redactSource) Next(ctx context.Context) (Doc, bool, error) {
	for {
		d, ok, err := s.Source.Next(ctx)
		if err != nil || !ok {
			return d, ok, err
		}
		if d.Meta != nil {
			s.frame.SetMeta(d.Meta)
		}
		s.frame.SetVar(s.root, value.NewDocument(d.Raw))
		out, keep, err := s.document(s.buf[:0], d.Raw)
		if err != nil {
			return d, false, err
		}
		s.buf = out
		if keep {
			return Doc{Raw: out, Meta: d.Meta}, true, nil
		}
	}
}

// document appends what remains of doc; keep is false if nothing does.
func (s *redactSource) document(dst, doc []byte) (out []byte, keep bool, err error) {
	s.frame.SetRoot(doc)
	v, err := s.e.Eval(s.frame)
	if err != nil {
		return dst, false, err
	}
	word := ""
	if v.T == value.String {
		word = v.Str()
	}
	switch word {
	case "keep":
		return append(dst, doc...), true, nil
	case "prune":
		return dst, false, nil
	case "descend":
	default:
		return dst, false, mongoerr.Newf(17053, "$redact's expression should not return anything aside from the variables $$KEEP, "+
			"$$DESCEND, and $$PRUNE, but returned %s", expr.Show(v))
	}
	return s.elements(dst, doc, false)
}

func (s *redactSource) elements(dst, doc []byte, isArray bool) ([]byte, bool, error) {
	dst, mark := value.Begin(dst)
	n := 0
	for it := value.Walk(doc); ; {
		raw, k, v, ok := it.NextRaw()
		if !ok {
			return value.End(dst, mark), true, nil
		}
		key := k
		if isArray {
			key = []byte(strconv.Itoa(n))
		}
		if v.T != value.Document && v.T != value.Array {
			if isArray {
				dst = value.AppendKeyBytes(dst, key, v)
			} else {
				dst = append(dst, raw...)
			}
			n++
			continue
		}
		start := len(dst)
		dst = append(append(append(dst, byte(v.T)), key...), 0)
		var keep bool
		var err error
		if v.T == value.Array {
			dst, keep, err = s.elements(dst, v.Doc(), true)
		} else {
			dst, keep, err = s.document(dst, v.Doc())
		}
		if err != nil {
			return dst, false, err
		}
		if !keep {
			dst = dst[:start]
			continue
		}
		n++
	}
}
