package migration

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire"
)

// fakeNode is a node without a replica set, which records its calls.
type fakeNode struct {
	warned    []string
	forgotten []string
	secondary error // result of NotPrimary
}

func (f *fakeNode) NotPrimary() error { return f.secondary }

func (f *fakeNode) SetConfig() *replication.SetConfig { return nil }

func (f *fakeNode) LockDDL(context.Context, string) (func(), error) { return func() {}, nil }

func (f *fakeNode) Warn(msg string, _ error) { f.warned = append(f.warned, msg) }

func (f *fakeNode) Forget(_ *storage.UnitOfWork, c *catalog.Collection) {
	f.forgotten = append(f.forgotten, c.NS)
}

// fakeSessions has a history of the given number of entries, in parts of two.
type fakeSessions struct {
	entries int
	after   storage.Timestamp // what HistoryOf was asked for
}

func (f *fakeSessions) HistoryOf(_ func(*storage.OplogEntry) ([]byte, bool), after storage.Timestamp) func(int) ([][]byte, storage.Timestamp, bool, error) {
	f.after = after
	sent := 0
	return func(int) (part [][]byte, upTo storage.Timestamp, more bool, err error) {
		for len(part) < 2 && sent < f.entries {
			part = append(part, value.Doc(value.F("n", value.NewInt32(int32(sent)))))
			sent++
		}
		return part, after + storage.Timestamp(sent), sent < f.entries, nil
	}
}

func (f *fakeSessions) HistoryAfter(of func(*storage.OplogEntry) ([]byte, bool), after storage.Timestamp) func(int) ([][]byte, storage.Timestamp, bool, error) {
	return f.HistoryOf(of, after)
}

func (f *fakeSessions) Adopt(context.Context, []value.Value) error { return nil }

// newTestManager creates the manager of a shard "a" on an empty store in memory.
func newTestManager(t *testing.T, n Node, s Sessions) *Manager {
	t.Helper()
	return newTestManagerOn(t, n, s, storage.Options{Memory: true})
}

func newTestManagerOn(t *testing.T, n Node, s Sessions, o storage.Options) *Manager {
	t.Helper()
	eng, err := storage.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	c := Config{
		Engine: eng, Docs: &statedoc.Docs{Engine: eng, Set: replication.NewSingle(eng)}, Params: cluster.NewParams(), Points: cluster.NewFailPoints(),
		Service: command.NewService(command.Shard), Services: &replication.Services{}, Locks: lock.NewManager(), Now: time.Now, Counts: new(command.Opcounters),
		Linearize: func(context.Context) error { return nil },
	}
	m := newManager(c, n, s, NewShardState("a", cluster.NewCatalog(listOf()), nil, nil)) // a config server without collections
	c.Service.Table.Add(m.specs()...)
	return m
}

// listOf is a peer that answers each query with the same documents.
func listOf(docs ...[]byte) cluster.Peer {
	list := make([]value.Value, len(docs))
	for i, d := range docs {
		list[i] = value.NewDocument(d)
	}
	batch := value.Doc(value.F("id", value.NewInt64(0)), value.F("ns", value.NewString("config.x")), value.F("firstBatch", value.NewArray(value.ArrayOf(list...))))
	return cluster.LocalPeer(func(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
		return append(dst, value.Doc(value.F("cursor", value.NewDocument(batch)), value.F("ok", value.NewDouble(1)))...), nil
	})
}

func testRange(t *testing.T, min, max int32) *KeyRange {
	t.Helper()
	key, err := cluster.ParseShardKey(value.Doc(value.F("_id", value.NewInt32(1))))
	if err != nil {
		t.Fatal(err)
	}
	bound := func(i int32) []byte { return value.Doc(value.F("_id", value.NewInt32(i))) }
	return NewKeyRange(key, bound(min), bound(max))
}

