package ddl

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/write"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func createIndexesSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "createIndexes", Roles: command.All, Kind: command.DDL, Namespace: true, WriteConcern: true, Txn: true, API: true,
		Run: cs.runCreateIndexes,
		Fields: []command.Field{
			command.Req("indexes", command.TArray), command.Opt("ignoreUnknownIndexOptions", command.TSafeBool),
			command.Opt("commitQuorum", command.TStringInt), command.Opt("collectionUUID", command.TAny),
			command.Opt("isTimeseriesNamespace", command.TSafeBool), command.Opt("v", command.TAny), byCoordinator,
		},
	}
}

// newIndexes is a createIndexes command in progress.
type newIndexes struct {
	ns       string // of the collection, or of the buckets of a time series collection
	raw      [][]byte
	ts       *namespace.SeriesOptions
	before   int
	after    int
	made     bool                // the command created the collection
	fresh    bool                // there was an index to create
	others   *catalog.Collection // a collection whose indexes other commands may be building
	building [][]byte            // of a collection with documents
	quorum   replication.CommitQuorum
}

func (cs *Commands) runCreateIndexes(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	if cs.Engine.Catalog().Lookup(ns) == nil {
		if err := namespace.CheckCreate(ns); err != nil {
			return dst, err
		}
		if err := namespace.RefuseBuckets(ns); err != nil {
			return dst, err
		}
	}
	if coll == "system.views" || coll == catalog.Profile {
		return dst, mongoerr.Newf(mongoerr.CannotCreateIndex, "cannot create indexes on %s", ns)
	}
	ci := &newIndexes{ns: ns}
	if ci.raw, err = indexSpecs(op); err != nil {
		return dst, err
	}
	if ci.quorum, err = cs.commitQuorum(op); err != nil {
		return dst, err
	}
	w, err := cs.begin(op)
	if err != nil {
		return dst, err
	}
	if err := w.checkUUID(ns); err != nil {
		return dst, err
	}
	if err := w.createIndexes(ci); err != nil {
		return dst, err
	}
	// Chunks that moved meanwhile may be on shards that did not get the command: the router has to repeat it.
	if err := cs.node.CheckVersion(op, ns); err != nil {
		return dst, err
	}
	dst = value.Append(dst, "numIndexesBefore", value.NewInt32(int32(ci.before)))
	dst = value.Append(dst, "numIndexesAfter", value.NewInt32(int32(ci.after)))
	dst = value.Append(dst, "createdCollectionAutomatically", value.NewBool(ci.made))
	switch {
	case !ci.fresh:
		dst = value.Append(dst, "note", value.NewString("all indexes already exist"))
	case !cs.node.Lone():
		dst = value.Append(dst, "commitQuorum", ci.quorum.Value())
	}
	return dst, nil
}

// indexSpecs reads the indexes argument.
func indexSpecs(op *command.Op) ([][]byte, error) {
	var specs [][]byte
	ignore := op.Bool("ignoreUnknownIndexOptions")
	for i, v := range value.Values(op.Req.Doc("indexes")) {
		if v.T != value.Document {
			return nil, command.WrongType("createIndexes.indexes."+strconv.Itoa(i), v.T, command.TObject)
		}
		doc := v.Doc()
		if ignore {
			doc = knownIndexOptions(doc)
		}
		specs = append(specs, doc)
	}
	if len(specs) == 0 {
		return nil, errNoIndexes
	}
	return specs, nil
}

func knownIndexOptions(doc []byte) []byte {
	var f []value.Field
	for k, v := range value.Elements(doc) {
		if indexkey.KnownOption(k) {
			f = append(f, value.F(k, v))
		}
	}
	return value.Doc(f...)
}

