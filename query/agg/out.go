package agg

import (
	"context"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	write := rules{last: true, noFacet: true, noLookup: true, noUnion: true, noTxn: true, noView: true, traits: NotInTransaction}
	register("$out", write, one(parseOut))
	register("$merge", write, one(parseMerge))
}

// writeStage is $out and $merge.
type writeStage struct {
	spec WriteSpec
	lets []letVar
	arg  value.Value
}

// letVar is a variable of $merge or $lookup.
type letVar struct {
	name string
	e    *expr.Expr
}

func (s *writeStage) Name() string      { return s.spec.Stage }
func (s *writeStage) Spec() value.Value { return s.arg }
func (s *writeStage) namespaces() (reads, writes []Namespace) {
	return nil, []Namespace{s.spec.NS}
}

func parseOut(o *Options, v value.Value) (*writeStage, error) {
	s := &writeStage{spec: WriteSpec{Stage: "$out", NS: Namespace{DB: o.NS.DB}}, arg: v}
	switch v.T {
	case value.String:
		s.spec.NS.Coll = v.Str()
	case value.Document:
		if err := s.parseOutDocument(v.Doc()); err != nil {
			return nil, err
		}
	default:
		return nil, mongoerr.Newf(16990, "$out only supports a string or object argument, but found %s", v.T.Name())
	}
	return s, checkOutTarget(s.spec.NS)
}

func (s *writeStage) parseOutDocument(d []byte) error {
	if err := noDuplicates("$out", d); err != nil {
		return err
	}
	s.spec.NS = Namespace{}
	var db, coll bool
	for k, e := range value.Elements(d) {
		switch k {
		case "db", "coll":
			if e.IsNullish() {
				continue
			}
			if e.T != value.String {
				return wrongType("$out."+k, e.T.Name(), "string")
			}
			if k == "db" {
				s.spec.NS.DB, db = e.Str(), true
			} else {
				s.spec.NS.Coll, coll = e.Str(), true
			}
		case "timeseries":
			if e.IsNullish() {
				continue
			}
			if e.T != value.Document {
				return wrongType("$out.timeseries", e.T.Name(), "object")
			}
			if err := checkTimeseries(e.Doc()); err != nil {
				return err
			}
			s.spec.TimeSeries = e.Clone().Doc()
		default:
			return unknownField("$out." + k)
		}
	}
	if !coll {
		return missingField("$out.coll")
	}
	if !db {
		return missingField("$out.db")
	}
	return nil
}

// checkTimeseries applies the rules on types of $out's timeseries options; the host checks the values.
func checkTimeseries(d []byte) error {
	timeField, granular := false, false
	span, rounding := 0.0, 0.0
	for k, e := range value.Elements(d) {
		name := "$out.timeseries." + k
		switch k {
		case "timeField", "metaField", "granularity":
			if e.IsNullish() {
				continue
			}
			if e.T != value.String {
				return wrongType(name, e.T.Name(), "string")
			}
			timeField = timeField || k == "timeField"
			granular = granular || k == "granularity"
			if k == "granularity" && e.Str() != "seconds" && e.Str() != "minutes" && e.Str() != "hours" {
				return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '%s' is not a valid value.", e.Str(), name)
			}
		case "bucketMaxSpanSeconds", "bucketRoundingSeconds":
			if e.IsNullish() {
				continue
			}
			if !e.T.Numeric() {
				return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected types '[long, int, decimal, double']", name, e.T.Name())
			}
			n := wholeNumber(e)
			if !(n >= 1 && n <= 31536000) {
				return mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' value must be >= 1 and <= 31536000, actual value '%s'", name, expr.Show(e))
			}
			if k == "bucketMaxSpanSeconds" {
				span = n
			} else {
				rounding = n
			}
		default:
			return unknownField(name)
		}
	}
	switch {
	case !timeField:
		return missingField("$out.timeseries.timeField")
	case (span == 0) != (rounding == 0):
		return mongoerr.New(mongoerr.InvalidOptions, "Timeseries 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' need to be set alongside each other")
	case span != rounding:
		return mongoerr.New(mongoerr.InvalidOptions, "Timeseries 'bucketRoundingSeconds' needs to be equal to 'bucketMaxSpanSeconds'")
	case span != 0 && granular && value.Lookup(d, "granularity").Str() != "seconds":
		return mongoerr.New(mongoerr.InvalidOptions, "Timeseries 'granularity' is not allowed to be set with 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds'")
	}
	return nil
}

