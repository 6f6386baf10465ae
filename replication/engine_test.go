package replication

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// direct carries calls between members of one process.
type direct struct {
	mu    sync.Mutex
	nodes map[string]*Raft
	hung  map[string]chan struct{} // by host; calls from and to it begin once the channel is closed
}

func (d *direct) Send(ctx context.Context, host string, payload []byte) ([]byte, error) {
	d.mu.Lock()
	r, hung := d.nodes[host], d.hung[host]
	if len(d.hung) > 0 && hung == nil {
		var e envelope
		_ = e.unmarshal(payload)
		hung = d.hung[e.host]
	}
	d.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if r == nil {
		return nil, errors.New("no such host")
	}
	return r.Handle(ctx, payload)
}

// engineSet is a set of real engines.
type engineSet struct {
	*direct
	t       testing.TB
	engines map[string]*storage.Engine
}

func newEngineSet(t testing.TB, memory bool, hosts ...string) *engineSet {
	s := &engineSet{&direct{nodes: map[string]*Raft{}, hung: map[string]chan struct{}{}}, t, map[string]*storage.Engine{}}
	for _, h := range hosts {
		s.open(h, memory, vfs.NewMem())
	}
	t.Cleanup(func() {
		s.mu.Lock()
		nodes := maps.Clone(s.nodes)
		s.mu.Unlock()
		for _, r := range nodes {
			r.shut(errStopped)
		}
		for h, r := range nodes {
			r.wg.Wait()
			_ = s.engines[h].Close()
		}
	})
	return s
}

func (s *engineSet) open(host string, memory bool, fs vfs.FS) {
	dir := "db"
	if fs == nil && !memory {
		dir = s.t.TempDir()
	}
	e, err := storage.Open(storage.Options{FS: fs, Dir: dir, Memory: memory, MinFreeDisk: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	s.adopt(host, e, !memory)
}

// adopt makes an engine a member of the set, in startup state.
func (s *engineSet) adopt(host string, e *storage.Engine, disk bool) {
	o := Options{Machine: EngineMachine(e), SetName: "rs", Transport: s, IsSelf: func(h string) bool { return h == host },
		OnFatal: func(err error) { s.t.Error(host, err) }}
	if disk {
		o.Store = EngineStore(e)
	}
	r, err := OpenRaft(o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.engines[host], s.nodes[host] = e, r
	s.mu.Unlock()
}

// crash ends a member at once and keeps on its disk what was synced, and the given percentage of what was not.
func (s *engineSet) crash(host string, disks map[string]*vfs.MemFS, percent int) {
	r, e := s.nodes[host], s.engines[host]
	s.mu.Lock()
	delete(s.nodes, host) // unreachable
	s.mu.Unlock()
	r.shut(errCrashed)
	r.wg.Wait()
	disks[host] = disks[host].CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(1, 2))})
	_ = e.Close()
}

