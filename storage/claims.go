package storage

import (
	"bytes"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/storage/catalog"
)

// claimTable keeps two units of work from writing the same record or the same unique key. A claim is held from the
// staging of the write until its commit is visible. Of records it also remembers when they were last written, so that a
// unit whose snapshot is older learns of the conflict without reading the store.
//
// A unit in a CommitChain takes over the claims of the units before it. They are recorded below it, and get a claim back when it releases it.
//
// A unit that sends its versions ahead releases the claims on what it has sent (sentAhead): otherwise its memory would grow with
// its size. From then on its versions in the store keep others from writing the keys. As long as there is such a unit, a unit
// that takes a claim also checks the store (UnitOfWork.settleClaim); after its commit, so does a reader of a time before the
// commit.
//
// Keys are remembered by hash: two that collide cost a needless retry, nothing else.
type claimTable struct {
	seed   maphash.Seed
	shards [64]claimShard
	// ahead are the undecided units that have released claims in this way. The list is replaced, never modified. A unit leaves it
	// after its commit is in the list of late units; a reader of both loads this one first.
	ahead   atomic.Pointer[[]stagedID]
	aheadMu sync.Mutex
	copies  atomic.Pointer[[]*copyClaims]
}

type claimShard struct {
	sync.Mutex
	m     map[uint64]claim
	swept Timestamp // forgotten claims were committed at or before this
	limit int
	below map[uint64][]*UnitOfWork // the previous holders of claims in m, in order
	ahead int                      // units that have given up claims and are not decided
	peak  int                      // the most that m has held
	_     [8]byte
}

type claim struct {
	unit *UnitOfWork // holder; nil once committed
	at   Timestamp   // last commit
}

type heldClaim struct {
	hash   uint64
	record bool
	handed bool // by another unit: the holder may not have written the key yet
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
	claimUnsure             // taken, but only the store can tell whether there was a commit after readTS, or an uncommitted write
)

