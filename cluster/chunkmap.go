package cluster

import (
	"bytes"
	"cmp"
	"iter"
	"maps"
	"slices"
	"sort"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Chunk is one range [Min, Max) of a collection's shard key space and the shard that owns it.
type Chunk struct {
	Min, Max   []byte // raw documents of the shard key's fields
	Shard      string
	Version    ChunkVersion
	Jumbo      bool
	OnSince    uint64  // onCurrentShardSince, 0 if unknown
	Past       []Owner // previous owners, newest first
	minV, maxV []value.Value
}

// Bounds returns the decoded values of both ends, borrowed from Min and Max.
func (c *Chunk) Bounds() (min, max []value.Value) {
	if c.minV != nil {
		return c.minV, c.maxV
	}
	return value.Values(c.Min), value.Values(c.Max)
}

func (c *Chunk) decode() {
	if c.minV == nil {
		c.minV, c.maxV = value.Values(c.Min), value.Values(c.Max)
	}
}

// Contains reports whether a key (the values of all shard key fields) is in the chunk.
func (c *Chunk) Contains(key []value.Value) bool {
	min, max := c.Bounds()
	return InRange(key, min, max)
}

// InRange reports whether a shard key is in a range: min is inclusive and max exclusive, except for a range that
// extends to the end of the key space, which includes the key with MaxKey in all fields.
func InRange(key, min, max []value.Value) bool {
	if CompareKeys(key, min) < 0 {
		return false
	}
	return CompareKeys(key, max) < 0 || allOfType(max, value.MaxKey)
}

// CompareKeys orders two shard keys value by value; a shorter key is a prefix that sorts first.
func CompareKeys(a, b []value.Value) int {
	for i := range a {
		if i == len(b) {
			return 1
		}
		if r := value.Compare(a[i], b[i]); r != 0 {
			return r
		}
	}
	if len(a) < len(b) {
		return -1
	}
	return 0
}

// ChunkMap is the immutable routing table of one sharded collection: all chunks sorted by upper bound.
type ChunkMap struct {
	UUID    [16]byte
	Key     *ShardKeyPattern
	Unique  bool
	version ChunkVersion
	leaves  []*leaf
	count   int // number of chunks
	names   []string
	byName  map[string]uint16
	sums    []shardStat             // by index of name
	shards  map[string]ChunkVersion // highest version per shard that owns a chunk
	ids     []string                // the keys of shards, sorted; in a table of the past, the owners at that time
	arrived map[string]uint64       // per shard, when it received its newest range
	newest  uint64                  // the highest of arrived
	at      uint64                  // the time of a table of the past, else 0

	building bool   // names and byName are this table's own
	scratch  []byte // for keys, while leaves are built
}

// NewChunkMap builds the table from all chunks of a collection, in any order. generation has the epoch and timestamp.
func NewChunkMap(uuid [16]byte, key *ShardKeyPattern, unique bool, generation ChunkVersion, chunks []*Chunk) (*ChunkMap, error) {
	if len(chunks) == 0 {
		return nil, mongoerr.New(mongoerr.ConflictingOperationInProgress, "the collection has no chunks")
	}
	m := &ChunkMap{UUID: uuid, Key: key, Unique: unique, version: generation.WithCombined(0)}
	for _, c := range chunks {
		c.decode()
	}
	if !follow(chunks) {
		chunks = overlay(nil, chunks)
	}
	var err error
	if m.leaves, err = m.build(chunks); err != nil {
		return nil, err
	}
	m.building, m.scratch = false, nil
	m.total()
	return m, m.conclude()
}

// follow reports whether each chunk begins where the previous one ends.
func follow(chunks []*Chunk) bool {
	for i := 1; i < len(chunks); i++ {
		if !bytes.Equal(chunks[i-1].Max, chunks[i].Min) {
			return false
		}
	}
	return true
}

// Update returns the table with changed chunks in place of those that they overlap. An incremental refresh calls it with
// the chunks whose lastmod is at or past the version that it has. It rebuilds the leaves that the chunks are in; all others
// are shared with the previous table.
//
// Invariant: a table is immutable; requests in flight keep theirs. Leaves are shared between tables, so they are immutable, too: a leaf
// with a changed chunk is decoded, overlaid and rebuilt; all others are shared unchanged. The new leaves span exactly the range of the old
// ones (sameSpan), so that the new table has no gap or overlap if the old one had none, and only the new leaves need to be checked.
//
// Hazard: the version of a shard is the maximum over its leaves. If the leaf with the maximum is replaced, the new maximum cannot be
// computed from the old one, and all leaves of the shard have to be searched (retotal). If a version remained too high, the router would
// assume that it knows changes that it has not seen.
//
// Rejected: a balanced tree with a node for each chunk. A change would copy a path instead of a leaf, but a Chunk value alone is
// larger than what a chunk takes in a leaf, and a million of them are pointers that every garbage collection follows.
func (m *ChunkMap) Update(changed []*Chunk) (*ChunkMap, error) {
	if len(changed) == 0 {
		return m, nil
	}
	for _, c := range changed {
		c.decode()
		if !c.Version.SameGeneration(m.version) {
			return nil, mongoerr.Newf(mongoerr.StaleEpoch, "chunk version %s does not belong to the collection's %s", c.Version, m.version)
		}
	}
	n := *m
	n.building, n.at = false, 0
	var gone, made []*leaf
	leaves := make([]*leaf, 0, len(m.leaves)+1)
	upTo := 0 // the leaves before this one are in the new table
	for _, run := range m.runs(changed) {
		leaves = append(leaves, m.leaves[upTo:run.from]...)
		var had []*Chunk
		for _, l := range m.leaves[run.from:run.to] {
			for i := range l.len() {
				c := m.chunk(l, i)
				c.decode()
				had = append(had, c)
			}
			gone = append(gone, l)
		}
		fresh, err := n.build(overlay(had, run.chunks))
		if err != nil {
			return nil, err
		}
		if err := sameSpan(m.leaves[run.from:run.to], fresh); err != nil {
			return nil, err
		}
		leaves, made, upTo = append(leaves, fresh...), append(made, fresh...), run.to
	}
	n.leaves = append(leaves, m.leaves[upTo:]...)
	n.building, n.scratch = false, nil
	n.retotal(gone, made)
	return &n, n.conclude()
}

// run is a sequence of adjacent leaves and the changed chunks in them.
type run struct {
	from, to int
	chunks   []*Chunk
}

// runs groups changed chunks by the leaves that they are in. A leaf that has become small is rebuilt together with its neighbour.
func (m *ChunkMap) runs(changed []*Chunk) (out []run) {
	type place struct {
		c        *Chunk
		from, to int
	}
	places := make([]place, len(changed))
	for i, c := range changed {
		from, _, ok := m.find(appendKey(nil, c.minV))
		if !ok {
			from = len(m.leaves) - 1
		}
		to := sort.Search(len(m.leaves), func(j int) bool { return bytes.Compare(appendKey(nil, c.maxV), m.leaves[j].last()) <= 0 })
		to = min(to+1, len(m.leaves))
		if m.leaves[from].len() < leafSize/4 && from > 0 {
			from--
		}
		places[i] = place{c, from, max(to, from+1)}
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.from, b.from) })
	for _, p := range places {
		if k := len(out) - 1; k >= 0 && p.from < out[k].to {
			out[k].to, out[k].chunks = max(out[k].to, p.to), append(out[k].chunks, p.c)
			continue
		}
		out = append(out, run{p.from, p.to, []*Chunk{p.c}})
	}
	return out
}