// createIndexes creates the indexes that do not exist yet. On an empty collection that is one unit of work; if there are
// documents, the indexes are built while writers continue. If another command is building one of them, it waits for the end of that build and
// looks again: the build may have failed, or have been aborted.
func (w *operation) createIndexes(ci *newIndexes) error {
	for {
		ci.others = nil
		committed, err := w.createOrFindOthers(ci)
		switch {
		case err != nil || committed:
			return err
		case ci.others == nil:
			w.Finish()
			return nil
		}
		if err := w.awaitBuilds(ci); err != nil {
			return err
		}
	}
}

// createOrFindOthers creates the indexes, or sets ci.others if another command is building one of them. committed is set if it has created them in a unit of work of
// this operation.
func (w *operation) createOrFindOthers(ci *newIndexes) (committed bool, err error) {
	var build *storage.IndexBuild
	unlock, err := w.lockFor(ci.ns)
	if err != nil {
		return false, err
	}
	locked := true
	defer func() {
		if locked {
			w.AfterCommit(unlock)
		}
	}()
	err = w.Retry(func() error {
		build, err = w.stageIndexes(ci)
		return err
	})
	if err == nil && build != nil {
		locked = false
		return false, w.runBuild(build, unlock, w.AuditBuild(ci.ns, ci.building))
	}
	return ci.others == nil && (ci.fresh || ci.made), err
}

// runBuild starts a build, releases the collection, and builds. If the set has no majority to commit the build's steps
// and the client stops waiting, the build continues after the command has ended; if the command is killed, the build is
// aborted.
func (w *operation) runBuild(build *storage.IndexBuild, started func(), ended func(error)) error {
	type outcome struct {
		ts  storage.Timestamp
		err error
	}
	done := make(chan outcome, 1)
	ctx, cancel := context.WithCancelCause(context.Background())
	w.ddl.node.Background(func(life context.Context) {
		stop := context.AfterFunc(life, func() { cancel(mongoerr.New(mongoerr.InterruptedAtShutdown, "interrupted at shutdown")) })
		defer stop()
		defer cancel(nil)
		err := build.Start(ctx)
		started()
		var ts storage.Timestamp
		if err == nil {
			ts, err = build.Run(ctx)
		}
		ended(err)
		done <- outcome{ts, err}
	})
	tick := time.NewTicker(buildTick)
	defer tick.Stop()
	gone, limit := w.Op.Done(), w.Concern.Timeout
	for {
		select {
		case o := <-done:
			if o.err == nil {
				w.CommittedAt(o.ts)
			}
			return o.err
		case <-gone:
			cancel(w.Op.Err())
			gone, limit = nil, write.DiscardWait
		case <-tick.C:
			if limit == 0 || build.Waiting() < limit {
				continue
			}
			if err := w.Op.Err(); err != nil {
				return err
			}
			return ErrBuildGoesOn
		}
	}
}

// buildTick is the interval at which a command checks whether the build that it waits for is stalled.
const buildTick = 5 * time.Millisecond

// ErrBuildGoesOn ends a command whose index build waits for a majority.
var ErrBuildGoesOn = mongoerr.New(mongoerr.WriteConcernTimeout,
	"waiting for replication timed out: the index build has not finished, and will continue once there is a majority")

