package migration

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Critical sections of DDL. Each is a document, so that it outlives the primary that entered it. The units that write and
// remove the document carry notices, on which every member blocks and releases the same operations.
//
//	_shardsvrParticipantBlock ── lock, X ── document and notice in one unit ──► Shard.OnCommitNotice ──► ShardState.enterDDL
//	                             a member that opens, or takes a snapshot ────► Shard.loadSections ─────┘
//
// A section belongs to the run of a DDL (its id), which lives on a shard or the config server (its owner), or to a migration to this
// shard, whose owner is the donor (recvsection.go). Only a message of that run ends it. If a section was entered after its DDL had ended, an operation that
// waits for it finds out by asking the owner, and so does the primary, periodically, where none waits (sweepSections): operations on secondaries cannot
// end it.

// SectionsNS has the critical sections of DDL.
const SectionsNS = "config.collection_critical_sections"

// sectionDoc is the stored form of a section.
type sectionDoc struct {
	name  string // a namespace, or a database
	why   string
	owner string
	id    catalog.UUID
	reads bool
	all   bool   // for a database: its sharded collections are blocked, too
	term  int64  // of the primary that decided on it for its run, 0 if an earlier version did
	at    uint64 // when that was, 0 if the run begins and ends it once
	noted bool   // the event of its run is in the oplog
}

func sectionDocs(store statedoc.Store) statedoc.Collection[*sectionDoc] {
	return statedoc.In(store, SectionsNS, readSectionDoc)
}

// ID implements statedoc.Doc.
func (d *sectionDoc) ID() value.Value { return value.NewString(d.name) }

// Doc implements statedoc.Doc.
func (d *sectionDoc) Doc() []byte {
	reason := value.Doc(value.F("command", value.NewString(d.why)), value.F("ns", value.NewString(d.name)),
		value.F("coordinator", value.NewString(d.owner)), value.F("id", d.id.Value()))
	f := []value.Field{value.F("_id", d.ID()), value.F("reason", value.NewDocument(reason)), value.F("blockReads", value.NewBool(d.reads)),
		value.F("allCollections", value.NewBool(d.all))}
	if d.term != 0 {
		f = append(f, value.F("coordinatorTerm", value.NewInt64(d.term)))
	}
	if d.at != 0 {
		f = append(f, value.F("decidedAt", value.NewTimestampU64(d.at)))
	}
	if d.noted {
		f = append(f, value.F("eventNoted", value.NewBool(true)))
	}
	return value.Doc(f...)
}

func readSectionDoc(doc []byte) (*sectionDoc, error) {
	reason := value.LookupDoc(doc, "reason")
	d := &sectionDoc{
		name: value.Lookup(doc, "_id").Str(), why: value.Lookup(reason, "command").Str(), owner: value.Lookup(reason, "coordinator").Str(),
		reads: value.Lookup(doc, "blockReads").Truthy(), all: value.Lookup(doc, "allCollections").Truthy(), at: value.Lookup(doc, "decidedAt").TimestampU64(),
		noted: value.Lookup(doc, "eventNoted").Truthy(), term: value.SafeInt64(value.Lookup(doc, "coordinatorTerm")),
	}
	id, ok := catalog.UUIDFrom(value.Lookup(reason, "id"))
	if d.id = id; d.name == "" || d.owner == "" || !ok {
		return nil, mongoerr.New(mongoerr.BadValue, "section name or its owner missing")
	}
	return d, nil
}

// receives reports whether the section is that of a migration to this shard: the range has the same documents on both shards while it lasts.
func (d *sectionDoc) receives() bool { return d.why == receiving }

func sectionNotice(state string, d *sectionDoc) []byte {
	return value.Doc(value.F("section", value.NewString(state)), value.F("doc", value.NewDocument(d.Doc())))
}

// onSection processes a notice of a section.
func (h *Shard) onSection(ts storage.Timestamp, notice []byte) {
	s := h.State()
	d, err := readSectionDoc(value.LookupDoc(notice, "doc"))
	if s == nil || err != nil {
		return
	}
	if value.Lookup(notice, "section").Str() == "entered" {
		s.enterDDL(d)
		return
	}
	s.forget(d.name)
	s.endedBy(ts)
	s.endDDL(d.name, d.id)
}

