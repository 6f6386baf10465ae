package coordinator

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// forward executes a client's command about one collection under its DDL lock. For a collection without an entry in the catalog this shard runs
// it alone; any other is changed on every shard that owns chunks, and on this one, which has its definition.
type forward struct {
	kind string
	req  *msg.ShardCommand
	at   msg.ForwardFound
	key  *cluster.ShardKeyPattern // of the collection, once its shards are located
	// ended are the createIndexes that a dropIndexes has aborted; guarded by m.mu until the run begins.
	ended []*run
	// executed tells whether a shard has executed the command, as far as its answers in the updateShards phase say.
	executed map[string]executed
	// builds are the createIndexes commands that a dropIndexes would end, while it asks whether it is refused (checkFirst).
	builds [][]byte
}

// executed tells whether a shard has executed a command that it may be sent more than once.
type executed int

const (
	notExecuted executed = iota
	maybeExecuted
	surelyExecuted
)

// after returns what is known once the shard has answered again. A refusal says that nothing has been executed before, but for that of a full disk, which comes before the command is looked at.
func (e executed) after(err error) executed {
	switch {
	case err == nil || e == surelyExecuted:
		return surelyExecuted
	case ambiguous(err) || e == maybeExecuted && (cluster.Transient(err) || mongoerr.CodeOf(err) == mongoerr.OutOfDiskSpace):
		return maybeExecuted
	}
	return notExecuted
}

func (f *forward) ns() string                { return f.req.DB + "." + f.req.Coll }
func (f *forward) name() string              { return f.kind }
func (f *forward) locks() (string, []string) { return f.req.DB, lockedWithBuckets(f.ns()) }
func (f *forward) found() msg.Message        { return &f.at }
func (f *forward) clientCommand() []byte     { return f.req.Command }

func (m *Coordinators) create(op *command.Op, req *msg.ShardCreate, dst []byte) ([]byte, error) {
	return m.runOne(op, req, &req.ShardCommand, createKind, dst)
}

