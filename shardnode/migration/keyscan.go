package migration

import (
	"bytes"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/keystring"
)

// keyScan walks the records of a range in the order of their shard keys (undefined, which counts as null there, comes before null), along an index on
// the shard key, or along the records of a collection that is clustered by it: its cost depends on the size of the range, not of the collection. If there
// is no such index (it was dropped on this shard alone), it reads the whole collection in no particular order, and ordered is false.
type keyScan struct {
	ordered bool
	byID    bool // the records themselves are in the order of the shard key

	s   *storage.Snapshot
	c   *catalog.Collection
	r   *KeyRange
	idx *storage.IndexCursor
	ord keystring.Ordering
	lo  []byte // keystrings: the walk ends outside [lo, hi)
	hi  []byte
	rev bool

	all *storage.RecordCursor
	doc []byte
	err error
}

// shardKeyIndex finds an index that has every document exactly once under its shard key; nil if there is none.
func shardKeyIndex(c *catalog.Collection, key *cluster.ShardKeyPattern) *catalog.Index {
	var found *catalog.Index
	for _, x := range c.Indexes {
		if !x.Ready || x.Multikey || x.Collator != nil || x.Spec.Sparse || x.Spec.PartialFilter != nil || !key.IsPrefixOfIndex(x.Spec.KeyPattern) {
			continue
		}
		if found == nil || len(x.Spec.Fields) < len(found.Spec.Fields) {
			found = x
		}
	}
	return found
}

// scanRange walks a range in a snapshot; with reverse, backward from its end. The caller must close it.
func scanRange(s *storage.Snapshot, c *catalog.Collection, r *KeyRange, reverse bool) *keyScan {
	k := &keyScan{s: s, c: c, r: r, rev: reverse}
	x := shardKeyIndex(c, r.key)
	if k.byID = clusteredBy(c, r.key); x == nil && !k.byID {
		k.all = s.Scan(c, storage.ScanOptions{})
		return k
	}
	k.ordered = true
	for _, v := range r.minV {
		if v.T == value.Null {
			v = value.Value{T: value.Undefined} // which counts as null in a shard key, and comes before it in an index
		}
		k.lo = keystring.AppendKey(k.lo, v, false, nil)
	}
	for _, v := range r.maxV {
		k.hi = keystring.AppendKey(k.hi, v, false, nil)
	}
	if reachesEnd(r.maxV) {
		k.hi = []byte{0xFF}
	}
	if k.byID {
		k.all = s.Scan(c, storage.ScanOptions{Reverse: reverse, From: k.lo, To: k.hi})
		return k
	}
	k.ord = x.Spec.Ordering()
	k.idx = s.IndexScan(c, x, reverse)
	if reverse {
		k.idx.Seek(k.hi)
	} else {
		k.idx.Seek(k.lo)
	}
	return k
}

func reachesEnd(max []value.Value) bool {
	for _, v := range max {
		if v.T != value.MaxKey {
			return false
		}
	}
	return true
}

// nextEntry moves to the next index entry without reading the document.
func (k *keyScan) nextEntry() bool {
	if k.byID {
		for k.all.Next() {
			if bytes.Compare(k.all.RecordID(), k.hi) < 0 { // the scan's upper bound is in it
				return true
			}
		}
		return false
	}
	if !k.idx.Next() {
		return false
	}
	if k.rev {
		return bytes.Compare(k.idx.Key(), k.lo) >= 0
	}
	return bytes.Compare(k.idx.Key(), k.hi) < 0
}

// step returns the cheapest way to move through the range one document at a time: along the index if there is one.
func (k *keyScan) step() func() bool {
	if k.ordered {
		return k.nextEntry
	}
	return k.Next
}

// Next moves to the next document of the range.
func (k *keyScan) Next() bool {
	if k.idx == nil {
		next := k.all.Next
		if k.byID {
			next = k.nextEntry
		}
		for next() {
			if k.doc = k.all.Doc(); k.r.Contains(k.doc) {
				return true
			}
		}
		return false
	}
	for k.err == nil && k.nextEntry() {
		doc, ok, err := k.s.Get(k.c, k.idx.RecordID())
		if err != nil {
			k.err = err
			return false
		}
		// The index range may have more than the key range: undefined, which sorts next to null.
		if ok && k.r.Contains(doc) {
			k.doc = doc
			return true
		}
	}
	return false
}

// Doc returns the current document, borrowed until Next.
func (k *keyScan) Doc() []byte { return k.doc }

// RecordID returns the current record's id, borrowed until Next.
func (k *keyScan) RecordID() storage.RecordID {
	if k.idx == nil {
		return k.all.RecordID()
	}
	return k.idx.RecordID()
}

// Save releases the store and keeps the position.
func (k *keyScan) Save() {
	if k.idx == nil {
		k.all.Save()
	} else {
		k.idx.Save()
	}
}

// Err returns the error that ended the walk.
func (k *keyScan) Err() error {
	switch {
	case k.err != nil:
		return k.err
	case k.idx == nil:
		return k.all.Err()
	}
	return k.idx.Err()
}

// Close ends the walk.
func (k *keyScan) Close() {
	if k.idx == nil {
		k.all.Close()
	} else {
		k.idx.Close()
	}
}

// keyWalk yields the shard keys of a range in order, from the index alone: documents are not read, but for those of a clustered collection.
type keyWalk struct {
	*keyScan
}

// nextKey moves to the next key and returns its bytes, which are equal for equal keys. They are borrowed until the next call.
func (w *keyWalk) nextKey() (ks []byte, ok bool) {
	if !w.nextEntry() {
		return nil, false
	}
	if w.byID {
		return w.all.RecordID(), true
	}
	return w.idx.Key()[:w.prefix(w.idx.Key())], true
}

// prefix returns the length of the part of an index key that is the shard key.
func (w *keyWalk) prefix(key []byte) int {
	n := 0
	for range w.r.key.Parts {
		f := keystring.FieldLen(key[n:], false)
		if f < 0 {
			return len(key)
		}
		n += f
	}
	return n
}

// values decodes the current key.
func (w *keyWalk) values() ([]value.Value, bool) {
	if w.byID {
		vals, err := w.r.key.FromDocument(w.all.Doc(), nil)
		return vals, err == nil
	}
	vals, ok := keystring.Decode(w.idx.Key(), w.idx.TypeBits(), w.ord, len(w.r.key.Parts))
	for i := range vals {
		if vals[i].T == value.Undefined {
			vals[i] = value.NewNull()
		}
	}
	return vals, ok
}
