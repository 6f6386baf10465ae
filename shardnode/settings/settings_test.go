package settings

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	_ "github.com/shoaldb/shoal/command/commandtest"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// bench is two nodes that read and write the documents of one store.
type bench struct {
	t          *testing.T
	one, other *Settings
	service    *command.Service
	lone       bool
}

func newBench(t *testing.T) *bench {
	t.Helper()
	eng, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	b := &bench{t: t, service: command.NewService(command.Shard)}
	for _, s := range []**Settings{&b.one, &b.other} {
		*s = New(Config{Engine: eng, Docs: &statedoc.Docs{Engine: eng, Set: replication.NewSingle(eng)}, Locks: lock.NewManager(), Params: cluster.NewParams(), Now: time.Now, IsShard: func() bool { return false },
			Cluster: func() Cluster { return nil }, Drain: func(context.Context, error) error { return nil }, Lone: func() bool { return b.lone }})
		if err := (*s).Load(); err != nil {
			t.Fatal(err)
		}
	}
	b.service.Table.Add(b.one.Specs()...)
	return b
}

// do runs a command of the admin database on one node, and returns its reply.
func (b *bench) do(name string, v value.Value, more ...value.Field) []byte {
	body := value.Doc(append(append([]value.Field{value.F(name, v)}, more...), value.F("$db", value.NewString("admin")))...)
	return b.service.Run(b.t.Context(), command.NewClient(1, "test:1", "test:27017", nil), &wire.Message{Body: body}, nil)
}

func doc(f ...value.Field) value.Value { return value.NewDocument(value.Doc(f...)) }

// find is a client's find.
func (b *bench) find() *command.Op {
	op := b.service.Background(b.t.Context(), command.NewClient(1, "test:1", "test:27017", nil))
	op.Req.Spec = &command.Spec{Name: "find", Kind: command.Read, ReadConcern: true}
	op.Req.DB, op.Req.Body = "d", value.Doc(value.F("find", value.NewString("c")), value.F("filter", doc(value.F("a", value.NewInt32(1)))))
	return op
}

func TestWhatOneMemberStoresAnotherLoads(t *testing.T) {
	b := newBench(t)
	for _, r := range [][]byte{
		b.do("setDefaultRWConcern", value.NewInt32(1), value.F("defaultReadConcern", doc(value.F("level", value.NewString("majority"))))),
		b.do("setClusterParameter", doc(value.F("defaultMaxTimeMS", doc(value.F("readOperations", value.NewInt32(700)))))),
	} {
		if value.Lookup(r, "ok").Double() != 1 {
			t.Fatal(value.ShowDoc(r))
		}
	}
	op := b.find()
	if err := b.other.Apply(op); err != nil || op.Req.ReadConcern != nil {
		t.Fatalf("before it is loaded: %+v, %v", op.Req.ReadConcern, err)
	}
	if err := b.other.Load(); err != nil {
		t.Fatal(err)
	}
	if err := b.other.Apply(op); err != nil || op.Req.ReadConcern == nil || op.Req.ReadConcern.Level != "majority" {
		t.Errorf("%+v, %v", op.Req.ReadConcern, err)
	}
	if end, ok := op.Deadline(); !ok || end.Sub(op.Start) != 700*time.Millisecond {
		t.Errorf("the time limit is %v", end.Sub(op.Start))
	}
	own := b.find()
	own.Client = command.OwnClient()
	if err := b.other.Apply(own); err != nil || own.Req.ReadConcern != nil {
		t.Errorf("the node's own read: %+v, %v", own.Req.ReadConcern, err)
	}
}

func TestAQueryThatMayNotRun(t *testing.T) {
	b := newBench(t)
	query := doc(value.F("find", value.NewString("c")), value.F("filter", doc(value.F("a", value.NewInt32(5)))), value.F("$db", value.NewString("d")))
	if r := b.do("setQuerySettings", query, value.F("settings", doc(value.F("reject", value.NewBool(true))))); value.Lookup(r, "ok").Double() != 1 {
		t.Fatal(value.ShowDoc(r))
	}
	if err := b.one.Apply(b.find()); mongoerr.CodeOf(err) != mongoerr.QueryRejectedBySettings {
		t.Errorf("%v", err)
	}
	if r := b.do("removeQuerySettings", query); value.Lookup(r, "ok").Double() != 1 {
		t.Fatal(value.ShowDoc(r))
	}
	if err := b.one.Apply(b.find()); err != nil {
		t.Error(err)
	}
}

