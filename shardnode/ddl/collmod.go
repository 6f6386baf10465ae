package ddl

import (
	"bytes"
	"math"
	"strings"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func collModSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "collMod", Roles: command.All, Kind: command.DDL, Namespace: true, WriteConcern: true, API: true, Run: cs.runCollMod,
		Fields: []command.Field{
			command.Opt("index", command.TObject), command.Opt("validator", command.TObject), command.Opt("validationLevel", command.TString),
			command.Opt("validationAction", command.TString), command.Opt("viewOn", command.TString), command.Opt("pipeline", command.TArray),
			command.Opt("cappedSize", command.TNumber), command.Opt("cappedMax", command.TNumber), command.Opt("timeseries", command.TObject),
			command.Opt("expireAfterSeconds", command.TAny), command.Opt("changeStreamPreAndPostImages", command.TObject),
			command.Opt("dryRun", command.TSafeBool), command.Opt("collectionUUID", command.TAny),
			command.Opt("isTimeseriesNamespace", command.TSafeBool), command.Opt(namespace.MixedSchema, command.TSafeBool), byCoordinator,
		},
	}
}

// collMod is a parsed collMod command.
type collMod struct {
	ns     string
	index  *indexMod
	ts     []value.Value // granularity, bucketRoundingSeconds, bucketMaxSpanSeconds
	images value.Value   // the value of enabled
	expire value.Value   // a long, or "off" for the end of expiry
	dryRun bool

	cappedSize, cappedMax value.Value
	pipeline              value.Value
	changes               []value.Field  // *_old and *_new of the reply
	usage                 *catalog.Usage // reset once the index is hidden or unhidden
	enforces              []byte         // the key of the index that refuses duplicates from then on; nil for none
}

// indexMod is the index argument of collMod.
type indexMod struct {
	name, key                     value.Value
	expire, hidden, prepare, uniq value.Value
	force                         value.Value // forceNonUnique: the index is to be no longer unique
}

func (cs *Commands) runCollMod(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	m, err := parseCollMod(op, ns)
	if err != nil {
		return dst, err
	}
	w, unlock, err := cs.beginOn(op, ns)
	if err != nil {
		return dst, err
	}
	defer w.AfterCommit(unlock)
	if err := w.Retry(func() error { return w.modify(m) }); err != nil {
		return dst, err
	}
	return m.reply(dst), nil
}

// reply appends what the command has changed.
func (m *collMod) reply(dst []byte) []byte {
	for _, f := range m.changes {
		dst = value.Append(dst, f.Key, f.Val)
	}
	return dst
}

func parseCollMod(op *command.Op, ns string) (*collMod, error) {
	m := &collMod{ns: ns, dryRun: op.Bool("dryRun"), cappedSize: op.Arg("cappedSize"), cappedMax: op.Arg("cappedMax")}
	if err := command.OneOf("collMod.validationLevel", op.Arg("validationLevel"), "off", "strict", "moderate"); err != nil {
		return nil, err
	}
	if err := command.OneOf("collMod.validationAction", op.Arg("validationAction"), "error", "warn", "errorAndLog"); err != nil {
		return nil, err
	}
	for _, f := range []func(*command.Op) error{m.parseIndex, m.parseCapped, m.parseTimeseries, m.parseImages, m.parseExpire, m.parsePipeline} {
		if err := f(op); err != nil {
			return nil, err
		}
	}
	return m, nil
}

var indexModFields = []command.Field{
	command.Opt("name", command.TString), command.Opt("keyPattern", command.TObject), command.Opt("expireAfterSeconds", command.TNumber),
	command.Opt("hidden", command.TSafeBool), command.Opt("prepareUnique", command.TSafeBool), command.Opt("unique", command.TSafeBool),
	command.Opt("forceNonUnique", command.TSafeBool),
}

