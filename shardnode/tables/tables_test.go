package tables

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
)

// configServer is a config server with one collection, db.c, sharded by k. It counts the entries of chunks that are read.
type configServer struct {
	chunks []value.Value
	gone   bool
	epoch  byte
	read   int

	onSince uint64 // when chunks that are put arrive
	moved   uint64 // when the database arrived, 0 if it has always been on its shard
	indexed bool   // puts has all changes, in the order of their versions
	puts    []int
}

// since returns the chunks of a version or later ones.
func (s *configServer) since(version value.Value) (found []value.Value) {
	if version.IsMissing() {
		return s.chunks
	}
	if s.indexed { // at the cost of what is found, as an index has it
		seen := map[int]bool{}
		for _, i := range slices.Backward(s.puts) {
			if seen[i] {
				continue
			}
			if seen[i] = true; value.Lookup(s.chunks[i].Doc(), "lastmod").TimestampU64() < version.TimestampU64() {
				break
			}
			found = append(found, s.chunks[i])
		}
		slices.Reverse(found)
		return found
	}
	for _, c := range s.chunks {
		if value.Lookup(c.Doc(), "lastmod").TimestampU64() >= version.TimestampU64() {
			found = append(found, c)
		}
	}
	return found
}

func doc(f ...value.Field) value.Value { return value.NewDocument(value.Doc(f...)) }

func (s *configServer) Call(_ context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	var found []value.Value
	switch value.Lookup(m.Body, "find").Str() {
	case "databases":
		if !s.gone {
			version := cluster.DatabaseVersion{Timestamp: 1, LastMod: 1}
			if s.moved != 0 {
				version = cluster.DatabaseVersion{Timestamp: s.moved, LastMod: 2}
			}
			found = append(found, doc(value.F("_id", value.NewString("db")), value.F("primary", value.NewString("a")), value.F("version", value.NewDocument(version.Doc()))))
		}
	case "collections":
		if !s.gone {
			found = append(found, doc(value.F("_id", value.NewString("db.c")), value.F("lastmodEpoch", value.NewObjectID([12]byte{s.epoch})),
				value.F("timestamp", value.NewTimestampU64(uint64(s.epoch))), value.F("uuid", value.NewBinary(4, make([]byte, 16))),
				value.F("key", doc(value.F("k", value.NewInt32(1)))), value.F("unique", value.NewBool(true)), value.F("noBalance", value.NewBool(true))))
		}
	case "chunks":
		found = s.since(value.Lookup(value.Lookup(value.Lookup(m.Body, "filter").Doc(), "lastmod").Doc(), "$gte"))
		s.read += len(found)
	}
	return append(dst, value.Doc(value.F("ok", value.NewDouble(1)), value.F("cursor", doc(value.F("firstBatch", value.NewArray(value.ArrayOf(found...))),
		value.F("id", value.NewInt64(0)), value.F("ns", value.NewString("config.x")))))...), nil
}

// put makes chunk i of n one of a shard.
func (s *configServer) put(i, n int, shard string, version uint64) {
	bound := func(i int) value.Value {
		switch i {
		case 0:
			return doc(value.F("k", value.NewMinKey()))
		case n:
			return doc(value.F("k", value.NewMaxKey()))
		}
		return doc(value.F("k", value.NewInt64(int64(i))))
	}
	s.puts = append(s.puts, i)
	s.chunks[i] = doc(value.F("min", bound(i)), value.F("max", bound(i+1)), value.F("shard", value.NewString(shard)), value.F("lastmod", value.NewTimestampU64(version)),
		value.F("onCurrentShardSince", value.NewTimestampU64(s.onSince)), value.F("history", value.NewArray(value.ArrayOf(doc(
			value.F("validAfter", value.NewTimestampU64(s.onSince)), value.F("shard", value.NewString(shard)))))))
}

func newConfigServer(n int) *configServer {
	s := &configServer{chunks: make([]value.Value, n), epoch: 1, onSince: 5}
	for i := range n {
		s.put(i, n, "a", 1<<32|uint64(i))
	}
	return s
}

// member is a member of a shard over a store.
type member struct {
	*Tables
	secondary bool
	ask       func(cmd []byte) ([]byte, error)
}

