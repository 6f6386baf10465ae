package cluster

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"sort"
	"sync"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/keystring"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A table of a million chunks changes by a few at a time. Its chunks are in leaves of some hundred each, immutable and shared by
// all versions of the table: a refresh rebuilds the leaves that changed, and copies the list of the others. Within a leaf a chunk
// is not an object but some bytes in arrays; Chunk values are made on demand.

// leafSize is the number of chunks in a new leaf; a leaf with more than maxLeaf is split.
const (
	leafSize = 256
	maxLeaf  = 2 * leafSize
)

// leaf is a run of neighbouring chunks. Only the ends of chunks are stored: a chunk begins where the previous one ends.
type leaf struct {
	min     []byte   // the lower bound of the first chunk
	keys    []byte   // the chunks' ends as keystrings, concatenated
	keyEnds []uint32 // where each of them ends
	docs    []byte   // the chunks' ends as documents
	docEnds []uint32
	shard   []uint16 // index into ChunkMap.names
	lastmod []uint64
	since   []uint64
	jumbo   []bool             // nil if none is
	past    map[uint16][]Owner // previous owners, of the chunks that had others
	stats   []shardStat        // by index of shard
	newest  uint64             // the maximum of since
}

// shardStat sums up a shard's chunks; with none, it means that the shard has owned some in the past.
type shardStat struct {
	shard   uint16
	chunks  int32
	lastmod uint64
	arrived uint64
}

func (l *leaf) len() int { return len(l.shard) }

// key returns the end of chunk i as a keystring.
func (l *leaf) key(i int) []byte {
	if i == 0 {
		return l.keys[:l.keyEnds[0]]
	}
	return l.keys[l.keyEnds[i-1]:l.keyEnds[i]]
}

func (l *leaf) last() []byte { return l.key(l.len() - 1) }

// doc returns the end of chunk i as a document.
func (l *leaf) doc(i int) []byte {
	start := uint32(0)
	if i > 0 {
		start = l.docEnds[i-1]
	}
	return l.docs[start:l.docEnds[i]:l.docEnds[i]]
}

// appendKey encodes a shard key such that keys compare as their bytes.
func appendKey(dst []byte, key []value.Value) []byte {
	for i := range key {
		dst = keystring.AppendKey(dst, key[i], false, nil)
	}
	return dst
}

// chunk returns a Chunk value for chunk i.
func (m *ChunkMap) chunk(l *leaf, i int) *Chunk {
	c := &Chunk{Min: l.min, Max: l.doc(i), Shard: m.names[l.shard[i]], Version: m.version.WithCombined(l.lastmod[i]), OnSince: l.since[i]}
	if i > 0 {
		c.Min = l.doc(i - 1)
	}
	if l.jumbo != nil {
		c.Jumbo = l.jumbo[i]
	}
	if l.past != nil {
		c.Past = l.past[uint16(i)]
	}
	return c
}

// number returns the index of a shard's name. A new name is added to a copy of the list, which other versions of the table share.
func (m *ChunkMap) number(shard string) uint16 {
	at, ok := m.byName[shard]
	if ok {
		return at
	}
	if !m.building {
		m.names, m.byName, m.building = slices.Clone(m.names), maps.Clone(m.byName), true
		if m.byName == nil {
			m.byName = make(map[string]uint16)
		}
	}
	at = uint16(len(m.names))
	m.names, m.byName[shard] = append(m.names, shard), at
	return at
}

var (
	errGap  = mongoerr.New(mongoerr.ConflictingOperationInProgress, "there is a gap or an overlap between two chunks")
	errEnds = mongoerr.New(mongoerr.ConflictingOperationInProgress, "the chunks do not cover the range from MinKey to MaxKey")
)

