package migration

import (
	"context"
	"time"

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

// rangeDeleteUnit is the maximum number of documents that the range deleter removes in a unit of work.
const rangeDeleteUnit = 500

// busyDeleteUnit is rangeDeleteUnit while clients are served.
const busyDeleteUnit = 100

// rangeDeletion is an entry of config.rangeDeletions: a range whose documents on this shard are orphans or, while it is
// pending, may become orphans by the outcome of the migration.
type rangeDeletion struct {
	id      value.Value
	ns      string
	uuid    catalog.UUID
	donor   string
	rng     *KeyRange
	pending bool
	delayed bool              // it waits for orphanCleanupDelaySecs, and for the queries that began before the range left
	since   storage.Timestamp // when the migration was decided, 0 while it is pending
	orphans int64             // how many documents of the range this shard has

	processing bool // its documents are being deleted
}

// ID implements statedoc.Doc.
func (d *rangeDeletion) ID() value.Value { return d.id }

// Doc implements statedoc.Doc.
func (d *rangeDeletion) Doc() []byte {
	when := "now"
	if d.delayed {
		when = "delayed"
	}
	f := []value.Field{
		value.F("_id", d.id), value.F("nss", value.NewString(d.ns)), value.F("collectionUuid", d.uuid.Value()),
		value.F("donorShardId", value.NewString(d.donor)), value.F("numOrphanDocs", value.NewInt64(d.orphans)), value.F("range", d.rng.doc()),
		value.F("whenToClean", value.NewString(when)), value.F("keyPattern", value.NewDocument(d.rng.key.Doc())),
	}
	if d.pending {
		return value.Doc(append(f, value.F("pending", value.NewBool(true)))...)
	}
	if d.processing {
		f = append(f, value.F("processing", value.NewBool(true)))
	}
	return value.Doc(append(f, value.F("timestamp", d.since.Value()))...)
}

func readRangeDeletion(doc []byte) (*rangeDeletion, error) {
	uuid, ok := catalog.UUIDFrom(value.Lookup(doc, "collectionUuid"))
	if !ok {
		return nil, mongoerr.New(mongoerr.InvalidUUID, "it has no collection")
	}
	key, err := cluster.ParseShardKey(value.LookupDoc(doc, "keyPattern"))
	if err != nil {
		return nil, err
	}
	rng, err := readKeyRange(key, value.LookupDoc(doc, "range"))
	if err != nil {
		return nil, err
	}
	orphans, _ := value.Lookup(doc, "numOrphanDocs").AsInt64()
	return &rangeDeletion{
		id: value.Lookup(doc, "_id").Clone(), ns: value.Lookup(doc, "nss").Str(), uuid: uuid, donor: value.Lookup(doc, "donorShardId").Str(),
		rng:     rng,
		pending: value.Lookup(doc, "pending").Truthy(), delayed: value.Lookup(doc, "whenToClean").Str() == "delayed",
		since: storage.Timestamp(value.Lookup(doc, "timestamp").TimestampU64()), orphans: orphans,
		processing: value.Lookup(doc, "processing").Truthy(),
	}, nil
}

// rangeDeletions returns the entries of config.rangeDeletions.
func rangeDeletions(store statedoc.Store) statedoc.Collection[*rangeDeletion] {
	return statedoc.In(store, rangeDeletionsNS, readRangeDeletion)
}

func (m *Manager) rangeDeletions() statedoc.Collection[*rangeDeletion] { return rangeDeletions(m.Docs) }

// OrphanDocs returns how many of a collection's documents on a node are known to be orphans.
func OrphanDocs(docs *statedoc.Docs, c *catalog.Collection) (count int64) {
	_ = rangeDeletions(docs).Each(func(d *rangeDeletion) error {
		if !d.pending && d.uuid == c.UUID {
			count += d.orphans
		}
		return nil
	})
	return min(count, c.Counters.Records.Load())
}

// runBalancingStats reports how much data the shard has of some collections, without orphans.
func (m *Manager) runBalancingStats(_ *command.Op, req *msg.BalancingStats, dst []byte) ([]byte, error) {
	orphans := make(map[catalog.UUID]int64)
	err := m.rangeDeletions().Each(func(d *rangeDeletion) error {
		if !d.pending {
			orphans[d.uuid] += d.orphans
		}
		return nil
	})
	if err != nil {
		return dst, err
	}
	reply := &msg.BalancingStatsReply{}
	for _, id := range req.Collections {
		var bytes int64
		if c := m.Engine.Catalog().LookupUUID(id.UUID); c != nil {
			docs, size := c.Counters.Records.Load(), c.Counters.DataSize.Load()
			if bytes = size; docs > 0 {
				bytes = max(0, size-int64(float64(size)/float64(docs)*float64(min(orphans[c.UUID], docs))))
			}
		}
		reply.Bytes = append(reply.Bytes, msg.CollectionBytes{NS: id.NS, Bytes: bytes})
	}
	return msg.AppendFields(dst, reply), nil
}

// clearPending marks a range deletion as ready, to be executed at once: the range has never been read here. What has arrived of the range is counted, since
// the recipient that knows it may have been another process.
func (m *Manager) clearPending(op *command.Op, id value.Value) error {
	d, ok, err := m.rangeDeletions().Get(id)
	if err != nil || !ok || !d.pending {
		return err
	}
	orphans, err := m.countOf(op, d.uuid, d.rng)
	if err != nil {
		return err
	}
	return m.rangeDeletions().Update(op, id, func(d *rangeDeletion) {
		if d.pending {
			d.pending, d.delayed, d.orphans, d.since = false, false, orphans, m.today()
		}
	})
}

// today returns the current time in the form that range deletions store.
func (m *Manager) today() storage.Timestamp {
	return storage.TimestampOf(uint32(m.Now().Unix()), 0)
}

// due returns how long a range deletion still has to wait.
func (m *Manager) due(d *rangeDeletion) time.Duration {
	if !d.delayed {
		return 0
	}
	end := time.Unix(int64(d.since.Seconds())+m.Params.Int("orphanCleanupDelaySecs"), 0)
	return max(0, end.Sub(m.Now()))
}

// sweep executes the range deletions that are due, and returns when to check again, 0 for only when woken. A
// query keeps the snapshot that it began with, so no deletion takes documents from it; delayed deletions wait for
// queries nevertheless, so that clients connected directly to the shard still find the documents that those
// queries return.
func (m *Manager) sweep(op *command.Op) (next time.Duration, err error) {
	m.state.readers.waiting.Store(false)
	err = m.rangeDeletions().Each(func(d *rangeDeletion) error {
		if d.pending || m.paused() != nil {
			return nil
		}
		if wait := m.due(d); wait > 0 {
			if next == 0 || wait < next {
				next = wait
			}
			return nil
		}
		if d.delayed && m.state.readers.readRange(d.uuid, m.state.ID, d.rng) {
			return nil
		}
		return m.deleteNow(op, d.id)
	})
	return next, err
}

// paused returns an error if the range deleter must not run.
func (m *Manager) paused() error {
	if m.Params.Bool("disableResumableRangeDeleter") {
		return mongoerr.Newf(mongoerr.ResumableRangeDeleterDisabled, "the server parameter disableResumableRangeDeleter is true on shard %s, so that no range is deleted there", m.state.ID)
	}
	return nil
}

// deleteNow executes a range deletion without waiting for the delay or for queries.
func (m *Manager) deleteNow(op *command.Op, id value.Value) error {
	if err := m.pause(op, "suspendRangeDeletion"); err != nil {
		return err
	}
	return m.deleteRange(op, id)
}

// deleteRange executes one range deletion, if it still exists: the caller may have it from an outdated list. The
// range may have come back since; then another deletion has removed these orphans first.
//
// Invariant: a document is deleted only while an entry that covers it is stored and decided, and this shard does
// not own the range. Deletions run one at a time (deleting), and the entry is read again under that token. A
// recipient deletes what earlier migrations left in its range, under the same token, before it clones
// (deleteOverlapping). So as long as the entry exists nothing of the range can arrive here, and the ownership that
// ownsPart reads cannot change in this shard's favour between that read and the last unit. The entry is removed
// after the last unit: a crash in between repeats deletions that find nothing.
//
// Hazard: without that order the deleter could delete documents that have come back, of which no other shard has
// a copy. Rejected: comparing each document with this shard's own routing table. The table may be older than the
// migration that brought the range back, and refreshing it during the deletion would prove nothing.
func (m *Manager) deleteRange(op *command.Op, id value.Value) error {
	select {
	case m.deleting <- struct{}{}:
		defer func() { <-m.deleting }()
	case <-op.Done():
		return op.Err()
	}
	d, ok, err := m.rangeDeletions().Get(id)
	if err != nil || !ok || d.pending {
		return err
	}
	owned, err := m.ownsPart(op, d)
	switch {
	case err != nil:
		return err
	case owned:
		m.node.Warn("A document of "+rangeDeletionsNS+" is removed", mongoerr.Newf(mongoerr.BadValue,
			"%s: this shard owns documents of the range of %s that it would have deleted", value.Show(id), d.ns))
	default:
		if err = m.rangeDeletions().Update(op, id, func(d *rangeDeletion) { d.processing = true }); err == nil {
			err = m.removeRange(op, d.uuid, d.rng, &id)
		}
	}
	if err != nil {
		return err
	}
	defer m.rangesChanged()
	return m.rangeDeletions().Remove(op, id)
}

// ownsPart asks the config server whether this shard owns a part of a range that it is about to delete.
// Migrations do not leave such deletions behind, but a client may have written the document.
func (m *Manager) ownsPart(ctx context.Context, d *rangeDeletion) (bool, error) {
	c := m.Engine.Catalog().LookupUUID(d.uuid)
	if c == nil {
		return false, nil
	}
	m.state.Catalog.InvalidateCollection(c.NS)
	info, err := m.state.Catalog.Collection(ctx, c.NS)
	switch {
	case mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound:
		return false, nil
	case err != nil:
		return false, err
	case info.Map == nil:
		return info.DB.Primary == m.state.ID, nil
	case catalog.UUID(info.Map.UUID) != d.uuid:
		return false, nil // the name belongs to another collection now
	}
	key := info.Map.Key // which may have been refined since
	for _, chunk := range info.Map.Overlapping(key.ExtendValues(d.rng.minV), key.ExtendValues(d.rng.maxV)) {
		if chunk.Shard == m.state.ID {
			return true, nil
		}
	}
	return false, nil
}

// rangesChanged wakes the waiters for a range deletion to be decided or executed.
func (m *Manager) rangesChanged() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.ranges != nil {
		close(m.mu.ranges)
		m.mu.ranges = nil
	}
}

