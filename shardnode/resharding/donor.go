package resharding

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxReply is the maximum size of one reply to a recipient; a larger document is sent alone.
const maxReply = 4 << 20

// idsAtOnce is the number of documents whose _ids are read for one reply.
const idsAtOnce = maxReply / 1024

// maxCloned is the same for documents of the clone, which a recipient stores in one unit of work: clients' writes wait for it.
const maxCloned = 1 << 20

// busyCloned is maxCloned while the donor serves clients, which wait for a processor while a reply is assembled.
const busyCloned = 128 << 10

// donor is a collection that leaves this shard, or is divided differently. Its replies depend on the request alone, so that a new
// primary can continue.
type donor struct {
	m    *Manager
	doc  *donorDoc
	load command.ClientLoad
	met  *migration.Blocked // what its critical section has blocked

	mu struct {
		sync.Mutex
		ended    bool
		snap     *storage.Snapshot            // what is cloned; nil before and after that
		pin      *storage.OplogPin            // of all that a recipient may ask for that has not asked yet; nil once all have
		cloned   map[string]bool              // the recipients that have cloned
		had      map[string]storage.Timestamp // the time up to which each recipient has received changes
		pins     map[string]*storage.OplogPin // of what follows
		sessions map[string]*sentHistory      // what each recipient has received of the history of retryable writes
	}
}

func newDonor(m *Manager, doc *donorDoc) *donor {
	d := &donor{m: m, doc: doc}
	d.mu.cloned, d.mu.had, d.mu.pins, d.mu.sessions = make(map[string]bool), make(map[string]storage.Timestamp), make(map[string]*storage.OplogPin), make(map[string]*sentHistory)
	m.State.Resharding(doc.ns, true)
	d.met = m.State.CountBlocked(doc.ns, doc.id, m.Now)
	d.load.Begin(m.Counts)
	d.mu.pin = d.pinRest()
	return d
}

// pinRest keeps the entries from the beginning, or what is left of them: recipients that have received those that are gone will ask for the rest. Which
// entries each of them needs is not stored here; one that needs what is gone gets the error when it asks for it (keep).
func (d *donor) pinRest() *storage.OplogPin {
	cut, err := d.m.Engine.OplogCut()
	if err != nil {
		return nil
	}
	pin, err := d.m.Engine.PinOplog(max(cut, d.doc.minFetch))
	if err != nil {
		return nil
	}
	return pin
}

// release releases the oplog and the snapshot.
func (d *donor) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.mu.ended {
		d.m.State.Resharding(d.doc.ns, false)
		d.m.State.ForgetBlocked(d.doc.ns, d.met)
	}
	d.mu.ended = true
	if d.mu.snap != nil {
		d.mu.snap.Release()
		d.mu.snap = nil
	}
	if d.mu.pin != nil {
		d.mu.pin.Release()
		d.mu.pin = nil
	}
	for _, pin := range d.mu.pins {
		pin.Release()
	}
	clear(d.mu.pins)
	for _, h := range d.mu.sessions {
		h.pin.Release()
	}
	clear(d.mu.sessions)
}

// runDonate makes the shard a donor. It may be repeated.
func (m *Manager) runDonate(op *command.Op, req *msg.ReshardDonate, dst []byte) ([]byte, error) {
	id := catalog.UUID(req.ID)
	if err := m.known(op, id); err != nil {
		return dst, err
	}
	m.mu.Lock()
	d, ctx := m.mu.donors[id], m.mu.ctx
	m.mu.Unlock()
	if ctx.Err() != nil {
		return dst, errSteppedDown
	}
	if d == nil {
		var err error
		if d, err = m.donate(op, req); err != nil {
			return dst, err
		}
		if err := m.confirm(op, &d.doc.about); err != nil {
			return dst, err
		}
	}
	c := m.Engine.Catalog().LookupUUID(d.doc.uuid)
	if c == nil {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s is not on this shard", req.NS)
	}
	reply := &msg.ReshardDonateReply{MinFetch: uint64(m.Engine.Visible()), Docs: c.Counters.Records.Load(), Bytes: c.Counters.DataSize.Load()}
	return msg.AppendFields(dst, reply), nil
}

