package ddl

import (
	"bytes"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxCappedSize is a pebibyte.
const maxCappedSize = 1 << 50

func createSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "create", Roles: command.All, Kind: command.DDL, Namespace: true, WriteConcern: true, Txn: true, API: true, Run: cs.runCreate,
		Fields: []command.Field{
			command.Opt("capped", command.TSafeBool), command.Opt("autoIndexId", command.TSafeBool), command.Opt("idIndex", command.TObject),
			command.Opt("size", command.TNumber), command.Opt("max", command.TNumber), command.Opt("storageEngine", command.TObject),
			command.Opt("validator", command.TObject), command.Opt("validationLevel", command.TString),
			command.Opt("validationAction", command.TString), command.Opt("indexOptionDefaults", command.TObject),
			command.Opt("viewOn", command.TString), command.Opt("pipeline", command.TArray), command.Opt("collation", command.TObject),
			command.Opt("changeStreamPreAndPostImages", command.TObject), command.Opt("timeseries", command.TObject),
			command.Opt("clusteredIndex", command.TAny), command.Opt("expireAfterSeconds", command.TNumber),
			command.Opt("encryptedFields", command.TObject), command.Opt("temp", command.TSafeBool), command.Opt("flags", command.TNumber),
			command.Opt("recordIdsReplicated", command.TSafeBool),
		},
	}
}

// newNamespace is the request of create, checked and in its stored form.
type newNamespace struct {
	ns      string
	options namespace.Options
	collate *collation.Spec
	idIndex []byte          // nil for the default
	uuid    catalog.UUID    // of the collection to be created; zero for a random one
	view    *namespace.View // nil for a collection
	ts      *namespace.SeriesOptions
}

func (cs *Commands) runCreate(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	if err := namespace.CheckCreate(ns); err != nil {
		return dst, err
	}
	c, err := cs.parseCreate(op, ns)
	if err != nil {
		return dst, err
	}
	w, err := cs.begin(op)
	if err != nil {
		return dst, err
	}
	return dst, w.createNamespace(c)
}

// parseCreate checks the arguments of create, first each option by itself, then those that exclude each other.
func (cs *Commands) parseCreate(op *command.Op, ns string) (*newNamespace, error) {
	c := &newNamespace{ns: ns, options: namespace.Options{}}
	steps := []func(*command.Op) error{
		c.parseEnums, c.parseEngine, c.parseClustered, c.parseCapped, c.parseCollation, c.parseImages, c.parseTimeseries,
		c.parseEncrypted, c.checkKinds, c.parseExpire, c.parseValidator, c.parseIDIndex, c.parseView,
	}
	for _, f := range steps {
		if err := f(op); err != nil {
			return nil, err
		}
	}
	if id := op.AppliedUUID(); id != nil {
		c.uuid = *id
	}
	if op.Bool("temp") && op.Client != nil && (op.Client.InProcess || op.Client.Internal) {
		c.options.Set("temp", value.NewBool(true))
	}
	return c, nil
}

func (c *newNamespace) parseEnums(op *command.Op) error {
	if err := command.OneOf("create.validationLevel", op.Arg("validationLevel"), "off", "strict", "moderate"); err != nil {
		return err
	}
	return command.OneOf("create.validationAction", op.Arg("validationAction"), "error", "warn", "errorAndLog")
}

func (c *newNamespace) parseEngine(op *command.Op) error {
	if v := op.Arg("storageEngine"); !namespace.EmptyDoc(v) {
		if err := checkStorageEngine(v.Doc()); err != nil {
			return err
		}
		c.options.Set("storageEngine", v)
	}
	v := op.Arg("indexOptionDefaults")
	if !namespace.EmptyDoc(v) {
		if err := checkIndexOptionDefaults(v.Doc()); err != nil {
			return err
		}
		c.options.Set("indexOptionDefaults", v)
	}
	return nil
}

var clusteredFields = []command.Field{
	command.Opt("v", command.TNumber), command.Req("key", command.TObject), command.Opt("name", command.TString),
	command.Req("unique", command.TSafeBool),
}