// endedBy records a time at which all sections that are not in memory had ended.
func (s *ShardState) endedBy(ts storage.Timestamp) {
	s.sectionsUntil.Store(uint64(ts))
}

// loadSections makes the sections in memory equal to the stored ones.
func (h *Shard) loadSections() error {
	s := h.State()
	if s == nil {
		return nil
	}
	s.unconfirm() // a section of the same run may be another one: this member has missed its end, and that it was entered again
	stored := map[string]bool{}
	err := sectionDocs(h.docs).Each(func(d *sectionDoc) error {
		stored[d.name] = true
		s.enterDDL(d)
		return nil
	})
	if err == nil {
		s.endedBy(h.docs.Engine.Visible())
		s.endDDLsBut(stored)
	}
	return err
}

// enterDDL blocks operations for a DDL; it changes nothing if they are blocked already.
func (s *ShardState) enterDDL(d *sectionDoc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.mu.ddl[d.name]
	if c != nil && c.ddl == d.id {
		c.reads = d.reads
		return
	}
	if c != nil {
		c.end()
	}
	c = &criticalSection{reads: d.reads, ended: make(chan struct{}), why: d.why, ddl: d.id, owner: d.owner, all: d.all}
	if b := s.mu.blocked[d.name]; b != nil {
		b.follow(c)
	}
	s.mu.ddl[d.name] = c
	s.count()
}

// unconfirm has the owners of all sections asked again (HoldsSection).
func (s *ShardState) unconfirm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.loads++
	for _, c := range s.mu.ddl {
		c.confirmed = false
	}
}

func (s *ShardState) loads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.loads
}

// endDDL ends a DDL's critical section, if that DDL still holds the name.
func (s *ShardState) endDDL(name string, id catalog.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.mu.ddl[name]; c != nil && c.ddl == id {
		delete(s.mu.ddl, name)
		s.count()
		c.end()
	}
}

// endDDLsBut ends the sections of DDL on all other names.
func (s *ShardState) endDDLsBut(names map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, c := range s.mu.ddl {
		if !names[name] {
			delete(s.mu.ddl, name)
			s.count()
			c.end()
		}
	}
}

// migrating returns the section of a migration on a name, nil for none.
func (s *ShardState) migrating(name string) *criticalSection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.critical[name]
}

// HoldsSection checks that a run of a DDL holds a name on this shard, or the name's database: otherwise its message is out of
// date. It asks the run's owner once for each section.
//
// Hazard: the message that enters the section may be late, too, and have entered it when the run had ended, and others had used the name: what a late message of the run found held was theirs. A run
// that goes on after the section was entered has not let go of the name. Once it ends, nobody takes the name on this shard before the section has ended. One that lets others use the name
// before it ends has to be in a phase in which shards do their parts (msg.PartPhases): late messages might enter the section, and do a part, in between.
func (s *ShardState) HoldsSection(ctx context.Context, name string, id catalog.UUID) error {
	loads := s.loads()
	c, confirmed := s.sectionOf(name, id)
	if c == nil {
		return errNotHeld(name)
	}
	if confirmed {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	held, err := s.doesParts(bounded, c)
	switch {
	case err != nil && ctx.Err() == nil && bounded.Err() != nil:
		return mongoerr.Newf(mongoerr.HostUnreachable, "shard %s does not answer", c.owner)
	case err != nil:
		return err
	case !held:
		return errNotHeld(name)
	}
	s.mu.Lock()
	if loads == s.mu.loads { // otherwise the answer may be about an earlier section (unconfirm)
		c.confirmed = true
	}
	s.mu.Unlock()
	if now, confirmed := s.sectionOf(name, id); now != c || !confirmed {
		return errNotHeld(name)
	}
	return nil
}

// doesParts asks the owner of a section whether its run may still have shards do something.
func (s *ShardState) doesParts(ctx context.Context, c *criticalSection) (held bool, err error) {
	phases := msg.PartPhases[c.why]
	if phases == nil {
		return s.held(ctx, c.owner, c.ddl)
	}
	for i := 0; i < len(phases) && err == nil && !held; i++ { // a run that goes on meanwhile is found in a later one
		held, err = s.heldIn(ctx, c.owner, c.ddl, phases[i])
	}
	return held, err
}

// sectionOf returns the section of a name, or of its database, that the run of a DDL has entered on this shard; nil for none.
func (s *ShardState) sectionOf(name string, id catalog.UUID) (c *criticalSection, confirmed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range []string{name, catalog.DBOf(name)} {
		if c := s.mu.ddl[n]; c != nil && c.ddl == id {
			return c, c.confirmed
		}
	}
	return nil, false
}

func errNotHeld(name string) error {
	return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the operation does not hold the critical section of %s", name)
}

// sectionsOf returns the sections that a message names, in order of their names.
func sectionsOf(req *msg.ParticipantBlock) (docs []*sectionDoc) {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append([]string{req.NS}, req.Also...)))) {
		docs = append(docs, &sectionDoc{name: name, why: req.Command, owner: req.Owner, id: req.ID, reads: req.Type == msg.BlockReadsAndWrites, all: req.AllCollections, term: req.Term, at: req.At})
	}
	return docs
}

