package write

import (
	"context"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	_ "github.com/shoaldb/shoal/command/commandtest"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fakeNode is a node that may refuse, and takes down what statements it was told of.
type fakeNode struct {
	role     error // what NotPrimary answers
	blocked  error // what CheckBlocked answers
	sharding Sharding
	noted    []string
}

func (f *fakeNode) Lone() bool                                           { return false }
func (f *fakeNode) NotPrimary() error                                    { return f.role }
func (f *fakeNode) CheckConcern(*command.Op, command.WriteConcern) error { return nil }
func (f *fakeNode) AskPrimary(context.Context, []byte) ([]byte, error)   { return nil, f.role }
func (f *fakeNode) Sharding() Sharding                                   { return f.sharding }
func (f *fakeNode) CheckBlocked(*command.Op, string) error               { return f.blocked }
func (f *fakeNode) Observes(string) bool                                 { return false }
func (f *fakeNode) Notes(string, time.Duration) bool                     { return true }
func (f *fakeNode) NoteStatement(_ *command.Op, x *Executed) {
	f.noted = append(f.noted, x.Name+" "+x.NS)
}
func (f *fakeNode) ReplyCursor(_ *command.Op, dst []byte, _ string, docs [][]byte, _ int64) ([]byte, error) {
	return value.Append(dst, "results", value.NewInt32(int32(len(docs)))), nil
}

// staleShard is a shard that knows another version of everything.
type staleShard struct{ Sharding }

func (staleShard) CheckVersion(*command.Op, string) error {
	return mongoerr.New(mongoerr.StaleConfig, "another version")
}

// fakeEnv is the environment of an executor.
type fakeEnv struct {
	exec.Env
	metas **namespace.Cache
}

func (fakeEnv) Now() (int64, uint64)                            { return 0, 0 }
func (fakeEnv) Observes(*command.Op) bool                       { return false }
func (e fakeEnv) Planning(c *catalog.Collection) *exec.Planning { return (*e.metas).Of(c).Plans }

// bench is a writer over an empty store in memory, spoken to by commands.
type bench struct {
	t    *testing.T
	w    *Writer
	node *fakeNode
}

type sessionNode struct {
	txn.Node
	set replication.Set
}

func (sessionNode) Lone() bool        { return false }
func (sessionNode) NotPrimary() error { return nil }

func newBench(t *testing.T) *bench {
	t.Helper()
	eng, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	set, node, service := replication.NewSingle(eng), &fakeNode{}, command.NewService(command.Shard)
	docs, params, points, locks := &statedoc.Docs{Engine: eng, Set: set}, cluster.NewParams(), cluster.NewFailPoints(), lock.NewManager()
	var metas *namespace.Cache
	x := exec.New(fakeEnv{metas: &metas})
	x.Watch(params)
	metas = namespace.NewCache(x, nil)
	txns := txn.New(txn.Config{
		Engine: eng, Set: set, Docs: docs, Params: params, Points: points, Service: service, Locks: locks, Now: time.Now,
		Writes: func() int64 { return 0 },
	}, sessionNode{set: set})
	w := New(Config{
		Engine: eng, Set: set, Docs: docs, Params: params, Points: points, Service: service, Exec: x, Compiled: metas, Locks: locks, Txns: txns,
		Counts: &command.Opcounters{}, Now: time.Now,
	}, node)
	service.Table.Add(w.Specs()...)
	return &bench{t: t, w: w, node: node}
}

// do runs a command on the database d, and gives its reply.
func (b *bench) do(fields ...value.Field) []byte {
	b.t.Helper()
	body := value.Doc(append(fields, value.F("$db", value.NewString("d")))...)
	return b.w.Service.Run(b.t.Context(), command.NewClient(1, "test:1", "test:27017", nil), &wire.Message{Body: body}, nil)
}

func (b *bench) insert(id int32, more ...value.Field) []byte {
	doc := value.NewDocument(value.Doc(value.F("_id", value.NewInt32(id)), value.F("a", value.NewInt32(0))))
	return b.do(append([]value.Field{value.F("insert", value.NewString("c")), value.F("documents", value.NewArray(value.ArrayOf(doc)))}, more...)...)
}

func (b *bench) update(id int32, more ...value.Field) []byte {
	inc := value.NewDocument(value.Doc(value.F("$inc", value.NewDocument(value.Doc(value.F("a", value.NewInt32(1)))))))
	st := value.NewDocument(value.Doc(value.F("q", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(id))))), value.F("u", inc)))
	return b.do(append([]value.Field{value.F("update", value.NewString("c")), value.F("updates", value.NewArray(value.ArrayOf(st)))}, more...)...)
}