// stageIndexes commits the indexes of an empty collection, or starts the build of those of another.
func (w *operation) stageIndexes(ci *newIndexes) (*storage.IndexBuild, error) {
	s := w.Snapshot()
	defer s.Release()
	c, ts, err := namespace.FindFor(w.Op, s, ci.ns)
	if err != nil {
		return nil, err
	}
	ci.made = c == nil
	u := w.Unit(s)
	defer w.Drop(u)
	if ci.made {
		if err := write.MayCreate(w.Op, ci.ns); err != nil {
			return nil, err
		}
		if c, err = u.CreateCollection(storage.CollectionSpec{NS: ci.ns, Unreplicated: catalog.Unreplicated(ci.ns)}); err != nil {
			return nil, err
		}
		w.AuditCreate(u, s.Catalog(), c)
	}
	if c.Oplog {
		return nil, mongoerr.New(mongoerr.IllegalOperation, "cannot create indexes on the oplog")
	}
	ci.ts = ts
	specs, err := ci.missing(c)
	if err != nil {
		return nil, err
	}
	ci.before, ci.after = len(c.Indexes), len(c.Indexes)+len(specs)
	ci.fresh = len(specs) > 0
	if ci.othersBuild(c) {
		ci.others = c
		return nil, nil
	}
	if !ci.fresh && !ci.made {
		return nil, nil
	}
	if t := w.Transaction(); t != nil && ci.fresh && t.Base.Catalog().LookupUUID(c.UUID) != nil {
		return nil, mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Cannot create new indexes on existing collection %s in a multi-document transaction.", ci.ns)
	}
	if !ci.made && c.Counters.Records.Load() > 0 {
		u.Rollback()
		ci.building = specs
		b := w.ddl.Engine.NewIndexBuild(c.NS, specs, storage.NewUUID())
		if !w.ddl.node.Lone() {
			b.WithQuorum(ci.quorum.Value(), w.ddl.AwaitQuorum)
		}
		return b, nil
	}
	if ci.fresh {
		if _, err := u.CreateIndexes(c, specs); err != nil {
			return nil, err
		}
		w.AuditIndexes(u, c.NS, specs)
	}
	return nil, w.Commit(u, w.Concern)
}

// missing validates the specifications and returns those that the collection does not have, in full.
func (ci *newIndexes) missing(c *catalog.Collection) ([][]byte, error) {
	have := make([]*indexkey.Spec, 0, len(c.Indexes)+len(ci.raw))
	for _, idx := range c.Indexes {
		have = append(have, idx.Spec)
	}
	var specs [][]byte
	for _, raw := range ci.raw {
		want, err := ci.validate(c, raw)
		if err != nil {
			return nil, err
		}
		if want.IsID && c.Clustered && !namespace.IsBuckets(c.NS) {
			continue
		}
		exists, err := indexkey.Conflict(want, have)
		switch {
		case err != nil:
			return nil, err
		case !exists:
			have = append(have, want)
			specs = append(specs, want.Raw)
		case slices.ContainsFunc(specs, func(spec []byte) bool { return value.Lookup(spec, "name").Str() == want.Name }):
			return nil, ci.identical(c, want.Name)
		}
	}
	return specs, nil
}

// identical returns the error of a command that specifies a new index twice: the index build has no message of its own for a collection that is created for it.
func (ci *newIndexes) identical(c *catalog.Collection, name string) error {
	if ci.made {
		return mongoerr.Newf(mongoerr.IndexAlreadyExists, "Identical index already exists: %s", name)
	}
	return mongoerr.Newf(mongoerr.OperationFailed, "Index build failed: %s: Collection %s ( %s ) :: caused by :: Cannot build two identical indexes. Try again without duplicate indexes.",
		storage.NewUUID(), c.NS, c.UUID)
}

func (ci *newIndexes) validate(c *catalog.Collection, raw []byte) (*indexkey.Spec, error) {
	ctx := indexkey.Context{DefaultCollation: c.Collation, Quote: true}
	if v := value.Lookup(raw, "clustered"); v.Truthy() && (!c.Clustered || !isIDKey(value.Lookup(raw, "key").Doc())) {
		return nil, mongoerr.New(6243700, "Cannot create index with option 'clustered' on a collection that is not clustered by its key")
	}
	if ci.ts == nil {
		return indexkey.ValidateSpec(raw, ctx)
	}
	if err := checkTimeseriesIndex(ci.ts, raw); err != nil {
		return nil, err
	}
	user, err := indexkey.ValidateSpec(raw, ctx)
	if err != nil {
		return nil, err
	}
	return indexkey.ParseSpec(namespace.BucketIndexSpec(ci.ts, user.Raw))
}