func checkOutTarget(ns Namespace) error {
	if err := checkNamespace(ns); err != nil {
		return err
	}
	switch {
	case ns.Coll[0] == '$' || len(ns.String()) > 255:
		return mongoerr.Newf(mongoerr.IllegalOperation, "error with target namespace: Invalid collection name: %s", ns.Coll)
	case strings.HasPrefix(ns.Coll, "system."):
		return mongoerr.Newf(17385, "Can't $out to special collection: %s", ns.Coll)
	case ns.DB == "admin" || ns.DB == "config" || ns.DB == "local":
		return mongoerr.Newf(31321, "Can't $out to internal database: %s", ns.DB)
	}
	return nil
}

// checkNamespace refuses names that no collection can have.
func checkNamespace(ns Namespace) error {
	if ns.DB == "" || ns.Coll == "" || ns.Coll[0] == '.' || strings.ContainsAny(ns.DB, "/\\. \"$\x00") || len(ns.DB) > 63 ||
		strings.Contains(ns.Coll, "\x00") {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	}
	return nil
}

func parseMerge(o *Options, v value.Value) (*writeStage, error) {
	s := &writeStage{arg: v, spec: WriteSpec{Stage: "$merge", NS: Namespace{DB: o.NS.DB}, WhenMatched: "merge",
		WhenNotMatched: "insert", On: []string{"_id"}, DefaultOn: true}}
	switch v.T {
	case value.String:
		s.spec.NS.Coll = v.Str()
		return s, s.checkMerge()
	case value.Document:
	default:
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "$merge requires a string or object argument, but found %s", v.T.Name())
	}
	var into, let value.Value
	for k, e := range value.Elements(v.Doc()) {
		var err error
		switch k {
		case "into":
			into = e
			err = s.parseInto(e)
		case "on":
			err = s.parseOn(e)
		case "let":
			if let = e; e.T != value.Document && !e.IsNullish() {
				err = wrongType("$merge.let", e.T.Name(), "object")
			}
		case "whenMatched":
			err = s.parseWhenMatched(e)
		case "whenNotMatched":
			s.spec.WhenNotMatched, err = mergeMode("whenNotMatched", e, "insert", "discard", "fail")
		case "targetCollectionVersion", "allowMergeOnNullishValues":
		default:
			err = unknownField("$merge." + k)
		}
		if err != nil {
			return nil, err
		}
	}
	if into.T == value.Missing {
		return nil, missingField("$merge.into")
	}
	if err := s.checkMerge(); err != nil {
		return nil, err
	}
	return s, s.parseLet(o, let)
}

func (s *writeStage) parseInto(v value.Value) error {
	switch v.T {
	case value.String:
		if s.spec.NS.Coll = v.Str(); v.Str() == "" {
			return mongoerr.New(5786800, "$merge 'into' field cannot be an empty string")
		}
		return nil
	case value.Document:
	default:
		return mongoerr.Newf(51178, "$merge 'into' field must be either a string or an object, but found %s", v.T.Name())
	}
	for k, e := range value.Elements(v.Doc()) {
		switch {
		case k != "db" && k != "coll":
			return unknownField("MergeTargetNss." + k)
		case k == "coll" && e.IsNullish(), k == "db" && e.IsNullish():
		case e.T != value.String:
			return wrongType("MergeTargetNss."+k, e.T.Name(), "string")
		case k == "db":
			if e.Str() != "" {
				s.spec.NS.DB = e.Str()
			}
		default:
			s.spec.NS.Coll = e.Str()
		}
	}
	if s.spec.NS.Coll == "" && value.Lookup(v.Doc(), "coll").T != value.String {
		return mongoerr.New(5786801, "$merge 'into' field must specify a 'coll' that is not empty, null or undefined")
	}
	return nil
}

