package ddl

import (
	"context"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	_ "github.com/shoaldb/shoal/command/commandtest"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/write/writetest"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fakeNode records the collections that it has to forget, and runs background work on goroutines of the test.
type fakeNode struct {
	t         *testing.T
	forgotten []string
	linearize func() error // nil for nothing
}

func (f *fakeNode) Lone() bool                             { return false }
func (f *fakeNode) SetConfig() *replication.SetConfig      { return nil }
func (f *fakeNode) CheckVersion(*command.Op, string) error { return nil }
func (f *fakeNode) Primary() error                         { return nil }
func (f *fakeNode) Linearize(context.Context) error {
	if f.linearize == nil {
		return nil
	}
	return f.linearize()
}
func (f *fakeNode) AwaitMembers(context.Context, storage.Timestamp, func(*replication.SetConfig, func(int) bool) bool) error {
	return nil
}
func (f *fakeNode) BuildWaits(*storage.IndexBuild, replication.CommitQuorum, []string) {}

func (f *fakeNode) Background(run func(life context.Context)) { go run(f.t.Context()) }
func (f *fakeNode) NoteDropped(*storage.Snapshot, *storage.UnitOfWork, ...*catalog.Collection) error {
	return nil
}

func (f *fakeNode) Forget(u *storage.UnitOfWork, c *catalog.Collection) {
	u.OnCommit(func(storage.Timestamp) { f.forgotten = append(f.forgotten, c.NS) })
}

// bench runs the DDL commands on an empty store, by their messages.
type bench struct {
	*writetest.Bench
	node *fakeNode
}

func newBench(t *testing.T) bench {
	t.Helper()
	b := bench{writetest.New(t), &fakeNode{t: t}}
	b.Writer.Service.Table.Add(New(b.Writer.Engine, b.Writer, b.node).Specs()...)
	return b
}

func (b bench) run(name, arg string, more ...value.Field) []byte {
	return b.Do(append([]value.Field{value.F(name, value.NewString(arg))}, more...)...)
}

func (b bench) lookup(ns string) *catalog.Collection { return b.Writer.Engine.Catalog().Lookup(ns) }

// ok runs a command that has to succeed.
func (b bench) ok(name, arg string, more ...value.Field) []byte {
	b.T.Helper()
	r := b.run(name, arg, more...)
	if value.Lookup(r, "ok").Double() != 1 {
		b.T.Fatalf("%s: %s", name, value.ShowDoc(r))
	}
	return r
}

func indexes(key string) value.Field {
	spec := value.Doc(value.F("key", value.NewDocument(value.Doc(value.F(key, value.NewInt32(1))))), value.F("name", value.NewString(key+"_1")))
	return value.F("indexes", value.NewArray(value.ArrayOf(value.NewDocument(spec))))
}

func TestNamespacesAreMadeAndDropped(t *testing.T) {
	b := newBench(t)
	b.ok("create", "c", value.F("capped", value.NewBool(true)), value.F("size", value.NewInt32(1000)))
	b.ok("create", "c", value.F("capped", value.NewBool(true)), value.F("size", value.NewInt32(1000))) // as a retry
	if r := b.run("create", "c"); writetest.CodeOf(r) != mongoerr.NamespaceExists {
		t.Error(value.ShowDoc(r))
	}
	if c := b.lookup("d.c"); c == nil || !c.Capped {
		t.Fatalf("%+v", c)
	}
	b.ok("create", "v", value.F("viewOn", value.NewString("c")))
	if r := b.run("create", "c", value.F("viewOn", value.NewString("v"))); writetest.CodeOf(r) != mongoerr.NamespaceExists {
		t.Error(value.ShowDoc(r))
	}
	b.ok("drop", "c")
	if len(b.node.forgotten) != 1 || b.node.forgotten[0] != "d.c" || b.lookup("d.c") != nil {
		t.Errorf("forgot %q", b.node.forgotten)
	}
}

func TestIndexesOfACollectionWithDocumentsAreBuiltInTheBackground(t *testing.T) {
	b := newBench(t)
	b.Insert(1)
	b.ok("createIndexes", "c", indexes("a"))
	if i := b.lookup("d.c").Index("a_1"); i == nil || !i.Ready {
		t.Fatalf("%+v", i)
	}
	b.ok("dropIndexes", "c", value.F("index", value.NewString("a_1")))
	if b.lookup("d.c").Index("a_1") != nil {
		t.Error("the index is still there")
	}
}

func TestARenameTakesTheTargetsPlaceAsAWhole(t *testing.T) {
	b := newBench(t)
	b.Insert(1)
	b.ok("create", "to")
	rename := func(from string, drop bool) []byte {
		return b.Run(value.Doc(value.F("renameCollection", value.NewString("d."+from)), value.F("to", value.NewString("d.to")),
			value.F("dropTarget", value.NewBool(drop)), value.F("$db", value.NewString("admin"))))
	}
	was := b.lookup("d.to").UUID
	if r := rename("missing", true); writetest.CodeOf(r) != mongoerr.NamespaceNotFound || b.lookup("d.to").UUID != was {
		t.Error(value.ShowDoc(r))
	}
	if r := rename("c", false); writetest.CodeOf(r) != mongoerr.NamespaceExists {
		t.Error(value.ShowDoc(r))
	}
	moved := b.lookup("d.c").UUID
	if r := rename("c", true); value.Lookup(r, "ok").Double() != 1 || b.lookup("d.to").UUID != moved || b.lookup("d.c") != nil {
		t.Error(value.ShowDoc(r))
	}
}

func TestAStaleCommandChangesNothingAndHoldsNothing(t *testing.T) {
	b := newBench(t)
	b.Insert(1)
	b.Node.Shard = writetest.StaleShard{}
	version := value.F("shardVersion", value.NewDocument(value.Doc()))
	for _, c := range [][]value.Field{
		{value.F("drop", value.NewString("c"))}, {value.F("create", value.NewString("other"))},
		{value.F("createIndexes", value.NewString("c")), indexes("a")}, {value.F("collMod", value.NewString("c"))},
		{value.F("dropIndexes", value.NewString("c")), value.F("index", value.NewString("*"))},
	} {
		if r := b.Do(append(c, version)...); writetest.CodeOf(r) != mongoerr.StaleConfig {
			t.Errorf("%s: %s", c[0].Key, value.ShowDoc(r))
		}
	}
	if b.lookup("d.c") == nil || b.lookup("d.other") != nil || len(b.lookup("d.c").Indexes) != 1 {
		t.Error("the catalog was changed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	unlock, err := b.Writer.Locks.Collection(ctx, "d.c", lock.X)
	if err != nil {
		t.Fatalf("a lock was left behind: %v", err)
	}
	unlock()
}

func TestAParticipantDropsWhatTheClientsCommandWould(t *testing.T) {
	b := newBench(t)
	b.Insert(1)
	op := b.Writer.Service.Background(t.Context(), command.OwnClient())
	op.Req.Spec = &command.Spec{Name: "drop"}
	w, err := participantWrites(New(b.Writer.Engine, b.Writer, b.node), op, true)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a message that arrives twice does no harm
		if _, err := w.dropNamespace("d.c"); err != nil {
			t.Fatal(err)
		}
	}
	if b.lookup("d.c") != nil || !w.FromMigrate {
		t.Error("the collection is still there, or change streams get its drop from each shard")
	}
}

func (n *fakeNode) ShardKeyIndexes(context.Context, *catalog.Collection) ([]string, bool, error) {
	return nil, false, nil
}

func (n *fakeNode) HoldsSection(context.Context, string, catalog.UUID) error { return nil }

func (n *fakeNode) RunGoesOn(context.Context, string, *msg.RunMessage) error { return nil }

// The rename at the end of a secondary's $out is refused if its target has changed since that member read it.
func TestRenameIfItsTargetIsTheSame(t *testing.T) {
	b := newBench(t)
	rename := func(target namespace.Target) mongoerr.Code {
		m := &msg.RenameIfMatch{From: "d.c", To: "d.to"}
		m.There, m.Options, m.Indexes = target.Described()
		return writetest.CodeOf(b.Run(msg.Doc(m)))
	}
	b.Insert(1)
	b.ok("create", "to")
	if code := rename(namespace.TargetOf(nil)); code != mongoerr.CommandFailed {
		t.Errorf("of a target that was created: %d", code)
	}
	was := namespace.TargetOf(b.lookup("d.to"))
	b.ok("createIndexes", "to", indexes("a"))
	if code := rename(was); code != mongoerr.CommandFailed {
		t.Errorf("of a target with another index: %d", code)
	}
	id := b.lookup("d.c").UUID
	if code := rename(namespace.TargetOf(b.lookup("d.to"))); code != 0 || b.lookup("d.to").UUID != id {
		t.Errorf("of a target that is as it was: %d", code)
	}
	b.Insert(2)
	b.ok("drop", "to")
	if code := rename(was); code != mongoerr.CommandFailed {
		t.Errorf("of a target that was dropped: %d", code)
	}
}

// A shard that was deposed and has not learned of it used to admit a command by what it had; another shard executed it, and its successor refused it for ever.
func TestShardsAreCertainWhenTheyCheck(t *testing.T) {
	b := newBench(t)
	b.ok("createIndexes", "c", indexes("a"))
	check := func(cmd ...value.Field) []byte {
		m := &msg.CheckCommand{ShardCommand: msg.ShardCommand{DB: "d", Coll: "c", Command: value.Doc(append(cmd, value.F("$db", value.NewString("d")))...)}}
		var fields []value.Field
		for k, v := range value.Elements(msg.Doc(m)) {
			fields = append(fields, value.F(k, v))
		}
		body := value.Doc(append(fields, value.F("$db", value.NewString("d")))...)
		r, err := b.Writer.Service.Direct(t.Context(), command.OwnClient(), &wire.Message{Body: body}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	name := value.NewString("c")
	for _, cmd := range [][]value.Field{
		{value.F("collMod", name)},
		{value.F("dropIndexes", name), value.F("index", value.NewString("a_1"))},
		{value.F("createIndexes", name), indexes("a")},
		{value.F("convertToCapped", name), value.F("size", value.NewInt32(1000))},
	} {
		b.node.linearize = nil
		if r := check(cmd...); value.Lookup(r, "ok").Double() != 1 {
			t.Errorf("%s: %s", cmd[0].Key, value.ShowDoc(r))
		}
		b.node.linearize = func() error { return mongoerr.New(mongoerr.NotWritablePrimary, "not primary") }
		if r := check(cmd...); mongoerr.Code(value.SafeInt64(value.Lookup(r, "code"))) != mongoerr.NotWritablePrimary {
			t.Errorf("%s on a node that was deposed: %s", cmd[0].Key, value.ShowDoc(r))
		}
	}
	b.node.linearize = func() error {
		b.ok("dropIndexes", "c", value.F("index", value.NewString("a_1")))
		return nil
	}
	if r := check(value.F("createIndexes", name), indexes("a")); value.Lookup(r, "missing").IsMissing() {
		t.Errorf("what a shard finds is as of before it was certain: %s", value.ShowDoc(r))
	}
}