// othersBuild reports whether one of the indexes is being built.
func (ci *newIndexes) othersBuild(c *catalog.Collection) bool {
	return slices.ContainsFunc(ci.raw, func(raw []byte) bool {
		idx := c.Index(value.Lookup(raw, "name").Str())
		return idx != nil && !idx.Ready
	})
}

// awaitBuilds waits for the builds of others, however they end.
func (w *operation) awaitBuilds(ci *newIndexes) error {
	for {
		now := w.ddl.Engine.Catalog().LookupUUID(ci.others.UUID)
		if now == nil {
			return namespace.NotFound(ci.ns)
		}
		building := false
		for _, raw := range ci.raw {
			idx := now.Index(value.Lookup(raw, "name").Str())
			if idx == nil || idx.Ready {
				continue
			}
			building = true
			if b := w.ddl.Engine.Building(idx.Build.UUID); b != nil && w.Concern.Timeout > 0 && b.Waiting() > w.Concern.Timeout {
				return ErrBuildGoesOn
			}
		}
		if !building {
			return nil
		}
		timer := time.NewTimer(buildTick)
		select {
		case <-timer.C:
		case <-w.Op.Done():
			timer.Stop()
			return w.Op.Err()
		}
	}
}

func dropIndexesSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "dropIndexes", Aliases: []string{"deleteIndexes"}, Roles: command.All, Kind: command.DDL, Namespace: true, WriteConcern: true,
		API: true, Run: cs.runDropIndexes,
		Fields: []command.Field{
			{Name: "index", Types: command.TString | command.TObjOrArr, Required: true, NotNull: true, Expected: "types '[string, object']"}, command.Opt("collectionUUID", command.TAny),
			command.Opt("isTimeseriesNamespace", command.TSafeBool), byCoordinator,
		},
	}
}

func (cs *Commands) runDropIndexes(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	w, unlock, err := cs.beginOn(op, ns)
	if err != nil {
		return dst, err
	}
	defer w.AfterCommit(unlock)
	was, text, err := w.dropIndexes(ns)
	if err != nil {
		return dst, err
	}
	return dropIndexesReply(dst, was, text), nil
}

func dropIndexesReply(dst []byte, was int, text string) []byte {
	dst = value.Append(dst, "nIndexesWas", value.NewInt32(int32(was)))
	if text != "" {
		dst = value.Append(dst, "msg", value.NewString(text))
	}
	return dst
}

// dropIndexes drops the indexes that the command names. It returns the previous number of indexes, and the message of the reply if all that can be
// dropped were.
func (w *operation) dropIndexes(ns string) (was int, text string, err error) {
	var all, kept bool
	err = w.Retry(func() error {
		s := w.ddl.Engine.Snapshot()
		defer s.Release()
		c, ts, err := namespace.FindFor(w.Op, s, ns)
		if err != nil {
			return err
		}
		if c == nil {
			return mongoerr.Newf(mongoerr.NamespaceNotFound, "ns not found %s", ns)
		}
		was = len(c.Indexes)
		var names []string
		arg := w.Op.Arg("index")
		if w.checks {
			arg, w.absent = presentIndexes(c, arg)
		}
		if err := w.checkOnlyOne(c, ts, arg); err != nil {
			return err
		}
		if names, all, err = indexesToDrop(c, ts, arg); err != nil {
			return err
		}
		if names, kept, err = w.keepShardKeyIndex(c, names, all); err != nil || w.checks {
			return err
		}
		if len(names) == 0 {
			w.Finish()
			return nil
		}
		u := w.Unit(s)
		defer u.Rollback()
		if _, err := u.DropIndexes(c, names); err != nil {
			return err
		}
		for _, name := range names {
			w.Audit(u, "dropIndex", value.F("ns", value.NewString(ns)), value.F("indexName", value.NewString(name)))
		}
		if err := namespace.AddOutcome(w.Op, u, dropIndexesReply(nil, was, droppedMessage(all, kept))); err != nil {
			return err
		}
		return w.Commit(u, w.Concern)
	})
	return was, droppedMessage(all, kept), err
}

