package querystats

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/query/shape"
	"github.com/shoaldb/shoal/query/value"
)

// Store is one node's query statistics.
type Store struct {
	limit   atomic.Int64 // queries recorded per second: 0 none, below 0 all
	max     atomic.Int64 // bytes
	window  window
	parts   []partition
	evicted atomic.Int64
	limited atomic.Int64
	tooBig  atomic.Int64
}

// partition is a part of a store, guarded by a lock of its own.
type partition struct {
	mu struct {
		sync.Mutex
		entries     map[[sha256.Size]byte]*entry
		first, last *entry // in order of use, the latest first
		size        int64
	}
}

// entry has the figures of one key.
type entry struct {
	hash       [sha256.Size]byte
	key        []byte
	shape      string // the hash of its query shape
	figures    figures
	prev, next *entry
}

// overhead is the size of an entry in addition to the bytes of its key.
const overhead = 1 << 10

func (e *entry) size() int64 { return int64(len(e.key)) + overhead }

// New returns a store that records nothing yet.
func New() *Store {
	s := &Store{parts: make([]partition, runtime.NumCPU())}
	for i := range s.parts {
		s.parts[i].mu.entries = map[[sha256.Size]byte]*entry{}
	}
	return s
}

// SetLimit sets how many queries are recorded per second: 0 means none, a negative number all.
func (s *Store) SetLimit(n int64) { s.limit.Store(n) }

// SetMaxBytes limits the memory of the entries; excess entries are dropped.
func (s *Store) SetMaxBytes(n int64) {
	s.max.Store(n)
	for i := range s.parts {
		p := &s.parts[i]
		p.mu.Lock()
		s.evicted.Add(p.shrink(s.share()))
		p.mu.Unlock()
	}
}

func (s *Store) share() int64 { return s.max.Load() / int64(len(s.parts)) }

// On reports whether anything is recorded at all.
func (s *Store) On() bool { return s.limit.Load() != 0 }

// Admit reports whether a query that begins now is recorded.
func (s *Store) Admit(now time.Time) bool {
	switch n := s.limit.Load(); {
	case n == 0:
		return false
	case n < 0 || s.window.admit(now, n):
		return true
	}
	s.limited.Add(1)
	return false
}

// Record adds one execution to the figures of its key, a document whose first element is queryShape.
func (s *Store) Record(key []byte, m *Metrics, now time.Time) {
	hash := sha256.Sum256(key)
	p := &s.parts[binary.LittleEndian.Uint32(hash[:])%uint32(len(s.parts))]
	share := s.share()
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.mu.entries[hash]
	if e == nil {
		e = &entry{hash: hash, key: append([]byte(nil), key...), shape: shape.Hash(value.Lookup(key, "queryShape").Doc())}
		if e.size() > share {
			s.tooBig.Add(1)
			return
		}
		s.evicted.Add(p.shrink(share - e.size()))
		p.mu.entries[hash] = e
		p.mu.size += e.size()
		e.figures.first = now
	} else {
		p.unlink(e)
	}
	p.push(e)
	e.figures.add(m, now)
}

// shrink drops the least recently used entries until the others fit.
func (p *partition) shrink(limit int64) (dropped int64) {
	for p.mu.size > limit && p.mu.last != nil {
		e := p.mu.last
		p.unlink(e)
		delete(p.mu.entries, e.hash)
		p.mu.size -= e.size()
		dropped++
	}
	return dropped
}

func (p *partition) unlink(e *entry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		p.mu.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		p.mu.last = e.prev
	}
	e.prev, e.next = nil, nil
}

func (p *partition) push(e *entry) {
	e.next = p.mu.first
	if e.next != nil {
		e.next.prev = e
	} else {
		p.mu.last = e
	}
	p.mu.first = e
}

// Docs returns the entries as $queryStats shows them, with names replaced by name; nil keeps them.
func (s *Store) Docs(now func() time.Time, name func(string) string) (docs [][]byte) {
	for i := range s.parts {
		p := &s.parts[i]
		p.mu.Lock()
		copies := make([]entry, 0, len(p.mu.entries))
		for e := p.mu.first; e != nil; e = e.next {
			copies = append(copies, *e)
		}
		p.mu.Unlock()
		asOf := value.NewTimestamp(uint32(now().Unix()), 0)
		for j := range copies {
			docs = append(docs, copies[j].doc(asOf, name))
		}
	}
	return docs
}

func (e *entry) doc(asOf value.Value, name func(string) string) []byte {
	dst, m := value.Begin(nil)
	if name == nil {
		dst = value.Append(dst, "key", value.NewDocument(e.key))
	} else {
		dst = value.Append(dst, "key", value.NewDocument(transformed(e.key, name)))
	}
	dst = value.Append(dst, "keyHash", value.NewString(base64.StdEncoding.EncodeToString(e.hash[:])))
	dst = value.Append(dst, "queryShapeHash", value.NewString(e.shape))
	dst = value.Append(dst, "metrics", value.NewDocument(e.figures.doc()))
	return value.End(value.Append(dst, "asOf", asOf), m)
}

// transformed returns a key with the names in its shape and its hint replaced.
func transformed(key []byte, name func(string) string) []byte {
	dst, m := value.Begin(nil)
	for it := value.Walk(key); ; {
		raw, k, v, ok := it.NextRaw()
		if !ok {
			return value.End(dst, m)
		}
		switch string(k) {
		case "queryShape":
			dst = value.Append(dst, "queryShape", value.NewDocument(shape.Transform(nil, v.Doc(), name)))
		case "hint":
			dst = shape.TransformHint(dst, v, name)
		default:
			dst = append(dst, raw...)
		}
	}
}

// Status returns metrics.queryStats of serverStatus.
func (s *Store) Status() []byte {
	if s == nil {
		return value.Doc()
	}
	var size, n int64
	for i := range s.parts {
		p := &s.parts[i]
		p.mu.Lock()
		size, n = size+p.mu.size, n+int64(len(p.mu.entries))
		p.mu.Unlock()
	}
	i64 := func(name string, v int64) value.Field { return value.F(name, value.NewInt64(v)) }
	return value.Doc(i64("maxSizeBytes", s.max.Load()), i64("numEntries", n), i64("numEvicted", s.evicted.Load()), i64("numHmacApplicationErrors", 0),
		i64("numPartitions", int64(len(s.parts))), i64("numQueryStatsStoreWriteErrors", s.tooBig.Load()),
		i64("numRateLimitedRequests", s.limited.Load()), i64("queryStatsStoreSizeEstimateBytes", size))
}

// window counts the queries admitted in the last second: those of the current second, and the part of the previous
// second's that is still within a second from now.
type window struct {
	mu          sync.Mutex
	second      int64
	here, there int64 // in the current second, in the previous one
}

func (w *window) admit(now time.Time, limit int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if sec := now.Unix(); sec != w.second {
		if w.there = 0; sec == w.second+1 {
			w.there = w.here
		}
		w.second, w.here = sec, 0
	}
	left := int64(time.Second) - int64(now.Nanosecond())
	if w.here+w.there*left/int64(time.Second) >= limit {
		return false
	}
	w.here++
	return true
}

// Hashed replaces names by their HMAC-SHA-256 under a key.
func Hashed(key []byte) func(string) string {
	h := hmac.New(sha256.New, key)
	return func(name string) string {
		h.Reset()
		h.Write([]byte(name))
		return base64.StdEncoding.EncodeToString(h.Sum(nil))
	}
}
