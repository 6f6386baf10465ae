package storage

import (
	"slices"
	"sync/atomic"
)

// copyClaims are the claims of a copy (tableCopy): a set of hashes of its own. In the table of claims a hundred thousand of them would cost as much as all else that a copy
// does, since each would miss the processor's caches twice.
//
// Invariant: of two units that claim a key at least one learns of the other. A copy adds the hash to its set and then looks into the table of claims, and into the sets of other
// copies; another unit looks into the sets of copies while it has the shard of the table locked, in which it enters its claim. If its look precedes the copy's addition, the copy finds its
// entry, or it has committed by then and the copy finds that in the store. Two copies may refuse each other. Both then go through the journal.
type copyClaims struct {
	slots atomic.Pointer[[]atomic.Uint64] // an open hash table, replaced when it grows
	used  int
}

func newCopyClaims(n int) *copyClaims {
	c := &copyClaims{}
	size := 1024
	for size < 2*n {
		size *= 2
	}
	slots := make([]atomic.Uint64, size)
	c.slots.Store(&slots)
	return c
}

// findSlot returns the slot that has a hash, or where it is to be.
func findSlot(slots []atomic.Uint64, h uint64) (slot *atomic.Uint64, there bool) {
	for i := h; ; i++ {
		slot = &slots[i&uint64(len(slots)-1)]
		switch slot.Load() {
		case h:
			return slot, true
		case 0:
			return slot, false
		}
	}
}

// add reports whether the hash is new. One goroutine calls it.
func (c *copyClaims) add(h uint64) bool {
	h = max(h, 1)
	slots := *c.slots.Load()
	if 2*c.used >= len(slots) {
		more := make([]atomic.Uint64, 2*len(slots))
		for i := range slots {
			if x := slots[i].Load(); x != 0 {
				slot, _ := findSlot(more, x)
				slot.Store(x)
			}
		}
		c.slots.Store(&more)
		slots = more
	}
	slot, there := findSlot(slots, h)
	if !there {
		slot.Store(h)
		c.used++
	}
	return !there
}

func (c *copyClaims) has(h uint64) bool {
	_, there := findSlot(*c.slots.Load(), max(h, 1))
	return there
}

// beginCopy makes the table consider a copy's claims, and endCopy ends them.
func (t *claimTable) beginCopy(c *copyClaims) {
	t.editCopies(func(list []*copyClaims) []*copyClaims { return append(list, c) })
}

func (t *claimTable) endCopy(c *copyClaims) {
	t.editCopies(func(list []*copyClaims) []*copyClaims {
		return slices.DeleteFunc(list, func(x *copyClaims) bool { return x == c })
	})
}

func (t *claimTable) editCopies(f func([]*copyClaims) []*copyClaims) {
	t.aheadMu.Lock()
	defer t.aheadMu.Unlock()
	var list []*copyClaims
	if p := t.copies.Load(); p != nil {
		list = slices.Clone(*p)
	}
	if list = f(list); len(list) == 0 {
		t.copies.Store(nil)
		return
	}
	t.copies.Store(&list)
}

// copied reports whether a copy other than own has claimed a key.
func (t *claimTable) copied(own *copyClaims, h uint64) bool {
	p := t.copies.Load()
	return p != nil && slices.ContainsFunc(*p, func(c *copyClaims) bool { return c != own && c.has(h) })
}

// takeCopy claims a key for a copy.
func (t *claimTable) takeCopy(own *copyClaims, h uint64) claimResult {
	if !own.add(h) {
		return claimMine
	}
	s := t.shard(h)
	s.Lock()
	defer s.Unlock()
	switch {
	case s.m[h].unit != nil || t.copied(own, h):
		return claimOther
	case s.ahead > 0:
		return claimUnsure
	}
	return claimNew
}
