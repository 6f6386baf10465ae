package cluster

import (
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
	OnSince    uint64  // onCurrentShardSince, 0 where unknown
	Past       []Owner // previous owners, newest first
	minV, maxV []value.Value
}

// Bounds returns the decoded values of both ends, borrowed from Min and Max.
func (c *Chunk) Bounds() (min, max []value.Value) { return c.minV, c.maxV }

func (c *Chunk) decode() {
	if c.minV == nil {
		c.minV, c.maxV = value.Values(c.Min), value.Values(c.Max)
	}
}

// Contains reports whether a key (the values of all shard key fields) lies in the chunk.
func (c *Chunk) Contains(key []value.Value) bool {
	return InRange(key, c.minV, c.maxV)
}

// InRange reports whether a shard key lies in a range: min is inclusive and max exclusive, except for a range that
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

// ChunkMap is the routing table of one sharded collection: all chunks sorted by their upper bound. It is immutable.
type ChunkMap struct {
	UUID    [16]byte
	Key     *ShardKeyPattern
	Unique  bool
	version ChunkVersion
	chunks  []*Chunk
	shards  map[string]ChunkVersion // highest version per shard that owns a chunk
	ids     []string                // the keys of shards, sorted; of a table of the past, the owners of then
	arrived map[string]uint64       // per shard, when it got its newest range
	newest  uint64                  // the highest of arrived
	everIDs []string                // the shards that own a chunk or did, as far as the histories tell
	at      uint64                  // the time that a table of the past is of, else 0
}

// NewChunkMap builds the table from all chunks of a collection, in any order. generation gives epoch and timestamp.
func NewChunkMap(uuid [16]byte, key *ShardKeyPattern, unique bool, generation ChunkVersion, chunks []*Chunk) (*ChunkMap, error) {
	m := &ChunkMap{UUID: uuid, Key: key, Unique: unique, version: generation.WithCombined(0)}
	for _, c := range chunks {
		c.decode()
	}
	return m.finish(overlay(nil, chunks))
}

// Update returns the table with changed chunks put in place of whatever they overlap: what an incremental refresh does
// with the chunks whose lastmod is at or past the version it holds.
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
	n := &ChunkMap{UUID: m.UUID, Key: m.Key, Unique: m.Unique, version: m.version.WithCombined(0)}
	return n.finish(overlay(m.chunks, changed))
}

// overlay merges changed chunks into a sorted, disjoint list. If two overlap, the newer one wins and the older one
// is cut down to what the newer leaves: the config server writes the pieces of a split, merge or move one after
// the other, newest first, so that a reader in between, or after a crash in between, sees a complete table.
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

// mergeChunks merges two sorted lists; of an old chunk that a new one overlaps only the parts outside it stay.
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