// sameSpan returns an error if leaves do not begin and end like those that they replace.
func sameSpan(old, fresh []*leaf) error {
	if len(fresh) == 0 || CompareKeys(value.Values(old[0].min), value.Values(fresh[0].min)) != 0 {
		return errGap
	}
	if !bytes.Equal(old[len(old)-1].last(), fresh[len(fresh)-1].last()) {
		return errGap
	}
	return nil
}

// overlay merges changed chunks into a sorted, disjoint list. If two overlap, the newer one wins and the older one
// is reduced to what the newer one does not cover: the config server writes the pieces of a split, merge or move
// one after the other, newest first, so that a reader in between, or after a crash in between, sees a complete
// table.
func overlay(base, changed []*Chunk) []*Chunk {
	fresh := append([]*Chunk(nil), changed...)
	sort.SliceStable(fresh, func(i, j int) bool { return fresh[i].Version.Combined() < fresh[j].Version.Combined() })
	disjoint := append([]*Chunk(nil), fresh...)
	sort.Slice(disjoint, func(i, j int) bool { return CompareKeys(disjoint[i].maxV, disjoint[j].maxV) < 0 })
	for i := 1; i < len(disjoint); i++ {
		if CompareKeys(disjoint[i-1].maxV, disjoint[i].minV) > 0 {
			for _, c := range fresh {
				base = mergeChunks(base, []*Chunk{c})
			}
			return base
		}
	}
	return mergeChunks(base, disjoint)
}

