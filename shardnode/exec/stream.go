package exec

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/projection"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
)

// MergeKeyField is the name of a last field that has the values that the document was sorted by.
const MergeKeyField = "$sortKey"

// Stream returns the projected documents of a query.
type Stream struct {
	q    *Query
	root Node
	row  Row
	buf  []byte
	meta *projection.Meta // nil until metadata is read
	keys *sortKeys        // set if the projection shows the sort key
}

func (s *Stream) NextDoc(op *command.Op) ([]byte, bool, error) {
	ok, err := s.root.Next(op, &s.row)
	if err != nil || !ok {
		return nil, false, err
	}
	q := s.q
	if q.proj == nil && !q.ShowRecordID && !q.ReturnKey && !q.MergeKey {
		return s.row.Doc, true, nil
	}
	return s.shape()
}

// shape applies the projection, returnKey and showRecordId, and adds the merge key.
func (s *Stream) shape() ([]byte, bool, error) {
	q := s.q
	doc := s.row.Doc
	if q.ReturnKey {
		doc = keyFields(&s.row)
	} else if q.proj != nil {
		var err error
		if err = s.metadata(q.proj.Metas()); err != nil {
			return nil, false, err
		}
		if s.buf, err = q.proj.Apply(s.buf[:0], doc, s.meta); err != nil {
			return nil, false, err
		}
		doc = s.buf
	}
	if q.ShowRecordID && !q.ReturnKey {
		out := append([]byte(nil), doc[:len(doc)-1]...)
		doc = value.End(value.Append(out, "$recordId", RecordIDValue(s.row.RID)), 0)
	}
	if q.MergeKey {
		out := append([]byte(nil), doc[:len(doc)-1]...)
		doc = value.End(value.Append(out, MergeKeyField, value.NewBinary(0, s.row.sortKey)), 0)
	}
	return doc, true, nil
}

// metadata reads the given kinds of metadata of the current row.
func (s *Stream) metadata(kinds []string) (err error) {
	if s.meta == nil && len(kinds) > 0 {
		s.meta = &projection.Meta{}
	}
	for _, kind := range kinds {
		switch kind {
		case "recordId":
			s.meta.RecordID = RecordIDValue(s.row.RID)
		case "textScore":
			s.meta.TextScore = s.q.textScore(s.row.Doc)
		case "geoNearDistance", "geoNearPoint":
			s.nearMetadata()
		case "indexKey":
			s.meta.IndexKey = value.Value{}
			if s.row.key != nil && s.row.index.Spec.Kind != indexkey.Text {
				s.meta.IndexKey = value.NewDocument(keyFields(&s.row))
			}
		case "sortKey":
			if s.keys == nil {
				if s.keys, err = newSortKeys(s.q.Sort, s.q.Collation.Collator()); err != nil {
					return err
				}
			}
			if s.meta.SortKey, err = s.keys.values(s.row.Doc); err != nil {
				return err
			}
		}
	}
	return nil
}

// MayAdvance reports whether the stream can continue in a newer snapshot. A plan over indexes cannot, and
// neither can a plan with a shard filter, since the filter belongs to the time when the query began.
func (s *Stream) MayAdvance() bool {
	if s.q.Coll == nil {
		return false
	}
	if _, ok := leafOf[*tailNode](s.root); ok {
		return true
	}
	scan, ok := leafOf[*collScan](s.root)
	return ok && s.q.Owned == nil && scan.mayAdvance()
}

// Unmoved reports whether no data has moved since the stream began (Placement.Unmoved).
func (s *Stream) Unmoved(op *command.Op, coll *catalog.Collection) bool {
	return s.q.Placement == nil || s.q.Placement.Unmoved(op, coll)
}

// Advance moves a saved stream to a newer snapshot of its collection. MayAdvance must have returned true. The caller owns both snapshots.
func (s *Stream) Advance(snap *storage.Snapshot, coll *catalog.Collection) error {
	if tail, ok := leafOf[*tailNode](s.root); ok {
		if err := tail.advance(snap, coll); err != nil {
			return err
		}
	} else if scan, ok := leafOf[*collScan](s.root); ok {
		scan.advance(snap, coll)
	}
	s.q.Snap, s.q.Coll = snap, coll
	return nil
}

// Collection returns the collection that the stream reads, nil if there is none.
func (s *Stream) Collection() *catalog.Collection { return s.q.Coll }

func (s *Stream) Stop()  { s.root.Save() }
func (s *Stream) Close() { s.root.Close() }

// nearMetadata reads the metadata that a $near provides for a document.
func (s *Stream) nearMetadata() {
	s.meta.GeoNearDistance, s.meta.GeoNearPoint = value.Value{}, value.Value{}
	if s.q.Matcher == nil {
		return
	}
	if near := s.q.Matcher.GeoNear(); near != nil {
		if d, at, ok := near.Distance(s.row.Doc); ok {
			s.meta.GeoNearDistance, s.meta.GeoNearPoint = value.NewDouble(d), at.Raw
		}
	}
}

// RecordIDValue returns a RecordId as $recordId shows it: a long, or binary for clustered collections.
func RecordIDValue(rid storage.RecordID) value.Value {
	if n, ok := rid.Int64(); ok {
		return value.NewInt64(n)
	}
	return value.NewBinary(0, rid)
}