// finish checks that the chunks cover the key space and works out the versions.
func (m *ChunkMap) finish(chunks []*Chunk) (*ChunkMap, error) {
	if len(chunks) == 0 {
		return nil, mongoerr.New(mongoerr.ConflictingOperationInProgress, "the collection has no chunks")
	}
	if !allOfType(chunks[0].minV, value.MinKey) || !allOfType(chunks[len(chunks)-1].maxV, value.MaxKey) {
		return nil, mongoerr.New(mongoerr.ConflictingOperationInProgress, "the chunks do not reach from MinKey to MaxKey")
	}
	m.chunks = chunks
	m.shards, m.arrived = make(map[string]ChunkVersion, 4), make(map[string]uint64, 4)
	ever := make(map[string]struct{}, 4)
	for i, c := range chunks {
		if i > 0 && CompareKeys(chunks[i-1].maxV, c.minV) != 0 {
			return nil, mongoerr.New(mongoerr.ConflictingOperationInProgress, "there is a gap or an overlap between two chunks")
		}
		if have, ok := m.shards[c.Shard]; !ok || have.Combined() < c.Version.Combined() {
			m.shards[c.Shard] = c.Version
		}
		if c.Version.Combined() > m.version.Combined() {
			m.version = c.Version
		}
		m.arrived[c.Shard] = max(m.arrived[c.Shard], c.OnSince)
		m.newest = max(m.newest, c.OnSince)
		for _, o := range c.Past {
			ever[o.Shard] = struct{}{}
		}
	}
	m.ids = sortedNames(m.shards)
	for _, id := range m.ids {
		ever[id] = struct{}{}
	}
	m.everIDs = sortedNames(ever)
	return m, nil
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

// Arrived returns when a shard got the newest of its ranges: a reader at a time before does not find all of them
// there.
func (m *ChunkMap) Arrived(shard string) uint64 { return m.arrived[shard] }

// Shards lists the shards that own chunks, sorted.
func (m *ChunkMap) Shards() []string { return m.ids }

// Len returns the number of chunks; Chunk the i-th in key order.
func (m *ChunkMap) Len() int           { return len(m.chunks) }
func (m *ChunkMap) Chunk(i int) *Chunk { return m.chunks[i] }

// All gives the chunks in key order.
func (m *ChunkMap) All() iter.Seq[*Chunk] {
	return func(yield func(*Chunk) bool) {
		for _, c := range m.chunks {
			if !yield(c) {
				return
			}
		}
	}
}

// index finds the first chunk whose upper bound lies above key.
func (m *ChunkMap) index(key []value.Value) int {
	lo, hi := 0, len(m.chunks)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if CompareKeys(key, m.chunks[mid].maxV) < 0 {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// Find returns the chunk that owns a full shard key. The last chunk also owns a key of MaxKey in all fields.
func (m *ChunkMap) Find(key []value.Value) *Chunk {
	i := m.index(key)
	if i == len(m.chunks) {
		i--
	}
	return m.chunks[i]
}

// FindBelow gives the chunk that owns the keys just below a bound.
func (m *ChunkMap) FindBelow(bound []value.Value) *Chunk {
	i := m.index(bound)
	if i == len(m.chunks) {
		return m.chunks[i-1]
	}
	if i > 0 && CompareKeys(m.chunks[i].minV, bound) >= 0 {
		i--
	}
	return m.chunks[i]
}

// KeyRange is an interval of shard keys, both ends given as full keys.
type KeyRange struct {
	Low, High []value.Value
	HighIncl  bool
}

// ShardsFor adds to set the shards that own keys in the range.
func (m *ChunkMap) ShardsFor(r KeyRange, set map[string]struct{}) error {
	for i := min(m.index(r.Low), len(m.chunks)-1); i < len(m.chunks); i++ {
		c := m.chunks[i]
		if cmp := CompareKeys(c.minV, r.High); cmp > 0 || cmp == 0 && !r.HighIncl {
			return nil
		}
		owner, err := m.OwnerOf(c)
		if err != nil {
			return err
		}
		set[owner] = struct{}{}
		if len(set) == len(m.ids) && m.at == 0 {
			return nil // in the past, a later chunk may be one whose owner is unknown
		}
	}
	return nil
}

// Overlapping lists the chunks that intersect [low, high).
func (m *ChunkMap) Overlapping(low, high []value.Value) []*Chunk {
	var out []*Chunk
	for i := m.index(low); i < len(m.chunks) && CompareKeys(m.chunks[i].minV, high) < 0; i++ {
		out = append(out, m.chunks[i])
	}
	return out
}

// ChunksOf lists the chunks of one shard in key order.
func (m *ChunkMap) ChunksOf(shard string) []*Chunk {
	var out []*Chunk
	for _, c := range m.chunks {
		if c.Shard == shard {
			out = append(out, c)
		}
	}
	return out
}

// Owns reports whether shard owns the key: the shard's orphan filter. It can only fail for a table of the past.
func (m *ChunkMap) Owns(shard string, key []value.Value) (bool, error) {
	owner, err := m.OwnerOf(m.Find(key))
	return err == nil && owner == shard, err
}