func (c *newNamespace) parseClustered(op *command.Op) error {
	v := op.Arg("clusteredIndex")
	switch {
	case v.IsMissing():
		return nil
	case v.T == value.Boolean || v.T.Numeric():
		if v.Truthy() && !namespace.IsBuckets(c.ns) {
			return mongoerr.New(5979703, "The 'clusteredIndex' legacy format {clusteredIndex: <bool>} is only supported for specific internal collections")
		}
	case v.T != value.Document:
		return command.WrongType("create.clusteredIndex", v.T, command.TSafeBool|command.TObject)
	}
	if op.Bool("capped") {
		return mongoerr.New(6049200, "'size' and 'capped' cannot be used with clustered collections")
	}
	if v.T != value.Document {
		if v.Truthy() {
			c.options.Set("clusteredIndex", value.NewBool(true))
		}
		return nil
	}
	f, err := command.ParseFields("create.clusteredIndex", v.Doc(), clusteredFields)
	if err != nil {
		return err
	}
	switch {
	case !op.Arg("max").IsMissing():
		return mongoerr.New(6049204, "'max' cannot be used with clustered collections")
	case !f[0].IsMissing() && value.SafeInt64(f[0]) != 2:
		return mongoerr.New(5979704, "Invalid clusteredIndex: the index version 'v' must be 2")
	case !isIDKey(f[1].Doc()):
		return mongoerr.Newf(mongoerr.InvalidIndexSpecificationOption, "The clusteredIndex option is only supported for key: {_id: 1}; got %s", value.ShowDoc(f[1].Doc()))
	case !f[3].Truthy():
		return mongoerr.New(5979700, "The clusteredIndex option requires unique: true to be specified")
	}
	name := value.NewString("_id_")
	if !f[2].IsMissing() {
		name = f[2]
	}
	c.options.Set("clusteredIndex", value.NewDocument(value.Doc(value.F("v", value.NewInt32(2)),
		value.F("key", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(1))))), value.F("name", name), value.F("unique", value.NewBool(true)))))
	return nil
}

func isIDKey(key []byte) bool {
	it := value.Walk(key)
	k, v, ok := it.Next()
	if !ok || string(k) != "_id" || !v.T.Numeric() || v.AsFloat64() != 1 {
		return false
	}
	_, _, more := it.Next()
	return !more
}

func (c *newNamespace) parseCapped(op *command.Op) error {
	size, limit := op.Arg("size"), op.Arg("max")
	if !size.IsMissing() {
		if _, err := command.InRange("size", size, 1, maxCappedSize); err != nil {
			return err
		}
	}
	if value.SafeInt64(limit) >= 1<<31 {
		return mongoerr.New(mongoerr.BadValue, "max in a capped collection has to be < 2^31 or not set")
	}
	if !op.Bool("capped") {
		if !size.IsMissing() || !limit.IsMissing() {
			return command.BadOption("the 'capped' field needs to be true when either the 'size' or 'max' fields are present")
		}
		return nil
	}
	if size.IsMissing() {
		return command.BadOption("the 'size' field is required when 'capped' is true")
	}
	c.options.Set("capped", value.NewBool(true))
	c.options.Set("size", value.NewInt(value.SafeInt64(size)))
	if m := value.SafeInt64(limit); m > 0 {
		c.options.Set("max", value.NewInt(m))
	}
	return nil
}

func (c *newNamespace) parseCollation(op *command.Op) (err error) {
	v := op.Arg("collation")
	if v.IsMissing() {
		return nil
	}
	if namespace.EmptyDoc(v) {
		return command.MissingField("collation.locale")
	}
	if c.collate, err = collation.Parse(v.Doc()); err != nil {
		return err
	}
	if c.collate != nil {
		c.options.Set("collation", value.NewDocument(c.collate.Document()))
	}
	return nil
}

var imagesFields = []command.Field{command.Req("enabled", command.TBool)}

func (c *newNamespace) parseImages(op *command.Op) error {
	v := op.Arg("changeStreamPreAndPostImages")
	if v.IsMissing() {
		return nil
	}
	f, err := command.ParseFields("create.changeStreamPreAndPostImages", v.Doc(), imagesFields)
	if err != nil {
		return err
	}
	if !op.Arg("timeseries").IsMissing() {
		return command.BadOption("option not supported on a time-series collection: changeStreamPreAndPostImages")
	}
	if f[0].Bool() {
		if !op.Arg("viewOn").IsMissing() {
			return command.BadOption("option not supported on a view: changeStreamPreAndPostImages")
		}
		if db := catalog.DBOf(c.ns); db == "admin" || db == "config" || db == "local" {
			return command.BadOption("changeStreamPreAndPostImages collection option is not supported on the %s database", db)
		}
		c.options.Set("changeStreamPreAndPostImages", value.NewDocument(value.Doc(value.F("enabled", value.NewBool(true)))))
	}
	return nil
}