// nextChange returns a channel that the next rangesChanged closes.
func (m *Manager) nextChange() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.ranges == nil {
		m.mu.ranges = make(chan struct{})
	}
	return m.mu.ranges
}

// removeRange deletes a range's documents, in units of a bounded size, whatever the collection is called by now. For an entry of
// config.rangeDeletions it pauses between batches (rangeDeleterBatchSize, rangeDeleterBatchDelayMS) and stores in the entry how many documents
// remain. While clients are served, units are small and a pause follows each, as with the units of a clone, unless rangeDeleterHighPriority
// is set: a deletion at full speed occupies a processor, for which clients' writes wait.
func (m *Manager) removeRange(op *command.Op, uuid catalog.UUID, r *KeyRange, entry *value.Value) error {
	s := m.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().LookupUUID(uuid)
	if c == nil {
		return nil
	}
	scan := scanRange(s, c, r, false)
	defer scan.Close()
	batch := m.rangeBatch()
	var load command.ClientLoad
	load.Begin(m.Counts)
	for end := false; !end; {
		unit, began, throttled := int64(rangeDeleteUnit), time.Now(), load.Busy(m.Counts, m.Now()) && !m.Params.Bool("rangeDeleterHighPriority")
		if throttled {
			unit = busyDeleteUnit
		}
		var rids []storage.RecordID
		for limit := min(unit, batch); int64(len(rids)) < limit; {
			if end = !scan.Next(); end {
				break
			}
			rids = append(rids, scan.RecordID().Clone())
			if err := op.Check(); err != nil {
				return err
			}
		}
		scan.Save()
		if len(rids) == 0 {
			continue
		}
		if err := m.removeRecords(op, uuid, r, rids, entry); err != nil {
			return err
		}
		if throttled {
			if err := cluster.Sleep(op, command.PauseFactor*time.Since(began)); err != nil {
				return err
			}
		}
		if batch -= int64(len(rids)); batch == 0 && entry != nil && !end {
			if err := m.betweenBatches(op); err != nil {
				return err
			}
		}
		if batch == 0 {
			batch = m.rangeBatch()
		}
	}
	return scan.Err()
}

