package agg

import (
	"context"
	"slices"

	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$changeStream", rules{first: true, database: true, noFacet: true, noLookup: true, noUnion: true, noTxn: true, noView: true, traits: NotInTransaction},
		one(parseChangeStream))
	register("$changeStreamSplitLargeEvent", rules{last: true, noFacet: true, noLookup: true, noUnion: true, traits: Plain}, one(parseSplitEvent))
}

// ChangeStream is a parsed $changeStream.
type ChangeStream struct {
	FullDocument             string              // default, updateLookup, whenAvailable, required
	FullDocumentBeforeChange string              // off, whenAvailable, required
	ResumeAfter, StartAfter  *changestream.Token // nil if not given
	StartAt                  uint64              // startAtOperationTime, if HasStartAt is set
	HasStartAt               bool
	AllChangesForCluster     bool
	ShowExpandedEvents       bool
	ShowSystemEvents         bool
	ShowMigrationEvents      bool
	ShowRawUpdateDescription bool
}

// Filter returns the filter for the events of a stream on a namespace.
func (c *ChangeStream) Filter(ns Namespace) changestream.Filter {
	f := changestream.Filter{DB: ns.DB, Coll: ns.Coll, Expanded: c.ShowExpandedEvents, System: c.ShowSystemEvents, Migrations: c.ShowMigrationEvents}
	if ns.Coll == DatabaseAggregate {
		f.Coll = ""
	}
	if c.AllChangesForCluster {
		f.DB = ""
	}
	return f
}

// Form returns the form of events' documents according to the stream's options.
func (c *ChangeStream) Form() changestream.Form {
	return changestream.Form{Expanded: c.ShowExpandedEvents, Raw: c.ShowRawUpdateDescription}
}

// ImagesAfter reports whether the stream shows the document as an update left it (its post-image), not the current version.
func (c *ChangeStream) ImagesAfter() bool {
	return c.FullDocument == "whenAvailable" || c.FullDocument == "required"
}

// Token returns the token after which the stream resumes, nil for none; startAfter reports whether it comes from that option.
func (c *ChangeStream) Token() (t *changestream.Token, startAfter bool) {
	if c.StartAfter != nil {
		return c.StartAfter, true
	}
	return c.ResumeAfter, false
}

// AfterChangeStream returns the pipeline without its $changeStream: it runs over the stream's events. A stream
// that resumes within a split event receives that event again, and skips its first fragments.
func (p *Pipeline) AfterChangeStream() (*Pipeline, error) {
	rest := *p
	rest.stages = slices.Clone(p.stages[1:])
	cs, _ := p.ChangeStream()
	t, _ := cs.Token()
	if t == nil || t.Fragment < 0 {
		return &rest, nil
	}
	n := len(rest.stages)
	if n > 0 {
		if s, ok := rest.stages[n-1].(*splitEventStage); ok {
			rest.stages[n-1] = &splitEventStage{s.arg, t}
			return &rest, nil
		}
	}
	return nil, mongoerr.New(mongoerr.ChangeStreamFatalError, "To resume from a split event, the resumed pipeline must include a $changeStreamSplitLargeEvent stage").
		WithLabel(mongoerr.LabelNonResumableStream)
}

// changeStreamStage is $changeStream. The host opens the stream, and runs AfterChangeStream over its events.
type changeStreamStage struct {
	infoStage
	cs ChangeStream
}

// ChangeStream returns the specification of a pipeline that begins with $changeStream.
func (p *Pipeline) ChangeStream() (*ChangeStream, bool) {
	if len(p.stages) == 0 {
		return nil, false
	}
	s, ok := p.stages[0].(*changeStreamStage)
	if !ok {
		return nil, false
	}
	return &s.cs, true
}

func parseChangeStream(o *Options, v value.Value) (*changeStreamStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(6188500, "$changeStream must take a nested object but found: $changeStream: %s", v.T.Name())
	}
	s := &changeStreamStage{infoStage: infoStage{"$changeStream", v, o.NS},
		cs: ChangeStream{FullDocument: "default", FullDocumentBeforeChange: "off"}}
	for k, e := range value.Elements(v.Doc()) {
		if err := s.cs.option(k, e); err != nil {
			return nil, err
		}
	}
	c := &s.cs
	switch {
	case c.ResumeAfter != nil && c.StartAfter != nil:
		return nil, mongoerr.New(50865, "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage")
	case (c.ResumeAfter != nil || c.StartAfter != nil) && c.HasStartAt:
		return nil, mongoerr.New(40674, "Only one type of resume option is allowed, but multiple were found.")
	case c.AllChangesForCluster && (o.NS.DB != "admin" || o.NS.Coll != DatabaseAggregate):
		return nil, mongoerr.New(mongoerr.InvalidOptions, "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with no collection name")
	}
	if c.AllChangesForCluster || o.FromRouter { // routers watch config.shards themselves
		return s, nil
	}
	return s, checkStreamNamespace(o.NS)
}

// checkStreamNamespace refuses the internal databases and system collections.
func checkStreamNamespace(ns Namespace) error {
	internal := ns.DB == "admin" || ns.DB == "local" || ns.DB == "config"
	system := len(ns.Coll) > 7 && ns.Coll[:7] == "system."
	if internal || system {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "$changeStream may not be opened on the internal %s", ns)
	}
	return nil
}