func (c *newNamespace) parseTimeseries(op *command.Op) (err error) {
	v := op.Arg("timeseries")
	if v.IsMissing() {
		return namespace.RefuseBuckets(c.ns)
	}
	if c.ts, err = namespace.ParseTimeseries(v.Doc()); err != nil {
		return err
	}
	if !namespace.IsBuckets(c.ns) {
		if err := namespace.CheckNew(timeseries.BucketsOf(c.ns)); err != nil {
			return err
		}
	}
	for _, name := range []string{"capped", "idIndex", "validator", "validationLevel", "validationAction", "viewOn", "pipeline"} {
		if a := op.Arg(name); !a.IsMissing() && (name != "capped" || a.Truthy()) && !(namespace.IsBuckets(c.ns) && name == "validator") {
			return command.BadOption("timeseries is not allowed with '%s'", name)
		}
	}
	if a := op.Arg("clusteredIndex"); a.T == value.Document {
		return command.BadOption("timeseries is not allowed with 'clusteredIndex'")
	}
	return nil
}

func (c *newNamespace) parseEncrypted(op *command.Op) error {
	v := op.Arg("encryptedFields")
	if v.IsMissing() {
		return nil
	}
	switch {
	case op.Bool("capped"):
		return mongoerr.New(6367301, "Encrypted collections cannot be capped")
	case !op.Arg("timeseries").IsMissing() || !op.Arg("viewOn").IsMissing():
		return mongoerr.New(6346401, "Encrypted fields cannot be used with views or timeseries collections")
	}
	if err := checkEncryptedFields(v.Doc()); err != nil {
		return err
	}
	c.options.Set("encryptedFields", v)
	return nil
}

// checkKinds refuses options of one kind of namespace on another.
func (c *newNamespace) checkKinds(op *command.Op) error {
	clustered := !c.options["clusteredIndex"].IsMissing()
	idIndex := !op.Arg("idIndex").IsMissing()
	switch {
	case op.Arg("viewOn").IsMissing():
		if !op.Arg("pipeline").IsMissing() {
			return command.BadOption("'pipeline' requires 'viewOn' to also be specified")
		}
		if clustered && idIndex {
			return command.BadOption("The 'clusteredIndex' option is not supported with the 'idIndex' option")
		}
	case idIndex:
		return command.BadOption("'idIndex' is not allowed with 'viewOn'")
	case clustered:
		return mongoerr.New(6026500, "The 'clusteredIndex' option is not supported for views")
	}
	return nil
}

func (c *newNamespace) parseExpire(op *command.Op) error {
	v := op.Arg("expireAfterSeconds")
	if v.IsMissing() {
		return nil
	}
	if c.ts == nil && c.options["clusteredIndex"].IsMissing() {
		return command.BadOption("'expireAfterSeconds' is only supported on time-series collections or when the 'clusteredIndex' option is specified")
	}
	sec := value.SafeInt64(v)
	if err := checkExpireAfter(sec, op.Start.Unix()); err != nil {
		return err
	}
	c.options.Set("expireAfterSeconds", value.NewInt64(sec))
	return nil
}

// checkExpireAfter checks a collection's expireAfterSeconds.
func checkExpireAfter(sec, now int64) error {
	switch {
	case sec < 0:
		return command.BadOption("expireAfterSeconds cannot be less than 0. Value: %d", sec)
	case sec > now:
		return command.BadOption("expireAfterSeconds out of range: must be less than the current time since the epoch. Value: %d", sec)
	}
	return nil
}

func (c *newNamespace) parseValidator(op *command.Op) error {
	v := op.Arg("validator")
	level, action := op.Arg("validationLevel"), op.Arg("validationAction")
	if c.ts == nil && op.Arg("viewOn").IsMissing() && !namespace.EmptyDoc(v) {
		if err := checkValidatorPlace(op, c.ns); err != nil {
			return err
		}
		if _, err := compileValidator(v.Doc(), c.collate); err != nil {
			return err
		}
		c.options.Set("validator", v)
		if level.IsMissing() {
			level = value.NewString("strict")
		}
		if action.IsMissing() {
			action = value.NewString("error")
		}
	}
	c.options.Set("validationLevel", level)
	c.options.Set("validationAction", action)
	return nil
}