// mergeChunks merges two sorted lists; of an old chunk that a new one overlaps, only the parts outside the new one remain.
func mergeChunks(old, fresh []*Chunk) []*Chunk {
	out := make([]*Chunk, 0, len(old)+len(fresh))
	i := 0
	var rest *Chunk // what remains of old[i-1] after the last new chunk
	for _, f := range fresh {
		for {
			c := rest
			if c == nil {
				if i == len(old) {
					break
				}
				c = old[i]
			}
			if CompareKeys(c.minV, f.maxV) >= 0 {
				break
			}
			if rest == nil {
				i++
			}
			rest = nil
			if CompareKeys(c.maxV, f.minV) <= 0 {
				out = append(out, c)
				continue
			}
			if CompareKeys(c.minV, f.minV) < 0 {
				out = append(out, c.cut(c.Min, f.Min))
			}
			if CompareKeys(c.maxV, f.maxV) > 0 {
				rest = c.cut(f.Max, c.Max)
			}
		}
		out = append(out, f)
	}
	if rest != nil {
		out = append(out, rest)
	}
	return append(out, old[i:]...)
}

// cut returns the part of a chunk between two bounds.
func (c *Chunk) cut(min, max []byte) *Chunk {
	p := *c
	p.Min, p.Max, p.minV, p.maxV = min, max, nil, nil
	p.decode()
	return &p
}

func sortedNames[T any](set map[string]T) []string {
	return slices.Sorted(maps.Keys(set))
}

func allOfType(vs []value.Value, t value.Type) bool {
	for _, v := range vs {
		if v.T != t {
			return false
		}
	}
	return len(vs) > 0
}

// Version returns the collection version: the highest of any chunk.
func (m *ChunkMap) Version() ChunkVersion { return m.version }

// ShardVersion returns the highest version on one shard, or ⟨0,0⟩ of this generation if the shard owns nothing.
func (m *ChunkMap) ShardVersion(shard string) ChunkVersion {
	if v, ok := m.shards[shard]; ok {
		return v
	}
	return m.version.WithCombined(0)
}

// Arrived returns when a shard received the newest of its ranges: a reader at an earlier time does not find all
// of them there.
func (m *ChunkMap) Arrived(shard string) uint64 { return m.arrived[shard] }

// Shards lists the shards that own chunks, sorted.
func (m *ChunkMap) Shards() []string { return m.ids }

// Newest reports whether the table has the owners of now, not those of a time in the past.
func (m *ChunkMap) Newest() bool { return m.at == 0 }

