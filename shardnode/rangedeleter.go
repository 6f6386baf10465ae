package shardnode

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// rangeDeleteBatch is how many documents a unit of the range deleter removes.
const rangeDeleteBatch = 500

// clearPending marks a range deletion as ready.
func (n *Node) clearPending(ctx context.Context, id value.Value) error {
	doc, err := n.getDoc(rangeDeletionsNS, id)
	if err != nil || doc == nil {
		return err
	}
	out, m := value.Begin(nil)
	for k, v := range value.Elements(doc) {
		if k != "pending" {
			out = value.Append(out, k, v)
		}
	}
	return n.putDoc(ctx, rangeDeletionsNS, value.End(out, m))
}

// deleteRanges carries out the range deletions that are ready, of one collection or (ns empty) of all. Readers are not
// waited for: whoever reads a document of the range does so from a snapshot of its own.
func (m *migrations) deleteRanges(op *command.Op, ns string) error {
	return m.n.eachDoc(rangeDeletionsNS, func(doc []byte) error {
		if value.Lookup(doc, "pending").Truthy() || (ns != "" && value.Lookup(doc, "nss").Str() != ns) {
			return nil
		}
		if err := m.pause(op, "suspendRangeDeletion"); err != nil {
			return err
		}
		return m.deleteRange(op, doc)
	})
}

// deleteRange carries out one range deletion, if it is still there: its reader may have it from a list that is old by
// now. The range may have come back since, with documents that somebody else's deletion made way for.
func (m *migrations) deleteRange(op *command.Op, doc []byte) error {
	m.deleting.Lock()
	defer m.deleting.Unlock()
	now, err := m.n.getDoc(rangeDeletionsNS, value.Lookup(doc, "_id"))
	if err != nil || now == nil || value.Lookup(now, "pending").Truthy() {
		return err
	}
	ns := value.Lookup(doc, "nss").Str()
	uuid, _ := catalog.UUIDFrom(value.Lookup(doc, "collectionUuid"))
	key, err := cluster.ParseShardKey(value.Lookup(doc, "keyPattern").Doc())
	if err != nil {
		return err
	}
	rg := value.Lookup(doc, "range").Doc()
	r := newKeyRange(key, value.Lookup(rg, "min").Doc(), value.Lookup(rg, "max").Doc())
	if err := m.removeRange(op, ns, uuid, r); err != nil {
		return err
	}
	return m.n.removeDoc(op, rangeDeletionsNS, value.Lookup(doc, "_id"))
}

// removeRange deletes a range's documents, batch by batch.
func (m *migrations) removeRange(op *command.Op, ns string, uuid catalog.UUID, r *keyRange) error {
	s := m.n.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	if c == nil || c.UUID != uuid {
		return nil
	}
	scan := s.Scan(c, storage.ScanOptions{})
	defer scan.Close()
	for end := false; !end; {
		var rids []storage.RecordID
		for len(rids) < rangeDeleteBatch {
			if end = !scan.Next(); end {
				break
			}
			if r.contains(scan.Doc()) {
				rids = append(rids, scan.RecordID().Clone())
			}
			if err := op.Check(); err != nil {
				return err
			}
		}
		scan.Save()
		if len(rids) == 0 {
			continue
		}
		if err := m.removeRecords(op, ns, uuid, r, rids); err != nil {
			return err
		}
	}
	return scan.Err()
}

func (m *migrations) removeRecords(op *command.Op, ns string, uuid catalog.UUID, r *keyRange, rids []storage.RecordID) error {
	return m.n.writeUnit(op, relaxed, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		u.SetFromMigrate()
		c := s.Catalog().Lookup(ns)
		if c == nil || c.UUID != uuid {
			return nil
		}
		for _, rid := range rids {
			doc, ok, err := s.Get(c, rid)
			if err != nil {
				return err
			}
			if ok && r.contains(doc) {
				if err := u.Delete(c, rid, append([]byte(nil), doc...), storage.NoInfo); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// deleteOverlapping removes what an earlier migration left in a range before it is received again.
func (m *migrations) deleteOverlapping(op *command.Op, ns string, r *keyRange) error {
	return m.n.eachDoc(rangeDeletionsNS, func(doc []byte) error {
		if value.Lookup(doc, "nss").Str() != ns {
			return nil
		}
		rg := value.Lookup(doc, "range").Doc()
		low, high := value.Values(value.Lookup(rg, "min").Doc()), value.Values(value.Lookup(rg, "max").Doc())
		if cluster.CompareKeys(low, r.maxV) >= 0 || cluster.CompareKeys(r.minV, high) >= 0 {
			return nil
		}
		if value.Lookup(doc, "pending").Truthy() {
			return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "an earlier migration of a range of %s that overlaps this one is not decided yet", ns)
		}
		return m.deleteRange(op, doc)
	})
}
