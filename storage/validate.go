package storage

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/maphash"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/storage/keystring"
)

// Validation is the result of Validate.
type Validation struct {
	Records int64
	Bytes   int64      // size of the intact documents
	Corrupt []RecordID // records that are not valid documents
	Indexes []IndexValidation
	// Multikey names indexes that have several keys for a document without being marked multikey.
	Multikey []string
	// CountWrong is set if the collection's counters differ from its content (checked only if nothing was written
	// meanwhile).
	CountWrong bool
}

// IndexValidation is the state of one index.
type IndexValidation struct {
	Name    string
	Keys    int64
	Missing []IndexEntry // keys that documents have and the index lacks
	Extra   []IndexEntry // keys of the index that no document has
	// Unordered and Duplicate are set if the index violates its order or its uniqueness.
	Unordered, Duplicate bool
}

// IndexEntry is one key of an index.
type IndexEntry struct {
	Key, TypeBits []byte
	RecordID      RecordID
	// Doc is the key as a document, in the form that validate reports.
	Doc []byte
}

// Valid reports whether nothing is wrong.
func (v *Validation) Valid() bool {
	for _, i := range v.Indexes {
		if len(i.Missing) > 0 || len(i.Extra) > 0 || i.Unordered || i.Duplicate {
			return false
		}
	}
	return len(v.Corrupt) == 0 && len(v.Multikey) == 0
}

// maxReported bounds how many entries of each kind are listed.
const maxReported = 1000

// Validate compares the records of a collection with its indexes, as of the snapshot. It first compares hashes of
// both sides; only an index whose hash differs is compared entry by entry. each, if not nil, is called for every record
// whose document can be walked; both are valid until it returns.
func (s *Snapshot) Validate(ctx context.Context, c *catalog.Collection, each func(rid RecordID, doc []byte)) (*Validation, error) {
	out := &Validation{}
	seed := maphash.MakeSeed()
	sums := make([]uint64, len(c.Indexes))
	if err := s.sumRecords(ctx, c, out, sums, seed, each); err != nil {
		return nil, err
	}
	for i, idx := range c.Indexes {
		v := IndexValidation{Name: idx.Name}
		sum, err := s.sumIndex(ctx, c, idx, &v, seed)
		if err != nil {
			return nil, err
		}
		if idx.Ready && sum != sums[i] {
			if err := s.compareIndex(ctx, c, idx, &v); err != nil {
				return nil, err
			}
		}
		out.Indexes = append(out.Indexes, v)
	}
	if s.e.Visible() == s.ts {
		out.CountWrong = c.Counters.Records.Load() != out.Records || c.Counters.DataSize.Load() != out.Bytes
	}
	return out, nil
}

