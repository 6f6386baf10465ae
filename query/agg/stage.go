package agg

import (
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Stage is one parsed stage.
type Stage interface {
	Name() string
	Spec() value.Value // its argument, in the form of explain, which Parse can read
	open(x *exec, src Source) (Source, error)
}

// generator marks stages that make their documents themselves.
type generator interface{ generates() }

// foreign is implemented by stages that access other collections.
type foreign interface {
	namespaces() (reads, writes []Namespace)
}

// exec is one run of a pipeline.
type exec struct {
	opts *Options
	host Host
	last bool // the stage being opened is the pipeline's last
	slot bool // it is a $group that the 8.2 line's slot-based engine runs

	sortKeys bool // a stage reads the metadata sortKey
}

func (x *exec) frame() *expr.Frame { return expr.NewFrame(x.opts.scope()) }

// row is a stage of the registry.
type row struct {
	parse func(o *Options, arg value.Value) ([]Stage, error)
	rules
}

// rules determine where a stage may occur.
type rules struct {
	first, last                bool
	hybrid                     bool // a ranking stage: it has to be first, with an error of its own
	reports                    bool // about the collection itself: no stage of a view may come before it
	database                   bool // valid as the first stage of {aggregate: 1}
	noFacet, noLookup, noUnion bool
	// notInFacet is noFacet for a stage that a $lookup or $unionWith in the $facet may have.
	notInFacet    bool
	noTxn, noView bool
	internal      bool // not listed for clients
	split         bool // only in a shard's part of a pipeline that a router has split

	traits Trait
}

// Trait is a property of a stage on which other parts of the server base decisions. Each is safe to leave out: then more is checked, or less is shared.
type Trait uint16

// The traits of stages.
const (
	OwnCollection    Trait = 1 << iota // reads nothing but its aggregate's collection, whatever its arguments
	Plain                              // requires no privilege beyond those for what it reads; without it, the stage needs a row in auth/stages.go
	Selects                            // selects and orders documents without changing them
	Slow                               // returns many documents for one, or takes long for each: killed operations stop within it
	ServerMemory                       // reads the server's own memory: no read concern but local has a meaning for it
	Unstable                           // is not part of the stable API
	NotInTransaction                   // refused before it is parsed; rules.noTxn refuses it within other stages, too
	NotFirstInView                     // makes its documents without a collection that a view could be on
)

// language has the traits of most stages, which only change the documents that they receive.
const language = OwnCollection | Plain

// Has reports whether a stage exists and has a trait.
func Has(stage string, t Trait) bool {
	r := registry[stage]
	return r != nil && r.traits&t != 0
}

var registry = map[string]*row{}

func register(name string, r rules, parse func(o *Options, arg value.Value) ([]Stage, error)) {
	registry[name] = &row{parse: parse, rules: r}
}

// IsStage reports whether a name is that of a stage.
func IsStage(name string) bool { return registry[name] != nil }

// one adapts a parser of a single stage.
func one[S Stage](parse func(o *Options, arg value.Value) (S, error)) func(*Options, value.Value) ([]Stage, error) {
	return func(o *Options, arg value.Value) ([]Stage, error) {
		s, err := parse(o, arg)
		if err != nil {
			return nil, err
		}
		return []Stage{s}, nil
	}
}

// allowed checks the rules that do not depend on other stages.
func (r *row) allowed(name string, o *Options) error {
	switch {
	case o.Lone && name == "$changeStream":
		return mongoerr.New(40573, "The $changeStream stage is only supported on replica sets")
	case o.within == inLookup && r.noLookup:
		return mongoerr.Newf(51047, "%s is not allowed within a $lookup's sub-pipeline", name)
	case o.within == inUnion && r.noUnion:
		return mongoerr.Newf(31441, "%s is not allowed within a $unionWith's sub-pipeline", name)
	case (o.within == inFacet || o.facet) && r.noFacet, o.within == inFacet && r.notInFacet:
		return mongoerr.Newf(40600, "%s is not allowed to be used within a $facet stage", name)
	case o.InTxn && r.noTxn:
		return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Operation not permitted in transaction :: caused by :: "+
			"Aggregation stage %s cannot run within a multi-document transaction", name)
	case o.InView && r.noView:
		return mongoerr.Newf(mongoerr.OptionNotSupportedOnView, "%s cannot be used in a view definition", name)
	}
	return nil
}

// sub returns the options of a sub-pipeline.
func (o *Options) sub(c place, ns Namespace) *Options {
	s := *o
	s.NS, s.within, s.depth = ns, c, o.depth+1
	s.facet = o.facet || c == inFacet
	s.FromRouter, s.ViewStages = false, 0
	return &s
}

// StageNames lists the stages that clients may use, by name.
func StageNames() []string {
	var out []string
	for n, r := range registry {
		if !r.internal {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// fieldPath checks a path that is given without a dollar sign.
func fieldPath(path string) ([]string, error) {
	if path == "" {
		return nil, mongoerr.New(40352, "FieldPath cannot be constructed with empty string")
	}
	parts, err := expr.SplitPath(path)
	if err == nil && len(parts) > maxPathDepth {
		err = mongoerr.Newf(mongoerr.Overflow, "FieldPath is too long: a path has at most %d components", maxPathDepth)
	}
	return parts, err
}

const maxPathDepth = 200

// stringField reads a string that may be given once; null counts as not given.
func stringField(dst *string, field string, v value.Value) error {
	if v.IsNullish() {
		return nil
	}
	if v.T != value.String {
		return wrongType(field, v.T.Name(), "string")
	}
	*dst = v.Str()
	return nil
}

// noDuplicates refuses a specification that names a field twice.
func noDuplicates(stage string, spec []byte) error {
	seen := map[string]bool{}
	for k := range value.Elements(spec) {
		if seen[k] {
			return mongoerr.DuplicateField(stage + "." + k)
		}
		seen[k] = true
	}
	return nil
}

// fieldOf reads "$path" arguments.
func fieldOf(v value.Value) (string, bool) {
	if v.T != value.String || !strings.HasPrefix(v.Str(), "$") {
		return "", false
	}
	return v.Str()[1:], true
}

func doc(fs ...value.Field) value.Value     { return value.NewDocument(value.Doc(fs...)) }
func f(k string, v value.Value) value.Field { return value.F(k, v) }
func str(s string) value.Value              { return value.NewString(s) }
func array(vs ...value.Value) value.Value   { return value.NewArray(value.ArrayOf(vs...)) }
func wrongType(field, got, want string) error {
	return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected type '%s'", field, got, want)
}
func unknownField(field string) error {
	return mongoerr.UnknownField(field)
}
func missingField(field string) error {
	return mongoerr.MissingField(field)
}