func (s *writeStage) parseOn(v value.Value) error {
	var names []value.Value
	switch v.T {
	case value.String:
		names = []value.Value{v}
	case value.Array:
		if names = value.Values(v.Doc()); len(names) == 0 {
			return mongoerr.New(51187, "If explicitly specifying $merge 'on', must include at least one field")
		}
	default:
		return mongoerr.Newf(51186, "$merge 'on' field  must be either a string or an array of strings, but found %s", v.T.Name())
	}
	seen := map[string]bool{}
	s.spec.On, s.spec.DefaultOn = nil, false
	for _, n := range names {
		if n.T != value.String {
			return mongoerr.Newf(51134, "$merge 'on' array elements must be strings, but found %s", n.T.Name())
		}
		if _, err := fieldPath(n.Str()); err != nil {
			return err
		}
		if seen[n.Str()] {
			return mongoerr.Newf(31465, "Found a duplicate field '%s'", n.Str())
		}
		seen[n.Str()] = true
		s.spec.On = append(s.spec.On, n.Str())
	}
	return nil
}

func (s *writeStage) parseWhenMatched(v value.Value) (err error) {
	switch v.T {
	case value.Array:
		s.spec.WhenMatched, s.spec.Pipeline = "pipeline", value.Values(v.Clone().Doc())
		for _, st := range s.spec.Pipeline {
			if st.T != value.Document {
				return mongoerr.New(mongoerr.TypeMismatch, "Each element of the 'pipeline' array must be an object")
			}
		}
		return nil
	case value.String:
		s.spec.WhenMatched, err = mergeMode("whenMatched", v, "replace", "keepExisting", "merge", "fail", "pipeline")
		if err == nil && s.spec.WhenMatched == "pipeline" {
			err = badMode("whenMatched", "pipeline")
		}
		return err
	}
	return mongoerr.Newf(51191, "$merge 'whenMatched' field  must be either a string or an array, but found %s", v.T.Name())
}

func badMode(field, got string) error {
	return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '$merge.%s' is not a valid value.", got, field)
}

func mergeMode(field string, v value.Value, modes ...string) (string, error) {
	if v.IsNullish() {
		return modes[0], nil
	}
	if v.T != value.String {
		return "", wrongType("$merge."+field, v.T.Name(), "string")
	}
	for _, m := range modes {
		if v.Str() == m {
			return m, nil
		}
	}
	return "", badMode(field, v.Str())
}

func (s *writeStage) checkMerge() error {
	if err := checkNamespace(s.spec.NS); err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(s.spec.NS.Coll, "system."):
		return mongoerr.Newf(31319, "Cannot $merge to special collection: %s", s.spec.NS.Coll)
	case s.spec.NS.DB == "admin" || s.spec.NS.DB == "config" || s.spec.NS.DB == "local":
		return mongoerr.Newf(31320, "Cannot $merge to internal database: %s", s.spec.NS.DB)
	case s.spec.WhenNotMatched != "insert" && (s.spec.WhenMatched == "fail" ||
		s.spec.WhenMatched == "keepExisting"):
		return mongoerr.Newf(51181, "Combination of $merge modes 'whenMatched: %s' and 'whenNotMatched: %s' is not supported",
			s.spec.WhenMatched, s.spec.WhenNotMatched)
	}
	return nil
}

// parseLet compiles the variables of the whenMatched pipeline; new is the document itself unless it is given.
func (s *writeStage) parseLet(o *Options, let value.Value) error {
	if s.spec.WhenMatched != "pipeline" {
		if let.T == value.Document {
			return mongoerr.New(51199, "Cannot use 'let' variables with 'whenMatched' mode that is not a pipeline")
		}
		return nil
	}
	root, err := expr.Compile(str("$$ROOT"), o.scope())
	if err != nil {
		return err
	}
	hasNew := false
	if let.T == value.Document {
		for k, e := range value.Elements(let.Doc()) {
			if k == "new" {
				if hasNew = true; e.T != value.String || e.Str() != "$$ROOT" {
					return mongoerr.New(51273, "'let' may not define a value for the reserved 'new' variable other than '$$ROOT'")
				}
			} else if err := checkVariable(k); err != nil {
				return err
			}
			c, err := expr.Compile(e, o.scope())
			if err != nil {
				return err
			}
			s.lets = append(s.lets, letVar{k, c})
		}
	}
	if !hasNew {
		s.lets = append(s.lets, letVar{"new", root})
	}
	var fs []value.Field
	for _, l := range s.lets {
		fs = append(fs, f(l.name, l.e.Serialize()))
	}
	s.spec.Let = doc(fs...)
	return nil
}