func TestSettingsOfSetsAreRefusedOnALoneServer(t *testing.T) {
	b := newBench(t)
	b.lone = true
	for _, r := range [][]byte{
		b.do("getDefaultRWConcern", value.NewInt32(1)), b.do("setUserWriteBlockMode", value.NewInt32(1), value.F("global", value.NewBool(true))),
	} {
		if value.Lookup(r, "ok").Double() == 1 {
			t.Error(value.ShowDoc(r))
		}
	}
}

// fakeCluster is a cluster whose config server has a document, or none.
type fakeCluster struct {
	mu       sync.Mutex
	doc      []byte
	unlisted bool
	read     func() // is called after each read, before its reply
}

func (c *fakeCluster) Decided(context.Context, cluster.Find) (docs [][]byte, err error) {
	c.mu.Lock()
	if c.doc != nil {
		docs = [][]byte{c.doc}
	}
	read := c.read
	c.mu.Unlock()
	if read != nil {
		read()
	}
	return docs, nil
}

func (c *fakeCluster) Lists(context.Context) (bool, error) { return !c.unlisted, nil }

// A message is paused between the answer of the config server, which still has what it says, and the change; meanwhile others come. It is refused, as the config server is asked again.
func TestASettingThatChangesBehindTheQuestion(t *testing.T) {
	const reason = "Unspecified"
	for _, x := range []struct {
		name       string
		to, by     blocks
		had, after []byte // of the config server
	}{
		{"writes, let through", writes, nothing, writes.doc(reason), nil},
		{"let through, writes", nothing, writes, nil, writes.doc(reason)},
		{"DDL, let through", newDDL, nothing, newDDL.doc(reason), nil},
	} {
		b, c := newBench(t), &fakeCluster{doc: x.had}
		b.one.Config.Cluster = func() Cluster { return c }
		set := func(to blocks) error {
			op := b.service.Background(t.Context(), command.OwnClient())
			op.Req.Spec = &command.Spec{Name: "_shardsvrSetUserWriteBlockMode"}
			return b.one.setBlock(op, to, reason)
		}
		late, pauses := make(chan error, 1), make(chan chan struct{})
		c.read = func() {
			free := make(chan struct{})
			pauses <- free
			<-free
		}
		go func() { late <- set(x.to) }()
		free := <-pauses
		c.mu.Lock()
		c.doc, c.read = x.after, nil
		c.mu.Unlock()
		if err := set(x.by); err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		close(free)
		if err := <-late; mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
			t.Errorf("%s: %v", x.name, err)
		}
		if is := b.one.block.now(); is != x.by {
			t.Errorf("%s: %v is blocked", x.name, is)
		}
	}
}

// A set that is no shard of the cluster by the list of shards is told what to let through when it was refused, whatever the cluster has.
func TestARefusedShardIsLetGo(t *testing.T) {
	b, c := newBench(t), &fakeCluster{doc: writes.doc("DiskUseThresholdExceeded")}
	b.one.Config.Cluster = func() Cluster { return c }
	op := b.service.Background(t.Context(), command.OwnClient())
	op.Req.Spec = &command.Spec{Name: "_shardsvrSetUserWriteBlockMode"}
	if err := b.one.setBlock(op, writes, "DiskUseThresholdExceeded"); err != nil || b.one.block.now() != writes {
		t.Fatal(err)
	}
	if err := b.one.setBlock(op, nothing, "DiskUseThresholdExceeded"); mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
		t.Errorf("a shard in the list: %v", err)
	}
	c.unlisted = true
	if err := b.one.setBlock(op, nothing, "Unspecified"); err != nil || b.one.block.now() != nothing {
		t.Errorf("a set that was refused: %v", err)
	}
}