// noBuilds returns the names of whose collections no index may be being built when a message begins their sections.
func noBuilds(req *msg.ParticipantBlock) []string {
	if !req.NoBuilds {
		return nil
	}
	return append([]string{req.NS}, req.Also...)
}

// runParticipantBlock enters or ends the critical section of a DDL. It may be repeated.
func (m *Manager) runParticipantBlock(op *command.Op, req *msg.ParticipantBlock, dst []byte) ([]byte, error) {
	docs := sectionsOf(req)
	switch req.Type {
	case msg.Unblock:
		return dst, m.leaveSections(op, req.At != 0, docs...)
	case msg.BlockWrites, msg.BlockReadsAndWrites:
		return dst, m.sections().enter(op, docs, noBuilds(req), nil)
	}
	return dst, mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'blockType' is not a valid value.", req.Type)
}

// leaveSections ends the sections of a message that asks for it.
//
// The end of a section that its run begins only once need not be durable. If it is lost, so is whatever has happened to the name here since, and the section belongs to no run once that has ended
// (endLeftOver).
func (m *Manager) leaveSections(ctx context.Context, again bool, ds ...*sectionDoc) error {
	concern := replication.Visible
	if again {
		concern = replication.Durable
	}
	return m.certain(ctx, func() (bool, error) { return m.sections().end(ctx, concern, ds...) })
}

// Sections begins and ends the critical sections of DDL on a node.
type Sections struct {
	Docs  *statedoc.Docs
	Locks *lock.Manager
	State *ShardState
}

func (m *Manager) sections() Sections { return Sections{m.Docs, m.Locks, m.state} }

// Enter begins the sections of a DDL that this node coordinates itself, in one unit with what more stages.
func (x Sections) Enter(ctx context.Context, req *msg.ParticipantBlock, more func(s *storage.Snapshot, u *storage.UnitOfWork) error) error {
	return x.enter(ctx, sectionsOf(req), noBuilds(req), more)
}

