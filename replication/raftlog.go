package replication

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sort"
	"sync"

	"github.com/shoaldb/shoal/wire/mongoerr"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Keys of the local store.
const (
	keyBase    = 'b' // index and term of the entry before the first one kept
	keyConf    = 'c' // the configuration in force: raft's and the set's
	keyHard    = 'h' // term, vote, commit
	keyID      = 'i' // this member's raft id
	keyEntry   = 'l' // index → term, type, checksum, data
	keyInstall = 'p' // a snapshot that is being installed
)

// raftLog is the log of entries and raft's other durable state. Only the appender writes it; raft's loop and
// others read. The newest entries are cached in memory.
type raftLog struct {
	store    LocalStore // nil: everything is in memory
	maxCache int64
	mark     int64       // distance in bytes between two of marks
	id       uint64      // as loaded
	install  *confRecord // a snapshot whose installation was in progress, as loaded

	appliedIndex func() uint64

	mu struct {
		sync.RWMutex
		base   point
		last   uint64
		terms  []point  // where each term of the kept entries begins
		marks  []logEnd // sizes at intervals
		bytes  int64    // of all entries written since loading
		cut    int64    // of those since truncated
		cache  []*raftpb.Entry
		cached int64
		hard   *raftpb.HardState
		confs  []confRecord // newest last; older ones while a snapshot may need them
	}
}

// point is a position in the log.
type point struct{ index, term uint64 }

// logEnd records how many bytes had been written up to and including an index.
type logEnd struct {
	index uint64
	bytes int64
}

// confRecord is the configuration in force from an index on.
type confRecord struct {
	point
	state *raftpb.ConfState
	doc   []byte // the set's configuration; nil only before there is one
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entryHead is the size of the header before an entry's data.
const entryHead = 8 + 1 + 4

func entryKey(index uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{keyEntry}, index)
}

func appendEntryHead(dst []byte, e *raftpb.Entry) []byte {
	dst = binary.BigEndian.AppendUint64(dst, e.GetTerm())
	dst = append(dst, byte(e.GetType()))
	sum := crc32.Update(crc32.Checksum(dst[len(dst)-9:], castagnoli), castagnoli, e.GetData())
	return binary.BigEndian.AppendUint32(dst, sum)
}

func readEntry(index uint64, v []byte) (*raftpb.Entry, bool) {
	if len(v) < entryHead {
		return nil, false
	}
	sum := crc32.Update(crc32.Checksum(v[:9], castagnoli), castagnoli, v[entryHead:])
	if sum != binary.BigEndian.Uint32(v[9:]) {
		return nil, false
	}
	e := &raftpb.Entry{Index: new(index), Term: new(binary.BigEndian.Uint64(v)), Type: raftpb.EntryType(v[8]).Enum()}
	if len(v) > entryHead {
		e.Data = slices.Clone(v[entryHead:])
	}
	return e, true
}

// maxLogCache bounds the cache of a log that is stored. Members further behind are served from the store. A large
// transaction fills the cache, and the garbage collector allows itself as much again.
const maxLogCache = 32 << 20

// openLog reads the log of a store, which a member that was never in a set does not have (see started).
func openLog(store LocalStore, size int64) (*raftLog, error) {
	l := &raftLog{store: store, maxCache: min(size/2, maxLogCache), mark: size / 128}
	l.mu.hard = &raftpb.HardState{}
	if store == nil {
		return l, nil
	}
	var bad error
	err := store.Scan([]byte{0}, []byte{0xff}, func(k, v []byte) bool {
		bad = l.load(k, v)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	if err == nil && l.mu.last > 0 && len(l.mu.confs) == 0 {
		err = brokenLog("it has entries but no configuration")
	}
	return l, err
}

// load reads one key, in the order of the store: base, configuration and hard state come before the entries.
func (l *raftLog) load(k, v []byte) error {
	switch k[0] {
	case keyBase:
		if len(v) != 16 {
			return brokenLog("the record of where it begins cannot be read")
		}
		l.mu.base = point{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])}
		l.mu.last = l.mu.base.index
	case keyConf:
		rec, err := parseConf(v)
		if err != nil {
			return brokenLog("the record of the configuration cannot be read")
		}
		l.mu.confs = []confRecord{rec}
	case keyHard:
		if err := proto.Unmarshal(v, l.mu.hard); err != nil {
			return brokenLog("the record of term and vote cannot be read")
		}
	case keyID:
		if len(v) != 8 {
			return brokenLog("the record of this member's id cannot be read")
		}
		l.id = binary.BigEndian.Uint64(v)
	case keyInstall:
		rec, err := parseConf(v)
		if err != nil {
			return brokenLog("the record of a snapshot cannot be read")
		}
		l.install = &rec
	case keyEntry:
		if len(k) != 9 {
			return brokenLog("it has a key that cannot be read")
		}
		index := binary.BigEndian.Uint64(k[1:])
		if index != l.mu.last+1 {
			return brokenLog(fmt.Sprintf("entry %d is followed by entry %d", l.mu.last, index))
		}
		e, ok := readEntry(index, v)
		if !ok {
			return brokenLog(fmt.Sprintf("the checksum of entry %d is wrong", index))
		}
		l.remember(e)
	}
	return nil
}