func (m *collMod) parseIndex(op *command.Op) error {
	v := op.Arg("index")
	if v.IsMissing() {
		if m.dryRun {
			return command.BadOption("dryRun mode is only allowed to use with index unique conversion")
		}
		return nil
	}
	f, err := command.ParseFields("collMod.index", v.Doc(), indexModFields)
	if err != nil {
		return err
	}
	i := &indexMod{name: f[0], key: f[1], expire: f[2], hidden: f[3], prepare: f[4], uniq: f[5], force: f[6]}
	switch {
	case i.name.IsMissing() && i.key.IsMissing():
		return command.BadOption("Must specify either index name or key pattern.")
	case !i.name.IsMissing() && !i.key.IsMissing():
		return command.BadOption("Cannot specify both key pattern and name.")
	case i.expire.IsMissing() && i.hidden.IsMissing() && i.prepare.IsMissing() && i.uniq.IsMissing() && i.force.IsMissing():
		return command.BadOption("no expireAfterSeconds, hidden, unique, or prepareUnique field")
	case !i.uniq.IsMissing() && !i.uniq.Truthy():
		return mongoerr.New(mongoerr.BadValue, "'unique: false' is not supported")
	case !i.force.IsMissing() && !i.force.Truthy():
		return mongoerr.New(mongoerr.BadValue, "'forceNonUnique: false' is not supported")
	case m.dryRun && i.uniq.IsMissing():
		return command.BadOption("dryRun mode is only allowed to use with index unique conversion")
	}
	if !i.expire.IsMissing() {
		sec := value.SafeInt64(i.expire)
		if sec < 0 {
			return command.BadOption("TTL index 'expireAfterSeconds' option cannot be less than 0")
		}
		i.expire = value.NewInt64(min(sec, math.MaxInt32))
	}
	m.index = i
	return nil
}

func (m *collMod) parseCapped(*command.Op) error {
	if !m.cappedSize.IsMissing() {
		if _, err := command.InRange("cappedSize", m.cappedSize, 1, maxCappedSize); err != nil {
			return err
		}
	}
	if !m.cappedMax.IsMissing() && value.SafeInt64(m.cappedMax) >= 1<<31 {
		return mongoerr.New(mongoerr.BadValue, "max in a capped collection has to be < 2^31 or not set")
	}
	return nil
}

func (m *collMod) parseTimeseries(op *command.Op) error {
	v := op.Arg("timeseries")
	if v.IsMissing() {
		return nil
	}
	fields := namespace.SeriesFields[2:]
	f, err := command.ParseFields("collMod.timeseries", v.Doc(), fields)
	if err != nil {
		return err
	}
	if err := command.OneOf("collMod.timeseries.granularity", f[0], "seconds", "minutes", "hours"); err != nil {
		return err
	}
	for i := 1; i < 3; i++ {
		if f[i].IsMissing() {
			continue
		}
		if _, err := command.InRange(fields[i].Name, f[i], 1, namespace.MaxBucketSpan); err != nil {
			return err
		}
	}
	m.ts = f
	return nil
}

func (m *collMod) parseImages(op *command.Op) error {
	v := op.Arg("changeStreamPreAndPostImages")
	if v.IsMissing() {
		return nil
	}
	f, err := command.ParseFields("collMod.changeStreamPreAndPostImages", v.Doc(), imagesFields)
	if err != nil {
		return err
	}
	m.images = f[0]
	return nil
}

func (m *collMod) parseExpire(op *command.Op) error {
	v := op.Arg("expireAfterSeconds")
	switch {
	case v.IsMissing():
	case v.T == value.String:
		if v.Str() != "off" {
			return command.BadOption("expireAfterSeconds must be either a number or 'off'")
		}
		m.expire = v
	case v.T.Numeric():
		m.expire = value.NewInt64(value.SafeInt64(v))
	default:
		return command.WrongType("collMod.expireAfterSeconds", v.T, command.TStringInt)
	}
	return nil
}

func (m *collMod) parsePipeline(op *command.Op) error {
	v := op.Arg("pipeline")
	if v.IsMissing() {
		return nil
	}
	p, err := parseViewPipeline("collMod.pipeline", v)
	m.pipeline = value.NewArray(p)
	return err
}