// droppedMessage returns the message of the reply to a dropIndexes of all indexes; "" for one of some.
func droppedMessage(all, kept bool) string {
	switch {
	case !all:
		return ""
	case kept:
		return "non-_id indexes and non-shard key indexes dropped for collection"
	}
	return "non-_id indexes dropped for collection"
}

// keepShardKeyIndex returns an error if the last index that supports the shard key, and that it requires, would be dropped; dropping all
// indexes keeps it, that of a hashed key, too.
func (w *operation) keepShardKeyIndex(c *catalog.Collection, names []string, all bool) (rest []string, kept bool, err error) {
	serving, required, err := w.ddl.node.ShardKeyIndexes(w.Op, c)
	serving = slices.DeleteFunc(serving, func(name string) bool { return slices.Contains(w.unfinished, name) })
	if err != nil || len(serving) == 0 || slices.ContainsFunc(serving, func(name string) bool { return !slices.Contains(names, name) }) {
		return names, false, err
	}
	if !all && !required {
		return names, false, nil
	}
	if !all {
		return nil, false, mongoerr.New(mongoerr.CannotDropShardKeyIndex, "Cannot drop the only compatible index for this collection's shard key")
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == serving[len(serving)-1] }), true, nil
}

// indexesToDrop returns the names of the indexes that an index argument refers to. all is true for every index except the one on _id.
func indexesToDrop(c *catalog.Collection, ts *namespace.SeriesOptions, arg value.Value) (names []string, all bool, err error) {
	list := []value.Value{arg}
	if arg.T == value.Array {
		list = value.Values(arg.Doc())
	}
	if len(list) == 1 && list[0].T == value.String && list[0].Str() == "*" {
		for _, idx := range c.Indexes {
			if !idx.IsID {
				names = append(names, idx.Name)
			}
		}
		return names, true, nil
	}
	seen := map[string]bool{}
	for _, v := range list {
		var idx *catalog.Index
		switch {
		case v.T == value.String:
			idx, err = indexToDrop(c, v.Str())
		case v.T == value.Document && arg.T == value.Document:
			idx, err = indexToDropByKey(c, ts, v.Doc())
		default:
			return nil, false, mongoerr.New(mongoerr.TypeMismatch, "BSON field 'dropIndexes.index' is the wrong type 'array', expected types '[string']")
		}
		if err != nil {
			return nil, false, err
		}
		if seen[idx.Name] {
			return nil, false, mongoerr.Newf(mongoerr.IndexNotFound, "index not found with name [%s]", idx.Name)
		}
		seen[idx.Name] = true
		names = append(names, idx.Name)
	}
	return names, false, nil
}

// presentIndexes returns a list of indexes without those that the collection does not have, which it returns, too, unless it has none of them.
func presentIndexes(c *catalog.Collection, arg value.Value) (present value.Value, absent []string) {
	if arg.T != value.Array {
		return arg, nil
	}
	var rest []value.Value
	for _, v := range value.Values(arg.Doc()) {
		if _, err := indexToDrop(c, v.Str()); v.T == value.String && mongoerr.CodeOf(err) == mongoerr.IndexNotFound {
			absent = append(absent, v.Str())
			continue
		}
		rest = append(rest, v)
	}
	if len(rest) == 0 || len(absent) == 0 {
		return arg, nil
	}
	return value.NewArray(value.ArrayOf(rest...)), absent
}

func indexToDrop(c *catalog.Collection, name string) (*catalog.Index, error) {
	if c.Clustered && c.ClusteredName != "" && name == c.ClusteredName {
		return nil, mongoerr.New(5979800, "cannot drop clustered index")
	}
	idx := c.Index(name)
	if idx == nil {
		return nil, mongoerr.Newf(mongoerr.IndexNotFound, "index not found with name [%s]", name)
	}
	return idx, checkDroppableIndex(idx)
}