// wayBack is the advice for a member that cannot continue with what it has on disk.
const wayBack = "To let it copy everything from the other members again (resync), stop it, empty its data directory, and start it with the same options."

func brokenLog(why string) error {
	return mongoerr.Newf(mongoerr.DataCorruptionDetected, "the raft log of this member is damaged or incomplete: %s. What this "+
		"member acknowledged may be missing, so it does not start. %s", why, wayBack)
}

// check compares the log with what the store has applied.
func (l *raftLog) check(applied uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.started() && applied > 0:
		return brokenLog(fmt.Sprintf("the store has applied entry %d, but there is no log", applied))
	case applied < l.mu.base.index:
		return brokenLog(fmt.Sprintf("it begins after entry %d, but the store has applied only entry %d", l.mu.base.index, applied))
	case applied > l.mu.last:
		return brokenLog(fmt.Sprintf("it ends with entry %d, but the store has applied entry %d", l.mu.last, applied))
	case l.mu.hard.GetCommit() > l.mu.last:
		return brokenLog(fmt.Sprintf("it ends with entry %d, but entry %d was committed", l.mu.last, l.mu.hard.GetCommit()))
	}
	inForce := uint64(0)
	if n := len(l.mu.confs); n > 0 {
		inForce = l.mu.confs[n-1].index
	}
	if inForce > l.mu.last {
		return brokenLog(fmt.Sprintf("it ends with entry %d, but entry %d is the configuration in force", l.mu.last, inForce))
	}
	// What is applied is committed, even if the commit index was not synced. So is the configuration in force,
	// which is written before the store applies its entry. A member that took it for undecided would have no
	// snapshot to send, since it does not know the previous configuration; and as leader it may need the very
	// member that waits for one to decide.
	l.mu.hard.Commit = new(max(l.mu.hard.GetCommit(), applied, inForce))
	return nil
}

func (l *raftLog) started() bool { return len(l.mu.confs) > 0 }

// noteInstall records that the store is about to be replaced by a snapshot, so that a crash in between is
// recognised.
func (l *raftLog) noteInstall(rec confRecord, id uint64) error {
	if l.store == nil {
		return nil
	}
	v, err := rec.value()
	if err != nil {
		return err
	}
	var b LocalBatch
	b.Set([]byte{keyInstall}, v)
	b.Set([]byte{keyID}, binary.BigEndian.AppendUint64(nil, id))
	return l.store.Write(&b, true)
}

// finishInstall completes, after a crash, what noteInstall recorded: if the store is the snapshot's, the log
// begins after it.
func (l *raftLog) finishInstall(applied point) error {
	switch {
	case l.install == nil:
		return nil
	case l.install.point == applied:
		hard := l.mu.hard
		hard.Commit = new(applied.index)
		hard.Term = new(max(hard.GetTerm(), l.install.term))
		return l.reset(*l.install, hard, l.id)
	}
	var b LocalBatch
	b.DeleteRange([]byte{keyInstall}, []byte{keyInstall + 1})
	return l.store.Write(&b, true)
}