// run runs an internal command and returns its reply.
func run(t *testing.T, m *Manager, fields ...value.Field) []byte {
	t.Helper()
	cmd := value.Doc(append(fields, value.F("$db", value.NewString("admin")))...)
	reply, err := m.Service.Direct(t.Context(), command.OwnClient(), &wire.Message{Body: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !value.Lookup(reply, "ok").Truthy() {
		t.Fatalf("%s: %s", value.ShowDoc(cmd), value.ShowDoc(reply))
	}
	return reply
}

// A recipient asks for the history of sessions until nothing remains; it begins with what the clone's snapshot does not show.
func TestSessionHistoryInParts(t *testing.T) {
	sessions := &fakeSessions{entries: 3}
	m := newTestManager(t, &fakeNode{}, sessions)
	d := &donor{m: m, id: [16]byte{7}, ns: "d.c", rng: testRange(t, 0, 9)}
	m.mu.out = d
	ask := []value.Field{value.F("_getNextSessionMods", value.NewString("d.c")), value.F("migrationId", value.NewBinary(4, d.id[:]))}
	if reply, _ := m.Service.Direct(t.Context(), command.OwnClient(), &wire.Message{Body: value.Doc(append(ask, value.F("$db", value.NewString("admin")))...)}, nil); value.Lookup(reply, "ok").Truthy() {
		t.Error("a migration that has not begun to clone has a history")
	}
	d.mu.from = storage.TimestampOf(100, 1)
	if err := d.openHistory(); err != nil {
		t.Fatal(err)
	}
	next := int32(0)
	for _, more := range []bool{true, false, false} {
		reply := run(t, m, ask...)
		for _, e := range value.Values(value.Lookup(reply, "oplog").Doc()) {
			if got := value.Lookup(e.Doc(), "n").Int32(); got != next {
				t.Errorf("entry %d, want %d", got, next)
			}
			next++
		}
		if value.Lookup(reply, "more").Truthy() != more {
			t.Errorf("after %d entries there are more: %v", next, !more)
		}
	}
	if next != 3 || sessions.after != d.mu.from {
		t.Errorf("%d entries after %v, want 3 after %v", next, sessions.after, d.mu.from)
	}
}

// The range deleter executes deletions that are decided and due, and leaves pending ones.
func TestSweepDeletesWhatIsDecided(t *testing.T) {
	m := newTestManager(t, &fakeNode{}, &fakeSessions{})
	ctx := t.Context()
	for i := range int32(10) {
		if err := m.Docs.Put(ctx, "d.c", value.Doc(value.F("_id", value.NewInt32(i)))); err != nil {
			t.Fatal(err)
		}
	}
	uuid := m.Engine.Catalog().Lookup("d.c").UUID
	for _, d := range []*rangeDeletion{
		{id: value.NewInt32(1), ns: "d.c", uuid: uuid, donor: "a", rng: testRange(t, 0, 3), since: m.today()},
		{id: value.NewInt32(2), ns: "d.c", uuid: uuid, donor: "a", rng: testRange(t, 5, 9), pending: true},
	} {
		if err := m.rangeDeletions().Put(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	if n := OrphanDocs(m.Docs, m.Engine.Catalog().Lookup("d.c")); n != 0 {
		t.Errorf("%d orphans are counted, none is noted", n)
	}
	if _, err := m.sweep(m.Service.Background(ctx, command.OwnClient())); err != nil {
		t.Fatal(err)
	}
	var left []int32
	if err := m.Docs.Each("d.c", func(doc []byte) error {
		left = append(left, value.Lookup(doc, "_id").Int32())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(left) != 7 || left[0] != 3 {
		t.Errorf("left are %v", left)
	}
	var open []int32
	if err := m.rangeDeletions().Each(func(d *rangeDeletion) error { open = append(open, d.id.Int32()); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(open) != 1 || open[0] != 2 {
		t.Errorf("open are the deletions %v", open)
	}
}

// A range that queries may still read from the shard stays for orphanCleanupDelaySecs after it moved away, and the sweep
// returns when it has to run again.
func TestSweepHeedsTheDelay(t *testing.T) {
	m := newTestManager(t, &fakeNode{}, &fakeSessions{})
	ctx := t.Context()
	for i := range int32(9) {
		if err := m.Docs.Put(ctx, "d.c", value.Doc(value.F("_id", value.NewInt32(i)))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Params.SetRuntime([]value.Field{value.F("orphanCleanupDelaySecs", value.NewInt32(100))}); err != nil {
		t.Fatal(err)
	}
	uuid := m.Engine.Catalog().Lookup("d.c").UUID
	left := func(ago int64) storage.Timestamp { return storage.TimestampOf(uint32(m.Now().Unix()-ago), 0) }
	for _, d := range []*rangeDeletion{
		{id: value.NewInt32(1), ns: "d.c", uuid: uuid, donor: "a", rng: testRange(t, 0, 3), delayed: true, since: left(40)},
		{id: value.NewInt32(2), ns: "d.c", uuid: uuid, donor: "a", rng: testRange(t, 3, 6), delayed: true, since: left(130)},
		{id: value.NewInt32(3), ns: "d.c", uuid: uuid, donor: "a", rng: testRange(t, 6, 9), delayed: true, since: left(10)},
	} {
		if err := m.rangeDeletions().Put(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	next, err := m.sweep(m.Service.Background(ctx, command.OwnClient()))
	if err != nil || next <= 0 || next > time.Minute {
		t.Errorf("the next look is in %v, %v", next, err)
	}
	var docs []int32
	if err := m.Docs.Each("d.c", func(doc []byte) error {
		docs = append(docs, value.Lookup(doc, "_id").Int32())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(docs, []int32{0, 1, 2, 6, 7, 8}) {
		t.Errorf("left are %v", docs)
	}
}

// A stored migration is read back unchanged, also if it was stored without the chunk's version.
func TestCoordinatorDocument(t *testing.T) {
	r := testRange(t, 1, 2)
	for _, d := range []*coordinatorDoc{
		{id: [16]byte{1}, ns: "d.c", uuid: catalog.UUID{2}, from: "a", to: "b", min: r.min, max: r.max, versioned: true},
		{id: [16]byte{1}, ns: "d.c", uuid: catalog.UUID{2}, from: "a", to: "b", min: r.min, max: r.max, decision: "aborted"},
	} {
		got, err := readCoordinatorDoc(d.Doc())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Doc(), d.Doc()) || got.versioned != d.versioned || got.decision != d.decision {
			t.Errorf("%s came back as %s", value.ShowDoc(d.Doc()), value.ShowDoc(got.Doc()))
		}
	}
}

// A secondary asks the config server for a placement between the notice that a migration is about to commit and the one that
// it has concluded; a primary does not, and no member does for other collections.
func TestSecondariesHearOfMigrations(t *testing.T) {
	n := &fakeNode{}
	h := NewShard(nil, n)
	id := value.NewBinary(4, make([]byte, 16))
	h.OnCommitNotice(1, placingNotice("announced", id, "d.c"))
	if h.placementMoves("d.c") {
		t.Error("the primary asks")
	}
	n.secondary = context.Canceled
	if !h.placementMoves("d.c") || h.placementMoves("d.other") {
		t.Error("a secondary does not ask for the collection that moves, or asks for another")
	}
	h.OnCommitNotice(1, placingNotice("concluded", id, "d.c"))
	if h.placementMoves("d.c") {
		t.Error("a secondary asks after the end")
	}
	h.OnCommitNotice(1, nil) // some were missed
	if !h.placementMoves("d.c") {
		t.Error("a secondary that missed notices does not ask")
	}
}
