package storage

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/storage/keystring"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// D builds a document of field names and values.
func D(kv ...any) []byte {
	var f []value.Field
	for i := 0; i < len(kv); i += 2 {
		f = append(f, value.F(kv[i].(string), V(kv[i+1])))
	}
	return value.Doc(f...)
}

func V(x any) value.Value {
	switch x := x.(type) {
	case int:
		return value.NewInt32(int32(x))
	case string:
		return value.NewString(x)
	case bool:
		return value.NewBool(x)
	case float64:
		return value.NewDouble(x)
	case []byte:
		return value.NewDocument(x)
	case []int:
		var vs []value.Value
		for _, i := range x {
			vs = append(vs, V(i))
		}
		return value.NewArray(value.ArrayOf(vs...))
	case value.Value:
		return x
	}
	panic(fmt.Sprintf("%T", x))
}

func spec(name string, key []byte, more ...any) []byte {
	return D(append([]any{"v", 2, "key", key, "name", name}, more...)...)
}

func openMem(t testing.TB, o Options) *Engine {
	t.Helper()
	if o.FS == nil {
		o.FS = vfs.NewMem()
	}
	if o.Dir == "" {
		o.Dir = "db"
	}
	o.MinFreeDisk = 1
	e, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func commit(t testing.TB, e *Engine, u *UnitOfWork) Timestamp {
	t.Helper()
	ts, err := e.Commit(context.Background(), u, true)
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

func create(t testing.TB, e *Engine, ns string, options []byte, indexes ...[]byte) *catalog.Collection {
	t.Helper()
	u := e.NewUnitOfWork(nil)
	c, err := u.CreateCollection(CollectionSpec{NS: ns, Options: options})
	if err == nil && len(indexes) > 0 {
		_, err = u.CreateIndexes(c, indexes)
	}
	if err != nil {
		t.Fatal(err)
	}
	commit(t, e, u)
	return e.Catalog().Lookup(ns)
}

func insert(t testing.TB, e *Engine, c *catalog.Collection, docs ...[]byte) Timestamp {
	t.Helper()
	u := e.NewUnitOfWork(nil)
	if _, err := u.InsertMany(c, docs, NoInfo); err != nil {
		t.Fatal(err)
	}
	return commit(t, e, u)
}

// list shows all documents of a snapshot, by field x.
func list(t testing.TB, s *Snapshot, ns string, reverse bool) string {
	t.Helper()
	c := s.Catalog().Lookup(ns)
	cur := s.Scan(c, ScanOptions{Reverse: reverse})
	defer cur.Close()
	return drain(t, cur)
}

func drain(t testing.TB, cur *RecordCursor) string {
	t.Helper()
	var out []string
	for cur.Next() {
		out = append(out, shellString(value.NewDocument(cur.Doc())))
	}
	if cur.Err() != nil {
		t.Fatal(cur.Err())
	}
	return strings.Join(out, " ")
}

func now(t testing.TB, e *Engine, ns string) string {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	return list(t, s, ns, false)
}

func want(t testing.TB, what, got, expect string) {
	t.Helper()
	if got != expect {
		t.Errorf("%s:\n got  %s\n want %s", what, got, expect)
	}
}

func code(t testing.TB, err error, c mongoerr.Code) {
	t.Helper()
	if mongoerr.CodeOf(err) != c {
		t.Errorf("got %v, want code %d", err, c)
	}
}

// update changes the document with the given _id.
func update(t testing.TB, e *Engine, ns string, id any, doc []byte) error {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	rid, old, ok, err := s.FindByID(c, V(id))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	u := e.NewUnitOfWork(s)
	defer u.Rollback()
	if doc == nil {
		err = u.Delete(c, rid.Clone(), append([]byte(nil), old...), NoInfo)
	} else {
		err = u.Update(c, rid.Clone(), append([]byte(nil), old...), doc, NoInfo)
	}
	if err != nil {
		return err
	}
	_, err = e.Commit(context.Background(), u, false)
	return err
}

func indexKeys(t testing.TB, e *Engine, ns, name string) (n int) {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	cur := s.IndexScan(c, c.Index(name), false)
	defer cur.Close()
	for cur.Next() {
		if _, ok, err := s.Get(c, cur.RecordID()); err != nil || !ok {
			t.Errorf("index %s points to nothing: %v", name, err)
		}
		n++
	}
	if cur.Err() != nil {
		t.Fatal(cur.Err())
	}
	return n
}

func TestLife(t *testing.T) {
	fs := vfs.NewMem()
	e := openMem(t, Options{FS: fs})
	c := create(t, e, "db.c", nil, spec("a_1", D("a", 1)), spec("u_1", D("u", 1), "unique", true))
	insert(t, e, c, D("_id", 1, "a", 1, "u", 1), D("_id", 2, "a", []int{1, 2}, "u", 2), D("_id", 3, "a", 5, "u", 3))
	before := e.Snapshot()
	if err := update(t, e, "db.c", 1, D("_id", 1, "a", 9, "u", 10)); err != nil {
		t.Fatal(err)
	}
	if err := update(t, e, "db.c", 2, nil); err != nil {
		t.Fatal(err)
	}
	const old = "{ _id: 1, a: 1, u: 1 } { _id: 2, a: [ 1, 2 ], u: 2 } { _id: 3, a: 5, u: 3 }"
	const new = "{ _id: 1, a: 9, u: 10 } { _id: 3, a: 5, u: 3 }"
	want(t, "snapshot", list(t, before, "db.c", false), old)
	want(t, "snapshot backwards", list(t, before, "db.c", true), "{ _id: 3, a: 5, u: 3 } { _id: 2, a: [ 1, 2 ], u: 2 } { _id: 1, a: 1, u: 1 }")
	want(t, "now", now(t, e, "db.c"), new)
	at, err := e.SnapshotAt(before.Timestamp())
	if err != nil {
		t.Fatal(err)
	}
	want(t, "at a timestamp", list(t, at, "db.c", false), old)
	at.Release()
	before.Release()
	for _, name := range []string{"_id_", "a_1", "u_1"} {
		if n := indexKeys(t, e, "db.c", name); n != 2 {
			t.Errorf("%s has %d keys", name, n)
		}
	}
	c = e.Catalog().Lookup("db.c")
	if !c.Index("a_1").Multikey || c.Index("u_1").Multikey {
		t.Error("multikey is wrong")
	}
	if c.Counters.Records.Load() != 2 {
		t.Errorf("count %d", c.Counters.Records.Load())
	}
	size := c.Counters.DataSize.Load()
	u := e.NewUnitOfWork(nil)
	_, err = u.Insert(c, D("_id", 7, "u", 10), NoInfo)
	code(t, err, mongoerr.DuplicateKey)
	want(t, "message", mongoerr.From(err).Message, "E11000 duplicate key error collection: db.c index: u_1 dup key: { u: 10 }")
	want(t, "details", shellString(value.NewDocument(mongoerr.From(err).Details)), "{ keyPattern: { u: 1 }, keyValue: { u: 10 } }")
	_, err = u.Insert(c, D("_id", 3, "u", 11), NoInfo)
	code(t, err, mongoerr.DuplicateKey)
	u.Rollback()
	top := e.Visible()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openMem(t, Options{FS: fs})
	defer e.Close()
	if e.Visible() < top {
		t.Errorf("time went back from %v to %v", top, e.Visible())
	}
	want(t, "reopened", now(t, e, "db.c"), new)
	c = e.Catalog().Lookup("db.c")
	if c.Counters.Records.Load() != 2 || c.Counters.DataSize.Load() != size || !c.Index("a_1").Multikey {
		t.Errorf("counters %d %d", c.Counters.Records.Load(), c.Counters.DataSize.Load())
	}
	insert(t, e, c, D("_id", 4))
	want(t, "and on", now(t, e, "db.c"), new+" { _id: 4 }")
}

func TestOplogEntries(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	insert(t, e, c, D("_id", 1), D("_id", 2))
	if err := update(t, e, "db.c", 1, D("_id", 1, "a", 1)); err != nil {
		t.Fatal(err)
	}
	if err := update(t, e, "db.c", 2, nil); err != nil {
		t.Fatal(err)
	}
	local := create(t, e, "local.x", nil)
	insert(t, e, local, D("_id", 1))
	u := e.NewUnitOfWork(nil)
	u.SetTransaction(D("id", 1), 5)
	if _, err := u.Insert(c, D("_id", 3), NoInfo); err != nil {
		t.Fatal(err)
	}
	commit(t, e, u)
	for _, reverse := range []bool{false, true} {
		var got []string
		s := e.Snapshot()
		cur := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{Reverse: reverse})
		last := Timestamp(0)
		for cur.Next() {
			n, _ := cur.RecordID().Int64()
			if ts := value.Lookup(cur.Doc(), "ts").TimestampU64(); ts != uint64(n) || !reverse && Timestamp(ts) <= last {
				t.Errorf("timestamps out of order at %v", ts)
			}
			last = Timestamp(n)
			got = append(got, value.Lookup(cur.Doc(), "op").Str()+" "+shellString(value.Lookup(cur.Doc(), "o"))+" "+shellString(value.Lookup(cur.Doc(), "o2")))
			cur.Save()
		}
		if cur.Err() != nil {
			t.Fatal(cur.Err())
		}
		cur.Close()
		s.Release()
		if reverse {
			for i, j := 0, len(got)-1; i < j; i, j = i+1, j-1 {
				got[i], got[j] = got[j], got[i]
			}
		}
		ui := shellString(c.UUID.Value())
		want(t, "entries", strings.Join(got, "\n"), strings.Join([]string{
			`c { create: "c", idIndex: { v: 2, key: { _id: 1 }, name: "_id_" } } undefined`,
			`i { _id: 1 } { _id: 1 }`, `i { _id: 2 } { _id: 2 }`, `u { _id: 1, a: 1 } { _id: 1 }`, `d { _id: 2 } undefined`,
			`c { applyOps: [ { op: "i", ns: "db.c", ui: ` + ui + `, o: { _id: 3 }, o2: { _id: 3 } } ] } undefined`}, "\n"))
	}
}

func TestConflicts(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	insert(t, e, c, D("_id", 1, "n", 0))
	s := e.Snapshot()
	defer s.Release()
	r, old, _, err := s.FindByID(c, V(1))
	if err != nil {
		t.Fatal(err)
	}
	rid, doc := r.Clone(), append([]byte(nil), old...)
	a, b := e.NewUnitOfWork(s), e.NewUnitOfWork(s)
	if err := a.Update(c, rid, doc, D("_id", 1, "n", 1), NoInfo); err != nil {
		t.Fatal(err)
	}
	code(t, b.Update(c, rid, doc, D("_id", 1, "n", 2), NoInfo), mongoerr.WriteConflict)
	b.Rollback()
	commit(t, e, a)
	b = e.NewUnitOfWork(s)
	code(t, b.Update(c, rid, doc, D("_id", 1, "n", 2), NoInfo), mongoerr.WriteConflict)
	b.Rollback()
	// A collection that changed during the unit.
	b = e.NewUnitOfWork(nil)
	if _, err := b.Insert(c, D("_id", 2), NoInfo); err != nil {
		t.Fatal(err)
	}
	d := e.NewUnitOfWork(nil)
	if err := d.DropCollection(c); err != nil {
		t.Fatal(err)
	}
	commit(t, e, d)
	_, err = e.Commit(context.Background(), b, false)
	code(t, err, mongoerr.WriteConflict)
	want(t, "the snapshot still reads it", list(t, s, "db.c", false), "{ _id: 1, n: 0 }")
}

func TestOwnWrites(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", nil, spec("a_1", D("a", 1), "unique", true))
	insert(t, e, c, D("_id", 1, "a", 1), D("_id", 2, "a", 2), D("_id", 3, "a", 3))
	base := e.Snapshot()
	defer base.Release()
	u := e.NewUnitOfWork(base)
	own := u.Snapshot()
	cur := own.Scan(c, ScanOptions{})
	cur.Next()
	rid, old, _, _ := own.FindByID(c, V(2))
	if err := u.Update(c, rid.Clone(), append([]byte(nil), old...), D("_id", 2, "a", 22), NoInfo); err != nil {
		t.Fatal(err)
	}
	want(t, "cursor opened before the write", drain(t, cur), "{ _id: 2, a: 22 } { _id: 3, a: 3 }")
	cur.Close()
	if _, err := u.Insert(c, D("_id", 4, "a", 2), NoInfo); err != nil {
		t.Fatal("the key was given up by the update:", err)
	}
	_, err := u.Insert(c, D("_id", 5, "a", 22), NoInfo)
	code(t, err, mongoerr.DuplicateKey)
	_, err = u.Insert(c, D("_id", 4, "a", 7), NoInfo)
	code(t, err, mongoerr.DuplicateKey)
	all := "{ _id: 1, a: 1 } { _id: 2, a: 22 } { _id: 3, a: 3 } { _id: 4, a: 2 }"
	want(t, "own view", list(t, own, "db.c", false), all)
	want(t, "own view backwards", list(t, own, "db.c", true), "{ _id: 4, a: 2 } { _id: 3, a: 3 } { _id: 2, a: 22 } { _id: 1, a: 1 }")
	want(t, "others", now(t, e, "db.c"), "{ _id: 1, a: 1 } { _id: 2, a: 2 } { _id: 3, a: 3 }")
	commit(t, e, u)
	want(t, "committed", now(t, e, "db.c"), all)
	if n := indexKeys(t, e, "db.c", "a_1"); n != 4 {
		t.Errorf("%d keys", n)
	}
}

func TestCapped(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", D("capped", true, "size", 4096, "max", 3))
	for i := 0; i < 5; i++ {
		insert(t, e, c, D("_id", i))
	}
	want(t, "one by one", now(t, e, "db.c"), "{ _id: 2 } { _id: 3 } { _id: 4 }")
	insert(t, e, c, D("_id", 5), D("_id", 6), D("_id", 7), D("_id", 8), D("_id", 9))
	want(t, "a batch", now(t, e, "db.c"), "{ _id: 7 } { _id: 8 } { _id: 9 }")
	if n := indexKeys(t, e, "db.c", "_id_"); n != 3 {
		t.Errorf("%d keys", n)
	}
}

func TestClustered(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", D("clusteredIndex", D("key", D("_id", 1), "unique", true, "name", "cl")), spec("a_1", D("a", 1)))
	insert(t, e, c, D("_id", 3, "a", 1), D("_id", 1, "a", 1), D("_id", "x", "a", 0))
	want(t, "order", now(t, e, "db.c"), `{ _id: 1, a: 1 } { _id: 3, a: 1 } { _id: "x", a: 0 }`)
	u := e.NewUnitOfWork(nil)
	_, err := u.Insert(c, D("_id", 3), NoInfo)
	code(t, err, mongoerr.DuplicateKey)
	u.Rollback()
	if n := indexKeys(t, e, "db.c", "a_1"); n != 3 {
		t.Errorf("%d keys", n)
	}
	s := e.Snapshot()
	defer s.Release()
	_, doc, ok, err := s.FindByID(c, V("x"))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	want(t, "found", shellString(value.NewDocument(doc)), `{ _id: "x", a: 0 }`)
}

func TestIndexBuild(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	for i := 0; i < 100; i++ {
		insert(t, e, c, D("_id", i, "a", i))
	}
	ctx := context.Background()
	b, err := e.StartIndexBuild(ctx, "db.c", [][]byte{spec("a_1", D("a", 1), "unique", true)}, NewUUID())
	if err != nil {
		t.Fatal(err)
	}
	// Writes between the start and the load.
	if err := update(t, e, "db.c", 5, D("_id", 5, "a", 500)); err != nil {
		t.Fatal(err)
	}
	if err := update(t, e, "db.c", 6, nil); err != nil {
		t.Fatal(err)
	}
	insert(t, e, e.Catalog().Lookup("db.c"), D("_id", 100, "a", []int{5, 6}))
	if _, err := b.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if n := indexKeys(t, e, "db.c", "a_1"); n != 101 {
		t.Errorf("%d keys", n)
	}
	idx := e.Catalog().Lookup("db.c").Index("a_1")
	if !idx.Ready || !idx.Multikey {
		t.Error("the index should be ready and multikey")
	}
	// Too many keys for the log are ingested as a file.
	for i := 200; i < 5200; i += 1000 {
		var docs [][]byte
		for k := i; k < i+1000; k++ {
			docs = append(docs, D("_id", k, "a", k+1000, "s", strings.Repeat(fmt.Sprint(k), 300)))
		}
		insert(t, e, e.Catalog().Lookup("db.c"), docs...)
	}
	b, err = e.StartIndexBuild(ctx, "db.c", [][]byte{spec("s_1", D("s", 1), "sparse", true)}, NewUUID())
	if err != nil {
		t.Fatal(err)
	}
	if err := update(t, e, "db.c", 300, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if n := indexKeys(t, e, "db.c", "s_1"); n != 4999 {
		t.Errorf("%d keys", n)
	}
	b, err = e.StartIndexBuild(ctx, "db.c", [][]byte{spec("z_1", D("z", 1), "unique", true)}, NewUUID())
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Run(ctx)
	code(t, err, mongoerr.DuplicateKey)
	if e.Catalog().Lookup("db.c").Index("z_1") != nil {
		t.Error("the index should be gone")
	}
}

func TestValidate(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", nil, spec("a_1", D("a", 1)))
	insert(t, e, c, D("_id", 1, "a", 1), D("_id", 2, "a", 2), D("_id", 3, "a", []int{4, 5}))
	check := func(expect string) *Validation {
		t.Helper()
		s := e.Snapshot()
		defer s.Release()
		v, err := s.Validate(context.Background(), s.Catalog().Lookup("db.c"), nil)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(v.Valid(), v.Records, len(v.Corrupt), v.CountWrong, v.Multikey)
		for _, i := range v.Indexes {
			got += fmt.Sprintf(" %s %d", i.Name, i.Keys)
			for _, m := range i.Missing {
				got += " missing " + shellString(value.NewDocument(m.Doc))
			}
			for _, m := range i.Extra {
				got += " extra " + shellString(value.NewDocument(m.Doc))
			}
		}
		want(t, "validation", got, expect)
		return v
	}
	check("true 3 0 false [] _id_ 3 a_1 4")
	// Damage done behind the engine's back.
	c = e.Catalog().Lookup("db.c")
	idx := c.Index("a_1")
	var set indexkey.KeySet
	if err := idx.Keys.Keys(D("a", 2), &set); err != nil {
		t.Fatal(err)
	}
	u := e.NewUnitOfWork(nil)
	u.put(idx.Ident, appendIndexKey(nil, idx, set.Key(0), NewRecordID(2)))
	u.put(idx.Ident, appendIndexKey(nil, idx, set.Key(0), NewRecordID(9)), entryLive)
	u.put(c.IDIndex().Ident, keystring.AppendKey(nil, V(3), false, nil))
	u.put(c.Ident, NewRecordID(7), []byte("no document"))
	commit(t, e, u)
	found := check("false 4 1 true [] _id_ 2 missing { _id: 3 } a_1 4 missing { a: 2 } extra { a: 2 }")
	if changed, err := e.Repair(context.Background(), "db.c", found); err != nil || !changed {
		t.Fatal(changed, err)
	}
	check("true 3 0 false [] _id_ 3 a_1 4")
}

// A store in memory has no log; everything else is as on disk.
func TestMemory(t *testing.T) {
	e, err := Open(Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	c := create(t, e, "db.c", nil, spec("a_1", D("a", 1)))
	ts := insert(t, e, c, D("_id", 1, "a", 1))
	if e.Durable() < ts {
		t.Error("what is in memory is as durable as it gets")
	}
	if err := update(t, e, "db.c", 1, D("_id", 1, "a", 2)); err != nil {
		t.Fatal(err)
	}
	want(t, "content", now(t, e, "db.c"), "{ _id: 1, a: 2 }")
	if _, err := e.StartIndexBuild(context.Background(), "db.c", [][]byte{spec("b_1", D("b", 1))}, NewUUID()); err != nil {
		t.Fatal(err)
	}
	if err := e.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkCreateCollection(b *testing.B) {
	e := openMem(b, Options{Memory: true})
	defer e.Close()
	for i := 0; i < b.N; i++ {
		create(b, e, fmt.Sprintf("db%d.c%d", i%10, i), nil)
	}
}

// A store that a newer binary has written is refused before anything else of it is read or changed.
func TestNewerFormatIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	e := openMem(t, Options{FS: fs})
	key := metaKeyIn(identLocalMeta, metaFormat)
	if p, err := e.getMeta(key); err != nil || binary.BigEndian.Uint32(p) != formatVersion {
		t.Fatalf("a new store has format %x, %v", p, err)
	}
	if err := e.db.Set(key, binary.BigEndian.AppendUint32(nil, formatVersion+1), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(Options{FS: fs, Dir: "db", MinFreeDisk: 1})
	if mongoerr.CodeOf(err) != mongoerr.MustUpgrade {
		if err == nil {
			_ = again.Close()
		}
		t.Fatalf("opened a store of a newer format: %v", err)
	}
}

// An engine in memory has no journal. A Sync between a commit becoming visible and its being recorded as durable asked
// pebble to sync it all the same, and clients got "pebble: WAL disabled".
func TestSyncInMemory(t *testing.T) {
	e, err := Open(Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := create(t, e, "db.c", nil)
	local := create(t, e, "local.c", nil)
	for i := range 3 {
		insert(t, e, c, D("_id", i))
		insert(t, e, local, D("_id", i))
		e.durable.Store(0) // as it is for a moment in every commit
		if err := e.Sync(context.Background()); err != nil || e.Durable() != e.Visible() {
			t.Errorf("syncing an engine in memory: %v; durable %v of %v", err, e.Durable(), e.Visible())
		}
	}
}

// The history window (minSnapshotHistoryWindowInSeconds) may change while the engine runs: a shorter one lets older
// snapshots go at once.
func TestHistoryWindowChanges(t *testing.T) {
	e := openMem(t, Options{})
	defer func() { _ = e.Close() }()
	create(t, e, "d.c", nil)
	first := e.Visible()
	if oldest, err := e.advanceOldest(0); err != nil || oldest > first {
		t.Fatalf("history of 300 s begins at %v, after %v", oldest, first)
	}
	u := e.NewUnitOfWork(nil)
	u.Oplog(OplogEntry{Op: 'n', StmtID: -1})
	last := commit(t, e, u)
	e.SetHistoryWindow(-2 * time.Second) // ends ahead of the clock: only the newest version is kept
	if oldest, err := e.advanceOldest(0); err != nil || oldest != last {
		t.Fatalf("without a window history begins at %v, not at %v", oldest, last)
	}
	if _, err := e.SnapshotAt(first); mongoerr.CodeOf(err) != mongoerr.SnapshotTooOld {
		t.Errorf("a snapshot before the window: %v", err)
	}
}
