package cluster

import (
	"bytes"
	"slices"
)

// Changes returns the differences between a table and an earlier one of the same collection: the chunks that are new or changed, and
// those of the earlier table that are no longer in this one. Leaves that both share are skipped, so the cost depends on the number of
// changes. Jumbo flags are not compared, since only the balancer uses them.
func (m *ChunkMap) Changes(from *ChunkMap) (now, gone []*Chunk) {
	had := make(map[*leaf]bool, len(from.leaves))
	for _, l := range from.leaves {
		had[l] = true
	}
	before := make(map[string]*Chunk)
	var fresh []*leaf
	for _, l := range m.leaves {
		if had[l] {
			delete(had, l)
			continue
		}
		fresh = append(fresh, l)
	}
	for _, l := range from.leaves {
		if !had[l] {
			continue
		}
		for i := range l.len() {
			c := from.chunk(l, i)
			before[string(c.Min)] = c
			gone = append(gone, c)
		}
	}
	same := make(map[*Chunk]bool)
	for _, l := range fresh {
		for i := range l.len() {
			c := m.chunk(l, i)
			if old := before[string(c.Min)]; old != nil && c.equal(old) {
				same[old] = true
				continue
			}
			now = append(now, c)
		}
	}
	return now, slices.DeleteFunc(gone, func(c *Chunk) bool { return same[c] })
}

// equal reports whether two chunks are the same but for their jumbo flags.
func (c *Chunk) equal(d *Chunk) bool {
	return c.Version == d.Version && c.Shard == d.Shard && c.OnSince == d.OnSince && bytes.Equal(c.Min, d.Min) && bytes.Equal(c.Max, d.Max) &&
		slices.Equal(c.Past, d.Past)
}