// build makes leaves of adjacent chunks.
func (m *ChunkMap) build(chunks []*Chunk) ([]*leaf, error) {
	var out []*leaf
	for len(chunks) > 0 {
		n := len(chunks)
		if n > maxLeaf {
			n = leafSize
		}
		l, err := m.buildLeaf(chunks[:n])
		if err != nil {
			return nil, err
		}
		if len(out) > 0 && !bytes.Equal(out[len(out)-1].last(), appendKey(nil, value.Values(l.min))) {
			return nil, errGap
		}
		out = append(out, l)
		chunks = chunks[n:]
	}
	return out, nil
}

func (m *ChunkMap) buildLeaf(chunks []*Chunk) (*leaf, error) {
	n := len(chunks)
	l := &leaf{min: bytes.Clone(chunks[0].Min), keyEnds: make([]uint32, n), docEnds: make([]uint32, n), shard: make([]uint16, n),
		lastmod: make([]uint64, n), since: make([]uint64, n)}
	keys, docs := m.scratch[:0], make([]byte, 0, n*(len(chunks[0].Max)+4))
	for i, c := range chunks {
		c.decode()
		if i > 0 && !bytes.Equal(chunks[i-1].Max, c.Min) && CompareKeys(chunks[i-1].maxV, c.minV) != 0 {
			return nil, errGap
		}
		keys, docs = appendKey(keys, c.maxV), append(docs, c.Max...)
		l.keyEnds[i], l.docEnds[i] = uint32(len(keys)), uint32(len(docs))
		l.shard[i], l.lastmod[i], l.since[i] = m.number(c.Shard), c.Version.Combined(), c.OnSince
		if c.Jumbo {
			if l.jumbo == nil {
				l.jumbo = make([]bool, n)
			}
			l.jumbo[i] = true
		}
		if len(c.Past) > 0 {
			if l.past == nil {
				l.past = make(map[uint16][]Owner)
			}
			l.past[uint16(i)] = c.Past
		}
	}
	m.scratch, l.keys, l.docs = keys, bytes.Clone(keys), slices.Clip(docs)
	m.sumUp(l)
	return l, nil
}

// sumUp computes a leaf's stats.
func (m *ChunkMap) sumUp(l *leaf) {
	for i, s := range l.shard {
		st := l.stat(s)
		st.chunks++
		st.lastmod, st.arrived = max(st.lastmod, l.lastmod[i]), max(st.arrived, l.since[i])
		l.newest = max(l.newest, l.since[i])
	}
	for _, owners := range l.past {
		for _, o := range owners {
			l.stat(m.number(o.Shard))
		}
	}
	l.stats = slices.Clip(l.stats)
}

// stat finds or adds the stat of a shard.
func (l *leaf) stat(shard uint16) *shardStat {
	at, ok := slices.BinarySearchFunc(l.stats, shard, func(s shardStat, shard uint16) int { return cmp.Compare(s.shard, shard) })
	if !ok {
		l.stats = slices.Insert(l.stats, at, shardStat{shard: shard})
	}
	return &l.stats[at]
}