// Len returns the number of chunks.
func (m *ChunkMap) Len() int { return m.count }

// Chunk returns the i-th chunk in key order. To iterate over many chunks, use All.
func (m *ChunkMap) Chunk(i int) *Chunk {
	for _, l := range m.leaves {
		if n := l.len(); i >= n {
			i -= n
			continue
		}
		return m.chunk(l, i)
	}
	panic("cluster: no such chunk")
}

// All returns the chunks in key order.
func (m *ChunkMap) All() iter.Seq[*Chunk] {
	return func(yield func(*Chunk) bool) {
		for _, l := range m.leaves {
			for i := range l.len() {
				if !yield(m.chunk(l, i)) {
					return
				}
			}
		}
	}
}

// Place is a chunk's position in a table. Its methods do not have to make a Chunk.
type Place struct {
	m *ChunkMap
	l *leaf
	i int
}

// Shard returns the chunk's owner.
func (p Place) Shard() string { return p.m.names[p.l.shard[p.i]] }

// Jumbo reports whether the chunk is marked as too large to be moved.
func (p Place) Jumbo() bool { return p.l.jumbo != nil && p.l.jumbo[p.i] }

// Since returns the time at which the chunk came to its owner, 0 if unknown.
func (p Place) Since() uint64 { return p.l.since[p.i] }

// Chunk returns the chunk itself.
func (p Place) Chunk() *Chunk { return p.m.chunk(p.l, p.i) }

// Places returns the places of all chunks in key order.
func (m *ChunkMap) Places() iter.Seq[Place] {
	return func(yield func(Place) bool) {
		for _, l := range m.leaves {
			for i := range l.len() {
				if !yield(Place{m, l, i}) {
					return
				}
			}
		}
	}
}

// Find returns the chunk that owns a full shard key. The last chunk also owns a key of MaxKey in all fields.
func (m *ChunkMap) Find(key []value.Value) *Chunk { return m.chunk(m.place(key)) }

// ShardOf returns the shard that owns a full shard key now.
func (m *ChunkMap) ShardOf(key []value.Value) string {
	l, i := m.place(key)
	return m.names[l.shard[i]]
}

// FindBelow returns the chunk that owns the keys just below a bound.
func (m *ChunkMap) FindBelow(bound []value.Value) *Chunk {
	key := appendKey(nil, bound)
	at := sort.Search(len(m.leaves), func(j int) bool { return bytes.Compare(key, m.leaves[j].last()) <= 0 })
	if at == len(m.leaves) {
		at--
	}
	l := m.leaves[at]
	i := sort.Search(l.len()-1, func(i int) bool { return bytes.Compare(key, l.key(i)) <= 0 })
	return m.chunk(l, i)
}

// OwnerAt returns the shard that owns a full shard key, at the table's time.
func (m *ChunkMap) OwnerAt(key []value.Value) (string, error) {
	l, i := m.place(key)
	if m.at == 0 || m.at >= l.since[i] {
		return m.names[l.shard[i]], nil
	}
	return m.OwnerOf(m.chunk(l, i))
}

// KeyRange is an interval of shard keys, both ends given as full keys.
type KeyRange struct {
	Low, High []value.Value
	HighIncl  bool
}

// point reports whether the range is one key that was given for both ends.
func (r *KeyRange) point() bool {
	return r.HighIncl && len(r.Low) > 0 && len(r.Low) == len(r.High) && &r.Low[0] == &r.High[0]
}

