package router

import (
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// A statement that concerns several shards goes to each with the version that the router knows for it, and a shard
// executes it under that version, or replies with a stale error and does nothing. If some have executed it and
// others are stale, it is sent again by the new placement, without the documents that are done: those of the
// ranges that the successful shards owned when they executed it. A statement thus processes each document once,
// even if chunks move or the collection is resharded meanwhile.
//
// Invariant: the parts of a statement that are done, and those for which it is sent to shards, cover the key space without overlap.
// A shard compares the version under its lock, and holds that until it has committed, so it has executed
// the statement completely for all that it owned by that version.
//
// Hazard: only the ranges identify what is done. A document that the statement has changed may match its filter again,
// and {$inc: {n: 1}} executed twice looks like any other update.
//
// Rejected: sending such a statement to all shards, without regard to versions, as the real router does. A document that moves
// meanwhile is processed twice or not at all. Rejected, too: starting over after a stale answer, which executes finished parts
// twice; waiting until no shard is stale before any executes, which takes a round trip more and locks that outlast it; and a list of
// the _ids that are done, which grows with the documents where ranges grow with the chunks.

// part is the part of a statement that a shard has executed: for the ranges that it owned according to one version of the routing table.
type part struct {
	table *cluster.ChunkMap
	shard string
}

// writtenRanges is the field that lists the ranges of a shard in which a statement has already been executed.
const writtenRanges = "alreadyWrittenRanges"

// isWide reports whether a statement is sent alone: it concerns several shards, or did when it was first sent, or
// its shard still has to be found.
func (b *writeBatch) isWide(a aim, i int) bool {
	return a.search || len(a.shards) != 1 || len(b.done[i]) > 0
}

// undone returns the shards that still have to execute a part of statement i, and for each the field that lists
// the ranges that are done.
func (b *writeBatch) undone(info *cluster.CollectionInfo, i int, shards []string) (left []string, written map[string][]byte) {
	var parts []part
	var before []value.Value
	for _, p := range b.done[i] {
		if info.Sharded() && p.table.UUID == info.Map.UUID {
			parts = append(parts, p)
		} else {
			before = append(before, p.ranges()...)
		}
	}
	if len(parts)+len(before) == 0 {
		return shards, nil
	}
	written = make(map[string][]byte, len(shards))
	for _, s := range shards {
		ranges := slices.Clone(before)
		if len(parts) > 0 {
			done, all := doneRanges(info.Map, s, parts)
			if all {
				continue
			}
			ranges = append(ranges, done...)
		}
		left = append(left, s)
		if len(ranges) > 0 {
			written[s] = value.Append(nil, writtenRanges, value.NewArray(value.ArrayOf(ranges...)))
		}
	}
	return left, written
}

// ranges returns the ranges of a part that was executed before a resharding, with the shard key of that time, adjacent ones merged. Those
// documents can still be identified by their values of that key, on whatever shard they are now: a statement that changes many documents
// does not change the values of the shard key under which it is executed. (The documents of a collection that was dropped and created
// again in the middle of a statement are filtered too: the statement then counts as executed on those ranges before the drop.)
func (p part) ranges() (out []value.Value) {
	key := p.table.Key
	var from, to []value.Value
	flush := func() {
		if from != nil {
			out = append(out, value.NewDocument(value.Doc(value.F("key", value.NewDocument(key.Doc())),
				value.F("min", value.NewDocument(key.KeyDoc(from))), value.F("max", value.NewDocument(key.KeyDoc(to))))))
		}
	}
	for _, c := range p.table.ChunksOf(p.shard) {
		low, high := c.Bounds()
		if from == nil || cluster.CompareKeys(to, low) != 0 {
			flush()
			from = low
		}
		to = high
	}
	flush()
	return out
}

// doneRanges returns the part of a shard's ranges that the parts cover, with adjacent ones merged; all means that
// nothing remains.
func doneRanges(m *cluster.ChunkMap, shard string, parts []part) (ranges []value.Value, all bool) {
	all = true
	var from, to []value.Value // the range being assembled
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