func (c *ChangeStream) option(k string, e value.Value) (err error) {
	name := "$changeStream." + k
	switch k {
	case "fullDocument":
		return enumField(&c.FullDocument, name, e, "default", "updateLookup", "whenAvailable", "required")
	case "fullDocumentBeforeChange":
		return enumField(&c.FullDocumentBeforeChange, name, e, "off", "whenAvailable", "required")
	case "allChangesForCluster", "showExpandedEvents", "showSystemEvents", "showRawUpdateDescription", "showMigrationEvents":
		if e.T != value.Boolean {
			return wrongType(name, e.T.Name(), "bool")
		}
		switch k {
		case "allChangesForCluster":
			c.AllChangesForCluster = e.Bool()
		case "showExpandedEvents":
			c.ShowExpandedEvents = e.Bool()
		case "showSystemEvents":
			c.ShowSystemEvents = e.Bool()
		case "showMigrationEvents":
			c.ShowMigrationEvents = e.Bool()
		case "showRawUpdateDescription":
			c.ShowRawUpdateDescription = e.Bool()
		}
		return nil
	case "resumeAfter":
		c.ResumeAfter, err = resumeToken(name, e)
		return err
	case "startAfter":
		c.StartAfter, err = resumeToken(name, e)
		return err
	case "startAtOperationTime":
		if e.IsNullish() {
			return nil
		}
		if e.T != value.Timestamp {
			return wrongType(name, e.T.Name(), "timestamp")
		}
		c.StartAt, c.HasStartAt = e.TimestampU64(), true
		return nil
	}
	return unknownField(name)
}

func enumField(dst *string, name string, e value.Value, allowed ...string) error {
	if e.IsNullish() {
		return nil
	}
	if e.T != value.String {
		return wrongType(name, e.T.Name(), "string")
	}
	for _, a := range allowed {
		if e.Str() == a {
			*dst = a
			return nil
		}
	}
	return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '%s' is not a valid value.", e.Str(), name)
}

func resumeToken(name string, e value.Value) (*changestream.Token, error) {
	if e.IsNullish() {
		return nil, nil
	}
	if e.T != value.Document {
		return nil, wrongType(name, e.T.Name(), "object")
	}
	return changestream.ParseToken(e.Doc())
}

// allowedOnStream reports whether a stage may follow $changeStream.
func allowedOnStream(s Stage) bool {
	switch s.(type) {
	case *matchStage, *fieldsStage, *rootStage, *redactStage, *splitEventStage, *changeStreamStage:
		return true
	}
	return false
}

// splitEventStage is $changeStreamSplitLargeEvent: it splits events that are too large.
type splitEventStage struct {
	arg   value.Value
	after *changestream.Token // the fragment after which the stream resumes; nil for none
}

func parseSplitEvent(_ *Options, v value.Value) (*splitEventStage, error) {
	if v.T != value.Document || value.Count(v.Doc()) != 0 {
		return nil, mongoerr.New(7182800, "$changeStreamSplitLargeEvent spec should be an empty object")
	}
	return &splitEventStage{v, nil}, nil
}

func (s *splitEventStage) Name() string      { return "$changeStreamSplitLargeEvent" }
func (s *splitEventStage) Spec() value.Value { return s.arg }
func (s *splitEventStage) open(_ *exec, src Source) (Source, error) {
	return &splitEventSource{Source: src, after: s.after}, nil
}

// splitEventSource passes events on; it splits only those beyond 16 MB.
type splitEventSource struct {
	Source
	parts [][]byte
	after *changestream.Token // reset once its event has arrived
}

func (s *splitEventSource) Next(ctx context.Context) (Doc, bool, error) {
	if len(s.parts) > 0 {
		d := s.parts[0]
		s.parts = s.parts[1:]
		return Doc{Raw: d}, true, nil
	}
	d, ok, err := s.Source.Next(ctx)
	if err != nil || !ok {
		return d, ok, err
	}
	token, err := changestream.ParseToken(value.Lookup(d.Raw, "_id").Doc())
	if err != nil {
		return d, true, nil // a stage has changed the token, which the stream's host refuses
	}
	after := s.after
	s.after = nil
	if after != nil && token.Compare(after.Before()) != 0 {
		after = nil
	}
	if len(d.Raw) > maxArray {
		s.parts = splitEvent(d.Raw, token)
	}
	if after != nil {
		if after.Fragment >= len(s.parts) {
			return d, false, mongoerr.Newf(mongoerr.ChangeStreamFatalError, "cannot resume after fragment %d of an event that is split into %d", after.Fragment+1, len(s.parts)).
				WithLabel(mongoerr.LabelNonResumableStream)
		}
		s.parts = s.parts[after.Fragment+1:]
		return s.Next(ctx)
	}
	if len(s.parts) == 0 {
		return d, true, nil
	}
	return s.Next(ctx)
}

// splitEvent splits an event between its top-level fields: every fragment has its number, also in its token.
func splitEvent(doc []byte, token *changestream.Token) [][]byte {
	var groups [][]byte
	var cur []byte
	for it := value.Walk(doc); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			break
		}
		if string(k) == "_id" {
			continue
		}
		if len(cur) > 0 && len(cur)+len(raw) > maxArray-64<<10 {
			groups, cur = append(groups, cur), nil
		}
		cur = append(cur, raw...)
	}
	groups = append(groups, cur)
	out := make([][]byte, len(groups))
	for i, g := range groups {
		dst, mark := value.Begin(make([]byte, 0, len(g)+256))
		dst = value.Append(dst, "_id", value.NewDocument(token.WithFragment(i).Document()))
		dst = value.Append(dst, "splitEvent", fragmentOf(i+1, len(groups)))
		out[i] = value.End(append(dst, g...), mark)
	}
	return out
}

func fragmentOf(fragment, of int) value.Value {
	return doc(f("fragment", value.NewInt32(int32(fragment))), f("of", value.NewInt32(int32(of))))
}