// donate begins the shard's part. From here on no DDL changes the collection, and any that was running has ended.
//
// Hazard: the message is sent twice, as by a primary of the config server and its successor, and one of the two is held up until recipients have cloned. If its document
// replaced the other one, the donor's next primary would begin with what was written since, and nobody would miss the rest. The first document stays.
func (m *Manager) donate(op *command.Op, req *msg.ReshardDonate) (d *donor, err error) {
	m.State.Resharding(req.NS, true) // until the donor has it refused, or there is none
	defer m.State.Resharding(req.NS, false)
	if err := m.State.Catalog.Reload(op, req.NS); err != nil {
		return nil, err
	}
	unlock, err := m.Locks.Collection(op, req.NS, lock.IX)
	if err != nil {
		return nil, err
	}
	defer unlock()
	c := m.Engine.Catalog().Lookup(req.NS)
	if c == nil || c.UUID != catalog.UUID(req.UUID) {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s is not on this shard", req.NS)
	}
	if err := storage.CheckNoBuild(c); err != nil {
		return nil, err
	}
	doc := &donorDoc{
		about:    about{id: catalog.UUID(req.ID), ns: req.NS, uuid: c.UUID, temp: req.Temp, since: m.Now().UnixMilli(), command: bytes.Clone(req.Command)},
		minFetch: m.Engine.Visible(), recipients: slices.Clone(req.Recipients), state: donatingData,
	}
	if doc, err = begun(op, donorDocs(m.Docs), m.Docs, doc); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.ctx.Err() != nil || m.mu.donors == nil {
		return nil, errSteppedDown
	}
	if d = m.mu.donors[doc.id]; d == nil {
		d = newDonor(m, doc)
		m.mu.donors[doc.id] = d
	}
	return d, nil
}

// donating finds the operation that a recipient asks about.
func (m *Manager) donating(id [16]byte) (*donor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.mu.donors[catalog.UUID(id)]; d != nil {
		return d, nil
	}
	if m.mu.ctx.Err() != nil {
		return nil, errSteppedDown
	}
	return nil, noSuch(id)
}

// cloned returns the snapshot of the clone's time, which this donor keeps until all recipients have cloned it.
func (d *donor) cloned(op *command.Op, at storage.Timestamp) (*storage.Snapshot, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.ended {
		return nil, noSuch(d.doc.id)
	}
	if d.mu.snap == nil || d.mu.snap.Timestamp() != at {
		s, err := d.m.SnapshotAt(op, at)
		if err != nil {
			return nil, err
		}
		if err := d.m.Engine.Sync(op); err != nil { // it may show what is not durable (runFetchChanges)
			s.Release()
			return nil, err
		}
		if d.mu.snap != nil {
			d.mu.snap.Release()
		}
		d.mu.snap = s
	}
	return d.mu.snap.Clone(), nil
}

// runFetchDocuments returns some of the documents that a recipient will own, as of the clone's time.
func (m *Manager) runFetchDocuments(op *command.Op, req *msg.ReshardFetchDocuments, dst []byte) ([]byte, error) {
	d, err := m.donating(req.ID)
	if err != nil {
		return dst, err
	}
	t, err := m.tables(op, &d.doc.about)
	if err != nil {
		return dst, err
	}
	s, err := d.cloned(op, storage.Timestamp(req.At))
	if err != nil {
		return dst, err
	}
	defer s.Release()
	c := s.Catalog().LookupUUID(d.doc.uuid)
	if c == nil {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s is not on this shard", d.doc.ns)
	}
	var o storage.ScanOptions
	if !req.After.IsMissing() {
		o.From = following(req.After.Bytes())
	}
	reply, err := d.documents(op, t, s.Scan(c, o), req.Recipient)
	if err != nil {
		return dst, err
	}
	return msg.AppendFields(dst, reply), nil
}

// following returns the least RecordId after another.
func following(rid storage.RecordID) storage.RecordID {
	if n, ok := rid.Int64(); ok {
		return storage.NewRecordID(n + 1)
	}
	return append(rid.Clone(), 0)
}

// scanned is the number of documents that are examined for one reply.
const scanned = 50_000

// replySize is the size of a reply with documents of the clone.
func (d *donor) replySize() int {
	if d.load.Busy(d.m.Counts, d.m.Now()) {
		return busyCloned
	}
	return maxCloned
}

