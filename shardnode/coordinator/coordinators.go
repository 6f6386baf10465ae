package coordinator

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Config has what coordinators use of their node.
type Config struct {
	Engine *storage.Engine
	Docs   *statedoc.Docs
	State  *migration.ShardState
	Points *cluster.FailPoints         // nil for none
	Warn   func(msg string, err error) // logs errors that no client receives
	Locks  *lock.Manager               // writers hold their collection in IX
	// Sessions is the history of the node's sessions, which is transferred with a database.
	Sessions migration.Sessions
	Host     func() string // the node's address, as config.changelog shows it
	// Forget drops a collection's compiled form once the unit that drops the collection has committed.
	Forget func(u *storage.UnitOfWork, c *catalog.Collection)
	// Holds is the config server's row of the command that asks whether a critical section is held; nil on a node that is no config
	// server. On a config shard either may own the section.
	Holds *command.Spec
	// Linearize makes sure that the node is still the primary, by asking a majority.
	Linearize func(ctx context.Context) error
	// Blocked returns an error for a client's operation while users are blocked (setUserWriteBlockMode).
	Blocked func(op *command.Op) error
}

// Coordinators are the DDL operations that a shard coordinates.
type Coordinators struct {
	Config
	locks *lock.Manager
	wg    sync.WaitGroup // running runs

	mu struct {
		sync.Mutex
		ctx  context.Context // canceled when the node steps down
		term int64           // as primary
		runs map[string]*run // by the key of their documents
		// asked are runs that wait for their locks, by the same key: an identical request that arrives meanwhile joins them.
		asked  map[string]*run
		held   map[*held]struct{}
		unread []*unread // stored runs that this version cannot continue
		tidied time.Time // when old outcomes were removed
	}
}

// New returns Coordinators that coordinate nothing before the node steps up.
func New(c Config) *Coordinators {
	m := &Coordinators{Config: c, locks: lock.NewManager()}
	ended, end := context.WithCancel(context.Background())
	end()
	m.mu.ctx, m.mu.runs, m.mu.asked, m.mu.held = ended, make(map[string]*run), make(map[string]*run), make(map[*held]struct{})
	return m
}

// sections are the critical sections of this shard.
func (m *Coordinators) sections() migration.Sections {
	return migration.Sections{Docs: m.Docs, Locks: m.Locks, State: m.State}
}

// Service returns the coordinators as a primary-only service: when the node has stepped up, the runs that an
// earlier primary left unfinished hold their locks and continue.
func (m *Coordinators) Service() replication.Service {
	return replication.Service{
		Name: "ShardingDDLCoordinator", Vital: true, StepUp: m.stepUp,
		Run: func(ctx context.Context, _ int64) {
			m.mu.Lock()
			for _, r := range m.mu.runs {
				m.start(ctx, r)
			}
			m.mu.Unlock()
			<-ctx.Done()
			m.wg.Wait() // no further run begins
		},
	}
}