// checkVariable applies the rules on names of user variables.
func checkVariable(name string) error {
	if name == "" {
		return mongoerr.New(mongoerr.FailedToParse, "empty variable names are not allowed")
	}
	if c := name[0]; !(c >= 'a' && c <= 'z' || c >= 0x80) {
		return mongoerr.Newf(mongoerr.FailedToParse, "'%s' starts with an invalid character for a user variable name", name)
	}
	for i := 1; i < len(name); i++ {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80) {
			return mongoerr.Newf(mongoerr.FailedToParse, "'%s' contains an invalid character for a variable name: '%c'", name, c)
		}
	}
	return nil
}

func (s *writeStage) open(x *exec, src Source) (Source, error) {
	return &writeSource{x: x, s: s, src: src}, nil
}

// writeSource writes its whole input and returns nothing.
type writeSource struct {
	x    *exec
	s    *writeStage
	src  Source
	done bool
}

func (w *writeSource) Close() { w.src.Close() }

func (w *writeSource) Next(ctx context.Context) (Doc, bool, error) {
	if w.done {
		return Doc{}, false, nil
	}
	w.done = true
	out, err := w.x.host.Writer(ctx, w.s.spec)
	if err != nil {
		return Doc{}, false, err
	}
	if err := w.copy(ctx, out); err != nil {
		out.Abort(ctx)
		return Doc{}, false, err
	}
	err = out.Commit(ctx)
	if err != nil {
		out.Abort(ctx) // the temporary collection of an $out
	}
	return Doc{}, false, w.s.spec.explainFailure(err)
}

// explainFailure prefixes the error of a $merge statement with its purpose.
func (w *WriteSpec) explainFailure(err error) error {
	if err == nil || w.Stage != "$merge" {
		return err
	}
	e := mongoerr.From(err)
	switch {
	case e.Code == mongoerr.DuplicateKey && w.WhenMatched == "fail" && w.identifies(value.Lookup(e.Details, "keyPattern").Doc()):
		return e.Prefix("$merge with whenMatched: fail found an existing document with the same values for the 'on' fields :: caused by :: ")
	case e.Code == mongoerr.DuplicateKey:
		return e.Prefix("$merge failed due to a DuplicateKey error :: caused by :: ")
	case e.Code == mongoerr.ImmutableField:
		return e.Prefix("$merge failed to update the matching document, did you attempt to modify the _id or the shard key? :: caused by :: ")
	}
	return err
}

// identifies reports whether an index's fields are those by which $merge identifies documents.
func (w *WriteSpec) identifies(key []byte) bool {
	for k := range value.Elements(key) {
		if !slices.Contains(w.On, k) && (k != "_id" || len(w.On) > 0) {
			return false
		}
	}
	return value.Count(key) == max(1, len(w.On))
}

func (w *writeSource) copy(ctx context.Context, out Writer) error {
	frame := w.x.frame()
	var let []value.Value
	for {
		d, ok, err := w.src.Next(ctx)
		if err != nil || !ok {
			return err
		}
		if err := w.checkOn(d.Raw); err != nil {
			return err
		}
		let = let[:0]
		setRoot(frame, d)
		for _, l := range w.s.lets {
			v, err := l.e.Eval(frame)
			if err != nil {
				return err
			}
			let = append(let, v)
		}
		if err := out.Write(ctx, d.Raw, let); err != nil {
			return w.s.spec.explainFailure(err)
		}
	}
}

// checkOn refuses arrays in the identifying fields of $merge. Whether null and missing are allowed depends on the
// target's index, so the writer checks that.
func (w *writeSource) checkOn(doc []byte) error {
	for _, on := range w.s.spec.On {
		v := lookupPath(doc, strings.Split(on, "."))
		if v.T == value.Array {
			return mongoerr.New(51185, "$merge write error: 'on' field cannot be an array")
		}
	}
	return nil
}