// modify applies a collMod to the collection or view with that name.
func (w *operation) modify(m *collMod) error {
	m.changes, m.usage, m.enforces = nil, nil, nil
	s := w.ddl.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(m.ns)
	isTS := c != nil && namespace.IsBuckets(m.ns)
	if c == nil {
		v, err := namespace.ViewIn(s, m.ns)
		if err != nil {
			return err
		}
		switch {
		case v == nil:
			return namespace.NotFound(m.ns)
		case v.IsTimeseries() && namespace.Buckets(s.Catalog(), m.ns) != nil:
			c, isTS = namespace.Buckets(s.Catalog(), m.ns), true
		default:
			return w.modifyView(s, v, m)
		}
	}
	if err := m.checkTarget(w.Op, c, isTS); err != nil {
		return err
	}
	// A coordinator has asked all shards before it began to change them (checkShards): one that refused now would keep the former definition.
	if w.Op.Req.Shared(msg.RunArgument).IsMissing() {
		if err := storage.CheckNoBuild(c); err != nil {
			return err
		}
	}
	return w.modifyCollection(s, c, m)
}

// modifyView changes a view's definition.
func (w *operation) modifyView(s *storage.Snapshot, v *namespace.View, m *collMod) error {
	for _, f := range collModSpec(w.ddl).Fields {
		switch f.Name {
		case "viewOn", "pipeline", "dryRun", "collectionUUID", "isTimeseriesNamespace", msg.RunArgument:
			continue
		}
		if !w.Op.Arg(f.Name).IsMissing() {
			return command.BadOption("option not supported on a view: %s", f.Name)
		}
	}
	next := &namespace.View{NS: v.NS, On: v.On, Pipeline: v.Pipeline, Collation: v.Collation}
	on := w.Op.Arg("viewOn")
	if on.IsMissing() && m.pipeline.IsMissing() {
		w.Finish()
		return nil
	}
	if !on.IsMissing() {
		next.On = on.Str()
		if err := refuseViewOfBuckets(next.NS, next.On); err != nil {
			return err
		}
	}
	if !m.pipeline.IsMissing() {
		next.Pipeline = m.pipeline
	}
	next.Doc = next.MakeDoc()
	if err := w.ddl.checkView(s, next); err != nil || w.checks {
		return err
	}
	u := w.Unit(s)
	defer u.Rollback()
	if err := w.PutView(u, s, next); err != nil {
		return err
	}
	if err := namespace.AddOutcome(w.Op, u, m.reply(nil)); err != nil {
		return err
	}
	return w.Commit(u, w.Concern)
}

// checkTarget refuses options that the kind of collection does not have.
func (m *collMod) checkTarget(op *command.Op, c *catalog.Collection, isTS bool) error {
	for _, name := range []string{"viewOn", "pipeline"} {
		if !op.Arg(name).IsMissing() {
			return command.BadOption("option only supported on a view: %s", name)
		}
	}
	mixed := op.Arg(namespace.MixedSchema)
	if isTS {
		switch {
		case m.index != nil && m.index.prepare.Truthy():
			return command.BadOption("cannot set 'prepareUnique' for indexes of a time-series collection")
		case mixed.IsMissing():
		case !mixed.Truthy():
			return command.BadOption("%s can only be set to true", namespace.MixedSchema)
		case m.ts != nil:
			return command.BadOption("Cannot set timeseries options and %s in the same collMod", namespace.MixedSchema)
		}
		for _, name := range []string{"validator", "validationLevel", "validationAction", "changeStreamPreAndPostImages"} {
			if !op.Arg(name).IsMissing() {
				return command.BadOption("option not supported on a time-series collection: %s", name)
			}
		}
		return nil
	}
	switch {
	case m.ts != nil:
		return command.BadOption("option only supported on a time-series collection: timeseries")
	case !mixed.IsMissing():
		return command.BadOption("option only supported on a time-series collection: %s", namespace.MixedSchema)
	case !m.expire.IsMissing() && !c.Clustered:
		return command.BadOption("'expireAfterSeconds' option is only supported on collections clustered by _id")
	case (!m.cappedSize.IsMissing() || !m.cappedMax.IsMissing()) && (!c.Capped || c.Oplog):
		return command.BadOption("Collection must be capped and not the oplog to change its size or its number of documents.")
	}
	return nil
}

