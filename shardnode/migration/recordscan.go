package migration

import (
	"slices"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// recordWindow is the number of records that a recordScan looks up in the index at a time.
const recordWindow = 256 << 10

// nearRecord is the distance in records up to which the cursor steps instead of seeking: a step costs a tenth of a seek.
const nearRecord = 16

// recordScan walks the records of a range in the order in which they are stored, one window of the shard key's index after another. Reading a document costs a cursor
// step, where in the order of the keys it would cost a seek: several times as much for small documents, and for random or hashed keys.
type recordScan struct {
	*keyScan
	check func() error // returns an error to stop

	exact  bool // the index has no other documents between the range's bounds
	window int  // how many records are looked up at a time
	rids   []int64
	rec    *storage.RecordCursor
	on     int64 // the record that rec is on, 0 for none
	end    bool  // of the index
}

// scanRecords begins to walk a range. The caller must close the walk.
func scanRecords(k *keyScan, check func() error) *recordScan {
	r := &recordScan{keyScan: k, check: check, window: recordWindow}
	if k.idx != nil && !k.c.Clustered {
		r.exact = !hasNull(k.r.minV) && !hasNull(k.r.maxV)
		r.rec = k.s.Scan(k.c, storage.ScanOptions{})
	}
	return r
}

// Next moves to the next document of the range.
func (r *recordScan) Next() bool {
	if r.rec == nil {
		return r.keyScan.Next()
	}
	for r.fill() {
		rid := r.rids[0]
		r.rids = r.rids[1:]
		if !r.find(rid) {
			if r.err = r.rec.Err(); r.err != nil {
				return false
			}
			continue
		}
		if doc := r.rec.Doc(); r.exact || r.r.Contains(doc) {
			r.doc = doc
			return true
		}
	}
	return false
}

// hasNull reports whether one of a bound's values is null. Undefined counts as null in a shard key but comes before it in an index, so that the index has other
// documents beside such a bound.
func hasNull(bound []value.Value) bool {
	return slices.ContainsFunc(bound, func(v value.Value) bool { return v.T == value.Null })
}

// find moves the cursor to a record, and reports whether it is there.
func (r *recordScan) find(rid int64) bool {
	if r.on == 0 || rid <= r.on || rid-r.on > nearRecord {
		r.rec.SeekTo(storage.NewRecordID(rid))
		r.on = 0
	}
	for r.on < rid {
		if !r.rec.Next() {
			r.on = 0
			return false
		}
		r.on, _ = r.rec.RecordID().Int64()
	}
	return r.on == rid
}

// fill reads the next window from the index if the last one is at its end; it returns false at the end of the range.
func (r *recordScan) fill() bool {
	if len(r.rids) > 0 {
		return true
	}
	r.rids = r.rids[:0]
	for !r.end && len(r.rids) < r.window {
		if r.end = !r.nextEntry(); r.end {
			break
		}
		if rid, ok := r.idx.RecordID().Int64(); ok {
			r.rids = append(r.rids, rid)
		}
		if r.err = r.check(); r.err != nil {
			return false
		}
	}
	if r.err = r.idx.Err(); r.err != nil {
		return false
	}
	r.idx.Save()
	slices.Sort(r.rids)
	return len(r.rids) > 0
}

// Save releases the store and keeps the position.
func (r *recordScan) Save() {
	r.keyScan.Save()
	if r.rec != nil {
		r.rec.Save()
	}
}

// Close ends the walk.
func (r *recordScan) Close() {
	r.keyScan.Close()
	if r.rec != nil {
		r.rec.Close()
	}
}
