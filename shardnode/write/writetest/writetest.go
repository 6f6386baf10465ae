package writetest

import (
	"context"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/shardnode/write"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Node is a fake node. It may refuse, and records the statements reported to it.
type Node struct {
	Role    error // returned by NotPrimary
	Blocked error // returned by CheckBlocked
	Shard   write.Sharding
	Noted   []string
}

func (f *Node) Lone() bool                                           { return false }
func (f *Node) NotPrimary() error                                    { return f.Role }
func (f *Node) CheckConcern(*command.Op, command.WriteConcern) error { return nil }
func (f *Node) AskPrimary(context.Context, []byte) ([]byte, error)   { return nil, f.Role }
func (f *Node) Sharding() write.Sharding                             { return f.Shard }
func (f *Node) CheckBlocked(*command.Op, string) error               { return f.Blocked }
func (f *Node) Observes(string) bool                                 { return false }
func (f *Node) Notes(string, time.Duration) bool                     { return true }
func (f *Node) NoteStatement(_ *command.Op, x *write.Executed) {
	f.Noted = append(f.Noted, x.Name+" "+x.NS)
}
func (f *Node) ReplyCursor(_ *command.Op, dst []byte, _ string, docs [][]byte, _ int64) ([]byte, error) {
	return value.Append(dst, "results", value.NewInt32(int32(len(docs)))), nil
}

// StaleShard is a shard that has a different version of everything.
type StaleShard struct{ write.Sharding }

func (StaleShard) CheckVersion(*command.Op, string) error {
	return mongoerr.New(mongoerr.StaleConfig, "another version")
}

// fakeEnv is the environment of an executor.
type fakeEnv struct {
	exec.Env
	metas **namespace.Cache
}

func (fakeEnv) Now() (int64, uint64)                            { return 0, 0 }
func (fakeEnv) Observes(*command.Op) bool                       { return false }
func (fakeEnv) Restrict(*command.Op, string, *plan.Query)       {}
func (fakeEnv) QuerySettings(*command.Op) []byte                { return nil }
func (fakeEnv) SortMemory() int64                               { return 100 << 20 }
func (e fakeEnv) Planning(c *catalog.Collection) *exec.Planning { return (*e.metas).Of(c).Plans }

// Bench is a writer over an empty store in memory, driven by commands.
type Bench struct {
	T      *testing.T
	Writer *write.Writer
	Node   *Node
}

type sessionNode struct {
	txn.Node
	set replication.Set
}

func (sessionNode) Lone() bool        { return false }
func (sessionNode) NotPrimary() error { return nil }

// New returns a Bench.
func New(t *testing.T) *Bench {
	t.Helper()
	eng, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	set, node, service := replication.NewSingle(eng), &Node{}, command.NewService(command.Shard)
	docs, params, points, locks := &statedoc.Docs{Engine: eng, Set: set}, cluster.NewParams(), cluster.NewFailPoints(), lock.NewManager()
	var metas *namespace.Cache
	x := exec.New(fakeEnv{metas: &metas})
	x.Watch(params)
	metas = namespace.NewCache(x, nil)
	txns := txn.New(txn.Config{
		Engine: eng, Set: set, Docs: docs, Params: params, Points: points, Service: service, Locks: locks, Now: time.Now,
		Writes: func() int64 { return 0 },
	}, sessionNode{set: set})
	w := write.New(write.Config{
		Engine: eng, Set: set, Docs: docs, Params: params, Points: points, Service: service, Exec: x, Compiled: metas, Locks: locks, Txns: txns,
		Counts: &command.Opcounters{}, Now: time.Now,
	}, node)
	service.Table.Add(w.Specs()...)
	return &Bench{T: t, Writer: w, Node: node}
}

// Do runs a command on the database d and returns its reply.
func (b *Bench) Do(fields ...value.Field) []byte {
	b.T.Helper()
	body := value.Doc(append(fields, value.F("$db", value.NewString("d")))...)
	return b.Run(body)
}

// Run runs a command and returns its reply.
func (b *Bench) Run(body []byte) []byte {
	return b.Writer.Service.Run(b.T.Context(), command.NewClient(1, "test:1", "test:27017", nil), &wire.Message{Body: body}, nil)
}

// Insert inserts {_id: id, a: 0} into d.c.
func (b *Bench) Insert(id int32) {
	b.T.Helper()
	doc := value.NewDocument(value.Doc(value.F("_id", value.NewInt32(id)), value.F("a", value.NewInt32(0))))
	if r := b.Do(value.F("insert", value.NewString("c")), value.F("documents", value.NewArray(value.ArrayOf(doc)))); value.SafeInt64(value.Lookup(r, "n")) != 1 {
		b.T.Fatal(value.ShowDoc(r))
	}
}

// CodeOf returns the code of a reply that is an error.
func CodeOf(reply []byte) mongoerr.Code { return mongoerr.Code(value.Lookup(reply, "code").Int32()) }
