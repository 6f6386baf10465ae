package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/shoaldb/shoal/storage"
)

// disk is the part of a member that survives a crash: one journal for the raft log and the state machine, as in the
// engine. A crash loses some of what was written since the last sync.
type disk struct {
	mu    sync.Mutex
	life  int // writes of an earlier life fail
	rnd   *rand.Rand
	base  diskState // what is synced
	live  diskState
	tail  []func(*diskState) // from base to live
	files map[string]map[string][]byte
}

type diskState struct {
	kv          map[string][]byte
	index, term uint64
	ts          storage.Timestamp
	list        []string // what was written, in order
}

func newDisk(seed int64) *disk {
	return &disk{rnd: rand.New(rand.NewSource(seed)), base: diskState{kv: map[string][]byte{}}, live: diskState{kv: map[string][]byte{}},
		files: map[string]map[string][]byte{}}
}

var errCrashed = errors.New("the machine has crashed")

func (d *disk) write(life int, sync bool, f func(*diskState)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if life != d.life {
		return errCrashed
	}
	f(&d.live)
	d.tail = append(d.tail, f)
	if sync {
		d.sync(len(d.tail))
	}
	return nil
}

func (d *disk) sync(n int) {
	for _, f := range d.tail[:n] {
		f(&d.base)
	}
	d.tail = slices.Clone(d.tail[n:])
}

// crash ends a life; unsynced data survives in part. With wipe everything is lost.
func (d *disk) crash(wipe bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life++
	d.sync(d.rnd.Intn(len(d.tail) + 1))
	d.tail = nil
	if wipe {
		d.base = diskState{kv: map[string][]byte{}}
		d.files = map[string]map[string][]byte{}
	}
	d.live = d.base
	d.live.kv = maps.Clone(d.base.kv)
	d.live.list = slices.Clone(d.base.list)
}

// fakeStore is a LocalStore on a disk.
type fakeStore struct {
	d    *disk
	life int
}

func (s fakeStore) Scan(lower, upper []byte, f func(k, v []byte) bool) error {
	s.d.mu.Lock()
	var keys []string
	for k := range s.d.live.kv {
		if k >= string(lower) && k < string(upper) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	vals := make([][]byte, len(keys))
	for i, k := range keys {
		vals[i] = s.d.live.kv[k]
	}
	s.d.mu.Unlock()
	for i, k := range keys {
		if !f([]byte(k), vals[i]) {
			break
		}
	}
	return nil
}

func (s fakeStore) Write(b *LocalBatch, sync bool) error {
	if sync {
		time.Sleep(time.Duration(1+s.d.random(3)) * time.Millisecond)
	}
	ops := b.Ops
	return s.d.write(s.life, sync, func(st *diskState) {
		for _, op := range ops {
			if op.Upper == nil {
				st.kv[string(op.Key)] = slices.Concat(op.Head, op.Value)
				continue
			}
			for k := range st.kv {
				if k >= string(op.Key) && k < string(op.Upper) {
					delete(st.kv, k)
				}
			}
		}
	})
}

func (d *disk) random(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.Intn(n)
}

// fakeMachine is a state machine that keeps a list of strings.
type fakeMachine struct {
	d       *disk
	life    int
	lowDisk bool // set before it is used

	// applied is called for each entry, primary for each change of role.
	applied func(index, term uint64, data string)
	primary func(term int64)

	mu      sync.Mutex
	propose func(Group) error
	refuse  error
	flight  []*fakeGroup
	last    storage.Timestamp
	units   map[*storage.UnitOfWork]string
	moved   chan struct{}
}

type fakeGroup struct {
	data []byte
	done chan error
	ts   storage.Timestamp
}

func (g *fakeGroup) Data() []byte { return g.data }

func newFakeMachine(d *disk) *fakeMachine {
	return &fakeMachine{d: d, life: d.life, refuse: errNotMain, units: map[*storage.UnitOfWork]string{}, moved: make(chan struct{})}
}

func (m *fakeMachine) state() *diskState {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	s := m.d.live
	return &s
}

// unit creates a unit of work to commit.
func (m *fakeMachine) unit(what string) *storage.UnitOfWork {
	u := &storage.UnitOfWork{}
	m.mu.Lock()
	m.units[u] = what
	m.mu.Unlock()
	return u
}

func (m *fakeMachine) Commit(ctx context.Context, u *storage.UnitOfWork, _ bool) (storage.Timestamp, error) {
	m.mu.Lock()
	what := m.units[u]
	delete(m.units, u)
	m.mu.Unlock()
	g, err := m.proposeUnit(what)
	if err != nil {
		return 0, err
	}
	limit, may := u.CanDetach()
	if !may {
		return g.await()
	}
	var late <-chan time.Time
	if limit > 0 {
		late = time.After(limit)
	}
	why := error(storage.ErrWaitTimeout)
	select {
	case err := <-g.done:
		g.done <- err
		return g.await()
	case <-late:
	case <-ctx.Done():
		why = context.Cause(ctx)
	}
	left, end := storage.DetachedBecause(why)
	go func() { end(g.await()) }()
	return 0, left
}

func (g *fakeGroup) await() (storage.Timestamp, error) {
	if err := <-g.done; err != nil {
		return 0, err
	}
	return g.ts, nil
}

func (m *fakeMachine) commit(ctx context.Context, what string) (storage.Timestamp, error) {
	g, err := m.proposeUnit(what)
	if err != nil {
		return 0, err
	}
	return g.await()
}

func (m *fakeMachine) proposeUnit(what string) (*fakeGroup, error) {
	m.mu.Lock()
	if m.refuse != nil {
		defer m.mu.Unlock()
		return nil, m.refuse
	}
	m.last = max(m.last+1, storage.TimestampOf(uint32(time.Now().Unix()), 0))
	g := &fakeGroup{done: make(chan error, 1), ts: m.last}
	g.data = append(binary.BigEndian.AppendUint64(nil, uint64(g.ts)), what...)
	m.flight = append(m.flight, g)
	err := m.propose(g)
	m.mu.Unlock()
	return g, err
}

func (m *fakeMachine) WriteNoop(ctx context.Context, msg string) error {
	_, err := m.commit(ctx, msg)
	return err
}

func (m *fakeMachine) Visible() storage.Timestamp { return m.state().ts }

func (m *fakeMachine) DiskLow() bool { return m.lowDisk }

func (m *fakeMachine) BecomePrimary(term int64, propose func(Group) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.propose, m.refuse, m.last = propose, nil, m.state().ts
	if m.primary != nil {
		m.primary(term)
	}
	return nil
}

func (m *fakeMachine) Resign(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuse, m.propose = err, nil
	for _, g := range m.flight {
		g.done <- err
	}
	m.flight = nil
}

func (m *fakeMachine) apply(data []byte, index, term uint64) error {
	what := string(data)
	if m.applied != nil {
		m.applied(index, term, what)
	}
	return m.d.write(m.life, false, func(s *diskState) {
		if index <= s.index {
			panic(fmt.Sprintf("entry %d is applied after entry %d", index, s.index))
		}
		s.index, s.term = index, term
		if data != nil {
			s.ts = storage.Timestamp(binary.BigEndian.Uint64(data))
			s.list = append(s.list, what[8:])
		}
	})
}

func (m *fakeMachine) ApplyGroup(g Group, index, term uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.flight) == 0 || m.flight[0] != g.(*fakeGroup) {
		return fmt.Errorf("the group of entry %d is not the first in flight", index)
	}
	if err := m.apply(g.Data(), index, term); err != nil {
		return err
	}
	m.flight[0].done <- nil
	m.flight = m.flight[1:]
	return nil
}

