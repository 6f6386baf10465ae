package shardnode

import (
	"bytes"
	"container/heap"
	"slices"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// sortMemory is what a blocking sort may hold (internalQueryMaxBlockingSortMemoryUsageBytes).
const sortMemory = 100 << 20

// sortKeys makes the sort key of documents: of the keys that an index on the sort pattern would have for the document,
// the lowest in the order of that pattern. That is how arrays sort: by their least element ascending, by their greatest
// descending.
type sortKeys struct {
	gen *indexkey.Generator
	set indexkey.KeySet
}

func newSortKeys(pattern []byte, c value.Collator) (*sortKeys, error) {
	spec := &indexkey.Spec{KeyPattern: pattern}
	for it := value.Walk(pattern); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		if v.T == value.Document {
			continue // {$meta: …} has no part in the key
		}
		spec.Fields = append(spec.Fields, indexkey.Field{Path: string(k), Desc: v.AsFloat64() < 0})
	}
	g, err := indexkey.NewGenerator(spec, indexkey.Options{Collator: c})
	return &sortKeys{gen: g}, err
}

// of gives the key, borrowed until the next call.
func (s *sortKeys) of(doc []byte) ([]byte, error) {
	if err := s.gen.Keys(doc, &s.set); err != nil {
		if mongoerr.CodeOf(err) == mongoerr.CannotIndexParallelArrays {
			return nil, mongoerr.New(mongoerr.BadValue, "cannot sort with keys that are parallel arrays")
		}
		return nil, err
	}
	if s.set.Len() == 0 {
		return nil, nil
	}
	return s.set.Key(0), nil
}

// sorted is a document waiting in a sort.
type sorted struct {
	key []byte
	seq int64 // keeps equal keys in the order they came
	doc []byte
	rid storage.RecordID
}

func lessSorted(a, b *sorted) int {
	if c := bytes.Compare(a.key, b.key); c != 0 {
		return c
	}
	if a.seq < b.seq {
		return -1
	}
	return 1
}

// topK keeps the k first; the last of them is at the root.
type topK []*sorted

func (h topK) Len() int           { return len(h) }
func (h topK) Less(i, j int) bool { return lessSorted(h[i], h[j]) > 0 }
func (h topK) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *topK) Push(x any)        { *h = append(*h, x.(*sorted)) }
func (h *topK) Pop() any          { o := *h; x := o[len(o)-1]; *h = o[:len(o)-1]; return x }

// sortNode reads all of its input and gives it back in order.
type sortNode struct {
	st    nodeStats
	in    node
	keys  *sortKeys
	limit int64 // 0: none
	disk  bool
	rows  topK
	done  bool
	at    int
	seq   int64
	size  int64
}

func newSortNode(in node, q *query) (*sortNode, error) {
	k, err := newSortKeys(q.sort, q.lang.coll.Collator())
	if err != nil {
		return nil, err
	}
	s := &sortNode{in: in, keys: k, disk: q.diskUse}
	if q.limit > 0 {
		s.limit = q.limit + q.skip
	}
	return s, nil
}

func (s *sortNode) next(op *command.Op, r *row) (bool, error) {
	if !s.done {
		if err := s.fill(op); err != nil {
			return false, err
		}
	}
	if s.at >= len(s.rows) {
		s.st.eof = true
		return false, nil
	}
	x := s.rows[s.at]
	s.rows[s.at] = nil
	s.at++
	s.st.advanced++
	*r = row{rid: x.rid, doc: x.doc, sortKey: x.key}
	return true, nil
}

func (s *sortNode) fill(op *command.Op) error {
	op.Stats.HasSortStage = true
	var r row
	for ; ; s.seq++ {
		ok, err := s.in.next(op, &r)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		key, err := s.keys.of(r.doc)
		if err != nil {
			return err
		}
		if err := s.add(key, s.seq, &r); err != nil {
			return err
		}
	}
	s.in.save()
	slices.SortFunc(s.rows, lessSorted)
	s.done = true
	s.st.memory = s.size
	return nil
}

// add keeps a row, or drops it where limit rows come before it.
func (s *sortNode) add(key []byte, seq int64, r *row) error {
	if s.limit > 0 && int64(len(s.rows)) == s.limit {
		last := s.rows[0]
		if bytes.Compare(key, last.key) >= 0 {
			return nil
		}
		s.size += int64(len(r.doc) - len(last.doc))
		last.key, last.seq = append(last.key[:0], key...), seq
		last.doc, last.rid = append(last.doc[:0], r.doc...), append(last.rid[:0], r.rid...)
		heap.Fix(&s.rows, 0)
		return nil
	}
	x := &sorted{key: bytes.Clone(key), seq: seq, doc: bytes.Clone(r.doc), rid: r.rid.Clone()}
	s.size += int64(len(x.key) + len(x.doc) + 64)
	if s.size > sortMemory {
		return mongoerr.Newf(mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed,
			"Executor error during find command :: caused by :: Sort exceeded memory limit of %d bytes, but did not opt in to external sorting.", sortMemory)
	}
	if s.limit > 0 {
		heap.Push(&s.rows, x)
	} else {
		s.rows = append(s.rows, x)
	}
	return nil
}

func (s *sortNode) save()             { s.in.save() }
func (s *sortNode) close()            { s.in.close(); s.rows = nil }
func (s *sortNode) stats() *nodeStats { return &s.st }