// stepUp takes the locks of the stored runs. They have held them together before, so none waits for another.
//
// It returns before clients may write (the service is vital). Hazard: DDL locks exist in memory only. A client's command that came
// before them could find the collection half dropped, unlocked, and begin a second operation on the same name. The
// lock table is a new one, which nothing else uses before the runs hold their locks: operations of an earlier term may still
// unwind, and what they release in the old table must not release a lock of a run that continues.
//
// Rejected: locks stored as documents, which would survive a crash. They would duplicate the state documents, since the
// names that an operation locks follow from its request. If the two disagreed after a crash, a name would stay locked
// with nothing to unlock it.
func (m *Coordinators) stepUp(ctx context.Context, term int64) error {
	table, runs, all := lock.NewManager(), make(map[string]*run), make(map[*held]struct{})
	var unread []*unread
	err := documents(m.Docs).EachOr(func(d *document) error {
		h := &held{Locker: table.NewLocker(), op: d.op, reason: d.op.name()}
		if err := m.take(ctx, h, storedNames(d.op), lockWait); err != nil {
			return err
		}
		d.takenOver(term)
		r := &run{m: m, doc: d, locks: h, done: make(chan struct{}), stored: true, at: d.phase, joined: joinedBefore(d)}
		r.makes.continued(d)
		runs[r.key()], all[h] = r, struct{}{}
		return nil
	}, func(doc []byte, why error) bool {
		u := readUnread(doc)
		if u != nil {
			unread = append(unread, u)
			m.Warn("A DDL operation on "+u.ns+" cannot be continued by this version, and there is no other one until its document is removed from "+documentsNS, mongoerr.From(why).Prefix(value.Show(u.doc)+": "))
		}
		return u != nil
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.ctx, m.mu.term, m.mu.runs, m.mu.held, m.mu.unread, m.locks = ctx, term, runs, all, unread, table
	return nil
}

// start continues a run in the background. m.mu must be held.
func (m *Coordinators) start(ctx context.Context, r *run) {
	if r.started {
		return
	}
	r.started = true
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		r.execute(ctx)
	}()
}

// Specs returns the rows of the commands that coordinators execute.
func (m *Coordinators) Specs() []command.Spec {
	holds, consistent := command.Internal(m.runHolds), command.Internal(m.runCheckConsistency)
	holds.Roles, holds.PrimaryOnly = command.Shard, true
	consistent.Roles, consistent.PrimaryOnly = command.Shard, true
	consistent.Fields = append(consistent.Fields, requestField)
	return []command.Spec{holds, onDatabase(consistent), onCollection(row(m.drop)), onDatabase(row(m.dropDatabase)), onDatabase(row(m.movePrimary)), row(m.rename), row(m.shard), row(m.refine), row(m.reshard), row(m.untrack),
		onCollection(row(m.create)), onCollection(row(m.convertToCapped)), onCollection(row(m.collMod)), onCollection(row(m.dropIndexes)), onCollection(row(m.createIndexes))}
}

// onCollection completes a row whose command's value is a collection of the database that it is sent to.
func onCollection(s command.Spec) command.Spec {
	s.AdminOnly, s.Namespace = false, true
	return s
}

// onDatabase completes a row whose command concerns the database that it is sent to.
func onDatabase(s command.Spec) command.Spec {
	s.AdminOnly = false
	return s
}

// row returns the row of an operation.
func row[M any, P interface {
	*M
	msg.Message
}](run func(op *command.Op, m P, dst []byte) ([]byte, error)) command.Spec {
	s := command.Internal(run)
	s.Roles, s.Kind, s.PrimaryOnly, s.WriteConcern = command.Shard, command.DDL, true, true
	s.Fields = append(s.Fields, requestField)
	return s
}

// requestField is the argument by which a router identifies its request.
var requestField = command.Opt(msg.RequestID, command.TObject)

// runHolds reports whether a run, or a migration from this shard, still holds its critical sections. Before it denies that, it makes sure, by a
// write, that this node is still primary, and by a read before it affirms it: others change what they are about to change only for a run that goes on, and the one of a
// primary that was deposed may have been ended by its successor. Its own late message could ask it.
func (m *Coordinators) runHolds(op *command.Op, req *msg.HoldsCriticalSection, dst []byte) ([]byte, error) {
	held, err := m.holds(req)
	switch {
	case err != nil:
	case held:
		err = m.Linearize(op)
	default:
		if err = m.confirm(op, "a critical section was asked about"); err == nil {
			held, err = m.holds(req)
		}
	}
	if err != nil {
		return dst, err
	}
	if !held && m.Holds != nil {
		return m.Holds.Run(op, dst)
	}
	return msg.AppendFields(dst, &msg.HoldsCriticalSectionReply{Held: held}), nil
}

// confirm makes sure, by a write, that this node is still primary, and that no crash can undo what it has written before.
func (m *Coordinators) confirm(ctx context.Context, why string) error {
	return m.Docs.WriteWith(ctx, replication.Durable, func(_ *storage.Snapshot, u *storage.UnitOfWork) error {
		u.Oplog(storage.OplogEntry{Op: 'n', StmtID: -1, O: value.Doc(value.F("msg", value.NewString(why)))})
		return nil
	})
}

// holds reports whether a run, its decision to let chunks move (run.thawing), or a migration from this shard, has the id. If req.Forward is set, a run that is being undone does not count,
// nor does one in another phase than req.Phase, if that is set; of a run that this version cannot read, either is unknown.
//
// Before the stored runs have been loaded, and when the node has stepped down, it does not know: the runs in memory are none, or those of an earlier term.
func (m *Coordinators) holds(req *msg.HoldsCriticalSection) (bool, error) {
	m.mu.Lock()
	if m.mu.ctx.Err() != nil {
		m.mu.Unlock()
		return false, errSteppedDown
	}
	for _, r := range m.mu.runs {
		if r.doc.id == catalog.UUID(req.ID) {
			defer m.mu.Unlock()
			return (!req.Forward || r.at != undoing) && (req.Phase == "" || req.Phase == r.at), nil
		}
		if r.thaw && r.thawID == catalog.UUID(req.ID) {
			defer m.mu.Unlock()
			return true, nil
		}
	}
	unread := m.mu.unread
	m.mu.Unlock()
	for _, u := range unread {
		if u.hasID && u.id == catalog.UUID(req.ID) {
			there, err := m.remains(u)
			if there && (req.Forward || req.Phase != "") {
				err = u.err()
			}
			if err != nil || there {
				return err == nil, err
			}
		}
	}
	return migration.Undecided(m.Docs, catalog.UUID(req.ID))
}

// run executes an operation: it joins a run for the same request, else it takes the locks and checks the current state. as is
// the client's command that this shard runs if nothing else has to be done.
func (m *Coordinators) run(op *command.Op, req msg.Message, as string, dst []byte) ([]byte, error) {
	cmd := msg.Doc(req)
	o, err := parseOperation(cmd) // a copy that outlives the request
	if err != nil {
		return dst, err
	}
	ns := nameOf(o)
	op.Stats.NS, op.Stats.Type = ns, "command"
	asked := parseRequestID(op.Req.Body)
	if asked.again {
		if dst, ok, err := m.executedBefore(op, asked, o, dst); err != nil || ok {
			return dst, err
		}
	}
	if !asked.id.IsZero() { // one that comes behind its repetition ends no builds that have begun since
		if done, ok, err := m.outcome(asked.id); err != nil || ok {
			return append(dst, done...), err
		}
	}
	if err := m.abortBuilds(op, o); err != nil {
		return dst, err
	}
	r := &run{m: m, done: make(chan struct{}), makes: makes{known: make(chan struct{})}, doc: &document{id: cluster.NewUUID(), op: o, ns: ns, command: cmd, forwarded: forwardedOf(op), request: asked.id}}
	for {
		other, err := m.running(r)
		if err != nil {
			return dst, err
		}
		if other == nil {
			break
		}
		if !bytes.Equal(other.doc.command, r.doc.command) || !other.join(asked.id) {
			switch err := other.end(op, op); {
			case err == errGoesOn:
				return dst, errBehind
			case err != nil:
				return dst, err
			}
			continue
		}
		m.shareEnded(o, other.doc.op)
		if dst, err = other.wait(op, dst); m.mayBeginAgain(other) {
			continue
		}
		return dst, err
	}
	begun := false
	defer func() {
		if !begun {
			m.giveUp(r)
		}
	}()
	if begun, dst, err = m.lead(op, r, as, dst); !begun {
		return dst, err
	}
	return r.wait(op, dst)
}

func (m *Coordinators) isDiscarded(r *run) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return r.discarded
}