func (d *donor) documents(op *command.Op, t *tables, cur *storage.RecordCursor, recipient string) (*msg.ReshardFetchDocumentsReply, error) {
	defer cur.Close()
	reply := &msg.ReshardFetchDocumentsReply{}
	list, mark := value.Begin(nil)
	n, limit := 0, d.replySize()
	for looked := 0; cur.Next(); looked++ {
		doc := cur.Doc()
		goes, err := t.goesTo(doc, d.m.State.ID, recipient)
		if err != nil {
			return nil, err
		}
		if goes {
			if n > 0 && len(list)+len(doc) > limit {
				reply.Documents = value.End(list, mark)
				return reply, nil
			}
			list = value.AppendIndex(list, n, value.NewDocument(doc))
			n++
		}
		reply.Next = value.NewBinary(0, bytes.Clone(cur.RecordID()))
		if looked == scanned {
			reply.Documents = value.End(list, mark)
			return reply, nil
		}
		if looked%256 == 0 {
			if err := op.Check(); err != nil {
				return nil, err
			}
		}
	}
	reply.Next = value.Value{}
	reply.Documents = value.End(list, mark)
	return reply, cur.Err()
}

// runFetchChanges returns the documents that were written to after a time of the oplog.
//
// Hazard: the time of the clone is chosen by another donor, and may fall between the timestamps of one of this donor's units:
// after some of its entries, but before its versions, which have the last timestamp. A recipient that began after
// the clone's time would get neither the document nor its entry. The first request therefore begins with what this
// shard has kept since it became a donor, a time at which all of its units were complete. A document that is sent twice does no harm:
// what is sent is its current state.
//
// Hazard: a set of one member shows what a loss of its power takes back. Clients then have the earlier state, and the recipient would have the other one, which no later entry of the
// oplog corrects. A donor therefore sends what is durable: of its clone, of changes and of sessions. The section is durable, and so is all that was written before it.
//
// Rejected: beginning after the clone's time. It lost documents, rarely, and without any fault: the time has to fall within a unit, which lasts about
// a millisecond.
func (m *Manager) runFetchChanges(op *command.Op, req *msg.ReshardFetchChanges, dst []byte) ([]byte, error) {
	d, err := m.donating(req.ID)
	if err != nil {
		return dst, err
	}
	if req.Final {
		if err := m.State.HoldsSection(op, d.doc.ns, req.ID); err != nil {
			return dst, err
		}
	}
	t, err := m.tables(op, &d.doc.about)
	if err != nil {
		return dst, err
	}
	after := max(storage.Timestamp(req.After), d.doc.minFetch)
	if err := d.keep(req.Recipient, after, max(storage.Timestamp(req.Stored), d.doc.minFetch), req.Ahead); err != nil {
		return dst, err
	}
	d.noteCloned(op)
	s := m.Engine.MajoritySnapshot()
	defer s.Release()
	if s.Timestamp() < after { // a new primary does not know yet that a majority has what its predecessor has sent
		return dst, mongoerr.Newf(mongoerr.SnapshotUnavailable, "the oplog has been fetched up to %v, and what is known to be durable ends at %v", after, s.Timestamp())
	}
	w := &migration.Written{NS: d.doc.ns, After: after, Limit: idsAtOnce}
	if c := s.Catalog().LookupUUID(d.doc.uuid); c != nil {
		w.By = c.Collator
	}
	if len(req.IDs) > 0 {
		for _, id := range req.IDs {
			w.IDs = append(w.IDs, value.Lookup(id, "_id"))
		}
		w.More = true
	} else {
		if err := w.Read(op.Check, s); err != nil {
			return dst, err
		}
		if err := m.Engine.CheckOplog(after); err != nil { // truncated entries may not have been read
			return dst, err
		}
	}
	if req.Ahead {
		reply := &msg.ReshardFetchChangesReply{UpTo: uint64(w.After), Now: uint64(s.Timestamp()), Entries: w.Entries, More: w.More}
		for _, id := range w.IDs {
			reply.Rest = append(reply.Rest, value.Doc(value.F("_id", id)))
		}
		return msg.AppendFields(dst, reply), nil
	}
	reply, err := d.changes(t, s, w, req.Recipient)
	if err != nil {
		return dst, err
	}
	return msg.AppendFields(dst, reply), nil
}