// remember appends an entry to the cache.
func (l *raftLog) remember(e *raftpb.Entry) {
	m := &l.mu
	m.last = e.GetIndex()
	if n := len(m.terms); n == 0 && m.base.term != e.GetTerm() || n > 0 && m.terms[n-1].term != e.GetTerm() {
		m.terms = append(m.terms, point{e.GetIndex(), e.GetTerm()})
	}
	size := int64(len(e.GetData()) + 64)
	m.bytes += size
	if n := len(m.marks); n == 0 || m.bytes-m.marks[n-1].bytes >= l.mark {
		m.marks = append(m.marks, logEnd{e.GetIndex(), m.bytes})
	}
	m.cache = append(m.cache, e)
	m.cached += size
	if l.store == nil {
		return
	}
	drop := 0
	for m.cached > l.maxCache && drop < len(m.cache)-1 {
		m.cached -= int64(len(m.cache[drop].GetData()) + 64)
		drop++
	}
	l.forget(drop)
}

// forget removes the first n entries from the cache.
func (l *raftLog) forget(n int) {
	if n == 0 {
		return
	}
	c := l.mu.cache
	clear(c[:n]) // others may hold slices of the array, but not of these elements: Entries copies
	if l.mu.cache = c[n:]; cap(l.mu.cache) > 2*len(l.mu.cache)+1024 {
		l.mu.cache = slices.Clone(l.mu.cache)
	}
}

// cutTail removes from memory the entries from index on.
func (l *raftLog) cutTail(index uint64) {
	m := &l.mu
	if index > m.last {
		return
	}
	for len(m.cache) > 0 && m.cache[len(m.cache)-1].GetIndex() >= index {
		m.cached -= int64(len(m.cache[len(m.cache)-1].GetData()) + 64)
		m.cache = m.cache[:len(m.cache)-1]
	}
	for len(m.terms) > 0 && m.terms[len(m.terms)-1].index >= index {
		m.terms = m.terms[:len(m.terms)-1]
	}
	for len(m.marks) > 0 && m.marks[len(m.marks)-1].index >= index {
		m.marks = m.marks[:len(m.marks)-1]
	}
	m.last = index - 1
}

