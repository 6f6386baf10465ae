package migration

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The recipient's critical section. From before the donor's commit until the donor reports its outcome no operation on the collection
// begins on any member of the recipient: in between each of them could answer by a routing table that has been superseded.
//
//	recipient.run ── enterReceived ── section, config.migrationRecipients, notice in one unit ──► enteredCritSec
//	donor.commit  ── config server ── _recvChunkReleaseCritSec ──► Sections.leave ── both documents removed, notice
//	Manager.decide ────────────────── _shardsvrMigrationDecision ─► Sections.leave    if the release was lost, or after an abort
//
// The section is a DDL's in form: its owner is the donor and its id the migration's. It is held as long as the donor has the
// migration's coordinator document, and operations that wait for it ask for that (ShardState.endLeftOver).
//
// Invariant: no member of the recipient begins an operation on the collection with a routing table from before the donor's commit.
// Hazard: the config server has the new placement before the recipient does. A router that knows it would be refused as being ahead,
// and one that does not would get replies without the documents of the range.
//
// Rejected: the collection's exclusive lock at the beginning, as a DDL's section takes it. Writes in flight are about ranges that the
// recipient had before and keeps, so nothing is gained by waiting for them; and it took a minute to wait for the longest transaction
// here, while the donor's writers waited, too.

// recipientsNS has the migrations whose recipient is in its critical section.
const recipientsNS = "config.migrationRecipients"

// recipientDoc is the stored state of a migration to this shard whose range has arrived durably. A new primary continues from it.
type recipientDoc struct {
	id   [16]byte
	ns   string
	uuid catalog.UUID
	from string
	key  []byte // shard key pattern
	min  []byte
	max  []byte
	docs int64 // how many have arrived
}

func recipientDocs(store statedoc.Store) statedoc.Collection[*recipientDoc] {
	return statedoc.In(store, recipientsNS, readRecipientDoc)
}

// ID implements statedoc.Doc.
func (d *recipientDoc) ID() value.Value { return value.NewBinary(4, d.id[:]) }

// Doc implements statedoc.Doc.
func (d *recipientDoc) Doc() []byte {
	moving := value.Doc(value.F("min", value.NewDocument(d.min)), value.F("max", value.NewDocument(d.max)))
	return value.Doc(
		value.F("_id", d.ID()), value.F("ns", value.NewString(d.ns)), value.F("collectionUuid", d.uuid.Value()), value.F("donorShardId", value.NewString(d.from)),
		value.F("range", value.NewDocument(moving)), value.F("shardKeyPattern", value.NewDocument(d.key)), value.F("numDocs", value.NewInt64(d.docs)),
	)
}

func readRecipientDoc(doc []byte) (*recipientDoc, error) {
	moving := value.LookupDoc(doc, "range")
	d := &recipientDoc{
		ns: value.Lookup(doc, "ns").Str(), from: value.Lookup(doc, "donorShardId").Str(), key: value.LookupDoc(doc, "shardKeyPattern"),
		min: value.LookupDoc(moving, "min"), max: value.LookupDoc(moving, "max"),
	}
	d.docs, _ = value.Lookup(doc, "numDocs").AsInt64()
	id, ok := catalog.UUIDFrom(value.Lookup(doc, "_id"))
	d.id = id
	if ok {
		d.uuid, ok = catalog.UUIDFrom(value.Lookup(doc, "collectionUuid"))
	}
	if !ok || d.from == "" || command.CheckFullName(d.ns) != nil {
		return nil, mongoerr.New(mongoerr.BadValue, "it names no migration, donor or collection")
	}
	if _, err := d.keyRange(); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *recipientDoc) keyRange() (*KeyRange, error) {
	key, err := cluster.ParseShardKey(d.key)
	if err != nil {
		return nil, err
	}
	return readKeyRange(key, value.Doc(value.F("min", value.NewDocument(d.min)), value.F("max", value.NewDocument(d.max))))
}

// receiving is the reason of such a section.
const receiving = "receiving a chunk"

// section returns the critical section of a migration to this shard.
func (d *recipientDoc) section() *sectionDoc {
	return &sectionDoc{name: d.ns, why: receiving, owner: d.from, id: d.id, reads: true}
}

// awaitEntering returns when the critical section has been entered, or will not be.
func (r *recipient) awaitEntering() {
	r.entering.Lock()
	defer r.entering.Unlock()
}

// enterReceived begins the recipient's critical section: everything has arrived. Nothing but the end of this term as primary
// interrupts it, so that a decision that waits for r.entering finds the section or knows that there will be none.
func (r *recipient) enterReceived() error {
	m := r.m
	r.mu.Lock()
	d := &recipientDoc{id: r.id, ns: r.ns, uuid: r.uuid, from: r.from, key: r.rng.key.Doc(), min: r.rng.min, max: r.rng.max, docs: r.mu.docs}
	r.mu.Unlock()
	section, life := d.section(), m.life()
	if err := m.sections().endOther(life, section); err != nil {
		return err
	}
	r.entering.Lock()
	defer r.entering.Unlock()
	if _, err := m.incoming(r.id); err != nil {
		return err // its outcome has been reported meanwhile
	}
	err := m.Docs.WriteWith(life, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		if err := m.sections().put(s, u, section); err != nil {
			return err
		}
		return recipientDocs(m.Docs).PutIn(s, u, d)
	})
	if err == nil {
		r.mu.Lock()
		r.mu.entered = m.Now()
		r.mu.Unlock()
	}
	return err
}

// restoreReceived makes the migration whose recipient is in its critical section the one that this shard receives. m.mu must be held.
func (m *Manager) restoreReceived() error {
	return recipientDocs(m.Docs).Each(func(d *recipientDoc) error {
		rng, err := d.keyRange()
		if err != nil || m.mu.in != nil {
			return err
		}
		r := &recipient{m: m, id: d.id, ns: d.ns, from: d.from, uuid: d.uuid, rng: rng, stop: func() {}}
		r.mu.state, r.mu.changed, r.mu.docs = recvEntered, make(chan struct{}), d.docs
		m.mu.in = r
		return nil
	})
}

// runRecvRelease ends the recipient's critical section: the config server has accepted the migration. It may be repeated.
func (m *Manager) runRecvRelease(op *command.Op, req *msg.RecvChunkReleaseCritSec, dst []byte) ([]byte, error) {
	if err := m.leaveSections(op, true, &sectionDoc{name: req.NS, id: req.ID}); err != nil {
		return dst, err
	}
	if r, err := m.incoming(req.ID); err == nil {
		r.noteLeft()
		r.set(recvDone, nil)
	}
	return dst, nil
}

// releaseRecipient ends the recipient's critical section while the donor's ends. If it fails, decide does so.
func (d *donor) releaseRecipient() {
	m := d.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if d.life.Err() != nil {
		return // m.wg is waited for
	}
	m.wg.Go(func() { _ = d.send(d.life, &msg.RecvChunkReleaseCritSec{Migration: d.header()}, nil) })
}

// Undecided reports whether a migration from this shard has not been concluded. It has its document until then, whether this version can read it or not.
func Undecided(docs *statedoc.Docs, id catalog.UUID) (bool, error) {
	doc, err := docs.Get(coordinatorsNS, id.Value())
	return doc != nil, err
}