// keep keeps the oplog for a recipient that has received what is up to a time, from the position that its next primary would continue from. It fails if entries after the former are
// gone: each recipient has a pin of its own, since one at an earlier position than the others, or one whose next primary continues from an earlier position, may have lost what the others have
// received. If those after the latter alone are gone, this one continues. One that is ahead may still be cloning.
//
// Hazard: a recipient's primary that has just stepped up names an earlier position than its predecessor, as it does not know yet that a majority has the later one; and the position that is
// stored may be gone when the donor's primary steps up. Nobody may need what is gone.
func (d *donor) keep(recipient string, after, stored storage.Timestamp, ahead bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.ended {
		return noSuch(d.doc.id)
	}
	from := min(after, stored)
	if pin := d.mu.pins[recipient]; pin == nil || from < d.mu.had[recipient] || pin.Check() != nil {
		again, err := d.m.Engine.PinOplog(from)
		if err != nil && from < after {
			from = after
			again, err = d.m.Engine.PinOplog(from)
		}
		if err != nil {
			return err
		}
		if pin != nil {
			pin.Release()
		}
		d.mu.pins[recipient] = again
	}
	d.mu.had[recipient] = from
	d.mu.pins[recipient].Advance(from)
	if !ahead {
		d.mu.cloned[recipient] = true
	}
	if d.mu.pin != nil && d.all(func(r string) bool { return d.mu.pins[r] != nil }) {
		d.mu.pin.Release()
		d.mu.pin = nil
	}
	if d.mu.snap != nil && d.all(func(r string) bool { return d.mu.cloned[r] }) {
		d.mu.snap.Release()
		d.mu.snap = nil
	}
	return nil
}

// all reports whether something is true of all recipients.
func (d *donor) all(of func(recipient string) bool) bool {
	return !slices.ContainsFunc(d.doc.recipients, func(r string) bool { return !of(r) })
}

// noteCloned stores that all recipients have cloned: the members then no longer need the history of the clone's time. If that fails, the next request repeats it.
func (d *donor) noteCloned(ctx context.Context) {
	d.mu.Lock()
	cloned := d.doc.state == donatingData && d.all(func(r string) bool { return d.mu.cloned[r] })
	d.mu.Unlock()
	if !cloned {
		return
	}
	err := d.m.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		return donorDocs(d.m.Docs).UpdateIn(s, u, d.doc.ID(), func(doc *donorDoc) { doc.state = donatingOplog })
	})
	if err == nil {
		d.mu.Lock()
		d.doc.state = donatingOplog
		d.mu.Unlock()
	}
}

// changes looks up the documents that were written to.
func (d *donor) changes(t *tables, s *storage.Snapshot, w *migration.Written, recipient string) (*msg.ReshardFetchChangesReply, error) {
	reply := &msg.ReshardFetchChangesReply{UpTo: uint64(w.After), Now: uint64(s.Timestamp()), Entries: w.Entries, More: w.More}
	c := s.Catalog().LookupUUID(d.doc.uuid)
	if c == nil {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s is not on this shard", d.doc.ns)
	}
	if c.Capped && len(w.Put) > 0 {
		return reply, order(reply, s, c, w)
	}
	size := 0
	for i, id := range w.IDs {
		_, doc, ok, err := s.FindByID(c, id)
		if err != nil {
			return nil, err
		}
		if ok {
			if ok, err = t.goesTo(doc, d.m.State.ID, recipient); err != nil {
				return nil, err
			}
		}
		if !ok {
			reply.Deleted = append(reply.Deleted, value.Doc(value.F("_id", id)))
			continue
		}
		if size += len(doc); size > maxReply && len(reply.Reload) > 0 {
			for _, left := range w.IDs[i:] {
				reply.Rest = append(reply.Rest, value.Doc(value.F("_id", left)))
			}
			return reply, nil
		}
		reply.Reload = append(reply.Reload, bytes.Clone(doc))
	}
	return reply, nil
}

// order has a recipient first remove the documents of a capped collection that were inserted or deleted, and then fetch those that are there in
// the order in which they were inserted: it appends them. From the clone it may have some of them before others that it does not have yet.
func order(reply *msg.ReshardFetchChangesReply, s *storage.Snapshot, c *catalog.Collection, w *migration.Written) error {
	type there struct {
		rid storage.RecordID
		id  []byte
	}
	var present []there
	for i, id := range w.IDs {
		rid, _, ok, err := s.FindByID(c, id)
		if err != nil {
			return err
		}
		doc := value.Doc(value.F("_id", id))
		if !ok || w.Put[i] {
			reply.Deleted = append(reply.Deleted, doc)
		}
		if ok {
			present = append(present, there{rid.Clone(), doc})
		}
	}
	slices.SortFunc(present, func(a, b there) int { return bytes.Compare(a.rid, b.rid) })
	for _, p := range present {
		reply.Rest = append(reply.Rest, p.id)
	}
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	if cur.Next() {
		reply.Oldest = value.Lookup(cur.Doc(), "_id").Clone()
	}
	return cur.Err()
}