func newMember(t *testing.T, eng *storage.Engine, config cluster.Peer) *member {
	t.Helper()
	m := &member{}
	docs := &statedoc.Docs{Engine: eng, Set: replication.NewSingle(eng)}
	m.Tables = New(Config{
		Docs: docs, Catalog: cluster.NewCatalog(config), Config: config, Primary: func() bool { return !m.secondary }, UnitChunks: func() int { return 1000 },
		AskPrimary: func(_ context.Context, cmd []byte) ([]byte, error) { return m.ask(cmd) },
	})
	m.Catalog.SetDisk(m.Tables)
	if err := m.Service().StepUp(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	return m
}

func newEngine(t *testing.T) *storage.Engine {
	t.Helper()
	eng, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	return eng
}

func (m *member) count(t *testing.T, ns string) (n int) {
	t.Helper()
	if err := m.Docs.Each(ns, func([]byte) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// written counts the documents of chunks that the oplog has changes of after a time.
func (m *member) written(t *testing.T, after storage.Timestamp) (n int) {
	t.Helper()
	if err := m.Docs.Each("local.oplog.rs", func(e []byte) error {
		if storage.Timestamp(value.Lookup(e, "ts").TimestampU64()) <= after {
			return nil
		}
		ops := []value.Value{value.NewDocument(e)}
		if inner := value.Lookup(value.LookupDoc(e, "o"), "applyOps"); inner.T == value.Array {
			ops = value.Values(inner.Doc())
		}
		for _, op := range ops {
			if value.Lookup(op.Doc(), "ns").Str() == ChunksNS("db.c") {
				n++
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func (m *member) flush(t *testing.T) {
	t.Helper()
	if err := m.Flush(t.Context(), "db.c"); err != nil {
		t.Fatal(err)
	}
}

func (m *member) sameAsStored(t *testing.T) {
	t.Helper()
	info, err := m.Catalog.Collection(t.Context(), "db.c")
	if err != nil {
		t.Fatal(err)
	}
	p, _, ok := m.read("db.c", nil)
	if !ok || p.Map == nil {
		t.Fatal("no whole table is stored")
	}
	if now, gone := info.Map.Changes(p.Map); len(now)+len(gone) > 0 || p.Map.Version() != info.Map.Version() {
		t.Fatalf("stored is another table: %d chunks are missing, %d too many, version %s for %s", len(now), len(gone), p.Map.Version(), info.Map.Version())
	}
}

// What is written costs what has changed, and a new primary asks the config server for no more than that.
func TestOnlyWhatChangesIsWrittenAndRead(t *testing.T) {
	const n = 3000
	s, eng := newConfigServer(n), newEngine(t)
	m := newMember(t, eng, s)
	m.flush(t)
	m.sameAsStored(t)
	if got := m.count(t, ChunksNS("db.c")); got != n {
		t.Fatalf("%d documents of %d", got, n)
	}
	e, _, err := entries(m.Docs).Get(value.NewString("db.c"))
	if err != nil || e.Refreshing || !value.Lookup(e.Doc(), "unique").Truthy() || value.Lookup(e.Doc(), "epoch").T != value.ObjectID || !value.Lookup(e.Doc(), "noBalance").IsMissing() {
		t.Fatalf("the entry is %s, %v", value.ShowDoc(e.Doc()), err)
	}
	for i := range 5 {
		before := eng.Visible()
		s.put(i, n, "b", uint64(i+2)<<32)
		s.put(i+20, n, "a", uint64(i+2)<<32|1)
		m.flush(t)
		m.sameAsStored(t)
		if w := m.written(t, before); w != 2 {
			t.Errorf("a move of one chunk: %d documents written", w)
		}
	}
	before := eng.Visible()
	m.flush(t)
	if eng.Visible() != before {
		t.Error("a refresh without a change writes")
	}

	s.put(700, n, "b", 9<<32)
	s.read = 0
	next := newMember(t, eng, s) // has started again
	before = eng.Visible()
	next.flush(t)
	next.sameAsStored(t)
	if w := next.written(t, before); s.read > 2 || w != 1 {
		t.Errorf("after a start: %d chunks read, %d written", s.read, w)
	}
}

// A million chunks would be rewritten if a merge did not say which documents go.
func TestMergedAndSplitChunks(t *testing.T) {
	const n = 600
	s, eng := newConfigServer(n), newEngine(t)
	m := newMember(t, eng, s)
	m.flush(t)
	// 100 to 299 become one chunk.
	merged := doc(value.F("min", value.Lookup(s.chunks[100].Doc(), "min")), value.F("max", value.Lookup(s.chunks[299].Doc(), "max")),
		value.F("shard", value.NewString("a")), value.F("lastmod", value.NewTimestampU64(2<<32)))
	split := append([]value.Value(nil), s.chunks[100:300]...)
	s.chunks = append(append(append([]value.Value(nil), s.chunks[:100]...), merged), s.chunks[300:]...)
	m.flush(t)
	m.sameAsStored(t)
	if got := m.count(t, ChunksNS("db.c")); got != n-199 {
		t.Errorf("%d documents of %d", got, n-199)
	}
	for i, c := range split {
		split[i] = value.NewDocument(value.WithField(c.Doc(), "lastmod", value.NewTimestampU64(2<<32|uint64(i+1))))
	}
	s.chunks = append(append(append([]value.Value(nil), s.chunks[:100]...), split...), s.chunks[101:]...)
	m.flush(t)
	m.sameAsStored(t)
	if got := m.count(t, ChunksNS("db.c")); got != n {
		t.Errorf("%d documents of %d", got, n)
	}
}

// A table that was not written to its end, or that somebody else has written to, cannot be updated, and is replaced.
func TestBrokenTablesAreReplaced(t *testing.T) {
	const n = 50
	key := doc(value.F("k", value.NewInt64(7)))
	for what, harm := range map[string]func(m *member) error{
		"another shard": func(m *member) error {
			d, err := m.Docs.Get(ChunksNS("db.c"), key)
			if err != nil {
				return err
			}
			return m.Docs.Put(t.Context(), ChunksNS("db.c"), value.WithField(d, "shard", value.NewString("c")))
		},
		"a chunk is missing": func(m *member) error { return m.Docs.Remove(t.Context(), ChunksNS("db.c"), key) },
		"half written": func(m *member) error {
			return entries(m.Docs).Update(t.Context(), value.NewString("db.c"), func(e *cluster.CachedEntry) { e.Refreshing = true })
		},
		"no chunk is there": func(m *member) error {
			return m.unit(t.Context(), func(s *storage.Snapshot, u *storage.UnitOfWork) error {
				return u.DropCollection(s.Catalog().Lookup(ChunksNS("db.c")))
			})
		},
	} {
		s, eng := newConfigServer(n), newEngine(t)
		m := newMember(t, eng, s)
		m.flush(t)
		if err := harm(m); err != nil {
			t.Fatal(err)
		}
		next := newMember(t, eng, s)
		if _, ok := next.Base("db.c"); ok {
			t.Errorf("%s: it is taken for a whole table", what)
		}
		s.read = 0
		next.flush(t)
		next.sameAsStored(t)
		if s.read != n {
			t.Errorf("%s: %d chunks of %d read from the config server", what, s.read, n)
		}
	}
}

// A write that fails midway leaves no table that counts as whole, and the next one begins anew.
func TestInterruptedWrite(t *testing.T) {
	const n = 2500
	s, eng := newConfigServer(n), newEngine(t)
	m := newMember(t, eng, s)
	ctx, cancel := context.WithCancel(t.Context())
	m.UnitChunks = func() int { return 10 }
	info, err := m.Catalog.Collection(ctx, "db.c")
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		written <- m.write(ctx, m.of("db.c", true), cluster.Placement{Entry: info.Entry, Map: info.Map}, true)
	}()
	await.True(t, "some chunks are written", func() bool { return m.count(t, ChunksNS("db.c")) >= 20 })
	cancel()
	if err := <-written; !errors.Is(err, context.Canceled) {
		t.Fatalf("it was not interrupted: %v", err)
	}
	next := newMember(t, eng, s)
	if _, ok := next.Base("db.c"); ok {
		t.Error("half a table is taken for a whole one")
	}
	next.flush(t)
	next.sameAsStored(t)
}

// Of a collection that was dropped, or replaced by another, nothing old is left.
func TestDroppedAndReplaced(t *testing.T) {
	s, eng := newConfigServer(40), newEngine(t)
	m := newMember(t, eng, s)
	m.flush(t)
	if err := m.FlushDatabase(t.Context(), "db"); err != nil || m.count(t, DatabasesNS) != 1 {
		t.Fatalf("%d databases, %v", m.count(t, DatabasesNS), err)
	}
	*s = *newConfigServer(10)
	s.epoch = 2
	m.flush(t)
	m.sameAsStored(t)
	if got := m.count(t, ChunksNS("db.c")); got != 10 {
		t.Errorf("%d documents of 10", got)
	}
	s.gone = true
	m.Catalog.PurgeDatabase("db")
	m.Changed("db")
	if m.drain(t.Context()) {
		t.Error("it has to be looked at again")
	}
	if c, d := m.count(t, CollectionsNS), m.count(t, DatabasesNS); c+d != 0 || m.Docs.Engine.Catalog().Lookup(ChunksNS("db.c")) != nil {
		t.Errorf("%d collections and %d databases are left", c, d)
	}

	*s = *newConfigServer(10)
	m.flush(t)
	s.gone = true // while nobody is primary
	next := newMember(t, eng, s)
	if err := next.sweep(t.Context()); err != nil || next.drain(t.Context()) || next.count(t, CollectionsNS) != 0 {
		t.Errorf("a new primary leaves %d collections: %v", next.count(t, CollectionsNS), err)
	}
}

// A table that was read before its collection was dropped, and arrives after what was stored of it has been removed, is not stored. It used to stay until the primary changed.
func TestLateTableOfADroppedCollection(t *testing.T) {
	s, eng := newConfigServer(10), newEngine(t)
	m := newMember(t, eng, s)
	if _, err := m.Catalog.Collection(t.Context(), "db.c"); err != nil {
		t.Fatal(err)
	}
	m.Catalog.InvalidateCollection("db.c")
	s.gone = true
	for again := true; again; { // what was loaded, and what is found then
		if m.drain(t.Context()) {
			t.Fatal("it has to be looked at again")
		}
		m.mu.Lock()
		again = len(m.mu.queue) > 0
		m.mu.Unlock()
	}
	if n := m.count(t, CollectionsNS); n != 0 || eng.Catalog().Lookup(ChunksNS("db.c")) != nil {
		t.Errorf("%d collections are stored", n)
	}
}

// A secondary reads what its primary has stored, and of that what has changed; it asks the config server only if the primary does not answer.
func TestSecondariesFollowTheirPrimary(t *testing.T) {
	const n = 900
	s, eng := newConfigServer(n), newEngine(t)
	m := newMember(t, eng, s)
	own := newConfigServer(n) // as the secondary would see the config server
	follower := newMember(t, eng, own)
	follower.secondary = true
	down := false
	follower.ask = func(cmd []byte) ([]byte, error) {
		if down {
			return nil, errors.New("no primary")
		}
		var req msg.FlushRoutingTableDurably
		if msg.Parse(cmd, &req) == nil {
			m.flush(t)
		} else if err := m.FlushDatabase(t.Context(), "db"); err != nil {
			return nil, err
		}
		return msg.Append(nil, &msg.FlushReply{Visible: uint64(eng.Visible())}), nil
	}
	see := func() *cluster.ChunkMap {
		follower.Catalog.InvalidateCollection("db.c")
		info, err := follower.Catalog.Collection(t.Context(), "db.c")
		if err != nil {
			t.Fatal(err)
		}
		return info.Map
	}
	first := see()
	s.put(3, n, "b", 2<<32)
	second := see()
	if first.Len() != n || first.CountOf("b") != 0 || second.CountOf("b") != 1 || own.read != 0 {
		t.Errorf("%d and %d chunks, %d of them moved, %d read from the config server", first.Len(), second.Len(), second.CountOf("b"), own.read)
	}
	if now, gone := second.Changes(first); len(now) != 1 || len(gone) != 1 {
		t.Errorf("%d and %d chunks differ", len(now), len(gone))
	}
	down = true
	own.put(4, n, "b", 3<<32)
	if third := see(); third.CountOf("b") != 2 || own.read == 0 {
		t.Errorf("without a primary %d chunks are moved, %d read from the config server", third.CountOf("b"), own.read)
	}
	down, s.gone = false, true
	follower.Catalog.PurgeDatabase("db")
	if _, err := follower.Catalog.Database(t.Context(), "db"); err == nil {
		t.Error("a database that is gone is still known")
	}
}

// An entry is read back as it was written.
func TestCachedEntryComesBack(t *testing.T) {
	entry := value.Doc(value.F("_id", value.NewString("d.c")), value.F("lastmodEpoch", value.NewObjectID([12]byte{3})), value.F("uuid", value.NewBinary(4, make([]byte, 16))))
	e := cluster.NewCachedEntry(entry, 7, 1<<63+5)
	got, err := cluster.ParseCachedEntry(e.Doc())
	if err != nil || !bytes.Equal(got.Entry, entry) || got.Version != 7 || got.Sum != 1<<63+5 || got.Refreshing {
		t.Errorf("%s, %v", value.ShowDoc(got.Doc()), err)
	}
}

// A secondary that is behind waits until it has what its primary has stored, however long that takes. It used to ask the config server after a second, and to read by a placement
// whose documents it did not have.
func TestSecondariesBehindTheirPrimary(t *testing.T) {
	s, eng := newConfigServer(10), newEngine(t)
	follower := newMember(t, eng, s)
	follower.secondary = true
	ahead := eng.Visible() + 1<<32
	follower.ask = func([]byte) ([]byte, error) { return msg.Append(nil, &msg.FlushReply{Visible: uint64(ahead)}), nil }
	ctx, cancel := context.WithTimeout(t.Context(), 2*primaryTimeout)
	defer cancel()
	if _, err := follower.Catalog.Collection(ctx, "db.c"); err == nil || ctx.Err() == nil {
		t.Errorf("a placement is returned: %v, %v", err, ctx.Err())
	}
	follower.ask = func([]byte) ([]byte, error) { return nil, errors.New("no primary") }
	follower.Shard, s.onSince = "a", uint64(ahead)
	s.put(3, 10, "a", 2<<32)
	brief, end := context.WithTimeout(t.Context(), primaryTimeout/2)
	defer end()
	if _, err := follower.Catalog.Collection(brief, "db.c"); err == nil || s.read == 0 {
		t.Errorf("without a primary a placement is returned whose documents are not here: %v, %d chunks read", err, s.read)
	}
	eng.AdvanceClock(ahead)
	if err := follower.Docs.Put(t.Context(), "db.other", value.Doc(value.F("_id", value.NewInt32(1)))); err != nil {
		t.Fatal(err)
	}
	if _, err := follower.Catalog.Collection(t.Context(), "db.c"); err != nil {
		t.Errorf("once they are: %v", err)
	}
}

// A secondary whose primary does not reply waits for the documents of a database that has been moved to its shard before it takes the database's placement from the config server. It used to read
// without them.
func TestSecondariesBehindAMovePrimary(t *testing.T) {
	s, eng := newConfigServer(10), newEngine(t)
	ahead := eng.Visible() + 1<<32
	s.moved = uint64(ahead)
	placed := func(shard string) error {
		follower := newMember(t, eng, s)
		follower.secondary, follower.Shard = true, shard
		follower.ask = func([]byte) ([]byte, error) { return nil, errors.New("no primary") }
		ctx, cancel := context.WithTimeout(t.Context(), primaryTimeout/2)
		defer cancel()
		_, err := follower.Catalog.Database(ctx, "db")
		return err
	}
	if placed("a") == nil {
		t.Error("a placement is returned of whose documents the member has none")
	}
	if err := placed("b"); err != nil {
		t.Errorf("on a shard that the database is not on: %v", err)
	}
	eng.AdvanceClock(ahead)
	if err := newMember(t, eng, s).Docs.Put(t.Context(), "db.other", value.Doc(value.F("_id", value.NewInt32(1)))); err != nil {
		t.Fatal(err)
	}
	if err := placed("a"); err != nil {
		t.Errorf("once it has them: %v", err)
	}
	s.moved = 0
	if err := placed("a"); err != nil {
		t.Errorf("a database that has not been moved: %v", err)
	}
}