// find returns the position of the first chunk that ends above a key; ok is false beyond the last.
func (m *ChunkMap) find(key []byte) (at, i int, ok bool) {
	at = sort.Search(len(m.leaves), func(j int) bool { return bytes.Compare(key, m.leaves[j].last()) < 0 })
	if at == len(m.leaves) {
		return at, 0, false
	}
	l := m.leaves[at]
	lo, hi := 0, l.len()-1
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if bytes.Compare(key, l.key(mid)) < 0 {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return at, lo, true
}

// keyRoom is memory for the encoding of a shard key.
type keyRoom struct{ key, bits []byte }

var keyRooms = sync.Pool{New: func() any { return &keyRoom{make([]byte, 0, 128), make([]byte, 0, 64)} }}

// place is find by a shard key. The last chunk also owns a key of MaxKey in all fields. Scans of sharded collections call it
// for each document.
func (m *ChunkMap) place(key []value.Value) (l *leaf, i int) {
	var at int
	var ok bool
	if len(key) == 1 && key[0].T == value.Int64 { // a hash
		var room [16]byte
		at, i, ok = m.find(keystring.AppendLong(room[:0], key[0].Int64()))
	} else {
		r := keyRooms.Get().(*keyRoom)
		k := r.key[:0]
		for j := range key {
			k, r.bits = keystring.Append(k, r.bits[:0], key[j], false, nil)
		}
		at, i, ok = m.find(k)
		if cap(k) <= 4<<10 {
			r.key = k
			keyRooms.Put(r)
		}
	}
	if !ok {
		l = m.leaves[len(m.leaves)-1]
		return l, l.len() - 1
	}
	return m.leaves[at], i
}

// total sums up all leaves.
func (m *ChunkMap) total() {
	m.sums, m.count = make([]shardStat, len(m.names)), 0
	for _, l := range m.leaves {
		m.count += l.len()
		for _, s := range l.stats {
			m.sums[s.shard].add(s)
		}
	}
}

func (s *shardStat) add(o shardStat) {
	s.chunks += o.chunks
	s.lastmod, s.arrived = max(s.lastmod, o.lastmod), max(s.arrived, o.arrived)
}

// retotal updates the sums after some leaves were replaced by others. It searches a shard's leaves only if the leaf with its
// highest version is gone.
func (m *ChunkMap) retotal(gone, made []*leaf) {
	had := m.sums
	m.sums = make([]shardStat, len(m.names))
	copy(m.sums, had)
	lost, won := make(map[uint16]*shardStat), make(map[uint16]*shardStat)
	for _, l := range gone {
		m.count -= l.len()
		for _, s := range l.stats {
			m.sums[s.shard].chunks -= s.chunks
			if lost[s.shard] == nil {
				lost[s.shard], won[s.shard] = &shardStat{}, &shardStat{}
			}
			lost[s.shard].add(s)
		}
	}
	for _, l := range made {
		m.count += l.len()
		for _, s := range l.stats {
			m.sums[s.shard].add(s)
			if w := won[s.shard]; w != nil {
				w.add(s)
			}
		}
	}
	for shard, was := range lost {
		t, is := &m.sums[shard], won[shard]
		if (was.lastmod < t.lastmod || is.lastmod == t.lastmod) && (was.arrived < t.arrived || is.arrived == t.arrived) {
			continue // the leaf with the highest version is still there
		}
		t.lastmod, t.arrived = 0, 0
		for _, l := range m.leaves {
			if at, ok := slices.BinarySearchFunc(l.stats, shard, func(s shardStat, shard uint16) int { return cmp.Compare(s.shard, shard) }); ok {
				t.lastmod, t.arrived = max(t.lastmod, l.stats[at].lastmod), max(t.arrived, l.stats[at].arrived)
			}
		}
	}
}

// conclude checks the table's ends and computes its versions from the sums.
func (m *ChunkMap) conclude() error {
	first, last := m.leaves[0], m.leaves[len(m.leaves)-1]
	if !allOfType(value.Values(first.min), value.MinKey) || !allOfType(value.Values(last.doc(last.len()-1)), value.MaxKey) {
		return errEnds
	}
	m.newest = 0
	m.ids = nil
	highest := uint64(0)
	for i, s := range m.sums {
		if s.chunks > 0 {
			m.ids = append(m.ids, m.names[i])
			highest, m.newest = max(highest, s.lastmod), max(m.newest, s.arrived)
		}
	}
	m.version = m.version.WithCombined(highest)
	m.shards, m.arrived = make(map[string]ChunkVersion, len(m.ids)), make(map[string]uint64, len(m.ids))
	for i, s := range m.sums {
		if s.chunks > 0 {
			m.shards[m.names[i]], m.arrived[m.names[i]] = m.version.WithCombined(s.lastmod), s.arrived
		}
	}
	slices.Sort(m.ids)
	return nil
}