func (m *fakeMachine) ApplyEntry(data []byte, index, term uint64) error {
	return m.apply(data, index, term)
}
func (m *fakeMachine) ApplyNothing(index, term uint64) error { return m.apply(nil, index, term) }

func (m *fakeMachine) EntryTime(data []byte) storage.Timestamp {
	return storage.Timestamp(binary.BigEndian.Uint64(data))
}

func (m *fakeMachine) AppliedIndex() (uint64, uint64) {
	s := m.state()
	return s.index, s.term
}

func (m *fakeMachine) WriteSnapshot(_ context.Context, dir string, maxFile int64) (SnapshotManifest, error) {
	s := m.state()
	man := SnapshotManifest{Index: s.index, Term: s.term, TS: s.ts}
	list := slices.Clone(s.list)
	time.Sleep(time.Duration(m.d.random(50)) * time.Millisecond)
	files := map[string][]byte{}
	for i := 0; i*100 < len(list) || i == 0; i++ {
		b := []byte(strings.Join(list[min(i*100, len(list)):min(i*100+100, len(list))], "\n"))
		name := fmt.Sprintf("%03d.part", i)
		files[name] = b
		man.Files = append(man.Files, SnapshotFile{Name: name, Size: int64(len(b)), Sum: xxhash.Sum64(b)})
	}
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if m.life != m.d.life {
		return man, errCrashed
	}
	m.d.files[dir] = files
	return man, nil
}

func (m *fakeMachine) InstallSnapshot(_ context.Context, dir string, man SnapshotManifest) error {
	time.Sleep(time.Duration(m.d.random(50)) * time.Millisecond)
	var list []string
	m.d.mu.Lock()
	for _, f := range man.Files {
		if b := m.d.files[dir][f.Name]; len(b) > 0 {
			list = append(list, strings.Split(string(b), "\n")...)
		}
	}
	m.d.mu.Unlock()
	return m.d.write(m.life, true, func(s *diskState) {
		s.index, s.term, s.ts, s.list = man.Index, man.Term, man.TS, slices.Clone(list)
	})
}

func (m *fakeMachine) Files() SnapshotFiles { return fakeFiles{m.d, m.life} }

type fakeFiles struct {
	d    *disk
	life int
}

func (f fakeFiles) ReadAt(dir, name string, p []byte, at int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	b, ok := f.d.files[dir][name]
	if !ok || at+int64(len(p)) > int64(len(b)) {
		return 0, fmt.Errorf("%s/%s is not there", dir, name)
	}
	return copy(p, b[at:]), nil
}

func (f fakeFiles) Append(dir, name string, p []byte) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.life != f.d.life {
		return errCrashed
	}
	if f.d.files[dir] == nil {
		f.d.files[dir] = map[string][]byte{}
	}
	f.d.files[dir][name] = append(f.d.files[dir][name], p...)
	return nil
}

func (f fakeFiles) Sizes(dir string) (map[string]int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	all := map[string]int64{}
	for name, b := range f.d.files[dir] {
		all[name] = int64(len(b))
	}
	return all, nil
}

func (f fakeFiles) Remove(dir string) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.life == f.d.life {
		delete(f.d.files, dir)
	}
	return nil
}

func (f fakeFiles) List() ([]string, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return slices.Sorted(maps.Keys(f.d.files)), nil
}

func hashOf(parts ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, parts...)
	return h.Sum64()
}
