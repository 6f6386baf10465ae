package cluster

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Owner is an entry of a chunk's history: the shard that owns the chunk from a cluster time until that of the
// entry before it. Entries are ordered newest first; the first is the chunk's current shard.
type Owner struct {
	ValidAfter uint64
	Shard      string
}

// ShardAt returns which shard owned the chunk at a cluster time, 0 for now; false if its history does not reach so
// far back.
func (c *Chunk) ShardAt(at uint64) (string, bool) {
	if at == 0 || at >= c.OnSince {
		return c.Shard, true
	}
	for _, o := range c.Past {
		if at >= o.ValidAfter {
			return o.Shard, true
		}
	}
	return "", false
}

// History lists the chunk's owners, newest first.
func (c *Chunk) History() []Owner {
	return append([]Owner{{c.OnSince, c.Shard}}, c.Past...)
}

// knownSince returns the earliest time whose owner is in the chunk's history.
func (c *Chunk) knownSince() uint64 {
	if n := len(c.Past); n > 0 {
		return c.Past[n-1].ValidAfter
	}
	return c.OnSince
}

// TrimHistory removes the owners that no reader can need: those that had been replaced by the time oldest. The
// owner at that time is kept.
func TrimHistory(h []Owner, oldest uint64) []Owner {
	for i := range h {
		if h[i].ValidAfter <= oldest {
			return h[:i+1]
		}
	}
	return h
}

// MergeHistories returns the history of a chunk that replaces several with the same owner: it goes back to the
// time since which all of them have had the same owners.
func MergeHistories(of []*Chunk) []Owner {
	out := of[0].History()
	for _, c := range of[1:] {
		out = commonHistory(out, c.History())
	}
	return out
}

func commonHistory(a, b []Owner) []Owner {
	var out []Owner
	for len(a) > 0 && len(b) > 0 && a[0].Shard == b[0].Shard {
		o := Owner{max(a[0].ValidAfter, b[0].ValidAfter), a[0].Shard}
		out = append(out, o)
		if a[0].ValidAfter != b[0].ValidAfter {
			break // before this time the owners differ
		}
		a, b = a[1:], b[1:]
	}
	return out
}

// HistoryValue returns a history as config.chunks stores it.
func HistoryValue(h []Owner) value.Value {
	out := make([]value.Value, len(h))
	for i, o := range h {
		out[i] = value.NewDocument(value.Doc(value.F("validAfter", value.NewTimestampU64(o.ValidAfter)), value.F("shard", value.NewString(o.Shard))))
	}
	return value.NewArray(value.ArrayOf(out...))
}

// parseHistory reads a chunk's history. A history that does not begin with the chunk's shard is ignored.
func (c *Chunk) parseHistory(v value.Value) {
	if v.T != value.Array {
		return
	}
	for i, e := range value.Values(v.Doc()) {
		o := Owner{value.Lookup(e.Doc(), "validAfter").TimestampU64(), value.Lookup(e.Doc(), "shard").Str()}
		switch {
		case i == 0 && o.Shard != c.Shard:
			return
		case i == 0:
			c.OnSince = o.ValidAfter
		default:
			c.Past = append(c.Past, o)
		}
	}
}

// At returns the table at a cluster time: ShardsFor, Shards and OwnerOf use the owners of that time, everything
// else the current ones. 0 means now.
func (m *ChunkMap) At(at uint64) *ChunkMap {
	if at == 0 || at >= m.newest {
		return m
	}
	past := *m
	past.at, past.ids = at, nil
	set := make(map[string]struct{}, len(m.names))
	for _, l := range m.leaves {
		if at >= l.newest {
			for _, s := range l.stats {
				if s.chunks > 0 {
					set[m.names[s.shard]] = struct{}{}
				}
			}
			continue
		}
		for i := range l.len() {
			if s, ok := m.chunk(l, i).ShardAt(at); ok {
				set[s] = struct{}{}
			}
		}
	}
	past.ids = sortedNames(set)
	return &past
}

// OwnerOf returns the shard that owns a chunk of the table, or StaleChunkHistory if that is no longer known.
func (m *ChunkMap) OwnerOf(c *Chunk) (string, error) {
	s, ok := c.ShardAt(m.at)
	if !ok {
		return "", mongoerr.Newf(mongoerr.StaleChunkHistory, "Cant find shardId the chunk belonged to at cluster time %s: its history begins at %s",
			value.Show(value.NewTimestampU64(m.at)), value.Show(value.NewTimestampU64(c.knownSince())))
	}
	return s, nil
}