// ShardsFor adds to set the shards that own keys in the range.
func (m *ChunkMap) ShardsFor(r KeyRange, set map[string]struct{}) error {
	if r.point() {
		l, i := m.place(r.Low)
		owner, err := m.owner(l, i)
		if err == nil {
			set[owner] = struct{}{}
		}
		return err
	}
	high := appendKey(nil, r.High)
	at, i, ok := m.find(appendKey(nil, r.Low))
	if !ok {
		at = len(m.leaves) - 1
		i = m.leaves[at].len() - 1
	}
	for ; at < len(m.leaves); at, i = at+1, 0 {
		l := m.leaves[at]
		if i == 0 && m.at == 0 && bytes.Compare(l.last(), high) < 0 {
			// The whole leaf is in the range.
			for _, s := range l.stats {
				if s.chunks > 0 {
					set[m.names[s.shard]] = struct{}{}
				}
			}
			if len(set) == len(m.ids) {
				return nil
			}
			continue
		}
		for ; i < l.len(); i++ {
			owner, err := m.owner(l, i)
			if err != nil {
				return err
			}
			set[owner] = struct{}{}
			if len(set) == len(m.ids) && m.at == 0 {
				return nil // in a table of the past, the owner of a later chunk may be unknown
			}
			if c := bytes.Compare(l.key(i), high); c > 0 || c == 0 && !r.HighIncl {
				return nil // the next chunk begins after the range
			}
		}
	}
	return nil
}

func (m *ChunkMap) owner(l *leaf, i int) (string, error) {
	if m.at == 0 || m.at >= l.since[i] {
		return m.names[l.shard[i]], nil
	}
	return m.OwnerOf(m.chunk(l, i))
}

// Overlapping returns the chunks that intersect [low, high).
func (m *ChunkMap) Overlapping(low, high []value.Value) []*Chunk {
	var out []*Chunk
	end := appendKey(nil, high)
	at, i, ok := m.find(appendKey(nil, low))
	for ; ok && at < len(m.leaves); at, i = at+1, 0 {
		for l := m.leaves[at]; i < l.len(); i++ {
			out = append(out, m.chunk(l, i))
			if bytes.Compare(l.key(i), end) >= 0 {
				return out
			}
		}
	}
	return out
}

// ChunksOf returns the chunks of one shard in key order.
func (m *ChunkMap) ChunksOf(shard string) []*Chunk {
	var out []*Chunk
	for c := range m.chunksOf(shard) {
		out = append(out, c)
	}
	return out
}

// FirstOf returns the first chunk of a shard that is not between two bounds; nil if there is none.
func (m *ChunkMap) FirstOf(shard string, low, high []value.Value) *Chunk {
	for c := range m.chunksOf(shard) {
		if min, max := c.Bounds(); CompareKeys(max, low) <= 0 || CompareKeys(high, min) <= 0 {
			return c
		}
	}
	return nil
}

// CountOf returns the number of a shard's chunks.
func (m *ChunkMap) CountOf(shard string) int64 {
	if at, ok := m.byName[shard]; ok {
		return int64(m.sums[at].chunks)
	}
	return 0
}

func (m *ChunkMap) chunksOf(shard string) iter.Seq[*Chunk] {
	return func(yield func(*Chunk) bool) {
		at, ok := m.byName[shard]
		if !ok {
			return
		}
		for _, l := range m.leaves {
			for i, s := range l.shard {
				if s == at && !yield(m.chunk(l, i)) {
					return
				}
			}
		}
	}
}

// Owns reports whether shard owns the key: the shard's orphan filter. Only a table of the past returns an error.
func (m *ChunkMap) Owns(shard string, key []value.Value) (bool, error) {
	owner, err := m.OwnerAt(key)
	return err == nil && owner == shard, err
}

// maxBounds limits the total size of both bounds of a chunk, or of a range to be moved. The documents of chunks, migrations, range deletions and
// the changelog contain both, and a document has at most 16 MB.
const maxBounds = 16<<20 - 64<<10

// CheckBounds returns an error if both bounds together do not fit into a document.
func CheckBounds(min, max []byte) error {
	if n := len(min) + len(max); n > maxBounds {
		return mongoerr.Newf(mongoerr.BSONObjectTooLarge, "the bounds of a chunk are too large to be stored: they have %d bytes together, and may have %d", n, maxBounds)
	}
	return nil
}