// rangeBatch returns how many documents the range deleter removes without a pause.
func (m *Manager) rangeBatch() int64 {
	if n := m.Params.Int("rangeDeleterBatchSize"); n > 0 {
		return n
	}
	return 1<<31 - 1
}

func (m *Manager) betweenBatches(op *command.Op) error {
	if err := m.paused(); err != nil {
		return err
	}
	return cluster.Sleep(op, time.Duration(m.Params.Int("rangeDeleterBatchDelayMS"))*time.Millisecond)
}

func (m *Manager) removeRecords(op *command.Op, uuid catalog.UUID, r *KeyRange, rids []storage.RecordID, entry *value.Value) error {
	return m.Docs.WriteWith(op, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		u.SetFromMigrate()
		c := s.Catalog().LookupUUID(uuid)
		if c == nil {
			return nil
		}
		removed, size := int64(0), int64(0)
		for _, rid := range rids {
			doc, ok, err := s.Get(c, rid)
			if err != nil {
				return err
			}
			if ok && r.Contains(doc) {
				if err := u.Delete(c, rid, append([]byte(nil), doc...), storage.NoInfo); err != nil {
					return err
				}
				removed++
				size += int64(len(doc))
			}
		}
		u.OnCommit(func(storage.Timestamp) {
			m.state.counts.deleted.docs.Add(removed)
			m.state.counts.deleted.bytes.Add(size)
		})
		if entry == nil {
			return nil
		}
		return m.rangeDeletions().UpdateIn(s, u, *entry, func(d *rangeDeletion) { d.orphans = max(0, d.orphans-removed) })
	})
}

