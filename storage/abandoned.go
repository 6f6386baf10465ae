package storage

import (
	"bytes"
	"context"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// discardStaged deletes everything that a unit has staged, chunk by chunk, on all members of the set. With logged it keeps
// the oplog pieces, which are entries of a prepared transaction.
func (e *Engine) discardStaged(gen uint64, id stagedID, logged bool) error {
	end := id.key(stagedEnd, 0)
	if logged {
		end = id.key(stagedPiece, 0)
	}
	commit := func(f func(b *pebble.Batch) error) error {
		u := e.NewUnitOfWork(nil)
		u.gen = gen
		u.stageRaw(f)
		_, err := e.queueUnit(context.Background(), u, false)
		return err
	}
	for last := false; !last; {
		c, err := e.nextChunk(id, id.key(stagedChunk, 0))
		var next *chunkKeys
		if err == nil && c != nil {
			next, err = e.nextChunk(id, append(bytes.Clone(c.record), 0))
		}
		if err != nil {
			return err
		}
		if c != nil && c.copied.table != 0 {
			if err := e.undoCopy(c, commit); err != nil {
				return err
			}
		}
		last = next == nil
		err = commit(func(b *pebble.Batch) error {
			if last { // the unit's other keys go with the last chunk: without a chunk record they could not be found again
				_ = b.DeleteRange(id.key(stagedSeen, 0), end, nil)
			}
			return c.undo(b)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// undo stages the deletion of the versions that came with the chunk and of the chunk's record. A nil chunk is a
// no-op.
func (c *chunkKeys) undo(b *pebble.Batch) error {
	if c == nil {
		return nil
	}
	_ = b.Delete(c.record, nil)
	return eachKey(c.keys, func(key []byte) error {
		return b.Delete(appendVersion(bytes.Clone(key), uint64(c.at)), nil)
	})
}

// stagingUnits tracks the units of this member that have sent chunks and may still commit. Anything else that is
// staged and uncommitted is an orphan; dropAbandoned looks for orphans when there may be some.
type stagingUnits struct {
	bytes struct{ limit, chunk atomic.Int64 } // size from which a unit is staged, and the size of its chunks
	pace  flushPace

	sync.Mutex
	last  uint64 // number of the newest unit
	live  map[stagedID]struct{}
	sweep bool // there may be orphaned chunks
}

func (g *stagingUnits) limit() int { return int(g.bytes.limit.Load()) }
func (g *stagingUnits) chunk() int { return int(g.bytes.chunk.Load()) }

// SetLargeUnits makes units of work larger than the given size send their versions ahead of their commit.
func (e *Engine) SetLargeUnits(bytes int) { e.replica.staging.size(bytes, bytes/3) }

func (g *stagingUnits) size(limit, chunk int) {
	g.bytes.limit.Store(int64(limit))
	g.bytes.chunk.Store(int64(chunk))
}

// begin allocates an id for a unit.
func (g *stagingUnits) begin(term uint64) stagedID {
	g.Lock()
	defer g.Unlock()
	if g.live == nil {
		g.live = map[stagedID]struct{}{}
	}
	g.last++
	id := stagedID{term, g.last}
	g.live[id] = struct{}{}
	return id
}

// end records that a unit has committed, or no longer exists; clean is false if its chunks could not be deleted.
func (g *stagingUnits) end(id stagedID, clean bool) {
	g.Lock()
	defer g.Unlock()
	delete(g.live, id)
	g.sweep = g.sweep || !clean
}

// recheck makes dropAbandoned scan everything that is staged.
func (g *stagingUnits) recheck() {
	g.Lock()
	g.sweep = true
	g.Unlock()
}

// resume restores the state from a store that was opened: the largest unit number in use, and whether orphans are
// possible.
func (g *stagingUnits) resume(last uint64) {
	g.Lock()
	defer g.Unlock()
	g.last, g.sweep = max(g.last, last), true
}

// mayBeAbandoned returns a predicate that reports whether an uncommitted unit found from now on is an orphan: its
// term is another one, or it had ended before this call. It returns nil if there is nothing to look for.
func (g *stagingUnits) mayBeAbandoned(term uint64) func(stagedID) bool {
	g.Lock()
	defer g.Unlock()
	if !g.sweep {
		return nil
	}
	g.sweep = false
	live, last := maps.Clone(g.live), g.last
	return func(id stagedID) bool {
		_, lives := live[id]
		return !lives && (id.term != term || id.number <= last)
	}
}

// dropAbandoned deletes orphaned chunks: those of primaries of earlier terms, of a process that ended, and of
// units whose own deletion failed. It does nothing on a member that is not primary.
func (e *Engine) dropAbandoned() error {
	gen := e.replica.gen.Load()
	if !e.writable() {
		return nil
	}
	abandoned := e.replica.staging.mayBeAbandoned(uint64(e.Term()))
	if abandoned == nil {
		return nil
	}
	var found []stagedID // with chunks
	seen, logged := map[stagedID]bool{}, map[stagedID]bool{}
	err := e.eachStaged(func(_ *pebble.Iterator, id stagedID, kind byte) error {
		switch n := len(found); {
		case kind == stagedSeen:
			seen[id] = true
		case kind == stagedLogged:
			logged[id] = true
		case kind == stagedChunk && abandoned(id) && (n == 0 || found[n-1] != id):
			found = append(found, id)
		}
		return nil
	})
	for _, id := range found {
		if err == nil && !seen[id] {
			err = e.discardStaged(gen, id, logged[id])
		}
	}
	if err != nil {
		e.replica.staging.recheck()
	}
	return err
}