func (s *Snapshot) sumRecords(ctx context.Context, c *catalog.Collection, out *Validation, sums []uint64, seed maphash.Seed, each func(RecordID, []byte)) error {
	cur := s.Scan(c, ScanOptions{})
	defer cur.Close()
	var set indexkey.KeySet
	var buf []byte
	marked := map[string]bool{}
	for cur.Next() {
		out.Records++
		if !wholeDocument(cur.Doc()) {
			if len(out.Corrupt) < maxReported {
				out.Corrupt = append(out.Corrupt, cur.RecordID().Clone())
			}
			continue
		}
		out.Bytes += int64(len(cur.Doc()))
		if each != nil {
			each(cur.RecordID(), cur.Doc())
		}
		for i, idx := range c.Indexes {
			if err := idx.Keys.Keys(cur.Doc(), &set); err != nil {
				continue // such a record has no keys in the index
			}
			for k := 0; k < set.Len(); k++ {
				buf = appendEntry(buf[:0], set.Key(k), cur.RecordID(), shownBits(idx, set.TypeBits(k)))
				sums[i] += maphash.Bytes(seed, buf)
			}
			if idx.Ready && set.IsMultikey() && idx.WithMultikey(set.Multikey, set.ArrayPaths) != idx && !marked[idx.Name] {
				marked[idx.Name] = true
				out.Multikey = append(out.Multikey, idx.Name)
			}
		}
		if out.Records%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return cur.Err()
}

func appendEntry(dst, key []byte, rid RecordID, bits []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	dst = append(append(dst, key...), rid...)
	return append(dst, bits...)
}

// shownBits returns the type bits of a key of the _id index, nil for other indexes. A document keeps its _id for life, so those of the entry must be the document's.
func shownBits(idx *catalog.Index, tb []byte) []byte {
	if !idx.IsID {
		return nil
	}
	return keystring.TrimTypeBits(tb)
}

func (s *Snapshot) sumIndex(ctx context.Context, c *catalog.Collection, idx *catalog.Index, v *IndexValidation, seed maphash.Seed) (sum uint64, err error) {
	cur := s.IndexScan(c, idx, false)
	defer cur.Close()
	var last, buf []byte
	for cur.Next() {
		if v.Keys++; v.Keys > 1 {
			switch r := bytes.Compare(last, cur.Key()); {
			case r > 0:
				v.Unordered = true
			case r == 0 && idx.Unique && idx.Ready:
				v.Duplicate = true
			}
		}
		last = append(last[:0], cur.Key()...)
		buf = appendEntry(buf[:0], cur.Key(), cur.RecordID(), shownBits(idx, cur.TypeBits()))
		sum += maphash.Bytes(seed, buf)
		if v.Keys%4096 == 0 && ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
	}
	return sum, cur.Err()
}

// compareIndex finds missing and extra entries.
func (s *Snapshot) compareIndex(ctx context.Context, c *catalog.Collection, idx *catalog.Index, v *IndexValidation) error {
	var set indexkey.KeySet
	var user []byte
	cur := s.Scan(c, ScanOptions{})
	defer cur.Close()
	for n := 0; cur.Next(); n++ {
		if !wholeDocument(cur.Doc()) || idx.Keys.Keys(cur.Doc(), &set) != nil {
			continue
		}
		for k := 0; k < set.Len() && len(v.Missing) < maxReported; k++ {
			there, err := s.hasEntry(&user, idx, set.Key(k), cur.RecordID(), shownBits(idx, set.TypeBits(k)))
			if err != nil {
				return err
			}
			if !there {
				v.Missing = append(v.Missing, newEntry(idx, set.Key(k), set.TypeBits(k), cur.RecordID()))
			}
		}
		if n%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if cur.Err() != nil {
		return cur.Err()
	}
	ic := s.IndexScan(c, idx, false)
	defer ic.Close()
	for ic.Next() && len(v.Extra) < maxReported {
		doc, ok, err := s.Get(c, ic.RecordID())
		if err != nil {
			return err
		}
		if !ok || !wholeDocument(doc) || idx.Keys.Keys(doc, &set) != nil || !hasKey(&set, idx, ic.Key(), ic.TypeBits()) {
			v.Extra = append(v.Extra, newEntry(idx, ic.Key(), ic.TypeBits(), ic.RecordID()))
		}
	}
	return ic.Err()
}

func hasKey(set *indexkey.KeySet, idx *catalog.Index, key, tb []byte) bool {
	for k := 0; k < set.Len(); k++ {
		if bytes.Equal(set.Key(k), key) && bytes.Equal(shownBits(idx, set.TypeBits(k)), shownBits(idx, tb)) {
			return true
		}
	}
	return false
}

// hasEntry looks for one entry of an index.
func (s *Snapshot) hasEntry(buf *[]byte, idx *catalog.Index, key []byte, rid RecordID, bits []byte) (bool, error) {
	p, err := s.lookups(idx.Ident)
	if err != nil {
		return false, err
	}
	*buf = appendIdent((*buf)[:0], idx.Ident)
	if !idx.IsID {
		*buf = appendIndexKey(*buf, idx, key, rid)
		_, ok, err := p.v.get(*buf)
		return ok, err
	}
	*buf = append(*buf, key...)
	val, ok, err := p.v.get(*buf)
	return ok && bytes.HasPrefix(val, rid) && bytes.Equal(keystring.TrimTypeBits(val[len(rid):]), bits), err
}

func newEntry(idx *catalog.Index, key, tb []byte, rid RecordID) IndexEntry {
	e := IndexEntry{Key: append([]byte(nil), key...), TypeBits: append([]byte(nil), tb...), RecordID: rid.Clone()}
	doc, mark := value.Begin(nil)
	vals, _ := keystring.Decode(e.Key, e.TypeBits, idx.Spec.Ordering(), value.Count(idx.Spec.KeyPattern))
	i := 0
	for name := range value.Elements(idx.Spec.KeyPattern) {
		if i < len(vals) {
			doc = value.Append(doc, name, vals[i])
		}
		i++
	}
	e.Doc = value.End(doc, mark)
	return e
}

// wholeDocument checks that walking a document ends exactly at its end.
func wholeDocument(doc []byte) bool {
	if len(doc) < 5 || int(binary.LittleEndian.Uint32(doc)) != len(doc) || doc[len(doc)-1] != 0 {
		return false
	}
	at := 4
	for it := value.Walk(doc); ; {
		raw, _, v, ok := it.NextRaw()
		if !ok {
			return at == len(doc)-1
		}
		at += len(raw)
		if (v.T == value.Document || v.T == value.Array) && !wholeDocument(v.Doc()) {
			return false
		}
	}
}

// Repair brings a collection's indexes, multikey marks and counters in line with its records, and removes records
// that are not valid documents, after Validate has found faults. It reports whether something was changed.
func (e *Engine) Repair(ctx context.Context, ns string, found *Validation) (changed bool, err error) {
	_, err = e.retry(ctx, func(u *UnitOfWork) error {
		changed = false
		c := u.Catalog().Lookup(ns)
		if c == nil {
			return nil
		}
		if err := u.use(c); err != nil {
			return err
		}
		for _, v := range found.Indexes {
			idx := c.Index(v.Name)
			if idx == nil {
				continue
			}
			for _, x := range v.Extra {
				changed = true
				u.repairEntry(idx, x, false)
			}
			for _, m := range v.Missing {
				changed = true
				u.repairEntry(idx, m, true)
			}
		}
		for _, rid := range found.Corrupt {
			changed = true
			u.put(c.Ident, rid)
			u.supersede(c.Ident, rid)
		}
		for _, name := range found.Multikey {
			if idx := c.Index(name); idx != nil {
				changed = true
				u.setMultikey(c, idx, allPaths(idx), nil)
			}
		}
		if found.CountWrong || len(found.Corrupt) > 0 {
			changed = true
			u.addDelta(c.Ident, c.Counters, found.Records-int64(len(found.Corrupt))-c.Counters.Records.Load(), found.Bytes-c.Counters.DataSize.Load())
		}
		return nil
	})
	return changed, err
}

func (u *UnitOfWork) repairEntry(idx *catalog.Index, e IndexEntry, live bool) {
	switch {
	case idx.IsID && live:
		u.put(idx.Ident, e.Key, e.RecordID, e.TypeBits)
	case idx.IsID:
		u.put(idx.Ident, e.Key)
		u.supersede(idx.Ident, e.Key)
	case live:
		u.putEntry(idx, e.Key, e.TypeBits, e.RecordID)
	default:
		key := appendIndexKey(nil, idx, e.Key, e.RecordID)
		u.put(idx.Ident, key)
		u.supersede(idx.Ident, key)
	}
}

// allPaths marks every component of every field as multikey, which is always safe.
func allPaths(idx *catalog.Index) []uint64 {
	masks := make([]uint64, len(idx.Spec.Fields))
	for i, f := range idx.Spec.Fields {
		n := bytes.Count([]byte(f.Path), []byte{'.'}) + 1
		masks[i] = 1<<uint(n) - 1
	}
	return masks
}