// write appends entries and hard states in the order of the messages, with one sync for all.
func (l *raftLog) write(ms []*raftpb.Message, sync bool) error {
	if l.store != nil {
		var b LocalBatch
		last := l.lastIndex()
		var hard *raftpb.HardState
		for _, m := range ms {
			if ents := m.GetEntries(); len(ents) > 0 {
				if first := ents[0].GetIndex(); first <= last {
					b.DeleteRange(entryKey(first), entryKey(last+1))
				}
				heads := make([]byte, 0, entryHead*len(ents))
				for _, e := range ents {
					n := len(heads)
					heads = appendEntryHead(heads, e)
					b.Ops = append(b.Ops, LocalOp{Key: entryKey(e.GetIndex()), Head: heads[n:], Value: e.GetData()})
				}
				last = ents[len(ents)-1].GetIndex()
			}
			if h := hardOf(m); h != nil {
				hard = h
			}
		}
		if hard != nil {
			v, err := proto.Marshal(hard)
			if err != nil {
				return err
			}
			b.Set([]byte{keyHard}, v)
		}
		if len(b.Ops) > 0 {
			if err := l.store.Write(&b, sync); err != nil {
				return err
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range ms {
		if ents := m.GetEntries(); len(ents) > 0 {
			l.cutTail(ents[0].GetIndex())
			for _, e := range ents {
				l.remember(e)
			}
		}
		if h := hardOf(m); h != nil {
			l.mu.hard = h
		}
	}
	return nil
}

// mustSync reports whether the responses to m depend on something that is not durable yet. The commit index alone
// does not count: it is determined again after a crash.
func (l *raftLog) mustSync(m *raftpb.Message) bool {
	if len(m.GetEntries()) > 0 || m.GetSnapshot() != nil {
		return true
	}
	h := hardOf(m)
	if h == nil {
		return false
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return h.GetTerm() != l.mu.hard.GetTerm() || h.GetVote() != l.mu.hard.GetVote()
}

// note records what is committed, in memory only.
func (l *raftLog) note(ms []*raftpb.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range ms {
		if h := hardOf(m); h != nil {
			l.mu.hard = h
		}
	}
}

// hardOf returns the hard state that a message from raft asks to write, nil for none.
func hardOf(m *raftpb.Message) *raftpb.HardState {
	if m.Vote == nil && m.Commit == nil {
		return nil
	}
	h := &raftpb.HardState{Term: new(m.GetTerm()), Vote: new(m.GetVote()), Commit: new(m.GetCommit())}
	if raft.IsEmptyHardState(h) {
		return nil
	}
	return h
}

// compact removes the entries up to and including index.
func (l *raftLog) compact(index uint64) error {
	l.mu.RLock()
	base, last := l.mu.base, l.mu.last
	l.mu.RUnlock()
	if index <= base.index || index > last {
		return nil
	}
	term, err := l.Term(index)
	if err != nil {
		return err
	}
	if l.store != nil {
		var b LocalBatch
		b.Set([]byte{keyBase}, pointValue(point{index, term}))
		b.DeleteRange(entryKey(0), entryKey(index+1))
		if err := l.store.Write(&b, false); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.mu
	n := 0
	for n < len(m.cache) && m.cache[n].GetIndex() <= index {
		m.cached -= int64(len(m.cache[n].GetData()) + 64)
		n++
	}
	l.forget(n)
	n = 0
	for n < len(m.marks) && m.marks[n].index <= index {
		m.cut = m.marks[n].bytes
		n++
	}
	m.marks = slices.Delete(m.marks, 0, n)
	n = 0
	for n < len(m.terms) && m.terms[n].index <= index {
		n++
	}
	m.terms = slices.Delete(m.terms, 0, n)
	m.base = point{index, term}
	return nil
}

func pointValue(p point) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, p.index), p.term)
}

// reset makes the log empty, beginning after a snapshot or at the first entry of a new set.
func (l *raftLog) reset(rec confRecord, hard *raftpb.HardState, id uint64) error {
	if l.store != nil {
		h, err := proto.Marshal(hard)
		if err != nil {
			return err
		}
		c, err := rec.value()
		if err != nil {
			return err
		}
		var b LocalBatch
		b.DeleteRange([]byte{keyEntry}, []byte{keyEntry + 1})
		b.DeleteRange([]byte{keyInstall}, []byte{keyInstall + 1})
		b.Set([]byte{keyBase}, pointValue(rec.point))
		b.Set([]byte{keyConf}, c)
		b.Set([]byte{keyHard}, h)
		b.Set([]byte{keyID}, binary.BigEndian.AppendUint64(nil, id))
		if err := l.store.Write(&b, true); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.mu
	m.base, m.last, m.hard = rec.point, rec.index, hard
	m.terms, m.marks, m.cache, m.cached = nil, nil, nil, 0
	m.cut = m.bytes
	m.confs = []confRecord{rec}
	return nil
}

// saveConf puts a configuration into effect durably, together with the hard state if that is not nil: a member
// with a forced configuration but without its term would belong to two epochs.
func (l *raftLog) saveConf(rec confRecord, hard *raftpb.HardState) error {
	if l.store != nil {
		v, err := rec.value()
		if err != nil {
			return err
		}
		var b LocalBatch
		b.Set([]byte{keyConf}, v)
		if hard != nil {
			h, err := proto.Marshal(hard)
			if err != nil {
				return err
			}
			b.Set([]byte{keyHard}, h)
		}
		if err := l.store.Write(&b, true); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if hard != nil {
		l.mu.hard = hard
	}
	if l.mu.confs = append(l.mu.confs, rec); len(l.mu.confs) > 64 {
		l.mu.confs = slices.Delete(l.mu.confs, 0, 32)
	}
	return nil
}

// saveID changes this member's id in raft.
func (l *raftLog) saveID(id uint64) error {
	if l.store == nil {
		return nil
	}
	var b LocalBatch
	b.Set([]byte{keyID}, binary.BigEndian.AppendUint64(nil, id))
	return l.store.Write(&b, true)
}

// conf returns the configuration in force.
func (l *raftLog) conf() confRecord {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if len(l.mu.confs) == 0 {
		return confRecord{state: &raftpb.ConfState{}}
	}
	return l.mu.confs[len(l.mu.confs)-1]
}

// confAt returns the configuration that was in force at an index.
func (l *raftLog) confAt(index uint64) (confRecord, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for i := len(l.mu.confs) - 1; i >= 0; i-- {
		if l.mu.confs[i].index <= index {
			return l.mu.confs[i], true
		}
	}
	return confRecord{}, false
}

// value encodes the record in raft's own type for a snapshot.
func (c *confRecord) value() ([]byte, error) { return proto.Marshal(c.snapshot()) }

func (c *confRecord) snapshot() *raftpb.Snapshot {
	return &raftpb.Snapshot{Data: c.doc,
		Metadata: &raftpb.SnapshotMetadata{ConfState: c.state, Index: new(c.index), Term: new(c.term)}}
}

// has reports whether raft's part of the configuration includes a member.
func (c *confRecord) has(id uint64) bool {
	return slices.Contains(c.state.GetVoters(), id) || slices.Contains(c.state.GetLearners(), id) ||
		slices.Contains(c.state.GetVotersOutgoing(), id)
}

func parseConf(v []byte) (confRecord, error) {
	s := &raftpb.Snapshot{}
	err := proto.Unmarshal(v, s)
	return confOf(s), err
}

func confOf(s *raftpb.Snapshot) confRecord {
	md := s.GetMetadata()
	return confRecord{point{md.GetIndex(), md.GetTerm()}, raftpb.EnsureConfState(md.GetConfState()), s.GetData()}
}

// history returns the log's history, up to what is known here to be committed.
func (l *raftLog) history() history {
	l.mu.RLock()
	defer l.mu.RUnlock()
	m := &l.mu
	return history{min(m.hard.GetCommit(), m.last), append([]point{m.base}, m.terms...)}
}

// overSize returns the highest marked index up to which the log can be cut so that at least keep bytes remain.
func (l *raftLog) overSize(keep int64) (index uint64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, m := range l.mu.marks {
		if l.mu.bytes-m.bytes < keep {
			break
		}
		index = m.index
	}
	return index
}

func (l *raftLog) size() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.bytes - l.mu.cut
}

func (l *raftLog) lastIndex() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.last
}

// InitialState implements raft.Storage.
func (l *raftLog) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	c := l.conf()
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.hard, c.state, nil
}

// FirstIndex implements raft.Storage.
func (l *raftLog) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.base.index + 1, nil
}