// lead takes a run's locks, checks the current state, and begins the run, unless only this shard is concerned: then it
// executes the operation here.
func (m *Coordinators) lead(op *command.Op, r *run, as string, dst []byte) (begun bool, _ []byte, err error) {
	h, err := m.lockUnlessBuilding(op, r.doc.op)
	if err != nil {
		return false, dst, err
	}
	r.locks = h
	if asked := parseRequestID(op.Req.Body); !asked.id.IsZero() { // the same request, sent first or again, may have held the locks
		done, ok, err := m.outcome(asked.id)
		if err != nil || ok {
			m.unlock(h)
			return false, append(dst, done...), err
		}
	}
	if err := m.Blocked(op); err != nil { // since it was checked first they may have been, and only what has its locks is waited for (Begun)
		m.unlock(h)
		return false, dst, err
	}
	if o, ok := r.doc.op.(*forward); ok && o.kind == dropIndexesKind {
		if err := m.endBuilds(op, o); err != nil {
			m.unlock(h)
			return false, dst, err
		}
	}
	if err := m.checkVersion(op, r.doc.ns); err != nil { // the database may have moved while this waited for the locks
		m.unlock(h)
		return false, dst, err
	}
	local, err := r.doc.op.check(op, r)
	if aerr := m.stillAbsent(op, r.doc.ns); aerr != nil {
		m.unlock(h)
		return false, dst, aerr
	}
	if phase := follows(r.doc.op); err == nil && local && phase != "" {
		return m.localThenRun(op, r, as, phase, dst)
	}
	if err != nil || local {
		m.mu.Lock()
		h.unlockIndexes()
		m.mu.Unlock()
		defer m.unlock(h)
		switch {
		case err == nil && as == "":
			dst, err = m.nested(op, r.doc.op.(forwarding).clientCommand(), true, dst)
		case err == nil:
			dst, err = m.local(op, as, r.doc.op, func(*command.Op) {}, dst)
		case err == errAlreadyDone:
			op.AdvanceOperationTime(uint64(m.Engine.Visible()))
			return false, r.doc.op.reply(dst), nil
		}
		return false, dst, err
	}
	if err := m.begin(op, r); err != nil {
		m.unlock(h)
		return false, dst, err
	}
	return true, dst, nil
}