// A set of real engines takes writes, and all members end up with the same content.
func TestEngines(t *testing.T) {
	for _, memory := range []bool{true, false} {
		t.Run(fmt.Sprint("memory ", memory), func(t *testing.T) {
			s := newEngineSet(t, memory, three...)
			r := s.nodes["a:1"]
			ctx := context.Background()
			if err := r.Initiate(ctx, simConfig(time.Second, three...)); err != nil {
				t.Fatal(err)
			}
			c := makeCollection(t, r, s.engines["a:1"])
			for i := range 100 {
				u := s.engines["a:1"].NewUnitOfWork(nil)
				if _, err := u.Insert(c, value.Doc(value.F("_id", value.NewInt32(int32(i)))), storage.NoInfo); err != nil {
					t.Fatal(err)
				}
				if _, err := r.Commit(ctx, u, Majority); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.ReadIndex(ctx); err != nil {
				t.Fatal(err)
			}
			ts := s.engines["a:1"].Visible()
			if err := r.Await(ctx, ts, WriteConcern{W: 3, Timeout: 10 * time.Second}); err != nil {
				t.Fatal(err)
			}
			s.same(ts, 100)
		})
	}
}

// What waits for a member that does not answer, or not fast enough, takes a bounded part of the primary's memory.
func TestMemoryForASlowMemberIsBounded(t *testing.T) {
	s := newEngineSet(t, true, three...)
	r := s.nodes["a:1"]
	ctx := t.Context()
	cfg := simConfig(20*time.Second, three...)
	cfg.Settings.HeartbeatTimeout = time.Minute // of a call
	if err := r.Initiate(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	c := makeCollection(t, r, s.engines["a:1"])
	if err := r.Await(ctx, s.engines["a:1"].Visible(), WriteConcern{W: 3, Timeout: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	u := s.engines["a:1"].NewUnitOfWork(nil)
	if _, err := u.Insert(c, value.Doc(value.F("_id", value.NewInt32(-1))), storage.NoInfo); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Commit(ctx, u, WriteConcern{W: 3, Timeout: 10 * time.Second}); err != nil { // all are sent entries now, none a snapshot
		t.Fatal(err)
	}
	hung := make(chan struct{})
	defer close(hung)
	s.mu.Lock()
	s.hung["c:1"] = hung
	s.mu.Unlock()
	const mb = 80
	pad := value.NewString(strings.Repeat("x", 1<<20))
	most := 0
	for i := range mb {
		u := s.engines["a:1"].NewUnitOfWork(nil)
		if _, err := u.Insert(c, value.Doc(value.F("_id", value.NewInt32(int32(i))), value.F("pad", pad)), storage.NoInfo); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Commit(ctx, u, Majority); err != nil {
			t.Fatal(err)
		}
		p := r.peer(3)
		p.mu.Lock()
		most = max(most, p.bytes)
		p.mu.Unlock()
	}
	if most < maxLogCache/2 || most > maxLogCache+8<<20 {
		t.Errorf("of %d MB at most %d MB waited for the member", mb, most>>20)
	}
}

// same checks that all members have the same content at ts, with at least that many documents in db.c.
func (s *engineSet) same(ts storage.Timestamp, least int64) {
	s.t.Helper()
	ctx := context.Background()
	want, err := s.engines["a:1"].ContentHash(ctx, ts)
	if err != nil {
		s.t.Fatal(err)
	}
	for h, e := range s.engines {
		got, err := e.ContentHash(ctx, ts)
		if err != nil || !slices.Equal(got, want) {
			s.t.Errorf("%s has other content than a:1: %v", h, err)
		}
		if n := e.Catalog().Lookup("db.c").Counters.Records.Load(); n < least {
			s.t.Errorf("%s has %d documents, %d were acknowledged", h, n, least)
		}
	}
}

func makeCollection(t testing.TB, r *Raft, e *storage.Engine) *catalog.Collection {
	t.Helper()
	u := e.NewUnitOfWork(nil)
	c, err := u.CreateCollection(storage.CollectionSpec{NS: "db.c"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Commit(context.Background(), u, Majority); err != nil {
		t.Fatal(err)
	}
	return c
}

// A set of one with a raft log accepts writes, and resumes where it was after it was closed.
func TestEngineAlone(t *testing.T) {
	fs := vfs.NewMem()
	s := newEngineSet(t, false)
	s.open("a:1", false, fs)
	r, e := s.nodes["a:1"], s.engines["a:1"]
	ctx := context.Background()
	if err := r.Initiate(ctx, simConfig(time.Second, "a:1")); err != nil {
		t.Fatal(err)
	}
	c := makeCollection(t, r, e)
	u := e.NewUnitOfWork(nil)
	if _, err := u.Insert(c, value.Doc(value.F("_id", value.NewInt32(1))), storage.NoInfo); err != nil {
		t.Fatal(err)
	}
	ts, err := r.Commit(ctx, u, Majority)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	s.open("a:1", false, fs)
	r, e = s.nodes["a:1"], s.engines["a:1"]
	await.True(t, "primary again", r.IsPrimary)
	if e.Visible() < ts || e.Catalog().Lookup("db.c") == nil {
		t.Errorf("after a restart %v is visible, %v was acknowledged", e.Visible(), ts)
	}
	if st := r.Status(); st.Term < 3 || st.Role != Primary || st.Config.Members[0].Host != "a:1" {
		t.Errorf("%+v", st)
	}
}

// A store of a set of one without a raft log becomes a member of a set with one, which grows to three members, while
// clients write.
func TestGrowing(t *testing.T) {
	s := newEngineSet(t, false)
	e, err := storage.Open(storage.Options{FS: vfs.NewMem(), Dir: "db", MinFreeDisk: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	member := NewMember(NewSingle(e))
	u := e.NewUnitOfWork(nil)
	c, err := u.CreateCollection(storage.CollectionSpec{NS: "db.c"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := member.Commit(ctx, u, Majority); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var acked sync.Map
	for w := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := int32(w); ; i += 4 {
				select {
				case <-stop:
					return
				default:
				}
				u := e.NewUnitOfWork(nil)
				if _, err := u.Insert(c, value.Doc(value.F("_id", value.NewInt32(i))), storage.NoInfo); err != nil {
					u.Rollback()
					continue
				}
				if _, err := member.Commit(ctx, u, Majority); err == nil {
					acked.Store(i, true)
				}
			}
		}()
	}
	count := func() (n int) {
		acked.Range(func(any, any) bool { n++; return true })
		return n
	}
	await.True(t, "the member alone takes writes", func() bool { return count() >= 20 })
	s.adopt("a:1", e, true)
	r := s.nodes["a:1"]
	member.Switch(r)
	if err := r.Initiate(ctx, simConfig(time.Second, "a:1")); err != nil {
		t.Fatal(err)
	}
	s.open("b:1", false, vfs.NewMem())
	s.open("c:1", false, vfs.NewMem())
	next := r.Config().Clone()
	next.Version++
	for i, h := range three[1:] {
		next.Members = append(next.Members, MemberConfig{ID: i + 1, Host: h, Priority: 1, Votes: 1, BuildIndexes: true})
	}
	if err := r.Reconfigure(ctx, next, false); err != nil {
		t.Fatal(err)
	}
	await.True(t, "all vote", func() bool { return len(r.voting()) == 3 })
	before := count()
	await.True(t, "the set takes writes", func() bool { return count() >= before+20 })
	close(stop)
	wg.Wait()
	ts := e.Visible()
	if err := r.Await(ctx, ts, WriteConcern{W: 3, Timeout: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	s.same(ts, int64(count()))
}

// Members on disks that lose what was not synced crash one after the other, the primary among them, while clients write:
// nothing acknowledged is lost, and all end up with the same content.
func TestEnginesCrash(t *testing.T) {
	s := newEngineSet(t, false)
	disks := map[string]*vfs.MemFS{}
	for _, h := range three {
		disks[h] = vfs.NewCrashableMem()
		s.open(h, false, disks[h])
	}
	ctx := context.Background()
	c := simConfig(time.Second, three...)
	if err := s.nodes["a:1"].Initiate(ctx, c); err != nil {
		t.Fatal(err)
	}
	coll := makeCollection(t, s.nodes["a:1"], s.engines["a:1"])
	await.True(t, "all vote", func() bool { return len(s.nodes["a:1"].voting()) == 3 })
	acked, next := []int32{}, int32(0)
	insert := func(n int) {
		for done := 0; done < n; {
			host := ""
			await.True(t, "a primary", func() bool {
				for _, h := range three {
					if s.nodes[h].IsPrimary() {
						host = h
					}
				}
				return host != ""
			})
			next++
			r, e := s.nodes[host], s.engines[host]
			u := e.NewUnitOfWork(nil)
			if _, err := u.Insert(e.Catalog().LookupUUID(coll.UUID), value.Doc(value.F("_id", value.NewInt32(next))), storage.NoInfo); err != nil {
				u.Rollback()
				continue
			}
			if _, err := r.Commit(ctx, u, Majority); err == nil {
				acked = append(acked, next)
				done++
			}
		}
	}
	for _, h := range []string{"b:1", "a:1", "c:1"} {
		insert(50)
		s.crash(h, disks, 50)
		s.open(h, false, disks[h])
		insert(50)
	}
	var p *Raft
	await.True(t, "a primary", func() bool {
		for _, r := range s.nodes {
			if r.IsPrimary() {
				p = r
			}
		}
		return p != nil
	})
	ts := p.MajorityCommitted()
	if err := p.Await(ctx, ts, WriteConcern{W: 3, Timeout: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	s.same(ts, int64(len(acked)))
	snap := s.engines["b:1"].Snapshot()
	defer snap.Release()
	for _, id := range acked {
		if _, _, ok, err := snap.FindByID(snap.Catalog().Lookup("db.c"), value.NewInt32(id)); err != nil || !ok {
			t.Errorf("the acknowledged document %d is lost: %v", id, err)
		}
	}
}