// a is the field a of a document.
func (b *bench) a(id int32) int32 {
	b.t.Helper()
	s := b.w.Engine.Snapshot()
	defer s.Release()
	_, doc, ok, err := s.FindByID(s.Catalog().Lookup("d.c"), value.NewInt32(id))
	if err != nil || !ok {
		b.t.Fatalf("no document %d: %v", id, err)
	}
	return value.Lookup(doc, "a").Int32()
}

func codeOf(reply []byte) mongoerr.Code { return mongoerr.Code(value.Lookup(reply, "code").Int32()) }

func nOf(reply []byte) int64 { return value.SafeInt64(value.Lookup(reply, "n")) }

func TestStatementsWriteAndAreToldOf(t *testing.T) {
	b := newBench(t)
	if r := b.insert(1); nOf(r) != 1 {
		t.Fatal(value.ShowDoc(r))
	}
	if r := b.update(1); nOf(r) != 1 || b.a(1) != 1 {
		t.Fatal(value.ShowDoc(r))
	}
	if r := b.update(2); nOf(r) != 0 {
		t.Fatal(value.ShowDoc(r))
	}
	if len(b.node.noted) != 2 || b.node.noted[0] != "update d.c" {
		t.Errorf("told of %q", b.node.noted)
	}
	if i, u := b.w.Counts.Inserts.Load(), b.w.Counts.Updates.Load(); i != 1 || u != 2 {
		t.Errorf("counted %d inserts and %d updates", i, u)
	}
}

func TestWritesAreRefusedWithoutALockLeftBehind(t *testing.T) {
	b := newBench(t)
	b.insert(1)
	b.node.role = mongoerr.New(mongoerr.NotWritablePrimary, "not primary")
	if r := b.update(1); codeOf(r) != mongoerr.NotWritablePrimary {
		t.Fatal(value.ShowDoc(r))
	}
	b.node.role = nil
	op := b.w.Service.Background(t.Context(), command.OwnClient())
	op.Req.Spec, op.Req.DB, op.Req.ShardVersion = &command.Spec{Name: "drop"}, "d", value.Doc()
	b.node.sharding = staleShard{}
	w := b.w.With(op, replication.Durable)
	if err := w.enter("d.c"); mongoerr.CodeOf(err) != mongoerr.StaleConfig {
		t.Errorf("entered with a stale version: %v", err)
	}
	if _, err := w.LockVersioned("d.c", "d.c"); mongoerr.CodeOf(err) != mongoerr.StaleConfig {
		t.Errorf("locked with a stale version: %v", err)
	}
	b.node.sharding = nil
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	unlock, err := b.w.Locks.Collection(ctx, "d.c", lock.X)
	if err != nil {
		t.Fatalf("a lock was left behind: %v", err)
	}
	unlock()
}

func TestAStatementIsExecutedOnce(t *testing.T) {
	b := newBench(t)
	b.insert(1)
	session := []value.Field{
		value.F("lsid", value.NewDocument(value.Doc(value.F("id", value.NewBinary(4, make([]byte, 16)))))),
		value.F("txnNumber", value.NewInt64(1)),
	}
	for range 2 {
		if r := b.update(1, session...); nOf(r) != 1 {
			t.Fatal(value.ShowDoc(r))
		}
	}
	if b.a(1) != 1 {
		t.Errorf("the statement was executed %d times", b.a(1))
	}
}

func TestBulkWriteAsksForEachOfItsNamespaces(t *testing.T) {
	b := newBench(t)
	op := func(at int32) value.Value {
		return value.NewDocument(value.Doc(value.F("insert", value.NewInt32(at)), value.F("document", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(1)))))))
	}
	ns := func(name string) value.Value {
		return value.NewDocument(value.Doc(value.F("ns", value.NewString(name))))
	}
	bulk := func() []byte {
		body := value.Doc(value.F("bulkWrite", value.NewInt32(1)), value.F("ops", value.NewArray(value.ArrayOf(op(0), op(1)))),
			value.F("nsInfo", value.NewArray(value.ArrayOf(ns("d.c"), ns("e.c")))), value.F("$db", value.NewString("admin")))
		return b.w.Service.Run(t.Context(), command.NewClient(1, "test:1", "test:27017", nil), &wire.Message{Body: body}, nil)
	}
	b.node.blocked = mongoerr.New(mongoerr.UserWritesBlocked, "blocked")
	if r := bulk(); value.Lookup(r, "nErrors").Int32() != 1 || b.w.Engine.Catalog().Lookup("d.c") != nil {
		t.Error(value.ShowDoc(r))
	}
	b.node.blocked = nil
	if r := bulk(); value.Lookup(r, "nInserted").Int32() != 2 || b.w.Engine.Catalog().Lookup("e.c") == nil {
		t.Error(value.ShowDoc(r))
	}
}