// checkValidatorPlace refuses validators on collections that the server itself writes, unless they are the server's own.
func checkValidatorPlace(op *command.Op, ns string) error {
	if op.Client.Own {
		return nil
	}
	db, coll := catalog.DBOf(ns), catalog.CollOf(ns)
	if db == "admin" || db == "config" || db == "local" {
		return command.BadOption("Document validators are not allowed on collection %s in the %s internal database", ns, db)
	}
	if len(coll) > 7 && coll[:7] == "system." && !namespace.IsBuckets(ns) {
		return command.BadOption("Document validators are not allowed on system collection %s", ns)
	}
	return nil
}

// compileValidator compiles a filter without the operators that need an index or other parts of the server.
func compileValidator(filter []byte, coll *collation.Spec) (*match.Matcher, error) {
	if err := exec.RefuseOperators(filter, "a validator"); err != nil {
		return nil, err
	}
	l := exec.Timeless(coll)
	l.Env.Validator = true
	return exec.CompileFilter(append([]byte(nil), filter...), l.Scope, coll)
}

func (c *newNamespace) parseIDIndex(op *command.Op) error {
	v := op.Arg("idIndex")
	if v.IsMissing() {
		return nil
	}
	var coll []byte
	if c.collate != nil {
		coll = c.collate.Document()
	}
	s, err := indexkey.ValidateSpec(v.Doc(), indexkey.Context{DefaultCollation: coll})
	if err != nil {
		return err
	}
	if !value.Lookup(v.Doc(), "background").IsMissing() {
		return mongoerr.Newf(mongoerr.InvalidIndexSpecificationOption,
			"The field 'background' is not valid for an _id index specification. Specification: %s", value.ShowDoc(v.Doc()))
	}
	if !s.IsID {
		return mongoerr.Newf(mongoerr.BadValue, "The field 'key' for an _id index must be {_id: 1}, but got %s", value.ShowDoc(s.KeyPattern))
	}
	if !bytes.Equal(s.Collation, coll) {
		return mongoerr.New(mongoerr.BadValue, "'idIndex' must have the same collation as the collection.")
	}
	c.idIndex = s.Raw
	return nil
}

func (c *newNamespace) parseView(op *command.Op) error {
	v := op.Arg("viewOn")
	if v.IsMissing() {
		return nil
	}
	if err := refuseViewOfBuckets(c.ns, v.Str()); err != nil {
		return err
	}
	pipeline, err := parseViewPipeline("create.pipeline", op.Arg("pipeline"))
	if err != nil {
		return err
	}
	c.view = &namespace.View{NS: c.ns, On: v.Str(), Pipeline: value.NewArray(pipeline)}
	if c.collate != nil {
		c.view.Collation = c.collate.Document()
	}
	c.view.Doc = c.view.MakeDoc()
	return nil
}

// refuseViewOfBuckets refuses a client's view on the buckets of a time series, or with the name of such buckets.
func refuseViewOfBuckets(ns, on string) error {
	if namespace.IsBuckets(ns) || namespace.IsBuckets(catalog.DBOf(ns)+"."+on) {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Cannot create view '%s' on '%s': neither may be a time-series bucket collection", ns, on)
	}
	return nil
}

// createNamespace creates a collection, view or time series collection. It is not an error if it exists with the same
// options.
func (w *operation) createNamespace(c *newNamespace) error {
	if w.Transaction() != nil && (c.view != nil || c.ts != nil) {
		kind := "view"
		if c.ts != nil {
			kind = "timeseries collection"
		}
		return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Cannot create a %s in a multi-document transaction.", kind)
	}
	unlock, err := w.LockVersioned(c.ns, c.ns)
	if mongoerr.CodeOf(err) == mongoerr.UserWritesBlocked && w.wasMade(c) {
		return nil
	}
	if err != nil {
		return err
	}
	defer w.AfterCommit(unlock)
	return w.Retry(func() error {
		s := w.Snapshot()
		defer s.Release()
		made, err := w.ddl.alreadyMade(s, c, w.Transaction() != nil)
		if err != nil {
			return err
		}
		if made {
			w.Finish()
			return nil
		}
		u := w.Unit(s)
		defer w.Drop(u)
		if err := w.stageNamespace(u, s, c); err != nil {
			return err
		}
		if err := namespace.AddOutcome(w.Op, u, nil); err != nil {
			return err
		}
		return w.Commit(u, w.Concern)
	})
}

// wasMade reports whether there is nothing to do, for a request that is refused if there is: it may have been sent before.
func (w *operation) wasMade(c *newNamespace) bool {
	s := w.Snapshot()
	defer s.Release()
	made, err := w.ddl.alreadyMade(s, c, w.Transaction() != nil)
	if made && err == nil {
		w.Finish()
		return true
	}
	return false
}