// enter waits for every write in flight and begins the sections of a DDL, which are in order of their names, in one unit.
//
// Invariant: from the unit that writes the document to the one that removes it no member lets an operation of the name
// in. The block is set by a notice of that very unit, on every member and in the order of the log, so a member that is
// elected at any moment blocks if and only if the document exists. The exclusive lock is held until the unit is
// visible: a write that compared versions before holds the collection in intent mode until its commit and is waited
// for; one that comes later finds the section.
//
// Hazard: the run that entered the section may have ended when its message arrives, and nobody would ever remove the
// document. No time limit ends it, since the run may just as well be slow, and its changes half made; instead an operation
// that waits for the section asks the owner whether the run exists (held, ShardState.endLeftOver). The owner denies that only after a
// durable write, which shows that it is still the primary.
//
// Hazard: a resharding begins its section several times, and ends it between two attempts. A message of an earlier attempt that arrives
// during a later one, for example at a shard that was stopped, must not end it: the latest decision counts (at).
//
// Hazard: the owner's former primary was paused, and continues beside the one that has taken the run over. It decides again, and later, and what it knows is
// out of date: it would end a section on which its successor relies, or let reads in while shards are changed. The later term counts, before the time (later). Of one term, and without
// a time, what blocks reads counts (narrowedBy).
//
// Rejected: a section in memory that the coordinator renews after an election. Between the election and the renewal the
// new primary would let writes into a collection that other shards have dropped already.
func (x Sections) enter(ctx context.Context, ds []*sectionDoc, noBuilds []string, more func(s *storage.Snapshot, u *storage.UnitOfWork) error) error {
	for _, d := range ds {
		if err := x.State.awaitDropped(ctx, d); err != nil {
			return err
		}
		unlock, err := x.lock(ctx, d)
		if err != nil {
			return err
		}
		defer unlock()
		if c := x.State.migrating(d.name); c != nil {
			return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "%s is in a critical section: %s", d.name, c.why)
		}
		if err := x.endOther(ctx, d); err != nil {
			return err
		}
	}
	return x.Docs.Write(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		for _, name := range noBuilds {
			if c := s.Catalog().Lookup(name); c != nil {
				if err := storage.CheckNoBuild(c); err != nil {
					return err
				}
			}
		}
		for _, d := range ds {
			if err := x.put(s, u, d); err != nil {
				return err
			}
		}
		if more == nil {
			return nil
		}
		return more(s, u)
	})
}

// lock waits for every write in flight to what a section blocks. A collection's DDL waits for transactions as on one node; operations on a database's other
// collections are let through meanwhile. When all transactions that had begun with it are over, it does not let later ones through any more.
func (x Sections) lock(ctx context.Context, d *sectionDoc) (unlock func(), err error) {
	if catalog.CollOf(d.name) != "" {
		return x.Locks.Collection(ctx, d.name, lock.X)
	}
	unlock, err = x.State.patiently(ctx, func(wait time.Duration) (func(), error) {
		return x.Locks.DatabaseWithin(ctx, d.name, lock.X, wait)
	})
	if mongoerr.CodeOf(err) == mongoerr.LockTimeout {
		return x.Locks.Database(ctx, d.name, lock.X)
	}
	return unlock, err
}

// awaitDropped waits until no dropDatabase holds the database of a collection. Its run and one of that database's collections exclude each other, so that the collection is of a new database of the name,
// which has another primary shard: the documents here would be dropped with those of the former one.
func (s *ShardState) awaitDropped(ctx context.Context, d *sectionDoc) error {
	db := catalog.DBOf(d.name)
	if db == d.name {
		return nil
	}
	ask := time.NewTicker(leftOverAfter)
	defer ask.Stop()
	for {
		c := s.ddlSections()[db]
		if c == nil || !c.all || c.ddl == d.id {
			return nil
		}
		select {
		case <-c.ended:
		case <-ctx.Done():
			return ctx.Err()
		case <-ask.C:
			s.endLeftOver(ctx, db, c)
		}
	}
}

// put stages a section. It replaces no other run's, which may have been entered since endOther looked: the recipient of a migration
// takes no lock.
func (x Sections) put(s *storage.Snapshot, u *storage.UnitOfWork, d *sectionDoc) error {
	docs := sectionDocs(x.Docs)
	other, ok, err := docs.GetIn(s, d.ID())
	if db := catalog.DBOf(d.name); err == nil && !ok && db != d.name { // it may have been dropped since awaitDropped
		other, ok, err = docs.GetIn(s, value.NewString(db))
		ok = ok && other.all
	}
	if err == nil && ok && other.id != d.id {
		err = mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "%s is in a critical section: %s", d.name, other.why)
	}
	if err != nil {
		return err
	}
	u.Notice(sectionNotice("entered", d))
	return docs.PutIn(s, u, d)
}