func (w *operation) modifyCollection(s *storage.Snapshot, c *catalog.Collection, m *collMod) error {
	u := w.Unit(s)
	defer u.Rollback()
	changed := false
	var spec []byte
	var name string
	if m.index != nil {
		var err error
		if spec, name, err = w.modifiedIndex(s, c, m); err != nil {
			return err
		}
		if m.dryRun {
			m.changes = nil
			w.Finish()
			return nil
		}
	}
	o, o2 := m.oplogEntry(w.Op, c)
	if spec != nil {
		var err error
		if c, err = u.SetIndexSpec(c, name, spec, o, o2); err != nil {
			return err
		}
		changed, o, o2 = true, nil, nil
		if m.usage != nil {
			u.OnCommit(func(storage.Timestamp) { m.usage.Ops.Store(0) })
		}
	}
	options, err := m.modifiedOptions(w.Op, c)
	if err != nil {
		return err
	}
	if !catalog.SameOptions(options, c.Options) {
		if c, err = u.SetCollectionOptions(c, options, o, o2); err != nil {
			return err
		}
		changed = true
		if m.ts != nil {
			if err := w.retuneView(u, s, m, options); err != nil {
				return err
			}
		}
	}
	if !changed { // change streams also report a command that changes nothing
		if c, err = u.SetCollectionOptions(c, c.Options, o, o2); err != nil {
			return err
		}
	}
	if w.checks {
		return nil
	}
	w.ddl.node.Forget(u, c)
	if err := namespace.AddOutcome(w.Op, u, m.reply(nil)); err != nil {
		return err
	}
	return w.Commit(u, w.Concern)
}

// retuneView applies a change of the buckets' span to the pipeline of the view on them.
func (w *operation) retuneView(u *storage.UnitOfWork, s *storage.Snapshot, m *collMod, options []byte) error {
	name := m.ns
	if series, ok := timeseries.SeriesOf(name); ok {
		name = series
	}
	v, err := namespace.ViewIn(s, name)
	if err != nil || v == nil {
		return err
	}
	t := namespace.SeriesOptionsOf(value.Lookup(options, "timeseries").Doc())
	next := &namespace.View{NS: v.NS, On: v.On, Pipeline: value.NewArray(t.UnpackStage()), Collation: v.Collation}
	next.Doc = next.MakeDoc()
	return w.PutView(u, s, next)
}

// oplogEntry returns the command for the oplog, and the previous values: the collection's options with its UUID, and what the
// command changes of an index, as far as it had a value.
func (m *collMod) oplogEntry(op *command.Op, c *catalog.Collection) (o, o2 []byte) {
	f := []value.Field{value.F("collMod", value.NewString(c.Name()))}
	for _, field := range op.Req.Spec.Fields {
		switch field.Name {
		case "dryRun", "collectionUUID", msg.RunArgument:
		case "index":
			f = append(f, value.F("index", m.loggedIndex(c)))
		default:
			f = append(f, value.F(field.Name, op.Arg(field.Name)))
		}
	}
	old := []value.Field{value.F("uuid", c.UUID.Value())}
	if c.Options != nil {
		for name, v := range value.Elements(c.Options) {
			old = append(old, value.F(name, v))
		}
	}
	before := []value.Field{value.F("collectionOptions_old", value.NewDocument(value.Doc(old...)))}
	var index []value.Field
	for _, change := range m.changes {
		if name, ok := strings.CutSuffix(change.Key, "_old"); ok && !change.Val.IsMissing() {
			index = append(index, value.F(name, change.Val))
		}
	}
	if index != nil {
		before = append(before, value.F("indexOptions_old", value.NewDocument(value.Doc(index...))))
	}
	return value.Doc(f...), value.Doc(before...)
}

