package storage

import (
	"hash/maphash"
	"slices"
	"sync"

	"github.com/shoaldb/shoal/storage/catalog"
)

// claimTable keeps two units of work from writing the same record or the same unique key. A claim is held from the
// staging of the write until its commit is visible. Of records it also remembers when they were last written, so that a
// unit whose snapshot is older than that is told without a look into the store.
//
// A unit behind a CommitChain takes over the claims of those before it: they are below it, and get back what it gives up.
//
// Keys are remembered by hash: two that collide cost a needless retry, nothing else.
type claimTable struct {
	seed   maphash.Seed
	shards [64]claimShard
}

type claimShard struct {
	sync.Mutex
	m     map[uint64]claim
	swept Timestamp // forgotten claims were committed at or before this
	limit int
	below map[uint64][]*UnitOfWork // the previous holders of claims in m, in order
	_     [24]byte
}

type claim struct {
	unit *UnitOfWork // holder; nil once committed
	at   Timestamp   // last commit
}

type heldClaim struct {
	hash   uint64
	record bool
}

const claimShardLimit = 4096

func (t *claimTable) init() {
	t.seed = maphash.MakeSeed()
	for i := range t.shards {
		t.shards[i].m = map[uint64]claim{}
		t.shards[i].limit = claimShardLimit
	}
}

func (t *claimTable) hash(table catalog.Ident, key []byte) uint64 {
	return maphash.Bytes(t.seed, key) ^ uint64(table)*0x9E3779B97F4A7C15
}

func (t *claimTable) shard(h uint64) *claimShard { return &t.shards[h>>58] }

type claimResult uint8

const (
	claimNew    claimResult = iota
	claimMine               // the unit already holds it
	claimOther              // another unit holds it
	claimNewer              // committed after readTS
	claimUnsure             // taken, but the table can no longer tell whether there was a commit after readTS
)

// take claims for u. readTS is the timestamp that u has read at; 0 means that its reads are current.
//
// The claim is taken before the caller looks into the store for newer versions, never after: nobody can then write
// the key between the look and the staging. The table remembers commits only for a few seconds (sweep). A key that
// it does not know may have been written after readTS and forgotten since; claimUnsure tells the caller to look.
// Remembering the last commit of every record would spare that lookup at the price of memory that grows with the
// data.
func (t *claimTable) take(u *UnitOfWork, h uint64, readTS Timestamp, record bool) claimResult {
	s := t.shard(h)
	s.Lock()
	defer s.Unlock()
	c, known := s.m[h]
	switch {
	case c.unit == u:
		return claimMine
	case c.unit != nil && u.follows(c.unit):
		s.takeOver(u, h, c, record)
		return claimMine
	case c.unit != nil:
		return claimOther
	case readTS != 0 && c.at > readTS:
		return claimNewer
	}
	s.m[h] = claim{unit: u, at: c.at}
	u.claims = append(u.claims, heldClaim{h, record})
	if !known && readTS != 0 && s.swept > readTS {
		return claimUnsure
	}
	return claimNew
}

// takeOver moves to u the claim of a unit that it follows.
func (s *claimShard) takeOver(u *UnitOfWork, h uint64, c claim, record bool) {
	if s.below == nil {
		s.below = map[uint64][]*UnitOfWork{}
	}
	s.below[h] = append(s.below[h], c.unit)
	s.m[h] = claim{unit: u, at: c.at}
	u.claims = append(u.claims, heldClaim{h, record})
}

// handBack ends a claim of u that was taken over, either by u or from it. It returns false if it was neither.
func (s *claimShard) handBack(u *UnitOfWork, held heldClaim, c claim, at Timestamp) bool {
	below := s.below[held.hash]
	switch {
	case len(below) == 0:
		return false
	case c.unit == u: // rolled back: units that it follows are decided before it
		c.unit = below[len(below)-1]
		below = below[:len(below)-1]
	default:
		if at != 0 && held.record {
			c.at = at
		}
		below = slices.DeleteFunc(below, func(b *UnitOfWork) bool { return b == u })
	}
	s.m[held.hash] = c
	if s.below[held.hash] = below; len(below) == 0 {
		delete(s.below, held.hash)
	}
	return true
}

// hand transfers one unit's claims to another.
func (t *claimTable) hand(from, to *UnitOfWork) {
	for _, held := range from.claims {
		s := t.shard(held.hash)
		s.Lock()
		if c := s.m[held.hash]; c.unit == from {
			c.unit = to
			s.m[held.hash] = c
		}
		for i, below := range s.below[held.hash] {
			if below == from {
				s.below[held.hash][i] = to
			}
		}
		s.Unlock()
	}
	to.claims, from.claims = append(to.claims, from.claims...), nil
}

// release ends u's claims. at is the timestamp of its commit, 0 after a rollback.
func (t *claimTable) release(u *UnitOfWork, at, visible Timestamp) {
	for _, held := range u.claims {
		s := t.shard(held.hash)
		s.Lock()
		c := s.m[held.hash]
		switch {
		case len(s.below) > 0 && s.handBack(u, held, c, at):
		case at != 0 && held.record:
			s.m[held.hash] = claim{at: at}
			if len(s.m) > s.limit {
				s.sweep(visible)
			}
		case c.at == 0:
			delete(s.m, held.hash)
		default:
			s.m[held.hash] = claim{at: c.at}
		}
		s.Unlock()
	}
	u.claims = u.claims[:0]
}

// forget drops the table's memory of commits, when other members may have written since, up to visible.
func (t *claimTable) forget(visible Timestamp) {
	for i := range t.shards {
		s := &t.shards[i]
		s.Lock()
		for h, c := range s.m {
			if c.unit == nil {
				delete(s.m, h)
			}
		}
		s.swept = max(s.swept, visible)
		s.Unlock()
	}
}

// sweep forgets commits that are a few seconds old.
func (s *claimShard) sweep(visible Timestamp) {
	horizon := visible - min(visible, TimestampOf(2, 0))
	for h, c := range s.m {
		if c.unit == nil && c.at <= horizon {
			s.swept = max(s.swept, c.at)
			delete(s.m, h)
		}
	}
	s.limit = max(claimShardLimit, 2*len(s.m))
}