// endOther makes sure that no other run holds a name: it ends a section that was left behind, and returns an error if one is held.
func (x Sections) endOther(ctx context.Context, d *sectionDoc) error {
	other, ok, err := sectionDocs(x.Docs).Get(d.ID())
	if err == nil && ok && other.id == d.id && (other.later(d) || other.narrowedBy(d)) {
		err = mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "a later decision about the critical section of %s has superseded this one", d.name)
	}
	if err != nil || !ok || other.id == d.id {
		return err
	}
	held, err := x.State.held(ctx, other.owner, other.id)
	if err == nil && held {
		err = mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "%s is in a critical section: %s", d.name, other.why)
	}
	if err != nil {
		return err
	}
	return x.leave(ctx, other)
}

// leave ends those sections whose run still holds their names. Only names and ids of ds are used.
func (x Sections) leave(ctx context.Context, ds ...*sectionDoc) error {
	_, err := x.end(ctx, replication.Durable, ds...)
	return err
}

// end is leave. held is false if this node has none of the sections.
func (x Sections) end(ctx context.Context, concern replication.WriteConcern, ds ...*sectionDoc) (held bool, _ error) {
	docs := sectionDocs(x.Docs)
	for _, d := range ds {
		have, ok, err := docs.Get(d.ID())
		if err != nil {
			return false, err
		}
		held = held || ok && have.endedBy(d)
	}
	if !held {
		return false, nil
	}
	return true, x.Docs.WriteWith(ctx, concern, func(s *storage.Snapshot, u *storage.UnitOfWork) error { return stageLeaving(x.Docs, s, u, ds...) })
}

// stageLeaving stages the end of those sections whose run still holds their names.
func stageLeaving(store statedoc.Store, s *storage.Snapshot, u *storage.UnitOfWork, ds ...*sectionDoc) error {
	coll := s.Catalog().Lookup(SectionsNS)
	if coll == nil {
		return nil
	}
	for _, d := range ds {
		_, doc, ok, err := s.FindByID(coll, d.ID())
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		have, err := readSectionDoc(doc)
		if err != nil || !have.endedBy(d) {
			continue
		}
		u.Notice(sectionNotice("left", have))
		if err := recipientDocs(store).RemoveIn(s, u, d.id.Value()); err != nil {
			return err
		}
		if err := sectionDocs(store).RemoveIn(s, u, d.ID()); err != nil {
			return err
		}
	}
	return nil
}

// StageEnd stages the end of a run's critical sections of some names on the coordinator's shard, in the unit of work that ends the run.
func StageEnd(store statedoc.Store, s *storage.Snapshot, u *storage.UnitOfWork, id catalog.UUID, names []string) error {
	var ds []*sectionDoc
	for _, name := range names {
		ds = append(ds, &sectionDoc{name: name, id: id})
	}
	return stageLeaving(store, s, u, ds...)
}

// endedBy reports whether a message of a run ends the section.
func (d *sectionDoc) endedBy(end *sectionDoc) bool { return d.id == end.id && !d.later(end) }

// later reports whether the section is a later decision of its run than another one. A decision without a term is one of an earlier version, or of the
// run's own shard (StageEnd).
func (d *sectionDoc) later(other *sectionDoc) bool {
	if d.term != other.term && d.term != 0 && other.term != 0 {
		return d.term > other.term
	}
	return d.at > other.at
}

// narrowedBy reports whether a message that begins the section would let in reads again that it blocks. The run of a shard's DDL first blocks writes, and reads when shards are about to
// be changed; its decisions have no time, and none of one term takes back another: such a message is late.
func (d *sectionDoc) narrowedBy(begin *sectionDoc) bool {
	return d.term == begin.term && d.at == begin.at && d.reads && !begin.reads
}

// sectionSweep is the interval at which the primary asks whether the sections of DDL are still held.
const sectionSweep = 10 * time.Second

// sweepSections ends sections that were entered after their DDL had ended, for example because the coordinator's former primary was paused, and sent
// its message when it resumed. Those that this node has when it becomes primary are looked at at once: their end may have been lost (leaveSections).
func (m *Manager) sweepSections(ctx context.Context) {
	m.endLeftSections(m.Service.Background(ctx, command.OwnClient()))
	t := time.NewTicker(sectionSweep)
	defer t.Stop()
	for seen := map[*criticalSection]bool{}; ; {
		select {
		case <-t.C:
			seen = m.endUnheld(m.Service.Background(ctx, command.OwnClient()), seen)
		case <-ctx.Done():
			return
		}
	}
}

