package exec

import (
	"encoding/binary"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/extsort"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/storage/indexscan"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// sortKeys makes the sort keys of documents. Of the keys that an index on the sort pattern would have for a document,
// it is the lowest in the order of that pattern: arrays sort by their least element in ascending order, by their
// greatest in descending order.
type sortKeys struct {
	gen  *indexkey.Generator
	set  indexkey.KeySet
	show *indexscan.KeyDoc
}

func newSortKeys(pattern []byte, c value.Collator) (*sortKeys, error) {
	spec := &indexkey.Spec{KeyPattern: pattern}
	var fields []plan.FieldBounds
	for it := value.Walk(pattern); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		if v.T == value.Document {
			continue // {$meta: …} has no part in the key
		}
		spec.Fields = append(spec.Fields, indexkey.Field{Path: string(k), Desc: v.AsFloat64() < 0})
		fields = append(fields, plan.FieldBounds{Path: string(k), Desc: v.AsFloat64() < 0})
	}
	g, err := indexkey.NewGenerator(spec, indexkey.Options{Collator: c})
	return &sortKeys{gen: g, show: indexscan.NewKeyDoc(fields)}, err
}

// of returns a document's key, borrowed until the next call.
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

// sorted is a document waiting in a merge.
type sorted struct {
	key []byte
	doc []byte
	rid storage.RecordID

	peeked bool // the document was read only for its key
	from   Row  // the row it came with, if its index key is wanted
}

// values returns a document's sort key as $meta shows it: the values of the fields that it was sorted by.
func (s *sortKeys) values(doc []byte) (value.Value, error) {
	key, err := s.of(doc)
	if err != nil || s.set.Len() == 0 {
		return value.NewArray(value.ArrayOf()), err
	}
	if _, ok := s.show.Doc(key, s.set.TypeBits(0)); !ok {
		return value.Value{}, mongoerr.New(mongoerr.InternalError, "a sort key cannot be read")
	}
	return value.NewArray(value.ArrayOf(s.show.Values()...)), nil
}

// sortNode reads all of its input and returns it in order. If it may use the disk, it spills what does not fit
// into its memory.
type sortNode struct {
	st   nodeStats
	in   Node
	keys interface {
		of(doc []byte) ([]byte, error)
	}
	limit int64 // 0: none
	store extsort.Store

	memory int64
	sort   *extsort.Sorter
	out    *extsort.Iterator
	buf    []byte
}

func newSortNode(env Env, in Node, q *Query) (*sortNode, error) {
	k, err := newSortKeys(q.Sort, q.Collation.Collator())
	if err != nil {
		return nil, err
	}
	s := &sortNode{in: in, keys: k, memory: env.SortMemory()}
	if scores, err := newScoreKeys(q); err != nil {
		return nil, err
	} else if scores != nil {
		s.keys = scores
	}
	if q.AllowDiskUse {
		s.store = env.Spill()
	}
	return s, nil
}

func (s *sortNode) Next(op *command.Op, r *Row) (bool, error) {
	if s.out == nil {
		if err := s.fill(op); err != nil {
			return false, err
		}
	}
	key, val, ok, err := s.out.Next()
	if err != nil || !ok {
		s.st.eof = err == nil && !ok
		return false, err
	}
	n, w := binary.Uvarint(val)
	val = val[w:]
	*r = Row{RID: storage.RecordID(val[:n]), Doc: val[n:], sortKey: key}
	s.st.advanced++
	return true, nil
}

// fill reads the input. It may be interrupted by a pause and continues from there.
func (s *sortNode) fill(op *command.Op) error {
	op.Stats.HasSortStage = true
	if s.sort == nil {
		s.sort = extsort.New(extsort.Options{Memory: s.memory, Store: s.store, Limit: int(min(s.limit, 1<<31-1))})
	}
	var r Row
	for {
		ok, err := s.in.Next(op, &r)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		key, err := s.keys.of(r.Doc)
		if err != nil {
			return err
		}
		s.buf = append(append(binary.AppendUvarint(s.buf[:0], uint64(len(r.RID))), r.RID...), r.Doc...)
		if err := s.sort.Add(key, s.buf); err != nil {
			return sortError(err, s.memory)
		}
	}
	s.in.Save()
	var err error
	st := s.sort.Stats()
	op.Stats.UsedDisk = op.Stats.UsedDisk || st.Spills > 0
	s.out, err = s.sort.Sort()
	s.st.memory, s.st.spills, s.st.spilled, s.st.spilledBytes = st.Bytes, st.Spills, st.SpilledRecords, st.SpilledData
	return err
}

// sortError reports the memory limit if a sort has failed because of it.
func sortError(err error, limit int64) error {
	if err != extsort.ErrMemory {
		return err
	}
	return mongoerr.Newf(mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed, "Sort exceeded memory "+
		"limit of %d bytes, but did not opt in to external sorting. Aborting operation. Pass allowDiskUse:true to opt in.", limit)
}

func (s *sortNode) Save() { s.in.Save() }

func (s *sortNode) Close() {
	s.in.Close()
	if s.sort != nil {
		s.sort.Close()
		s.sort = nil
	}
}

func (s *sortNode) stats() *nodeStats { return &s.st }
