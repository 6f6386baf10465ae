package router

import (
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A statement that concerns several shards goes to each with the version that the router knows for it, and a shard
// executes it under that version, or replies with a stale error and does nothing. If some have executed it and
// others are stale, it is sent again by the new placement, without the documents that are done: those of the
// ranges that the successful shards owned when they executed it. A statement thus processes each document once,
// even if chunks move meanwhile. (The real router sends such statements to all shards, which execute their part
// whatever the version; a document that moves meanwhile may be processed twice or not at all.)

// part is the part of a statement that a shard has executed: for the ranges that it owned according to one version of the routing table.
type part struct {
	table *cluster.ChunkMap
	shard string
	wrote bool // it matched documents
}

// writtenRanges is the field that lists the ranges of a shard in which a statement has already been executed.
const writtenRanges = "alreadyWrittenRanges"

// isWide reports whether a statement is sent alone: it concerns several shards, or did when it was first sent, or
// its shard still has to be found.
func (b *writeBatch) isWide(a aim, i int) bool {
	return a.search || len(a.shards) != 1 || len(b.done[i]) > 0
}

// replaced reports whether statement i has written to another collection of the name: one that was resharded since, or moved, has its documents elsewhere,
// and the ranges that are done say nothing about them. To execute the statement on them would write to some twice.
func (b *writeBatch) replaced(info *cluster.CollectionInfo, i int) bool {
	return slices.ContainsFunc(b.done[i], func(p part) bool { return p.wrote && (!info.Sharded() || p.table.UUID != info.Map.UUID) })
}

// errReplaced is the error of such a statement.
func errReplaced(ns string) error {
	return mongoerr.Newf(mongoerr.QueryPlanKilled, "%s was resharded, moved or dropped while the statement was executed: it has been executed in part", ns)
}

// undone returns the shards that still have to execute a part of statement i, and for each the field that lists
// the ranges that are done.
func (b *writeBatch) undone(info *cluster.CollectionInfo, i int, shards []string) (left []string, written map[string][]byte) {
	var parts []part
	for _, p := range b.done[i] {
		if info.Sharded() && p.table.UUID == info.Map.UUID { // what was done on a collection that was dropped since does not count
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