// deleteOverlapping deletes what earlier migrations left in a range before the range is received again, whether
// the deletion is due or not: queries that may still read it have their own snapshots. It waits for an undecided
// migration of a part of the range (receiveChunkWaitForRangeDeleterTimeoutMS).
func (m *Manager) deleteOverlapping(op *command.Op, ns string, uuid catalog.UUID, r *KeyRange) error {
	limit := time.NewTimer(time.Duration(m.Params.Int("receiveChunkWaitForRangeDeleterTimeoutMS")) * time.Millisecond)
	defer limit.Stop()
	for {
		changed, undecided := m.nextChange(), false
		err := m.rangeDeletions().Each(func(d *rangeDeletion) error {
			if d.uuid != uuid || cluster.CompareKeys(d.rng.minV, r.maxV) >= 0 || cluster.CompareKeys(r.minV, d.rng.maxV) >= 0 {
				return nil
			}
			if d.pending {
				undecided = true
				return nil
			}
			if err := m.paused(); err != nil {
				return err
			}
			return m.deleteRange(op, d.id)
		})
		if err != nil || !undecided {
			return err
		}
		select {
		case <-changed:
		case <-limit.C:
			return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "an earlier migration of a range of %s that overlaps this one is not decided yet", ns)
		case <-op.Done():
			return op.Err()
		}
	}
}

// deleteAround executes the deletions of the ranges that a document is in, whether they are due or not, and reports whether there was one.
func (m *Manager) deleteAround(op *command.Op, uuid catalog.UUID, doc []byte) (deleted bool, err error) {
	err = m.rangeDeletions().Each(func(d *rangeDeletion) error {
		if d.uuid != uuid || d.pending || !d.rng.Contains(doc) {
			return nil
		}
		if err := m.paused(); err != nil {
			return err
		}
		deleted = true
		return m.deleteRange(op, d.id)
	})
	return deleted, err
}

// awaitCleanup waits until a collection has no decided range deletions left.
func (m *Manager) awaitCleanup(op *command.Op, ns string) error {
	for {
		changed, left := m.nextChange(), false
		err := m.rangeDeletions().Each(func(d *rangeDeletion) error {
			left = left || !d.pending && d.ns == ns
			return nil
		})
		if err == nil && left {
			err = m.paused()
		}
		if err != nil || !left {
			return err
		}
		select {
		case <-changed:
		case <-op.Done():
			return op.Err()
		}
	}
}

// countRange counts the documents of a range.
func (m *Manager) countRange(op *command.Op, uuid catalog.UUID, r *KeyRange) (count int64, err error) {
	s := m.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().LookupUUID(uuid)
	if c == nil {
		return 0, nil
	}
	scan := scanRange(s, c, r, false)
	defer scan.Close()
	for scan.Next() {
		count++
		if err := op.Check(); err != nil {
			return 0, err
		}
	}
	return count, scan.Err()
}
