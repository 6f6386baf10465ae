package write_test

import (
	"context"
	"testing"
	"time"

	"github.com/shoaldb/shoal/command"
	_ "github.com/shoaldb/shoal/command/commandtest"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/write/writetest"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// bench is a writer whose statements increment the field a.
type bench struct{ *writetest.Bench }

func newBench(t *testing.T) bench { return bench{writetest.New(t)} }

func (b bench) update(id int32, more ...value.Field) []byte {
	inc := value.NewDocument(value.Doc(value.F("$inc", value.NewDocument(value.Doc(value.F("a", value.NewInt32(1)))))))
	st := value.NewDocument(value.Doc(value.F("q", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(id))))), value.F("u", inc)))
	return b.Do(append([]value.Field{value.F("update", value.NewString("c")), value.F("updates", value.NewArray(value.ArrayOf(st)))}, more...)...)
}

// a is the field a of a document.
func (b bench) a(id int32) int32 {
	b.T.Helper()
	s := b.Writer.Engine.Snapshot()
	defer s.Release()
	_, doc, ok, err := s.FindByID(s.Catalog().Lookup("d.c"), value.NewInt32(id))
	if err != nil || !ok {
		b.T.Fatalf("no document %d: %v", id, err)
	}
	return value.Lookup(doc, "a").Int32()
}

func nOf(reply []byte) int64 { return value.SafeInt64(value.Lookup(reply, "n")) }

func TestStatementsWriteAndAreReported(t *testing.T) {
	b := newBench(t)
	b.Insert(1)
	if r := b.update(1); nOf(r) != 1 || b.a(1) != 1 {
		t.Fatal(value.ShowDoc(r))
	}
	if r := b.update(2); nOf(r) != 0 {
		t.Fatal(value.ShowDoc(r))
	}
	if len(b.Node.Noted) != 2 || b.Node.Noted[0] != "update d.c" {
		t.Errorf("reported: %q", b.Node.Noted)
	}
	if i, u := b.Writer.Counts.Inserts.Load(), b.Writer.Counts.Updates.Load(); i != 1 || u != 2 {
		t.Errorf("counted %d inserts and %d updates", i, u)
	}
}

func TestWritesAreRefusedWithoutALockLeftBehind(t *testing.T) {
	b := newBench(t)
	b.Insert(1)
	b.Node.Role = mongoerr.New(mongoerr.NotWritablePrimary, "not primary")
	if r := b.update(1); writetest.CodeOf(r) != mongoerr.NotWritablePrimary {
		t.Fatal(value.ShowDoc(r))
	}
	b.Node.Role = nil
	op := b.Writer.Service.Background(t.Context(), command.OwnClient())
	op.Req.Spec, op.Req.DB, op.Req.ShardVersion = &command.Spec{Name: "drop"}, "d", value.Doc()
	b.Node.Shard = writetest.StaleShard{}
	w := b.Writer.With(op, replication.Durable)
	if r := b.update(1, value.F("shardVersion", value.NewDocument(value.Doc()))); writetest.CodeOf(r) != mongoerr.StaleConfig {
		t.Errorf("an update with a stale version: %s", value.ShowDoc(r))
	}
	if _, err := w.LockVersioned("d.c", "d.c"); mongoerr.CodeOf(err) != mongoerr.StaleConfig {
		t.Errorf("locked with a stale version: %v", err)
	}
	b.Node.Shard = nil
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	unlock, err := b.Writer.Locks.Collection(ctx, "d.c", lock.X)
	if err != nil {
		t.Fatalf("a lock was left behind: %v", err)
	}
	unlock()
}

func TestAStatementIsExecutedOnce(t *testing.T) {
	b := newBench(t)
	b.Insert(1)
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
		return b.Run(body)
	}
	b.Node.Blocked = mongoerr.New(mongoerr.UserWritesBlocked, "blocked")
	if r := bulk(); value.Lookup(r, "nErrors").Int32() != 1 || b.Writer.Engine.Catalog().Lookup("d.c") != nil {
		t.Error(value.ShowDoc(r))
	}
	b.Node.Blocked = nil
	if r := bulk(); value.Lookup(r, "nInserted").Int32() != 2 || b.Writer.Engine.Catalog().Lookup("e.c") == nil {
		t.Error(value.ShowDoc(r))
	}
}

// Arguments are parsed before the node is asked for anything: errors in them are reported whatever its role and placement.
func TestArgumentsAreReadFirst(t *testing.T) {
	b := newBench(t)
	b.Insert(1)
	b.Node.Role, b.Node.Shard = mongoerr.New(mongoerr.NotWritablePrimary, "not primary"), writetest.StaleShard{}
	list := func(f ...value.Field) value.Value {
		return value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(f...))))
	}
	q := value.F("q", value.NewDocument(value.Doc()))
	for _, c := range []struct {
		cmd  []value.Field
		want mongoerr.Code
	}{
		{[]value.Field{value.F("update", value.NewString("c")), value.F("updates", list(q))}, mongoerr.IDLFailedToParse},
		{[]value.Field{value.F("update", value.NewString("c")), value.F("updates", list(q, value.F("u", value.NewInt32(1))))}, mongoerr.FailedToParse},
		{[]value.Field{value.F("delete", value.NewString("c")), value.F("deletes", list(q, value.F("limit", value.NewInt32(2))))}, mongoerr.FailedToParse},
		{[]value.Field{value.F("insert", value.NewString("c")), value.F("documents", value.NewArray(value.ArrayOf()))}, mongoerr.InvalidLength},
		{[]value.Field{value.F("findAndModify", value.NewString("c"))}, mongoerr.FailedToParse},
		{[]value.Field{value.F("delete", value.NewString("c")), value.F("deletes", list(q, value.F("limit", value.NewInt32(1))))}, mongoerr.NotWritablePrimary},
	} {
		if r := b.Do(c.cmd...); writetest.CodeOf(r) != c.want {
			t.Errorf("%s: %s, want %d", c.cmd[0].Key, value.ShowDoc(r), c.want)
		}
	}
}
