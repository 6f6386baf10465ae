package shardnode

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

// ixScan reads the keys of an index that lie in bounds.
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

func (x *ixScan) next(op *command.Op, r *row) (bool, error) {
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

// take decides on a key in the bounds.
func (x *ixScan) take(r *row, key []byte) (bool, error) {
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
	r.rid, r.doc, r.key, r.typeBits, r.index, r.fields = rid, nil, key, x.cur.TypeBits(), x.idx, x.fields
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

func (x *ixScan) save() {
	if x.cur != nil {
		x.cur.Save()
	}
}

func (x *ixScan) close() {
	x.done = true
	if x.cur != nil {
		x.cur.Close()
		x.cur = nil
	}
}

func (x *ixScan) stats() *nodeStats { return &x.st }

// fetchNode reads the documents behind keys.
type fetchNode struct {
	st      nodeStats
	in      node
	snap    *storage.Snapshot
	coll    *catalog.Collection
	matcher *match.Matcher
}

func (f *fetchNode) next(op *command.Op, r *row) (bool, error) {
	for {
		ok, err := f.in.next(op, r)
		if err != nil || !ok {
			f.st.eof = err == nil && !ok
			return false, err
		}
		f.st.docs++
		op.Stats.DocsExamined++
		if r.doc != nil && !r.peeked {
			f.st.again++
		}
		if r.doc == nil {
			doc, ok, err := f.snap.Get(f.coll, r.rid)
			if err != nil {
				return false, err
			}
			if !ok {
				return false, mongoerr.Newf(mongoerr.DataCorruptionDetected, "an index of %s has a key without its document", f.coll.NS)
			}
			r.doc = doc
		}
		r.peeked = false
		if f.matcher != nil {
			ok, err := f.matcher.Match(r.doc)
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

func (f *fetchNode) save()             { f.in.save() }
func (f *fetchNode) close()            { f.in.close() }
func (f *fetchNode) stats() *nodeStats { return &f.st }

// coverNode makes documents of keys. A null in a key may stand for a field that is missing: then the document tells.
type coverNode struct {
	st   nodeStats
	in   node
	keys []*coverKey // for each index that is scanned below
	snap *storage.Snapshot
	coll *catalog.Collection
}

// coverKey is how documents are made of one index's keys.
type coverKey struct {
	index any // *catalog.Index
	doc   *indexscan.KeyDoc
	shown []int // the key's fields that results show
}

func (c *coverNode) next(op *command.Op, r *row) (bool, error) {
	ok, err := c.in.next(op, r)
	if err != nil || !ok {
		return false, err
	}
	if r.doc == nil {
		k := c.keyOf(r.index)
		if r.doc, ok = k.doc.Doc(r.key, r.typeBits); !ok {
			return false, mongoerr.New(mongoerr.DataCorruptionDetected, "an index key cannot be read")
		}
		r.covered = !k.ambiguous()
		if !r.covered {
			c.st.docs++
			op.Stats.DocsExamined++
			if r.doc, ok, err = c.snap.Get(c.coll, r.rid); err != nil || !ok {
				return false, err
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

// ambiguous tells whether the last key leaves open what a result shows.
func (k *coverKey) ambiguous() bool {
	for _, i := range k.shown {
		if k.doc.Values()[i].T == value.Null {
			return true
		}
	}
	return false
}

func (c *coverNode) save()             { c.in.save() }
func (c *coverNode) close()            { c.in.close() }
func (c *coverNode) stats() *nodeStats { return &c.st }

// orNode gives the union of its inputs, each record once.
type orNode struct {
	st   nodeStats
	ins  []node
	at   int
	seen map[string]struct{}
}

func (o *orNode) next(op *command.Op, r *row) (bool, error) {
	for o.at < len(o.ins) {
		ok, err := o.ins[o.at].next(op, r)
		if err != nil {
			return false, err
		}
		if !ok {
			o.at++
			continue
		}
		if _, dup := o.seen[string(r.rid)]; dup {
			o.st.rejected++
			continue
		}
		o.seen[string(r.rid)] = struct{}{}
		o.st.advanced++
		return true, nil
	}
	o.st.eof = true
	return false, nil
}

func (o *orNode) save() {
	for _, n := range o.ins {
		n.save()
	}
}

func (o *orNode) close() {
	for _, n := range o.ins {
		n.close()
	}
}
func (o *orNode) stats() *nodeStats { return &o.st }

// sortMergeNode merges inputs that are each in order, each record once.
type sortMergeNode struct {
	st    nodeStats
	ins   []node
	keys  *sortKeys
	snap  *storage.Snapshot
	coll  *catalog.Collection
	heads []*sorted
	seen  map[string]struct{}

	keepKeys bool // returnKey and $meta: "indexKey" show them

	primed int // inputs whose first row is in heads
	due    int // the input to read from before the next row, -1 for none
}

func (s *sortMergeNode) next(op *command.Op, r *row) (bool, error) {
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
			continue
		}
		s.seen[string(h.rid)] = struct{}{}
		*r = row{rid: h.rid, doc: h.doc, sortKey: h.key, peeked: h.peeked}
		if h.from.index != nil {
			r.key, r.typeBits, r.index, r.fields = h.from.key, h.from.typeBits, h.from.index, h.from.fields
		}
		s.st.advanced++
		return true, nil
	}
}

// advance reads the next row of an input.
func (s *sortMergeNode) advance(op *command.Op, i int) error {
	var r row
	ok, err := s.ins[i].next(op, &r)
	if err != nil || !ok {
		s.heads[i] = nil
		return err
	}
	doc := r.doc
	if doc == nil {
		if doc, ok, err = s.snap.Get(s.coll, r.rid); err != nil || !ok {
			return err
		}
	}
	key, err := s.keys.of(doc)
	if err != nil {
		return err
	}
	s.heads[i] = &sorted{key: bytes.Clone(key), doc: bytes.Clone(doc), rid: r.rid.Clone(), peeked: r.doc == nil || r.peeked}
	if s.keepKeys {
		s.heads[i].from = r.clone()
	}
	return nil
}

func (s *sortMergeNode) save() {
	for _, n := range s.ins {
		n.save()
	}
}

func (s *sortMergeNode) close() {
	for _, n := range s.ins {
		n.close()
	}
}
func (s *sortMergeNode) stats() *nodeStats { return &s.st }

// keyFields is the document of a row's index key, as returnKey shows it: the pattern's paths undivided.
func keyFields(r *row) []byte {
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