func indexToDropByKey(c *catalog.Collection, ts *namespace.SeriesOptions, key []byte) (*catalog.Index, error) {
	shown := key
	if ts != nil {
		key = namespace.BucketKeyPattern(ts, key)
	}
	if c.Clustered && c.ClusteredName != "" && isIDKey(key) {
		return nil, mongoerr.New(5979800, "cannot drop clustered index")
	}
	idx, err := indexByKey(c, key)
	if err != nil {
		return nil, err
	}
	if idx == nil {
		return nil, mongoerr.Newf(mongoerr.IndexNotFound, "can't find index with key: %s", value.ShowDoc(shown))
	}
	return idx, checkDroppableIndex(idx)
}

// checkOnlyOne refuses a key that indexes share which are there, or which builds in progress will create.
func (w *operation) checkOnlyOne(c *catalog.Collection, ts *namespace.SeriesOptions, arg value.Value) error {
	if len(w.builds) == 0 || arg.T != value.Document {
		return nil
	}
	key := arg.Doc()
	if ts != nil {
		key = namespace.BucketKeyPattern(ts, key)
	}
	specs, err := w.othersWithKey(c, ts, key)
	if err != nil {
		return err
	}
	idx, err := indexByKey(c, key)
	if err != nil {
		return err
	}
	if idx != nil {
		specs = append([]*indexkey.Spec{idx.Spec}, specs...)
	}
	if len(specs) > 1 {
		return errAmbiguous(key, specs[0], specs[1])
	}
	return nil
}

func checkDroppableIndex(idx *catalog.Index) error {
	if idx.IsID {
		return command.BadOption("cannot drop _id index")
	}
	return nil
}

// checkTimeseriesIndex refuses kinds of indexes that are not supported on measurements.
func checkTimeseriesIndex(ts *namespace.SeriesOptions, raw []byte) error {
	onMeta := true
	for k, v := range value.Elements(value.Lookup(raw, "key").Doc()) {
		rest, ok := strings.CutPrefix(k, ts.MetaField)
		meta := ok && ts.MetaField != "" && (rest == "" || rest[0] == '.')
		onMeta = onMeta && meta
		if k == "$**" || strings.HasSuffix(k, ".$**") && !meta {
			return mongoerr.New(7246201, "Wildcard indexes on the measurements of a time-series collection are not supported")
		}
		if v.T != value.String {
			continue
		}
		switch v.Str() {
		case "text":
			return command.BadOption("Text indexes are not supported on time-series collections")
		case "hashed", "2d":
			if !meta {
				return mongoerr.Newf(mongoerr.CannotCreateIndex, "Invalid index spec for time-series collection: %s indexes are only supported on the metaField", v.Str())
			}
		}
	}
	switch {
	case value.Lookup(raw, "unique").Truthy() || value.Lookup(raw, "prepareUnique").Truthy():
		return command.BadOption("Unique indexes are not supported on time-series collections")
	case value.Lookup(raw, "sparse").Truthy() && !onMeta:
		return command.BadOption("Sparse indexes are only supported on the metaField of a time-series collection")
	}
	partial := value.Lookup(raw, "partialFilterExpression")
	if !value.Lookup(raw, "expireAfterSeconds").IsMissing() && !ts.OnlyMeta(partial) {
		return command.BadOption("TTL indexes on time-series collections require a partialFilterExpression on the metaField")
	}
	if !partial.IsMissing() && !value.Lookup(raw, "collation").IsMissing() {
		return mongoerr.New(mongoerr.IndexOptionsConflict, "A partialFilterExpression on a time-series collection cannot be combined with a collation of the index's own")
	}
	return nil
}

var errNoIndexes = mongoerr.New(mongoerr.BadValue, "Must specify at least one index to create")