func (m *Coordinators) collMod(op *command.Op, req *msg.ShardCollMod, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

func (m *Coordinators) dropIndexes(op *command.Op, req *msg.ShardDropIndexes, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

func (m *Coordinators) createIndexes(op *command.Op, req *msg.ShardCreateIndexes, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

// runOne executes a command that is one unit of work on this shard, whatever the catalog says: no run begins, so none can be
// joined. A request that was sent again while users are blocked is refused by the command itself, unless it finds nothing left to do.
func (m *Coordinators) runOne(op *command.Op, req msg.Message, c *msg.ShardCommand, kind string, dst []byte) ([]byte, error) {
	f := &forward{kind: kind, req: c}
	op.Stats.NS, op.Stats.Type = f.ns(), "command"
	asked := parseRequestID(op.Req.Body)
	if asked.again {
		if dst, ok, err := m.executedBefore(op, asked, f, dst); err != nil || ok {
			return dst, err
		}
	}
	h, err := m.lockFor(op, op, f)
	if err != nil {
		return dst, err
	}
	defer m.unlock(h)
	if !asked.id.IsZero() { // the same request, sent first or again, may have come before
		if done, ok, err := m.outcome(asked.id); err != nil || ok {
			return append(dst, done...), err
		}
	}
	if err := m.Blocked(op); err != nil && !SentAgain(op) { // as in lead
		return dst, err
	}
	if err := m.checkVersion(op, f.ns()); err != nil { // the database may have moved meanwhile
		return dst, err
	}
	_, _, e, err := m.entryOf(op, f.ns())
	if err != nil {
		return dst, err
	}
	return m.nested(op, c.Command, e == nil, dst)
}

func (f *forward) check(ctx context.Context, r *run) (local bool, err error) {
	if !value.Lookup(f.req.Command, msg.RunArgument).IsMissing() { // only coordinators may add it
		return false, command.UnknownField(f.kind + "." + msg.RunArgument)
	}
	at, _, e, err := r.m.entryOf(ctx, f.ns())
	if err != nil || e == nil {
		return err == nil, err
	}
	if at != f.ns() {
		f.at.Buckets = catalog.CollOf(at)
	}
	if err := r.m.checkUUID(f.ns(), e.UUID, expectedUUID(f)); err != nil {
		return false, err
	}
	f.at.UUID = e.UUID
	return false, f.locate(ctx, r)
}

// coll returns the name under which the shards have the collection: that of the buckets for a time series.
func (f *forward) coll() string {
	if f.at.Buckets != "" {
		return f.at.Buckets
	}
	return f.req.Coll
}

// tracked returns the namespace that has the catalog's entry.
func (f *forward) tracked() string { return f.req.DB + "." + f.coll() }

// locate lists the shards that have the collection.
func (f *forward) locate(ctx context.Context, r *run) error {
	r.m.State.Catalog.InvalidateCollection(f.tracked())
	info, err := r.m.State.Catalog.Collection(ctx, f.tracked())
	if err != nil {
		return err
	}
	if info.Map == nil || info.Map.UUID != f.at.UUID {
		return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the placement of %s is changing", f.tracked())
	}
	f.at.Shards, f.at.Home, f.at.Idle, f.key = slices.Clone(info.Shards()), "", "", info.Map.Key
	if !info.Sharded() {
		f.at.Home = info.Home()
	}
	if c := r.m.Engine.Catalog().Lookup(f.tracked()); c != nil && c.UUID == catalog.UUID(f.at.UUID) && !slices.Contains(f.at.Shards, r.m.State.ID) {
		f.at.Shards, f.at.Idle = append(f.at.Shards, r.m.State.ID), r.m.State.ID
	}
	return nil
}

// admitsUnique refuses an index that is to refuse duplicates and that the shards could not enforce each on its own: a new one, or that of a collMod, whose key is given.
func (f *forward) admitsUnique(changed []byte) error {
	switch {
	case f.at.Home != "":
		return nil
	case changed != nil && !f.key.UniqueIndexAllowed(changed):
		return mongoerr.Newf(mongoerr.InvalidOptions, "cannot make the index over %s unique with shard key pattern %s", value.ShowDoc(changed), value.ShowDoc(f.key.Doc()))
	case f.kind != createIndexesKind:
		return nil
	}
	for _, v := range value.Values(value.Lookup(f.req.Command, "indexes").Doc()) {
		spec := v.Doc() // the shards have found it valid
		isNew := func(at msg.ShardIndexes) bool { return slices.Contains(at.Names, value.Lookup(spec, "name").Str()) }
		if !f.key.AdmitsIndex(spec) && slices.ContainsFunc(f.at.Missing, isNew) {
			return mongoerr.Newf(mongoerr.CannotCreateIndex, "cannot create index with 'unique' option over %s with shard key pattern %s", value.ShowDoc(value.LookupDoc(spec, "key")), value.ShowDoc(f.key.Doc()))
		}
	}
	return nil
}

func (f *forward) phases() []phase {
	return []phase{
		{name: "freezeMigrations", do: f.freeze},
		{name: "checkShards", do: f.checkShards},
		{name: "updateShards", do: f.send},
		{name: "unfreezeMigrations", final: true, harmless: true, do: f.release},
	}
}

// freeze keeps chunks from moving. A dropIndexes runs beside a createIndexes, and the config server knows one permission for both: the last of them to end lets chunks move again
// (thaws). freeze waits until another run that does so has ended.
func (f *forward) freeze(ctx context.Context, r *run) error {
	for {
		r.m.mu.Lock()
		other := r.beside(f, func(o *run) bool { return o.thaw })
		r.m.mu.Unlock()
		if other == nil {
			return r.allowMigrations(ctx, f.tracked(), f.at.UUID, false)
		}
		if err := r.follow(ctx, other, other.done); err != nil {
			return err
		}
	}
}

// thaws reports whether a run that ends lets chunks move again, rather than another one that goes on. It decides once. A run that is not stored does not count: if this node dies, nothing
// is left of it, and while it lives it waits before it keeps chunks from moving (freeze).
func (r *run) thaws(f *forward) bool {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if !r.leaves {
		r.leaves, r.thaw = true, r.beside(f, func(o *run) bool { return o.at != "" && !o.leaves }) == nil
		if r.thaw {
			r.thawID = cluster.NewUUID()
		}
	}
	return r.thaw
}

// beside returns another run about the indexes of the same collection; nil for none. m.mu must be held.
func (r *run) beside(f *forward, which func(o *run) bool) *run {
	for _, o := range r.m.mu.runs {
		if x, ok := o.doc.op.(*forward); ok && o != r && x.at.UUID == f.at.UUID && which(o) {
			return o
		}
	}
	return nil
}

// release lets chunks move again, and writes the changed bucketing of a time series to the catalog. Routers target measurements by
// it. Until a router has read it, shards refuse measurements that belong elsewhere (write's Command.misplaced), and queries do not depend on it.
func (f *forward) release(ctx context.Context, r *run) error {
	if !r.thaws(f) {
		return nil
	}
	m := &msg.SetAllowMigrations{NS: f.tracked(), UUID: f.at.UUID, Allow: true, Run: r.thawing()}
	if f.rebuckets() {
		if c := r.m.Engine.Catalog().Lookup(f.tracked()); c != nil && c.UUID == catalog.UUID(f.at.UUID) {
			m.TimeSeries = namespace.SeriesIn(c).Options.Doc()
		}
	}
	_, err := r.onConfig(ctx, m)
	return err
}

// rebuckets reports whether the command, which may name the buckets themselves, changes how the buckets of a time series are filled.
func (f *forward) rebuckets() bool {
	return namespace.IsBuckets(f.tracked()) && value.Lookup(f.req.Command, "timeseries").T == value.Document
}

// checkShards has every shard check the command before any shard executes it. The shards are listed again: until migrations
// were stopped, a chunk could reach another one.
func (f *forward) checkShards(ctx context.Context, r *run) error {
	if err := f.locate(ctx, r); err != nil {
		return err
	}
	err := f.checkAll(ctx, r)
	if mongoerr.CodeOf(err) == mongoerr.IndexNotFound && f.onlyEnded() {
		return f.answerEnded(ctx, r)
	}
	if err == nil && f.kind == createIndexesKind {
		r.noteMakes(f)
	}
	return err
}

// checkEach has each shard that is listed check the command.
func (f *forward) checkEach(ctx context.Context, r *run, unfinished []string) error {
	var mu sync.Mutex
	f.at.Missing, f.at.Were, f.at.Changes = nil, nil, nil
	var changed []byte
	err := f.each(ctx, func(ctx context.Context, id string) error {
		s, err := r.m.State.Registry.Shard(ctx, id)
		if err != nil {
			return err
		}
		defer r.asks(s.Peer)()
		body, err := cluster.Run(ctx, s.Peer, r.message(&msg.CheckCommand{ShardCommand: msg.ShardCommand{DB: f.req.DB, Coll: f.coll(), Command: f.command(nil)}, Unfinished: unfinished, Builds: f.builds}))
		var would msg.CheckCommandReply
		if err == nil {
			err = msg.Parse(body, &would)
		}
		if mongoerr.CodeOf(err) == mongoerr.IndexNotFound {
			would.Missing = f.listed()
		}
		mu.Lock()
		defer mu.Unlock()
		if len(would.Missing) > 0 {
			f.at.Missing = append(f.at.Missing, msg.ShardIndexes{Shard: id, Names: would.Missing})
		}
		if would.Enforce != nil {
			changed = bytes.Clone(would.Enforce)
		}
		if would.Changes != nil {
			f.at.Changes = append(f.at.Changes, msg.ShardAnswer{Shard: id, Reply: bytes.Clone(would.Changes)})
		}
		if would.Indexes > 0 {
			f.at.Were = append(f.at.Were, msg.ShardCount{Shard: id, N: would.Indexes})
		}
		return err
	})
	slices.SortFunc(f.at.Were, func(a, b msg.ShardCount) int { return cmp.Compare(a.Shard, b.Shard) })
	slices.SortFunc(f.at.Missing, func(a, b msg.ShardIndexes) int { return cmp.Compare(a.Shard, b.Shard) })
	slices.SortFunc(f.at.Changes, func(a, b msg.ShardAnswer) int { return cmp.Compare(a.Shard, b.Shard) })
	if err == nil {
		err = f.admitsUnique(changed)
	}
	if err == nil {
		err = f.admitsAbsent()
	}
	return err
}

// send has every shard execute the command.
//
// Invariant: once a shard has executed a collMod or a dropIndexes, the others are asked until they have, too, whatever they answer: nothing reverts what it has changed. A createIndexes is
// undone instead. Repeated, the phase finds that the shard has executed it, so that another primary does the same. As long as a shard has not answered, it may have executed the command before, whatever another one
// refuses.
func (f *forward) send(ctx context.Context, r *run) error {
	if f.at.Nothing {
		return nil
	}
	ctx, end := r.abortable(ctx)
	defer end()
	var mu sync.Mutex
	var replies []msg.ShardAnswer
	some := false // whether a shard has executed it or may have, perhaps one that has not answered, for an earlier primary
	if f.executed == nil {
		f.executed = map[string]executed{}
	}
	if f.rebuckets() { // this shard first: it has the view, by which readers know the longest span of a bucket
		if _, err := f.sendTo(ctx, r, r.m.State.ID); err != nil {
			return err
		}
		f.executed[r.m.State.ID] = surelyExecuted
	}
	err := f.each(ctx, func(ctx context.Context, id string) error {
		answer, err := f.sendTo(ctx, r, id)
		answer, err = f.asBefore(id, answer, err)
		mu.Lock()
		defer mu.Unlock()
		f.executed[id] = f.executed[id].after(err)
		some = some || r.continued && cluster.Transient(err)
		if err == nil && id != f.at.Idle {
			replies = append(replies, answer)
		}
		return err
	})
	for _, e := range f.executed {
		some = some || e != notExecuted
	}
	if code := mongoerr.CodeOf(err); err != nil && some && f.kind != createIndexesKind && code != mongoerr.IndexNotFound && !cluster.Transient(err) {
		return mongoerr.New(mongoerr.HostUnreachable, err.Error())
	}
	if f.kind == createIndexesKind {
		if why := context.Cause(ctx); why != nil && mongoerr.CodeOf(why) == mongoerr.IndexBuildAborted {
			return why
		}
		if mongoerr.CodeOf(err) == mongoerr.Interrupted { // it was killed on a shard; it must not begin again
			return mongoerr.New(mongoerr.IndexBuildAborted, err.Error())
		}
	}
	if mongoerr.CodeOf(err) == mongoerr.IndexNotFound && f.at.Was > 0 { // a shard had the index (checkShards), so an earlier execution of the phase has dropped it everywhere
		return f.answerAll(ctx, r, func(string) (int64, error) { return f.at.Was, nil })
	}
	slices.SortFunc(replies, func(a, b msg.ShardAnswer) int { return cmp.Compare(a.Shard, b.Shard) })
	f.at.Answers = replies
	return err
}

// ambiguous reports whether a shard may have executed a command in spite of an error. A member that is not primary, or whose operation met another one, has not.
func ambiguous(err error) bool {
	switch mongoerr.CodeOf(err) {
	case mongoerr.NotWritablePrimary, mongoerr.NotPrimaryNoSecondaryOk, mongoerr.NotPrimaryOrSecondary, mongoerr.FailedToSatisfyReadPreference, mongoerr.ConflictingOperationInProgress,
		mongoerr.LockTimeout, mongoerr.LockBusy, mongoerr.WriteConflict, mongoerr.StaleConfig, mongoerr.ShardingStateNotInitialized:
		return false
	}
	return cluster.Transient(err)
}

// createIndexesKind is the kind of operation whose run a drop of the collection aborts.
const createIndexesKind = "createIndexes"

const dropIndexesKind = "dropIndexes"

const collModKind = "collMod"

const createKind = "createCollection"

// each calls do for every shard, concurrently. An index that the command names may be missing on some: they dropped it in an earlier
// execution of the phase, or it was created when they owned nothing of the collection. If a shard refuses a createIndexes, the builds of the
// others, which may take long, are interrupted.
func (f *forward) each(ctx context.Context, do func(ctx context.Context, id string) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		id  string
		err error
	}
	all := make(chan outcome, len(f.at.Shards))
	for _, id := range f.at.Shards {
		go func() { all <- outcome{id, do(ctx, id)} }()
	}
	var failed, missing error
	found := false
	for range f.at.Shards {
		o := <-all
		switch {
		case o.err == nil:
			found = found || o.id != f.at.Idle
		case mongoerr.CodeOf(o.err) == mongoerr.IndexNotFound && o.id != f.at.Home:
			missing = o.err
		default:
			if failed == nil || cluster.Transient(failed) && !cluster.Transient(o.err) && ctx.Err() == nil {
				failed = o.err
			}
			if !cluster.Transient(o.err) && f.kind == createIndexesKind {
				cancel()
			}
		}
	}
	if failed == nil && !found {
		failed = missing
	}
	return failed
}

// command returns the client's command for a shard. It names the collection by its UUID, so that a message that arrives late does not change a
// successor of the same name. Indexes that a dropIndexes lists beside others are left out if the shard does not have them, as are fields without a value.
func (f *forward) command(without []string, more ...value.Field) []byte {
	cmd, mark := value.Begin(nil)
	first := true
	for k, v := range value.Elements(f.req.Command) {
		switch {
		case first:
			v = value.NewString(f.coll())
		case k == "isTimeseriesNamespace" && f.at.Buckets != "":
			continue
		case k == "index" && v.T == value.Array:
			v = listWithout(v, without)
		}
		cmd, first = value.Append(cmd, k, v), false
	}
	if f.at.Buckets != "" {
		cmd = value.Append(cmd, "isTimeseriesNamespace", value.NewBool(true))
	}
	if value.Lookup(f.req.Command, "collectionUUID").IsMissing() {
		cmd = value.Append(cmd, "collectionUUID", value.NewBinary(4, f.at.UUID[:]))
	}
	for _, x := range more {
		cmd = value.Append(cmd, x.Key, x.Val)
	}
	return value.End(cmd, mark)
}

// sendTo returns a shard's answer under its host, as routers name shards in replies.
func (f *forward) sendTo(ctx context.Context, r *run, id string) (a msg.ShardAnswer, err error) {
	s, err := r.m.State.Registry.Shard(ctx, id)
	if err != nil {
		return a, err
	}
	if a.Shard = s.Host; a.Shard == "" {
		a.Shard = id
	}
	cmd := f.command(f.missingAt(id), append(r.doc.forwarded.fields(), r.sends(msg.RunMessage{Idle: id == f.at.Idle}), value.F("$db", value.NewString(f.req.DB)))...)
	runAt := cluster.RunWrite
	if f.kind == createIndexesKind { // it has the client's write concern, whose failure is reported and changes nothing
		runAt = cluster.Run
	}
	defer r.asks(s.Peer)()
	reply, err := runAt(ctx, s.Peer, cmd)
	if err != nil {
		return a, err
	}
	out, mark := value.Begin(nil)
	for k, v := range value.Elements(reply) {
		if k != "$clusterTime" && k != "operationTime" && k != "$configTime" && k != "$topologyTime" {
			out = value.Append(out, k, v)
		}
	}
	a.Reply = value.End(out, mark)
	return a, nil
}

// undo lets chunks move again. Indexes that were created before a shard refused are dropped, so that no shard has them alone. One that has become the only one for the
// shard key, since the others were dropped on the shards themselves, stays on all of them.
func (f *forward) undo(ctx context.Context, r *run) error {
	var only []string
	for _, made := range f.at.Missing {
		if f.kind != createIndexesKind {
			break
		}
		for _, name := range made.Names {
			if slices.Contains(only, name) {
				continue
			}
			switch err := r.dropIndexAt(ctx, made.Shard, f.tracked(), f.at.UUID, name); {
			case mongoerr.CodeOf(err) == mongoerr.CannotDropShardKeyIndex:
				only = append(only, name)
			case err != nil:
				return err
			}
		}
	}
	if !r.thaws(f) {
		return nil
	}
	defer r.awaits()()
	_, err := r.onConfig(ctx, &msg.SetAllowMigrations{NS: f.tracked(), UUID: f.at.UUID, Allow: true, Run: r.thawing()})
	return err
}

// thawing identifies, to the config server, the decision of the run to let chunks move, which only this primary has made. A message of an earlier primary, or of an earlier time of this
// one, comes late: another run about indexes may need chunks not to move since.
func (r *run) thawing() msg.RunOf { return msg.RunOf{Coordinator: r.m.State.ID, ID: r.thawID} }

// dropIndexAt drops an index of a collection on a shard, unless it is gone.
func (r *run) dropIndexAt(ctx context.Context, shard, ns string, uuid [16]byte, name string) error {
	err := r.runAt(ctx, shard, msg.Doc(&msg.DropIndex{DB: catalog.DBOf(ns), Coll: catalog.CollOf(ns), Index: name, UUID: uuid}, r.sends(msg.RunMessage{Undo: true})))
	switch mongoerr.CodeOf(err) {
	case mongoerr.IndexNotFound, mongoerr.NamespaceNotFound, mongoerr.CollectionUUIDMismatch, mongoerr.ShardNotFound:
		return nil
	}
	return err
}

// reply appends each shard's reply under its host, as a router does; for a collection that is not sharded, the reply of its shard.
func (f *forward) reply(dst []byte) []byte {
	if f.at.Home != "" && len(f.at.Answers) == 1 {
		for k, v := range value.Elements(f.at.Answers[0].Reply) {
			if k != "ok" {
				dst = value.Append(dst, k, v)
			}
		}
		return dst
	}
	dst, m := value.BeginKey(dst, value.Document, "raw")
	for _, a := range f.at.Answers {
		dst = value.Append(dst, a.Shard, value.NewDocument(a.Reply))
	}
	return value.End(dst, m)
}