// take claims a key for u. readTS is the timestamp that u has read at; 0 means that its reads are current.
//
// Invariant: the claim is taken before the caller looks into the store for newer versions, never after, so that no other
// unit writes the key between the look and the staging.
//
// Hazard: the table remembers commits only for a few seconds (sweep). A key that it does not know may have been written after
// readTS and forgotten since; claimUnsure tells the caller to look.
//
// Rejected: remembering the last commit of every record. It would save that lookup, and need memory that grows with the
// data.
func (t *claimTable) take(u *UnitOfWork, h uint64, readTS Timestamp, record bool) claimResult {
	if u.copy != nil {
		return t.takeCopy(u.copy.claims, h)
	}
	s := t.shard(h)
	s.Lock()
	defer s.Unlock()
	c := s.m[h]
	switch {
	case c.unit == u:
		return claimMine
	case t.copied(nil, h):
		return claimOther
	case c.unit != nil && u.follows(c.unit):
		s.takeOver(u, h, c, record)
		return claimMine
	case c.unit != nil:
		return claimOther
	case readTS != 0 && c.at > readTS:
		return claimNewer
	}
	s.m[h] = claim{unit: u, at: c.at}
	s.peak = max(s.peak, len(s.m))
	u.claims = append(u.claims, heldClaim{hash: h, record: record})
	if s.ahead > 0 || readTS != 0 && s.swept > readTS {
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
	u.claims = append(u.claims, heldClaim{hash: h, record: record})
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
	for i := range from.claims {
		from.claims[i].handed = true
	}
	to.claims, from.claims = append(to.claims, from.claims...), nil
}

// sentAhead releases the claims on keys whose versions u has sent ahead. It has sent versions of all keys that it claimed, except those that
// it did not write because of an error; it may still have to write keys that another unit had claimed.
func (t *claimTable) sentAhead(u *UnitOfWork) {
	if !u.bulk.yielded { // before the first claim is released: the next holder checks the store
		u.bulk.yielded = true
		t.editAhead(func(list []stagedID) []stagedID { return append(list, u.bulk.id) })
		for i := range t.shards {
			s := &t.shards[i]
			s.Lock()
			s.ahead++
			s.Unlock()
		}
	}
	kept := u.claims[:0]
	for _, held := range u.claims {
		if held.handed {
			kept = append(kept, held)
			continue
		}
		s := t.shard(held.hash)
		s.Lock()
		// A commit that was remembered is forgotten.
		if c := s.m[held.hash]; c.unit == u {
			s.swept = max(s.swept, c.at)
			delete(s.m, held.hash)
			s.shrink()
		} else { // a unit behind this one has taken it over
			kept = append(kept, held)
		}
		s.Unlock()
	}
	u.claims = kept
}

// decided ends the state that sentAhead began. at is the timestamp of the unit's commit, 0 after a rollback.
func (t *claimTable) decided(id stagedID, at Timestamp) {
	for i := range t.shards {
		s := &t.shards[i]
		s.Lock()
		s.swept = max(s.swept, at)
		s.ahead--
		s.Unlock()
	}
	t.editAhead(func(list []stagedID) []stagedID {
		return slices.DeleteFunc(list, func(x stagedID) bool { return x == id })
	})
}

func (t *claimTable) editAhead(f func([]stagedID) []stagedID) {
	t.aheadMu.Lock()
	defer t.aheadMu.Unlock()
	list := f(slices.Clone(t.undecided()))
	t.ahead.Store(&list)
}

// undecided returns the units that have given up claims and are not decided.
func (t *claimTable) undecided() []stagedID {
	if p := t.ahead.Load(); p != nil {
		return *p
	}
	return nil
}

// giveBack ends the claim that u took last.
func (t *claimTable) giveBack(u *UnitOfWork, h uint64) {
	s := t.shard(h)
	s.Lock()
	defer s.Unlock()
	last := len(u.claims) - 1
	if c := s.m[h]; c.unit == u && last >= 0 && u.claims[last].hash == h {
		u.claims = u.claims[:last]
		s.free(h, c)
	}
}

// free ends a claim without a commit.
func (s *claimShard) free(h uint64, c claim) {
	if c.at == 0 {
		delete(s.m, h)
		s.shrink()
		return
	}
	s.m[h] = claim{at: c.at}
}

// shrink returns the memory of a table that was much larger than it is.
func (s *claimShard) shrink() {
	if s.peak <= claimShardLimit || len(s.m) > s.peak/8 {
		return
	}
	m := make(map[uint64]claim, len(s.m))
	maps.Copy(m, s.m)
	s.m, s.peak = m, len(m)
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
		default:
			s.free(held.hash, c)
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
		s.shrink()
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
	s.shrink()
}

// keySpan is the range of keys that a claim protects.
type keySpan struct {
	ident catalog.Ident
	key   []byte
	// unique is the index whose entries with the key are meant, of whatever record; nil for the key of one record or _id.
	unique *catalog.Index
}

// claim makes the unit the only writer of a key. mine reports that it was that before, and may have written the key.
func (u *UnitOfWork) claim(k keySpan, readTS Timestamp, record bool) (mine bool, err error) {
	h := u.e.claims.hash(k.ident, k.key)
	return u.settleClaim(u.e.claims.take(u, h, readTS, record), h, k, readTS)
}

// settleClaim reads the store to decide what the table of claims cannot.
//
// Invariant: a key that an undecided unit has written is in the table of claims, or a version of that unit is in the store, where
// every later claimant sees it. The unit's chunk is visible before it is among the undecided, that is before
// the claim is released; a later claimant that must check the store loads the view afterwards. If the unit commits in the meantime, the
// list of late units has its commit before the unit leaves the undecided ones; therefore the undecided are loaded first.
//
// The unit itself needs no claim on what it has sent. Another one may hold that claim for a moment, until it has checked the store.
func (u *UnitOfWork) settleClaim(r claimResult, h uint64, k keySpan, readTS Timestamp) (mine bool, err error) {
	switch {
	case r == claimMine, r == claimNew:
		return r == claimMine, nil
	case r == claimNewer, r == claimOther && u.bulk == nil && len(u.detach.adopted) == 0:
		return false, errConflict
	}
	v, err := u.newest()
	if err != nil {
		return false, err
	}
	w := writtenBy{undecided: u.e.claims.undecided(), late: u.e.replica.late.all(), adopted: u.detach.adopted}
	if u.bulk != nil {
		w.own = u.bulk.at
	}
	if err = w.look(v, k, u.scratch); err != nil {
		return false, err
	}
	switch {
	case w.mine:
		return true, nil
	case w.pending, readTS != 0 && w.at > readTS, r == claimOther && !w.inherited:
		if r == claimUnsure {
			u.e.claims.giveBack(u, h)
		}
		return false, errConflict
	}
	return false, nil
}

// writtenBy describes the writers of the newest versions of a key.
type writtenBy struct {
	undecided []stagedID
	late      []*lateUnit
	own       timestamps
	adopted   []*stager

	mine      bool      // the unit itself has sent a version ahead
	pending   bool      // another unit has, and is not decided
	inherited bool      // a unit whose writes this one repeats has
	at        Timestamp // when the newest committed version became visible; 0 if there is none
}

// look reads the versions that the store has of a key.
func (w *writtenBy) look(v *versions, k keySpan, s *unitScratch) error {
	s.key = append(appendIdent(s.key[:0], k.ident), k.key...)
	v.seek = appendVersion(append(v.seek[:0], s.key...), pending-1)
	if k.unique == nil {
		for ok := v.it.SeekPrefixGE(v.seek); ok; ok = v.it.Next() {
			if _, at, _ := splitVersion(v.it.Key()); w.decides(at) {
				break
			}
		}
		return v.it.Error()
	}
	var buf [8]byte
	for ok := v.it.SeekGE(v.seek); ok; {
		user, at, versioned := splitVersion(v.it.Key())
		if !bytes.HasPrefix(user, s.key) {
			break
		}
		ks, _, fine := splitIndexKey(k.unique, user[identLen:], &buf)
		if !versioned || !fine || !bytes.Equal(ks, k.key) || !w.decides(at) {
			ok = v.it.Next()
			continue
		}
		if w.mine || w.pending {
			break
		}
		ok = v.it.NextPrefix()
	}
	return v.it.Error()
}

// decides records a version, and reports whether older ones of its key are irrelevant: it does not belong to a unit that
// has failed.
func (w *writtenBy) decides(at uint64) bool {
	if w.own.has(at) {
		w.mine = true
		return true
	}
	i := slices.IndexFunc(w.late, func(u *lateUnit) bool { return u.at.has(at) })
	switch {
	case i < 0:
		w.at = max(w.at, Timestamp(at))
		return true
	case slices.ContainsFunc(w.adopted, func(s *stager) bool { return s.id == w.late[i].id }):
		w.inherited = true
		return false
	case slices.Contains(w.undecided, w.late[i].id): // even if its commit is in the list: readers may not see that yet
		w.pending = true
		return true
	case w.late[i].seen != Timestamp(pending):
		w.at = max(w.at, w.late[i].seen)
		return true
	}
	return false
}

// releaseClaims ends the unit's claims. at is the timestamp of its commit, 0 after a rollback.
func (u *UnitOfWork) releaseClaims(at, visible Timestamp) {
	t := &u.e.claims
	t.release(u, at, visible)
	if u.copy != nil {
		t.endCopy(u.copy.claims)
	}
	if u.bulk != nil && u.bulk.yielded {
		u.bulk.yielded = false
		t.decided(u.bulk.id, at)
	}
	adopted := u.detach.adopted
	u.detach.adopted = nil
	for _, s := range adopted {
		t.decided(s.id, at)
		s.discard()
	}
}

// adopt makes the versions that another unit has sent ahead protect their keys until this unit ends.
func (u *UnitOfWork) adopt(from *UnitOfWork) {
	u.detach.adopted = append(u.detach.adopted, from.detach.adopted...)
	from.detach.adopted = nil
	if s := from.bulk; s != nil && s.yielded {
		s.yielded, s.adopted = false, true
		u.detach.adopted = append(u.detach.adopted, s)
	}
}
