package settings

import (
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
			Lone: func() bool { return b.lone }})
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
