package storage

import (
	"bytes"
	"context"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// discardStaged deletes what is staged of a unit on all members, chunk by chunk.
func (e *Engine) discardStaged(gen uint64, id stagedID) error {
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
		last = next == nil
		err = commit(func(b *pebble.Batch) error {
			if last { // with it goes all: without a chunk the rest would not be found again
				_ = b.DeleteRange(id.key(stagedSeen, 0), id.key(stagedEnd, 0), nil)
			}
			return c.undo(b)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// undo deletes what came with the chunk, which may be nil, and its record.
func (c *chunkKeys) undo(b *pebble.Batch) error {
	if c == nil {
		return nil
	}
	_ = b.Delete(c.record, nil)
	return eachKey(c.keys, func(key []byte) error {
		return b.Delete(appendVersion(bytes.Clone(key), uint64(c.at)), nil)
	})
}

// stagingUnits knows the units of this member that have sent chunks and may yet commit. What else is staged and has not
// committed is of nobody, and dropAbandoned looks for it when there may be some.
type stagingUnits struct {
	bytes struct{ limit, chunk atomic.Int64 } // from which size on units are staged, and in chunks of which

	sync.Mutex
	last  uint64 // number of the newest
	live  map[stagedID]struct{}
	sweep bool // some unit of nobody may be there
}

func (g *stagingUnits) limit() int { return int(g.bytes.limit.Load()) }
func (g *stagingUnits) chunk() int { return int(g.bytes.chunk.Load()) }

// SetLargeUnits has units of work of more than that many bytes send their versions ahead of their commit.
func (e *Engine) SetLargeUnits(bytes int) { e.replica.staging.size(bytes, bytes/3) }

func (g *stagingUnits) size(limit, chunk int) {
	g.bytes.limit.Store(int64(limit))
	g.bytes.chunk.Store(int64(chunk))
}

// begin names a unit.
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

// end notes that a unit has committed, or is gone; clean is not set where its chunks could not be deleted.
func (g *stagingUnits) end(id stagedID, clean bool) {
	g.Lock()
	defer g.Unlock()
	delete(g.live, id)
	g.sweep = g.sweep || !clean
}

// lookAgain has dropAbandoned look at all that is staged.
func (g *stagingUnits) lookAgain() {
	g.Lock()
	g.sweep = true
	g.Unlock()
}

// resume takes note of what a store has: the largest number of a unit, and perhaps units of nobody.
func (g *stagingUnits) resume(last uint64) {
	g.Lock()
	defer g.Unlock()
	g.last, g.sweep = max(g.last, last), true
}

// mayBeAbandoned gives what tells whether a unit that is found from now on, and has not committed, is of nobody: it is of
// another term, or had ended before the call. It is nil where there is nothing to look for.
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

// dropAbandoned deletes what was staged and is of nobody: of primaries of earlier terms, of a process that ended, and of units
// whose own deletion failed. Only a primary does anything.
func (e *Engine) dropAbandoned() error {
	gen := e.replica.gen.Load()
	if !e.writable() {
		return nil
	}
	abandoned := e.replica.staging.mayBeAbandoned(uint64(e.Term()))
	if abandoned == nil {
		return nil
	}
	var found []stagedID
	decided := map[stagedID]bool{}
	err := e.eachStaged(func(_ *pebble.Iterator, id stagedID, kind byte) error {
		if n := len(found); abandoned(id) && (n == 0 || found[n-1] != id) {
			found = append(found, id)
		}
		if kind == stagedSeen || kind == stagedLogged {
			decided[id] = true
		}
		return nil
	})
	for _, id := range found {
		if err == nil && !decided[id] {
			err = e.discardStaged(gen, id)
		}
	}
	if err != nil {
		e.replica.staging.lookAgain()
	}
	return err
}