// checkVersion compares the versions in a request, outside of critical sections. The database's current version is read from the config server: on a
// shard that wrongly believes it is the database's primary shard, the DDL locks exclude nothing.
func (m *Coordinators) checkVersion(op *command.Op, ns string) error {
	m.State.Catalog.InvalidateDatabase(catalog.DBOf(ns))
	return migration.WaitCritical(op, m.State.CheckVersion(op, ns))
}

// stillAbsent returns a stale error if a request came without a version, as its router found no database, and there is one now. Its primary shard may be another
// one, and the locks of this shard exclude nothing. It is called after the state of the database has been read: what was found while there was none is nothing.
//
// Hazard: a dropDatabase that was sent to any shard because there was no database dropped the next one, beside a shardCollection that its primary shard was
// executing, whose collection then had an entry in the catalog and no database.
func (m *Coordinators) stillAbsent(op *command.Op, ns string) error {
	db := catalog.DBOf(ns)
	if op.Req.DatabaseVer == nil || cluster.FixedDatabase(db) {
		return nil
	}
	received, err := cluster.ParseDatabaseVersion(value.NewDocument(op.Req.DatabaseVer))
	if err != nil || !received.IsFixed() {
		return err
	}
	m.State.Catalog.InvalidateDatabase(db)
	switch info, err := m.State.Catalog.Database(op, db); {
	case mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound:
		return nil
	case err != nil:
		return err
	default:
		return cluster.StaleDbVersion(db, received, &info.Version)
	}
}

// giveUp makes the requests that joined a run that does not begin try again.
func (m *Coordinators) giveUp(r *run) {
	m.mu.Lock()
	delete(m.mu.asked, r.key())
	m.mu.Unlock()
	r.err = errNotBegun
	close(r.done)
}

// begin starts a run, unless the node has stepped down since its locks were taken.
func (m *Coordinators) begin(op *command.Op, r *run) error {
	entry, logged := r.beginning(op)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ours := m.mu.held[r.locks]; m.mu.ctx.Err() != nil || !ours {
		return errSteppedDown
	}
	if logged {
		m.logBeginning(entry)
	}
	r.doc.takenOver(m.mu.term)
	delete(m.mu.asked, r.key())
	m.mu.runs[r.key()] = r
	r.locks.unlockIndexes()
	m.start(m.mu.ctx, r)
	return nil
}