// loggedIndex returns the command's index argument for the oplog: with the name of the index, whichever way the client named it, and
// with values of the types that readers of oplogs expect.
func (m *collMod) loggedIndex(c *catalog.Collection) value.Value {
	i := m.index
	if i == nil {
		return value.Value{}
	}
	name := i.name
	if name.IsMissing() {
		if idx, err := i.find(c); err == nil {
			name = value.NewString(idx.Name)
		}
	}
	f := []value.Field{value.F("name", name), value.F("expireAfterSeconds", i.expire)}
	for _, flag := range []value.Field{value.F("hidden", i.hidden), value.F("unique", i.uniq), value.F("prepareUnique", i.prepare), value.F("forceNonUnique", i.force)} {
		if !flag.Val.IsMissing() {
			f = append(f, value.F(flag.Key, value.NewBool(flag.Val.Truthy())))
		}
	}
	return value.NewDocument(value.Doc(f...))
}

// modifiedOptions returns the collection's options after the command.
func (m *collMod) modifiedOptions(op *command.Op, c *catalog.Collection) ([]byte, error) {
	o := namespace.OptionsOf(c.Options)
	if v := op.Arg("validator"); !v.IsMissing() {
		if err := checkValidatorPlace(op, c.NS); err != nil {
			return nil, err
		}
		if _, err := compileValidator(v.Doc(), nil); err != nil {
			return nil, err
		}
		if namespace.EmptyDoc(v) {
			v = value.Value{}
		}
		o.Set("validator", v)
		if !v.IsMissing() && o["validationLevel"].IsMissing() {
			o.Set("validationLevel", value.NewString("strict"))
		}
		if !v.IsMissing() && o["validationAction"].IsMissing() {
			o.Set("validationAction", value.NewString("error"))
		}
	}
	for _, name := range []string{"validationLevel", "validationAction"} {
		if v := op.Arg(name); !v.IsMissing() {
			o.Set(name, v)
		}
	}
	if c.Capped {
		if !m.cappedSize.IsMissing() {
			o.Set("size", value.NewInt(value.SafeInt64(m.cappedSize)))
		}
		if !m.cappedMax.IsMissing() {
			limit := value.Value{}
			if v := value.SafeInt64(m.cappedMax); v > 0 {
				limit = value.NewInt(v)
			}
			o.Set("max", limit)
		}
	}
	switch {
	case m.images.IsMissing():
	case m.images.Bool():
		o.Set("changeStreamPreAndPostImages", value.NewDocument(value.Doc(value.F("enabled", value.NewBool(true)))))
	default:
		o.Set("changeStreamPreAndPostImages", value.Value{})
	}
	switch m.expire.T {
	case value.String:
		o.Set("expireAfterSeconds", value.Value{})
	case value.Int64:
		if err := checkExpireAfter(m.expire.Int64(), op.Start.Unix()); err != nil {
			return nil, err
		}
		o.Set("expireAfterSeconds", m.expire)
	}
	if op.Arg(namespace.MixedSchema).Truthy() {
		o.SetMixedSchema()
	}
	if m.ts != nil {
		t := namespace.SeriesOptionsOf(o["timeseries"].Doc())
		if err := m.retune(t); err != nil {
			return nil, err
		}
		o.Set("timeseries", value.NewDocument(t.Doc()))
	}
	return o.Doc(), nil
}

// retune changes the span of buckets: it may only grow.
func (m *collMod) retune(t *namespace.SeriesOptions) error {
	granularity, rounding, span := m.ts[0], m.ts[1], m.ts[2]
	if !granularity.IsMissing() {
		if !rounding.IsMissing() || !span.IsMissing() {
			return command.BadOption("Timeseries 'granularity' is not allowed to be set together with 'bucketMaxSpanSeconds' or 'bucketRoundingSeconds'")
		}
		_, implied := namespace.GranularitySpan(granularity.Str())
		if implied < t.Span {
			return command.BadOption("Invalid transition for timeseries.granularity. Can only transition from 'seconds' to 'minutes' or 'minutes' to 'hours'.")
		}
		t.Granularity, t.Span, t.Rounding = granularity.Str(), implied, 0
		return nil
	}
	if rounding.IsMissing() && span.IsMissing() {
		return nil
	}
	if rounding.IsMissing() != span.IsMissing() || value.SafeInt64(rounding) != value.SafeInt64(span) {
		return command.BadOption("Timeseries 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' must be set to the same value")
	}
	if value.SafeInt64(span) < t.Span {
		return command.BadOption("Timeseries 'bucketMaxSpanSeconds' must be greater than or equal to the current value of %d", t.Span)
	}
	t.Granularity, t.Span, t.Rounding = "", value.SafeInt64(span), value.SafeInt64(rounding)
	return nil
}

