package exec

import (
	"bytes"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexscan"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ixScan reads the keys of an index that are within bounds.
type ixScan struct {
	st       nodeStats
	snap     *storage.Snapshot
	coll     *catalog.Collection
	idx      *catalog.Index
	back     bool
	bounds   *indexscan.Bounds
	fields   []plan.FieldBounds
	matcher  *match.Matcher // on the key's fields
	keys     *indexscan.KeyDoc
	dedupe   bool
	distinct bool
	pace     *pace

	cur  *storage.IndexCursor
	seen map[string]struct{}
	done bool
}

func (x *ixScan) Next(op *command.Op, r *Row) (bool, error) {
	if x.cur == nil && !x.done {
		if !x.open() {
			return false, nil
		}
	}
	for !x.done {
		if x.pace != nil {
			if err := x.pace.step(); err != nil {
				return false, err
			}
		}
		if !x.cur.Next() {
			break
		}
		if err := op.Check(); err != nil {
			return false, err
		}
		key := x.cur.Key()
		switch x.bounds.Check(key) {
		case indexscan.Done:
			x.finish()
			return false, nil
		case indexscan.Skip:
			x.st.keys++
			op.Stats.KeysExamined++
			x.st.seeks++
			x.cur.Seek(x.bounds.Next())
			continue
		}
		x.st.keys++
		op.Stats.KeysExamined++
		ok, err := x.take(r, key)
		if err != nil {
			return false, err
		}
		if ok {
			x.st.advanced++
			return true, nil
		}
	}
	if !x.done {
		err := x.cur.Err()
		x.finish()
		return false, err
	}
	return false, nil
}

func (x *ixScan) open() bool {
	start, ok := x.bounds.Start()
	if !ok {
		x.done, x.st.eof = true, true
		return false
	}
	x.cur = x.snap.IndexScan(x.coll, x.idx, x.back)
	x.cur.Seek(start)
	x.st.seeks++
	return true
}

// take fills r from a key within the bounds; false if its filter rejects the key.
func (x *ixScan) take(r *Row, key []byte) (bool, error) {
	rid := x.cur.RecordID()
	if x.dedupe {
		if x.seen == nil {
			x.seen = map[string]struct{}{}
		}
		if _, dup := x.seen[string(rid)]; dup {
			x.st.rejected++
			return false, nil
		}
	}
	if x.matcher != nil {
		doc, ok := x.keys.Doc(key, x.cur.TypeBits())
		if !ok {
			return false, mongoerr.Newf(mongoerr.DataCorruptionDetected, "a key of index %s cannot be read", x.idx.Name)
		}
		if ok, err := x.matcher.Match(doc); err != nil || !ok {
			return false, err
		}
	}
	if x.dedupe {
		x.seen[string(rid)] = struct{}{}
	}
	r.RID, r.Doc, r.key, r.typeBits, r.index, r.fields = rid, nil, key, x.cur.TypeBits(), x.idx, x.fields
	if x.distinct {
		x.cur.Seek(x.bounds.SkipValue(bytes.Clone(key)))
	}
	return true, nil
}

func (x *ixScan) finish() {
	x.done, x.st.eof = true, true
	x.cur.Close()
	x.cur = nil
}

func (x *ixScan) Save() {
	if x.cur != nil {
		x.cur.Save()
	}
}

func (x *ixScan) Close() {
	x.done = true
	if x.cur != nil {
		x.cur.Close()
		x.cur = nil
	}
}

func (x *ixScan) stats() *nodeStats { return &x.st }

// fetchNode reads the documents of the index keys below it.
type fetchNode struct {
	st      nodeStats
	in      Node
	snap    *storage.Snapshot
	coll    *catalog.Collection
	matcher *match.Matcher
}

func (f *fetchNode) Next(op *command.Op, r *Row) (bool, error) {
	for {
		ok, err := f.in.Next(op, r)
		if err != nil || !ok {
			f.st.eof = err == nil && !ok
			return false, err
		}
		f.st.docs++
		op.Stats.DocsExamined++
		if r.Doc != nil && !r.peeked {
			f.st.again++
		}
		if r.Doc == nil {
			doc, ok, err := f.snap.Get(f.coll, r.RID)
			if err != nil {
				return false, err
			}
			if !ok {
				return false, mongoerr.Newf(mongoerr.DataCorruptionDetected, "an index of %s has a key without its document", f.coll.NS)
			}
			r.Doc = doc
		}
		r.peeked = false
		if f.matcher != nil {
			ok, err := f.matcher.Match(r.Doc)
			if err != nil {
				return false, err
			}
			if !ok {
				f.st.rejected++
				continue
			}
		}
		f.st.advanced++
		return true, nil
	}
}

func (f *fetchNode) Save()             { f.in.Save() }
func (f *fetchNode) Close()            { f.in.Close() }
func (f *fetchNode) stats() *nodeStats { return &f.st }

// coverNode makes documents from keys. A null in a key may represent a missing field: then the document is read.
type coverNode struct {
	st   nodeStats
	in   Node
	keys []*coverKey // for each index that is scanned below
	snap *storage.Snapshot
	coll *catalog.Collection
}

// coverKey determines how documents are made from one index's keys.
type coverKey struct {
	index any // *catalog.Index
	doc   *indexscan.KeyDoc
	shown []int // the key fields that results show
}

func (c *coverNode) Next(op *command.Op, r *Row) (bool, error) {
	ok, err := c.in.Next(op, r)
	if err != nil || !ok {
		return false, err
	}
	if r.Doc == nil {
		k := c.keyOf(r.index)
		if r.Doc, ok = k.doc.Doc(r.key, r.typeBits); !ok {
			return false, mongoerr.New(mongoerr.DataCorruptionDetected, "an index key cannot be read")
		}
		r.Covered = !k.ambiguous()
		if !r.Covered {
			c.st.docs++
			op.Stats.DocsExamined++
			if r.Doc, ok, err = c.snap.Get(c.coll, r.RID); err != nil {
				return false, err
			}
			if !ok {
				return false, mongoerr.Newf(mongoerr.DataCorruptionDetected, "an index of %s has an entry without a document", c.coll.NS)
			}
		}
	}
	c.st.advanced++
	return true, nil
}

func (c *coverNode) keyOf(x *catalog.Index) *coverKey {
	for _, k := range c.keys[1:] {
		if k.index == x {
			return k
		}
	}
	return c.keys[0]
}

// ambiguous reports whether the last key does not determine what a result shows.
func (k *coverKey) ambiguous() bool {
	for _, i := range k.shown {
		if k.doc.Values()[i].T == value.Null {
			return true
		}
	}
	return false
}

func (c *coverNode) Save()             { c.in.Save() }
func (c *coverNode) Close()            { c.in.Close() }
func (c *coverNode) stats() *nodeStats { return &c.st }

// orNode returns the union of its inputs, each record once.
type orNode struct {
	st   nodeStats
	ins  []Node
	at   int
	seen map[string]struct{}
}

func (o *orNode) Next(op *command.Op, r *Row) (bool, error) {
	for o.at < len(o.ins) {
		ok, err := o.ins[o.at].Next(op, r)
		if err != nil {
			return false, err
		}
		if !ok {
			o.at++
			continue
		}
		if _, dup := o.seen[string(r.RID)]; dup {
			o.st.rejected++
			continue
		}
		o.seen[string(r.RID)] = struct{}{}
		o.st.advanced++
		return true, nil
	}
	o.st.eof = true
	return false, nil
}

func (o *orNode) Save() {
	for _, n := range o.ins {
		n.Save()
	}
}

func (o *orNode) Close() {
	for _, n := range o.ins {
		n.Close()
	}
}
func (o *orNode) stats() *nodeStats { return &o.st }

// sortMergeNode merges sorted inputs and returns each record once.
type sortMergeNode struct {
	st    nodeStats
	ins   []Node
	keys  *sortKeys
	snap  *storage.Snapshot
	coll  *catalog.Collection
	heads []*sorted
	seen  map[string]struct{}

	keepKeys bool // returnKey and $meta: "indexKey" show them

	primed int // inputs whose first row is in heads
	due    int // the input to read from before the next row, -1 for none
}

func (s *sortMergeNode) Next(op *command.Op, r *Row) (bool, error) {
	if s.heads == nil {
		s.heads = make([]*sorted, len(s.ins))
	}
	for ; s.primed < len(s.ins); s.primed++ {
		if err := s.advance(op, s.primed); err != nil {
			return false, err
		}
	}
	for {
		if s.due >= 0 {
			if err := s.advance(op, s.due); err != nil {
				return false, err
			}
			s.due = -1
		}
		best := -1
		for i, h := range s.heads {
			if h != nil && (best < 0 || bytes.Compare(h.key, s.heads[best].key) < 0) {
				best = i
			}
		}
		if best < 0 {
			s.st.eof = true
			return false, nil
		}
		h := s.heads[best]
		s.due = best
		if _, dup := s.seen[string(h.rid)]; dup {
			s.st.rejected++
			continue
		}
		s.seen[string(h.rid)] = struct{}{}
		*r = Row{RID: h.rid, Doc: h.doc, sortKey: h.key, peeked: h.peeked}
		if h.from.index != nil {
			r.key, r.typeBits, r.index, r.fields = h.from.key, h.from.typeBits, h.from.index, h.from.fields
		}
		s.st.advanced++
		return true, nil
	}
}

// advance reads the next row of an input.
func (s *sortMergeNode) advance(op *command.Op, i int) error {
	var r Row
	ok, err := s.ins[i].Next(op, &r)
	if err != nil || !ok {
		s.heads[i] = nil
		return err
	}
	doc := r.Doc
	if doc == nil {
		if doc, ok, err = s.snap.Get(s.coll, r.RID); err != nil || !ok {
			return err
		}
	}
	key, err := s.keys.of(doc)
	if err != nil {
		return err
	}
	s.heads[i] = &sorted{key: bytes.Clone(key), doc: bytes.Clone(doc), rid: r.RID.Clone(), peeked: r.Doc == nil || r.peeked}
	if s.keepKeys {
		s.heads[i].from = r.clone()
	}
	return nil
}

func (s *sortMergeNode) Save() {
	for _, n := range s.ins {
		n.Save()
	}
}

func (s *sortMergeNode) Close() {
	for _, n := range s.ins {
		n.Close()
	}
}
func (s *sortMergeNode) stats() *nodeStats { return &s.st }

// keyFields returns the document of a row's index key, as returnKey shows it: the pattern's paths undivided.
func keyFields(r *Row) []byte {
	if r.key == nil {
		return value.Doc()
	}
	k := indexscan.NewKeyDoc(r.fields)
	if _, ok := k.Doc(r.key, r.typeBits); !ok {
		return value.Doc()
	}
	dst, m := value.Begin(nil)
	for i, v := range k.Values() {
		dst = value.Append(dst, r.fields[i].Path, v)
	}
	return value.End(dst, m)
}