// nameOf returns the name that identifies an operation: its collection or its database.
func nameOf(o identified) string {
	db, colls := o.locks()
	if len(colls) == 0 {
		return db
	}
	return colls[0]
}

// running returns a run for the same request; a run of the same kind on the same name for a different request is an
// error, unless requests of that kind queue. If there is none, later requests join r until it has ended or is given up (giveUp): otherwise two simultaneous requests
// would both wait for the locks, and the second would find nothing left to do.
func (m *Coordinators) running(r *run) (*run, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	other := m.mu.runs[r.key()]
	if other == nil {
		other = m.mu.asked[r.key()]
	}
	if other == nil {
		m.mu.asked[r.key()] = r
		return nil, nil
	}
	if bytes.Equal(other.doc.command, r.doc.command) || queues(r.doc.op) {
		return other, nil
	}
	return nil, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "Another ShardingDDLCoordinator for namespace %s of type %s is already running with different options", r.doc.ns, r.doc.op.name())
}

// queues reports whether different requests of the operation's kind on one name are executed one after another. Others may contradict
// each other, and the second is refused.
func queues(o operation) bool { return o.name() == createIndexesKind || o.name() == dropIndexesKind }

// errNotBegun is the error of a run that did not begin, for the requests that joined it.
var errNotBegun = mongoerr.New(mongoerr.ConflictingOperationInProgress, "the operation did not begin")

var errSteppedDown = mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")

// local executes an operation that is one unit of work on this shard: as the client's command, with the version of an
// unsharded collection, which is compared once more under the command's locks. It calls also for the command.
func (m *Coordinators) local(op *command.Op, as string, o operation, also func(in *command.Op), dst []byte) ([]byte, error) {
	var rest []byte
	first := true
	for it := value.Walk(op.Req.Body); ; {
		raw, k, v, ok := it.NextRaw()
		if !ok {
			break
		}
		switch {
		case first:
			rest, first = value.Append(rest, as, v), false
		case slices.Contains(ownArguments, string(k)):
		default:
			rest = append(rest, raw...)
		}
	}
	prepare := also
	if p, ok := o.(interface{ prepare(in *command.Op) }); ok {
		prepare = func(in *command.Op) {
			p.prepare(in)
			also(in)
		}
	}
	return m.runNested(op, rest, true, prepare, dst)
}

// nested is local for a client's command that the request contains.
func (m *Coordinators) nested(op *command.Op, cmd []byte, unsharded bool, dst []byte) ([]byte, error) {
	var elems []byte
	for it := value.Walk(cmd); ; {
		raw, _, _, ok := it.NextRaw()
		if !ok {
			break
		}
		elems = append(elems, raw...)
	}
	for it := value.Walk(op.Req.Body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			break
		}
		if msg.Generic(k) && !slices.Contains(ownArguments, string(k)) {
			elems = append(elems, raw...)
		}
	}
	return m.runNested(op, elems, unsharded, func(*command.Op) {}, dst)
}

// ownArguments are arguments of a request that are not passed on to its client's command.
var ownArguments = []string{"shardVersion", "databaseVersion", "maxTimeMS", "$clusterTime", msg.RequestID, "out", "targetOptions", "targetIndexes"}

// runNested runs a client's command as a part of the request, after calling prepare for it.
func (m *Coordinators) runNested(op *command.Op, elems []byte, unsharded bool, prepare func(in *command.Op), dst []byte) ([]byte, error) {
	body, mark := value.Begin(nil)
	in, err := op.Nested(value.End(append(body, elems...), mark))
	if err != nil {
		return dst, err
	}
	defer in.Close()
	m.keepsOutcome(op, in)
	prepare(in)
	if unsharded {
		in.Req.ShardVersion = cluster.Unsharded.Doc()
	}
	dst, err = in.Req.Spec.Run(in, dst)
	op.AdvanceOperationTime(in.OperationTime())
	if e := in.WriteConcernError(); e != nil {
		op.SetWriteConcernError(e)
	}
	return dst, err
}

func commandName(cmd []byte) string {
	for k := range value.Elements(cmd) {
		return k
	}
	return ""
}
