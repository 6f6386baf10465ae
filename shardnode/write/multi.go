package write

import (
	"cmp"
	"errors"

	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage"
)

// A multi-document write is cut into units of at most this many documents and bytes.
const (
	multiUnitDocs  = 500
	multiUnitBytes = 1 << 20
)

// runMulti changes every matching document.
//
// Invariant: a statement changes each document once. The documents are found in one snapshot, so that a document that the
// statement has moved is not found again; each unit writes through a newer snapshot, and checks again the documents
// that changed in between.
//
// Hazard: an update may put a document where the scan has not been yet. {$inc: {n: 1}} by an index of n would meet the same
// document forever.
//
// Rejected: continuing the scan in a newer snapshot after each unit, without the records that have been changed. That
// list grows with the statement, and documents that others insert in front of the scan may keep it from ending. Rejected,
// too: one unit for the whole statement. It would hold the claims of all documents to the end, and one conflict would begin it anew.
func (w *Command) runMulti(ns string, st *statement) (r result, err error) {
	s := w.Snapshot()
	defer func() { s.Release() }()
	err = w.Retry(func() error {
		err := w.foundAll(s.Catalog().Lookup(ns), s)
		if err != nil {
			s.Release()
			s = w.Snapshot()
		}
		return err
	})
	if err != nil {
		return r, err
	}
	q, err := w.newQuery(ns, st, s)
	if err != nil {
		return r, err
	}
	if q.Coll == nil {
		_, err := w.Target(nil, s.Catalog(), ns, false)
		return r, err
	}
	root, err := w.writer.Exec.Plan(w.Op, q)
	if err != nil {
		return r, err
	}
	defer root.Close()
	writing := func(rids []storage.RecordID) error { return w.writeRIDs(ns, st, rids, &r) }
	for {
		rids, end, err := w.nextRIDs(root)
		if err != nil {
			return r, exec.During(st.during, err)
		}
		if w.readsOwn() && !end {
			err := w.writeFound(st, rids, root, writing)
			return r, err
		}
		if err := w.writeUnits(rids, writing); err != nil {
			return r, err
		}
		if end {
			return r, nil
		}
	}
}

// writeFound applies the statement to rids and everything that root finds after those. A transaction or a chain reads its own
// writes, so everything is found before anything is written.
func (w *Command) writeFound(st *statement, rids []storage.RecordID, root exec.Node, writing func([]storage.RecordID) error) error {
	found := foundList{store: w.writer.Exec.Spill(), limit: cmp.Or(w.writer.ListMemory, listMemory)}
	defer found.close()
	for end := false; ; {
		found.add(rids)
		if end {
			break
		}
		var err error
		if rids, end, err = w.nextRIDs(root); err != nil {
			return exec.During(st.during, err)
		}
	}
	root.Close() // the state of its search is no longer needed
	for {
		rids, err := found.next()
		if err != nil || len(rids) == 0 {
			return err
		}
		if err := w.writeUnits(rids, writing); err != nil {
			return err
		}
	}
}

// errContended is the conflict of a unit that should be written in parts.
var errContended = errors.New("other operations write records of this unit of work")

// contendedAfter is the number of conflicts after which a unit of several records is split.
const contendedAfter = 4

// writeUnits writes records, unit by unit; write is retryUnit of one. A unit needs all of its records unclaimed at once, which may
// never happen if others keep writing them: a unit that meets conflicts is split into smaller ones.
func (w *Command) writeUnits(rids []storage.RecordID, write func([]storage.RecordID) error) error {
	for size := multiUnitDocs; len(rids) > 0; {
		n := min(len(rids), size)
		err := write(rids[:n])
		switch {
		case errors.Is(err, errContended):
			size = n / 2
		case err != nil:
			return err
		default:
			rids, size = rids[n:], min(2*size, multiUnitDocs)
		}
	}
	return nil
}

// retryUnit is Retry for a unit of n records. After some conflicts it gives up with errContended if the unit can be split.
func (w *Command) retryUnit(n int, f func() error) error {
	tries := 0
	return w.Retry(func() error {
		err := f()
		if tries++; tries >= contendedAfter && n > 1 && w.Transaction() == nil && storage.ErrConflict(err) {
			return errContended
		}
		return err
	})
}

// nextRIDs collects the records of one unit.
func (w *Command) nextRIDs(root exec.Node) (rids []storage.RecordID, end bool, err error) {
	var found exec.Row
	size := 0
	for len(rids) < multiUnitDocs && size < multiUnitBytes {
		ok, err := root.Next(w.Op, &found)
		if err != nil {
			return nil, false, err
		}
		if !ok {
			return rids, true, nil
		}
		rids = append(rids, found.RID.Clone())
		size += len(found.Doc)
	}
	root.Save()
	return rids, false, nil
}

// writeRIDs applies the statement to records in one unit, retrying on a conflict. A record that is gone or no
// longer matches is skipped.
func (w *Command) writeRIDs(ns string, st *statement, rids []storage.RecordID, total *result) error {
	var r result
	err := w.retryUnit(len(rids), func() error {
		r = result{}
		s := w.Snapshot()
		defer s.Release()
		q, err := w.newQuery(ns, st, s)
		if err != nil || q.Coll == nil {
			return err
		}
		u := w.Unit(s)
		defer w.Drop(u)
		any := false
		for _, rid := range rids {
			doc, ok, err := s.Get(q.Coll, rid)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			owned, err := q.Owned.Has(doc)
			if err != nil {
				return err
			}
			if !owned {
				continue // its shard key has changed since it was found
			}
			if q.Matcher != nil {
				if ok, err = q.Matcher.Match(doc); err != nil {
					return exec.During(st.during, err)
				}
				if !ok {
					continue
				}
			}
			changed, err := w.writeRow(u, q, st, rid, doc, &r)
			if err != nil {
				return exec.During(st.during, err)
			}
			any = any || changed
			if err := w.Op.Check(); err != nil {
				return err
			}
		}
		if !any {
			return nil
		}
		return w.Commit(u, replication.Visible)
	})
	if err != nil {
		return err
	}
	total.matched += r.matched
	total.modified += r.modified
	total.deleted += r.deleted
	return nil
}
