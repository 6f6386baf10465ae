package extsort

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
)

// ErrMemory is returned by Add when the memory is full and there is no store to spill to.
var ErrMemory = errors.New("extsort: out of memory and not allowed to spill")

// Options configure a Sorter.
type Options struct {
	// Memory bounds the bytes held before a run is spilled; 0 means 100 MB.
	Memory int64
	// Compare orders keys; nil compares bytes, which is faster.
	Compare func(a, b []byte) int
	// Store stores runs; nil forbids spilling.
	Store Store
	// Limit is the number of records to keep, the first in order; 0 keeps all.
	Limit int
}

// Stats are the statistics of a sort for explain and serverStatus.
type Stats struct {
	Records, Bytes                      int64 // added
	Memory                              int64 // held now
	Spills, SpilledRecords, SpilledData int64
}

const (
	chunkSize  = 1 << 20
	entryBytes = 32
	mergeWidth = 64
)

// entry is a record in the arena. prefix holds the key's first eight bytes, so that most comparisons end there.
type entry struct {
	prefix     uint64
	chunk, off uint32
	klen, vlen uint32
}

// Sorter accepts records in any order. It must be used by one goroutine.
type Sorter struct {
	opts   Options
	chunks [][]byte
	ents   []entry
	bound  []byte // with a limit: keys that are not less than this one cannot be among the first
	held   int64
	runs   []File
	stats  Stats
}

// New returns an empty sorter.
func New(o Options) *Sorter {
	if o.Memory <= 0 {
		o.Memory = 100 << 20
	}
	return &Sorter{opts: o}
}

// Stats returns the statistics so far.
func (s *Sorter) Stats() Stats {
	s.stats.Memory = s.held
	return s.stats
}

// Add adds a record; both slices are copied.
func (s *Sorter) Add(key, val []byte) error {
	s.stats.Records++
	s.stats.Bytes += int64(len(key) + len(val))
	if s.bound != nil && s.compareKeys(key, s.bound) >= 0 {
		return nil
	}
	size := int64(len(key) + len(val) + entryBytes)
	if s.held+size > s.opts.Memory && len(s.ents) > 0 {
		if err := s.makeRoom(size); err != nil {
			return err
		}
	}
	s.held += size
	s.ents = append(s.ents, s.store(key, val))
	if s.opts.Limit > 0 && len(s.ents) >= 2*s.opts.Limit+64 {
		s.cut()
	}
	return nil
}

func (s *Sorter) store(key, val []byte) entry {
	n := len(key) + len(val)
	last := len(s.chunks) - 1
	if last < 0 || len(s.chunks[last])+n > cap(s.chunks[last]) {
		size := 16 << 10
		if last >= 0 {
			size = min(2*cap(s.chunks[last]), chunkSize)
		}
		s.chunks = append(s.chunks, make([]byte, 0, max(size, n)))
		last++
	}
	c := s.chunks[last]
	e := entry{chunk: uint32(last), off: uint32(len(c)), klen: uint32(len(key)), vlen: uint32(len(val)), prefix: prefixOf(key)}
	s.chunks[last] = append(append(c, key...), val...)
	return e
}

func prefixOf(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

func (s *Sorter) key(e *entry) []byte { return s.chunks[e.chunk][e.off:][:e.klen:e.klen] }
func (s *Sorter) val(e *entry) []byte { return s.chunks[e.chunk][e.off+e.klen:][:e.vlen:e.vlen] }

func (s *Sorter) compareKeys(a, b []byte) int {
	if s.opts.Compare != nil {
		return s.opts.Compare(a, b)
	}
	return bytes.Compare(a, b)
}

// sortEntries sorts by key, then by position: the arena is filled in insertion order.
func (s *Sorter) sortEntries() {
	slices.SortFunc(s.ents, func(a, b entry) int {
		if s.opts.Compare == nil && a.prefix != b.prefix {
			if a.prefix < b.prefix {
				return -1
			}
			return 1
		}
		if r := s.compareKeys(s.key(&a), s.key(&b)); r != 0 {
			return r
		}
		if a.chunk != b.chunk {
			return int(a.chunk) - int(b.chunk)
		}
		return int(a.off) - int(b.off)
	})
}

// cut drops the records beyond the limit and remembers the key of the last one kept.
func (s *Sorter) cut() {
	if len(s.ents) <= s.opts.Limit {
		return
	}
	s.sortEntries()
	old := *s
	s.chunks, s.ents, s.held = nil, make([]entry, 0, 2*s.opts.Limit+64), 0
	for i := range old.ents[:s.opts.Limit] {
		e := &old.ents[i]
		s.held += int64(e.klen+e.vlen) + entryBytes
		s.ents = append(s.ents, s.store(old.key(e), old.val(e)))
	}
	s.bound = bytes.Clone(s.key(&s.ents[len(s.ents)-1]))
}

func (s *Sorter) makeRoom(size int64) error {
	if s.opts.Limit > 0 {
		s.cut()
		if s.held+size <= s.opts.Memory {
			return nil
		}
	}
	if s.opts.Store == nil {
		return ErrMemory
	}
	return s.spill()
}

// spill writes the records in memory as a run.
func (s *Sorter) spill() error {
	s.sortEntries()
	w, err := s.newRun()
	if err != nil {
		return err
	}
	for i := range s.ents {
		e := &s.ents[i]
		if err := w.write(s.key(e), s.val(e)); err != nil {
			return err
		}
	}
	s.stats.Spills++
	s.stats.SpilledRecords += int64(len(s.ents))
	s.stats.SpilledData += s.held - int64(len(s.ents))*entryBytes
	s.chunks, s.ents, s.held = nil, s.ents[:0], 0
	return w.w.Flush()
}

type runWriter struct {
	w *bufio.Writer
}

func (s *Sorter) newRun() (runWriter, error) {
	f, err := s.opts.Store.Create()
	if err != nil {
		return runWriter{}, err
	}
	s.runs = append(s.runs, f)
	return runWriter{bufio.NewWriterSize(f, 64<<10)}, nil
}

func (w runWriter) write(key, val []byte) error {
	var head [2 * binary.MaxVarintLen32]byte
	h := binary.AppendUvarint(binary.AppendUvarint(head[:0], uint64(len(key))), uint64(len(val)))
	for _, b := range [][]byte{h, key, val} {
		if _, err := w.w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// Close ends a sort before Sort is called; afterwards the Iterator's Close does so.
func (s *Sorter) Close() error {
	var err error
	for _, f := range s.runs {
		if e := f.Remove(); err == nil {
			err = e
		}
	}
	s.runs, s.chunks, s.ents = nil, nil, nil
	return err
}
