package extsort

import (
	"bufio"
	"container/heap"
	"encoding/binary"
	"errors"
	"io"
)

// Iterator returns the records in order.
type Iterator struct {
	s    *Sorter
	left int // records the limit still allows; negative for no limit
	i    int // next entry, where nothing was spilled
	m    *merge
}

// Sort ends the input and returns an iterator over the sorted records.
func (s *Sorter) Sort() (*Iterator, error) {
	it := &Iterator{s: s, left: -1}
	if s.opts.Limit > 0 {
		it.left = s.opts.Limit
	}
	if len(s.runs) == 0 {
		s.sortEntries()
		return it, nil
	}
	if len(s.ents) > 0 {
		if err := s.spill(); err != nil {
			return nil, err
		}
	}
	for len(s.runs) > mergeWidth {
		if err := s.mergeFirst(); err != nil {
			return nil, err
		}
	}
	m, err := newMerge(s, s.runs)
	it.m = m
	return it, err
}

// mergeFirst merges the first runs into one. It goes to the front, where the oldest records belong.
func (s *Sorter) mergeFirst() error {
	old := s.runs[:mergeWidth:mergeWidth]
	m, err := newMerge(s, old)
	if err != nil {
		return err
	}
	w, err := s.newRun()
	if err != nil {
		return err
	}
	for {
		key, val, err := m.next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = w.write(key, val)
		}
		if err != nil {
			return err
		}
	}
	if err := w.w.Flush(); err != nil {
		return err
	}
	last := len(s.runs) - 1
	s.runs = append([]File{s.runs[last]}, s.runs[mergeWidth:last]...)
	for _, f := range old {
		if err := f.Remove(); err != nil {
			return err
		}
	}
	return nil
}

// Next returns the next record, borrowed until the following call; ok is false at the end.
func (it *Iterator) Next() (key, val []byte, ok bool, err error) {
	if it.left == 0 {
		return nil, nil, false, nil
	}
	if it.m == nil {
		if it.i == len(it.s.ents) {
			return nil, nil, false, nil
		}
		e := &it.s.ents[it.i]
		it.i++
		it.left--
		return it.s.key(e), it.s.val(e), true, nil
	}
	key, val, err = it.m.next()
	if err == io.EOF {
		return nil, nil, false, nil
	}
	it.left--
	return key, val, err == nil, err
}

// Close removes the files and frees the memory.
func (it *Iterator) Close() error { return it.s.Close() }

// merge is a heap of runs, each standing at its next record.
type merge struct {
	s    *Sorter
	runs []*run
	cur  *run // run whose record was returned last: it advances at the next call
}

type run struct {
	r        *bufio.Reader
	order    int
	key, val []byte
}

func newMerge(s *Sorter, files []File) (*merge, error) {
	m := &merge{s: s}
	for i, f := range files {
		rd, err := f.Reader()
		if err != nil {
			return nil, err
		}
		r := &run{r: bufio.NewReaderSize(rd, 64<<10), order: i}
		switch err := r.advance(); err {
		case nil:
			m.runs = append(m.runs, r)
		case io.EOF:
		default:
			return nil, err
		}
	}
	heap.Init(m)
	return m, nil
}

func (m *merge) next() (key, val []byte, err error) {
	if m.cur != nil {
		switch err := m.cur.advance(); err {
		case nil:
			heap.Fix(m, 0)
		case io.EOF:
			heap.Pop(m)
		default:
			return nil, nil, err
		}
	}
	if len(m.runs) == 0 {
		m.cur = nil
		return nil, nil, io.EOF
	}
	m.cur = m.runs[0]
	return m.cur.key, m.cur.val, nil
}

func (r *run) advance() error {
	klen, err := binary.ReadUvarint(r.r)
	if err != nil {
		return err // io.EOF between records
	}
	vlen, err := binary.ReadUvarint(r.r)
	if err != nil {
		return errors.Join(io.ErrUnexpectedEOF, err)
	}
	r.key, r.val = resize(r.key, int(klen)), resize(r.val, int(vlen))
	if _, err := io.ReadFull(r.r, r.key); err != nil {
		return errors.Join(io.ErrUnexpectedEOF, err)
	}
	if _, err := io.ReadFull(r.r, r.val); err != nil {
		return errors.Join(io.ErrUnexpectedEOF, err)
	}
	return nil
}

func resize(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

func (m *merge) Len() int { return len(m.runs) }
func (m *merge) Less(i, j int) bool {
	if r := m.s.compareKeys(m.runs[i].key, m.runs[j].key); r != 0 {
		return r < 0
	}
	return m.runs[i].order < m.runs[j].order
}
func (m *merge) Swap(i, j int) { m.runs[i], m.runs[j] = m.runs[j], m.runs[i] }
func (m *merge) Push(x any)    { m.runs = append(m.runs, x.(*run)) }
func (m *merge) Pop() any {
	last := m.runs[len(m.runs)-1]
	m.runs = m.runs[:len(m.runs)-1]
	return last
}