// alreadyMade reports whether the namespace exists as requested; it is an error if it exists with other options,
// and in a transaction if it exists at all.
func (cs *Commands) alreadyMade(s *storage.Snapshot, c *newNamespace, inTxn bool) (bool, error) {
	cat := s.Catalog()
	if err := namespace.CheckDBCase(cat, catalog.DBOf(c.ns)); err != nil {
		return false, err
	}
	if have := cat.Lookup(c.ns); have != nil {
		if inTxn {
			return false, mongoerr.Newf(mongoerr.NamespaceExists, "Collection %s already exists.", c.ns)
		}
		if !c.uuid.IsZero() && have.UUID != c.uuid {
			return false, mongoerr.Newf(mongoerr.NamespaceExists, "namespace %s already exists, but with the UUID %s", c.ns, have.UUID)
		}
		if c.view == nil && (c.ts == nil || namespace.IsBuckets(c.ns)) && namespace.SameOptions(have.Options, c.storedOptions()) {
			return true, nil
		}
		return false, mongoerr.Newf(mongoerr.NamespaceExists, "namespace %s already exists, but with different options: %s", c.ns, value.ShowDoc(have.Options))
	}
	v, err := namespace.ViewIn(s, c.ns)
	if err != nil || v == nil {
		return false, err
	}
	if c.view != nil && namespace.SameView(v, c.view) {
		return true, nil
	}
	if b := cat.Lookup(timeseries.BucketsOf(c.ns)); c.ts != nil && b != nil && v.IsTimeseries() && namespace.SameOptions(b.Options, c.storedOptions()) {
		return true, nil
	}
	return false, mongoerr.Newf(mongoerr.NamespaceExists, "namespace %s already exists, but is a view", c.ns)
}

// storedOptions returns the options of the collection in the catalog, which for a time series collection is that of its
// buckets.
func (c *newNamespace) storedOptions() []byte {
	if c.ts != nil {
		return c.ts.StoredOptions(c.options)
	}
	return c.options.Doc()
}

func (w *operation) stageNamespace(u *storage.UnitOfWork, s *storage.Snapshot, c *newNamespace) error {
	switch {
	case c.view != nil:
		if err := w.ddl.checkView(s, c.view); err != nil {
			return err
		}
		w.AuditView(u, "createCollection", c.view)
		return w.PutView(u, s, c.view)
	case c.ts != nil:
		return w.stageTimeseries(u, s, c)
	}
	made, err := u.CreateCollection(c.spec(c.ns))
	if err == nil {
		w.AuditCreate(u, s.Catalog(), made)
	}
	return err
}

func (c *newNamespace) spec(ns string) storage.CollectionSpec {
	return storage.CollectionSpec{
		NS: ns, UUID: c.uuid, Options: c.storedOptions(), IDIndexSpec: c.idIndex, Unreplicated: catalog.Unreplicated(ns),
		NoIDIndex: catalog.CollOf(ns) == catalog.Profile,
	}
}

// stageTimeseries creates buckets, their index, and the view on them.
func (w *operation) stageTimeseries(u *storage.UnitOfWork, s *storage.Snapshot, c *newNamespace) error {
	ns := c.ns
	if !namespace.IsBuckets(ns) {
		ns = timeseries.BucketsOf(ns)
	}
	if s.Catalog().Lookup(ns) != nil {
		return mongoerr.Newf(mongoerr.NamespaceExists, "Collection %s already exists.", ns)
	}
	b, err := u.CreateCollection(c.spec(ns))
	if err != nil {
		return err
	}
	w.AuditCreate(u, s.Catalog(), b)
	if idx := c.ts.DefaultIndex(); idx != nil {
		if b.Collation != nil {
			idx = value.WithField(idx, "collation", value.NewDocument(b.Collation))
		}
		if _, err := u.CreateIndexes(b, [][]byte{idx}); err != nil {
			return err
		}
		w.AuditIndexes(u, b.NS, [][]byte{idx})
	}
	if namespace.IsBuckets(c.ns) {
		return nil
	}
	v := &namespace.View{NS: c.ns, On: catalog.CollOf(ns), Pipeline: value.NewArray(c.ts.UnpackStage()), Collation: b.Collation}
	v.Doc = v.MakeDoc()
	w.AuditView(u, "createCollection", v)
	return w.PutView(u, s, v)
}