// LastIndex implements raft.Storage.
func (l *raftLog) LastIndex() (uint64, error) { return l.lastIndex(), nil }

// Term implements raft.Storage.
func (l *raftLog) Term(i uint64) (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	m := &l.mu
	switch {
	case i < m.base.index:
		return 0, raft.ErrCompacted
	case i > m.last:
		return 0, raft.ErrUnavailable
	}
	at := sort.Search(len(m.terms), func(k int) bool { return m.terms[k].index > i })
	if at == 0 {
		return m.base.term, nil
	}
	return m.terms[at-1].term, nil
}

// Entries implements raft.Storage.
func (l *raftLog) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	l.mu.RLock()
	m := &l.mu
	if lo <= m.base.index {
		l.mu.RUnlock()
		return nil, raft.ErrCompacted
	}
	if hi > m.last+1 {
		l.mu.RUnlock()
		return nil, raft.ErrUnavailable
	}
	var out []*raftpb.Entry
	first := m.last + 1 - uint64(len(m.cache)) // index of the cache's first entry
	if lo >= first {
		size := uint64(0)
		for _, e := range m.cache[lo-first : hi-first] {
			if size += uint64(len(e.GetData()) + 16); size > maxSize && len(out) > 0 {
				break
			}
			out = append(out, e)
		}
		l.mu.RUnlock()
		return out, nil
	}
	l.mu.RUnlock()
	return l.readEntries(lo, hi, maxSize)
}

// readEntries reads entries that are no longer in memory.
func (l *raftLog) readEntries(lo, hi, maxSize uint64) (out []*raftpb.Entry, err error) {
	next, size := lo, uint64(0)
	var bad error
	err = l.store.Scan(entryKey(lo), entryKey(hi), func(k, v []byte) bool {
		if len(k) != 9 || binary.BigEndian.Uint64(k[1:]) != next {
			return false
		}
		if size += uint64(len(v) + 16); size > maxSize && len(out) > 0 {
			return false
		}
		e, ok := readEntry(next, v)
		if !ok {
			bad = brokenLog(fmt.Sprintf("the checksum of entry %d is wrong", next))
			return false
		}
		out = append(out, e)
		next++
		return true
	})
	switch {
	case err != nil:
		return nil, err
	case bad != nil:
		return nil, bad
	case len(out) == 0:
		return nil, raft.ErrCompacted // truncated meanwhile
	}
	return out, nil
}