// modifiedIndex returns the specification of the index after the command; nil if nothing changes.
func (w *operation) modifiedIndex(s *storage.Snapshot, c *catalog.Collection, m *collMod) (spec []byte, name string, err error) {
	i := m.index
	if c.Clustered && !namespace.IsBuckets(c.NS) && i.name.Str() == c.ClusteredName && !i.name.IsMissing() && !i.hidden.IsMissing() {
		return nil, "", mongoerr.New(6011800, "The 'clusteredIndex' cannot be hidden or unhidden")
	}
	idx, err := i.find(c)
	if err != nil {
		return nil, "", err
	}
	if idx.IsID && !i.hidden.IsMissing() {
		return nil, "", mongoerr.New(mongoerr.BadValue, "can't hide _id index")
	}
	o := namespace.IndexDocOf(idx.Spec.Raw)
	before := o.Doc()
	if !i.expire.IsMissing() {
		if err := m.modifyTTL(idx, o); err != nil {
			return nil, "", err
		}
	}
	if !i.hidden.IsMissing() && i.hidden.Truthy() != idx.Hidden {
		serving, required, err := w.ddl.node.ShardKeyIndexes(w.Op, c)
		if err != nil {
			return nil, "", err
		}
		if required && len(serving) == 1 && serving[0] == idx.Name {
			return nil, "", mongoerr.New(mongoerr.InvalidOptions, "Can't hide the only compatible index for this collection's shard key")
		}
		m.note("hidden", value.NewBool(idx.Hidden), value.NewBool(!idx.Hidden))
		m.usage = idx.Usage
		o.Flag("hidden", !idx.Hidden)
	}
	if i.prepare.Truthy() && !idx.PrepareUnique || i.uniq.Truthy() && !idx.Unique {
		m.enforces = idx.Spec.KeyPattern
	}
	if !i.prepare.IsMissing() && i.prepare.Truthy() != idx.PrepareUnique {
		if !i.expire.IsMissing() || !i.hidden.IsMissing() || !i.uniq.IsMissing() {
			return nil, "", command.BadOption("prepareUnique cannot be combined with any other modification")
		}
		m.note("prepareUnique", value.NewBool(idx.PrepareUnique), value.NewBool(!idx.PrepareUnique))
		o.Flag("prepareUnique", !idx.PrepareUnique)
	}
	if !i.uniq.IsMissing() && !idx.Unique {
		if !idx.PrepareUnique {
			return nil, "", command.BadOption("Cannot make index unique with 'prepareUnique=false'. Run collMod to set it first.")
		}
		if err := w.checkNoDuplicates(s, c, idx); err != nil {
			return nil, "", err
		}
		m.note("unique", value.Value{}, value.NewBool(true))
		o.Flag("prepareUnique", false)
		o.Flag("unique", true)
	}
	if i.force.Truthy() && idx.Unique {
		m.note("forceNonUnique", value.Value{}, value.NewBool(true))
		o.Flag("unique", false)
	}
	if after := o.Doc(); !bytes.Equal(before, after) {
		return after, idx.Name, nil
	}
	return nil, idx.Name, nil
}

func (m *collMod) note(name string, was, is value.Value) {
	m.changes = append(m.changes, value.F(name+"_old", was), value.F(name+"_new", is))
}

