package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// A statement that concerns several shards goes to each with the version that the router knows of it, and a shard carries
// it out under that version or answers as stale and does nothing. Where some have done it and others are stale, the rest
// goes by the new placement, without the documents that are done: those of the ranges that the shards which did their part
// owned when they did it. So a statement meets each document once, whatever moves meanwhile. (The real router sends such
// statements to all shards, which do their part whatever the version; what moves meanwhile may be met twice or not at all.)

// part is what a shard has done of a statement: its share of a collection as a routing table had it.
type part struct {
	table *cluster.ChunkMap
	shard string
}

// writtenRanges is the field that tells a shard which of its ranges a statement has written already.
const writtenRanges = "alreadyWrittenRanges"

// isWide says that a statement goes out alone: it concerns several shards, or did when it was first sent, or its shard is
// still to be found.
func (b *writeBatch) isWide(a aim, i int) bool {
	return a.search || len(a.shards) != 1 || len(b.done[i]) > 0
}

// undone returns the shards that have something of statement i still to do, and for each the field that names what
// of its ranges is done.
func (b *writeBatch) undone(info *cluster.CollectionInfo, i int, shards []string) (left []string, written map[string][]byte) {
	var parts []part
	for _, p := range b.done[i] {
		if info.Sharded() && p.table.UUID == info.Map.UUID { // what was done on a collection dropped since is no part of this one
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return shards, nil
	}
	written = make(map[string][]byte, len(shards))
	for _, s := range shards {
		ranges, all := doneRanges(info.Map, s, parts)
		if all {
			continue
		}
		left = append(left, s)
		if len(ranges) > 0 {
			written[s] = value.Append(nil, writtenRanges, value.NewArray(value.ArrayOf(ranges...)))
		}
	}
	return left, written
}

// doneRanges returns what the parts cover of a shard's ranges, neighbours as one; all says that nothing of them is
// left.
func doneRanges(m *cluster.ChunkMap, shard string, parts []part) (ranges []value.Value, all bool) {
	all = true
	var from, to []value.Value // the range that is being put together
	flush := func() {
		if from != nil {
			ranges = append(ranges, value.NewDocument(value.Doc(
				value.F("min", value.NewDocument(m.Key.KeyDoc(from))), value.F("max", value.NewDocument(m.Key.KeyDoc(to))))))
			from, to = nil, nil
		}
	}
	for _, c := range m.ChunksOf(shard) {
		at, max := c.Bounds()
		for cluster.CompareKeys(at, max) < 0 {
			end, done := max, false
			for _, p := range parts {
				was := p.table.Find(at)
				done = done || was.Shard == p.shard
				if _, high := was.Bounds(); cluster.CompareKeys(high, end) < 0 {
					end = high
				}
			}
			all = all && done
			if from != nil && (!done || cluster.CompareKeys(to, at) != 0) {
				flush()
			}
			if done && from == nil {
				from = at
			}
			if done {
				to = end
			}
			at = end
		}
	}
	flush()
	return ranges, all
}