// endUnheld ends those sections of seen, the result of the last call, that still exist and that no run holds. It returns the present sections.
func (m *Manager) endUnheld(ctx context.Context, seen map[*criticalSection]bool) map[*criticalSection]bool {
	now := map[*criticalSection]bool{}
	for name, c := range m.state.ddlSections() {
		if now[c] = true; seen[c] {
			m.state.endLeftOver(ctx, name, c)
		}
	}
	return now
}

// runEndLeftSections ends the sections that no run holds, after this shard has been added to the cluster: while it was not in it, runs whose sections it had have ended without it. Otherwise
// it would refuse chunks until the second look of sweepSections. What cannot be found out in time is left to that.
func (m *Manager) runEndLeftSections(op *command.Op, _ *msg.EndLeftSections, dst []byte) ([]byte, error) {
	m.endLeftSections(op)
	return dst, op.Err()
}

// endLeftSections ends the sections of which it finds out in time that no run holds them.
func (m *Manager) endLeftSections(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	var asked sync.WaitGroup
	for name, c := range m.state.ddlSections() {
		asked.Go(func() { m.state.endLeftOver(bounded, name, c) })
	}
	asked.Wait()
}

// ddlSections returns the critical sections of DDL by their names.
func (s *ShardState) ddlSections() map[string]*criticalSection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mu.ddl)
}

// held asks the owner whether the run of a DDL still holds its sections. A shard that was removed from the cluster holds none: it was drained before.
func (s *ShardState) held(ctx context.Context, owner string, id catalog.UUID) (bool, error) {
	return s.heldIn(ctx, owner, id, "")
}

// heldIn is held for a run that has to be in a phase; an empty one stands for any.
func (s *ShardState) heldIn(ctx context.Context, owner string, id catalog.UUID, phase string) (bool, error) {
	at := s.Registry.Config()
	if owner != cluster.ConfigShardID {
		shard, err := s.Registry.Shard(ctx, owner)
		if mongoerr.CodeOf(err) == mongoerr.ShardNotFound {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		at = shard.Peer
	}
	return askOwner(ctx, at, &msg.HoldsCriticalSection{ID: id, Phase: phase})
}

func askOwner(ctx context.Context, owner cluster.Peer, ask *msg.HoldsCriticalSection) (held bool, err error) {
	reply, err := cluster.Run(ctx, owner, msg.Doc(ask))
	var section msg.HoldsCriticalSectionReply
	if err == nil {
		err = msg.Parse(reply, &section)
	}
	return section.Held, err
}

// askWait is the time limit for a coordinator to reply whether its run still wants a shard to change something.
const askWait = 5 * time.Second

// RunGoesOn returns an error for a command of a coordinator's run that has ended or, unless the command is part of that, is being undone: a primary that was paused
// may send it when another one has finished the run. The caller holds the collection's lock until its change has its place in the log. The run
// does not end before each shard has executed the command of its present coordinator, which takes the lock, too: what is changed after a positive reply comes
// before that.
//
// Rejected: a session for each run, with a transaction number that a new coordinator raises on all shards before it continues, as on the real server. Each shard would
// have to keep the record for as long as a message may take, and a message of the same coordinator that is only delayed would have the right number.
func (s *ShardState) RunGoesOn(ctx context.Context, ns string, of *msg.RunMessage) error {
	bounded, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	shard, err := s.Registry.Shard(bounded, of.Coordinator)
	held := false
	if err == nil {
		held, err = askOwner(bounded, shard.Peer, &msg.HoldsCriticalSection{ID: of.ID, Forward: !of.Undo, Phase: of.Phase})
	}
	switch {
	case err == nil && !held:
		return mongoerr.Newf(mongoerr.StaleEpoch, "the operation on %s has ended", ns)
	case err != nil && ctx.Err() == nil && bounded.Err() != nil:
		return mongoerr.Newf(mongoerr.HostUnreachable, "shard %s does not answer", of.Coordinator)
	}
	return err
}