// modifyTTL changes when an index's documents expire, or makes an ordinary index expire its documents.
func (m *collMod) modifyTTL(idx *catalog.Index, o *namespace.IndexDoc) error {
	switch {
	case idx.IsID:
		return command.BadOption("the _id field does not support TTL indexes")
	case len(idx.Spec.Fields) != 1 || idx.Spec.Kind == indexkey.Text:
		return command.BadOption("TTL indexes are single-field indexes, compound indexes do not support TTL")
	case idx.Spec.Kind == indexkey.Wildcard:
		return command.BadOption("wildcard indexes do not support TTL")
	}
	was := value.Value{}
	if idx.TTLSeconds >= 0 {
		was = value.NewInt64(idx.TTLSeconds)
	}
	m.note("expireAfterSeconds", was, m.index.expire)
	o.Set("expireAfterSeconds", value.NewInt32(int32(m.index.expire.Int64())))
	return nil
}

// find finds the index that a collMod names.
func (i *indexMod) find(c *catalog.Collection) (*catalog.Index, error) {
	if !i.name.IsMissing() {
		if idx := c.Index(i.name.Str()); idx != nil && idx.Ready {
			return idx, nil
		}
		return nil, mongoerr.Newf(mongoerr.IndexNotFound, "cannot find index %s for ns %s", i.name.Str(), c.NS)
	}
	key := i.key.Doc()
	if namespace.IsBuckets(c.NS) {
		key = namespace.BucketKeyPattern(namespace.SeriesOptionsOf(value.Lookup(c.Options, "timeseries").Doc()), key)
	}
	found, err := indexByKey(c, key)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, mongoerr.Newf(mongoerr.IndexNotFound, "cannot find index %s for ns %s", value.ShowDoc(i.key.Doc()), c.NS)
	}
	return found, nil
}

// indexByKey finds the index with a key pattern; it is an error if there are several.
func indexByKey(c *catalog.Collection, key []byte) (found *catalog.Index, err error) {
	for _, idx := range c.Indexes {
		if !indexkey.SameKey(idx.Spec.KeyPattern, key) {
			continue
		}
		if found != nil {
			return nil, errAmbiguous(key, found.Spec, idx.Spec)
		}
		found = idx
	}
	return found, nil
}

func errAmbiguous(key []byte, a, b *indexkey.Spec) error {
	return mongoerr.Newf(mongoerr.AmbiguousIndexKeyPattern, "index keyPattern %s matches more than one index, must use index name. Found: %s, and %s",
		value.ShowDoc(key), value.ShowDoc(a.Raw), value.ShowDoc(b.Raw))
}

// checkNoDuplicates returns an error if an index has duplicate keys.
func (w *operation) checkNoDuplicates(s *storage.Snapshot, c *catalog.Collection, idx *catalog.Index) error {
	cur := s.IndexScan(c, idx, false)
	defer cur.Close()
	var last []byte
	var rids, groups = []storage.RecordID(nil), [][]storage.RecordID(nil)
	for {
		ok := cur.Next()
		if ok && last != nil && bytes.Equal(cur.Key(), last) {
			rids = append(rids, cur.RecordID().Clone())
			continue
		}
		if len(rids) > 1 {
			groups = append(groups, rids)
		}
		if !ok || len(groups) > 1000 {
			break
		}
		last, rids = append(last[:0], cur.Key()...), []storage.RecordID{cur.RecordID().Clone()}
		if err := w.Op.Check(); err != nil {
			return err
		}
	}
	if err := cur.Err(); err != nil || len(groups) == 0 {
		return err
	}
	var violations []value.Value
	for _, g := range groups {
		var ids []value.Value
		for _, rid := range g {
			if doc, ok, err := s.Get(c, rid); err == nil && ok {
				ids = append(ids, value.Lookup(doc, "_id").Clone())
			}
		}
		violations = append(violations, value.NewDocument(value.Doc(value.F("ids", value.NewArray(value.ArrayOf(ids...))))))
	}
	return mongoerr.New(mongoerr.CannotConvertIndexToUnique, "Cannot convert the index to unique. Please resolve conflicting documents before running collMod again.").
		WithDetails(value.Doc(value.F("violations", value.NewArray(value.ArrayOf(violations...)))))
}
