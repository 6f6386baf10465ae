package shardnode

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// One document that a client wrote to the history of sessions prevented a server from starting, and so did one among the
// prepared transactions. Clients may write to neither.
func TestClientsDoNotWriteTheHistoryOfSessions(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	for _, tc := range []struct {
		db, cmd string
		code    mongoerr.Code
	}{
		{"config", `{"insert": "system.preparedTransactions", "documents": [{"_id": 1}]}`, mongoerr.InvalidNamespace},
		{"config", `{"delete": "system.retryableWrites", "deletes": [{"q": {}, "limit": 0}]}`, mongoerr.InvalidNamespace},
		{"config", `{"drop": "system.preparedTransactions"}`, mongoerr.InvalidNamespace},
		{"d", `{"aggregate": "c", "pipeline": [{"$merge": {"into": {"db": "config", "coll": "system.preparedTransactions"}}}], "cursor": {}}`, 31319},
		{"d", `{"aggregate": "c", "pipeline": [{"$out": {"db": "config", "coll": "transactions"}}], "cursor": {}}`, 31321},
		{"admin", `{"renameCollection": "config.transactions", "to": "d.t"}`, mongoerr.IllegalOperation},
		{"admin", `{"renameCollection": "d.c", "to": "config.transactions", "dropTarget": true}`, mongoerr.IllegalOperation},
		{"config", `{"delete": "transactions", "deletes": [{"q": {}, "limit": 0}]}`, 0},
		{"config", `{"insert": "mine", "documents": [{"_id": 1}]}`, 0},
	} {
		if got := n.code(tc.db, tc.cmd); got != int32(tc.code) {
			t.Errorf("%s: code %d, want %d", tc.cmd, got, int32(tc.code))
		}
	}
	bulk := n.do("admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 1}}], "nsInfo": [{"ns": "config.system.preparedTransactions"}]}`)
	if bulk["code"] != int32(mongoerr.InvalidNamespace) && bulk["nErrors"] != int32(1) {
		t.Errorf("bulkWrite: %v", bulk)
	}
	// Entries of another server's sessions in a replayed oplog are skipped.
	n.ok("admin", `{"applyOps": [{"op": "i", "ns": "config.transactions", "o": {"_id": 7}}, {"op": "i", "ns": "d.c", "o": {"_id": 7}}]}`)
	for db, coll := range map[string]string{"config": "transactions", "d": "c"} {
		if got, want := len(n.first(db, `{"find": "`+coll+`", "filter": {"_id": 7}}`)), map[string]int{"config": 0, "d": 1}[db]; got != want {
			t.Errorf("%s: %d documents, want %d", coll, got, want)
		}
	}
}

// Invalid session records are skipped at the start, or loaded in part: then unknown statements are not executed.
func TestOddRecordsOfSessionsAreNoReasonNotToStart(t *testing.T) {
	dir := t.TempDir()
	open := func() *testNode {
		srv, err := Open(Config{Dir: dir, SetName: "rs", Host: "test:27017", Info: &command.Info{Host: "test"}})
		if err != nil {
			t.Fatal(err)
		}
		return &testNode{t: t, srv: srv, cl: command.NewClient(1, "test:1", "test:27017", nil)}
	}
	n := open()
	if err := n.srv.Initiate(context.Background()); err != nil {
		t.Fatal(err)
	}
	var cmd bson.D
	if err := bson.UnmarshalExtJSON([]byte(`{`+testLSID+`}`), false, &cmd); err != nil {
		t.Fatal(err)
	}
	raw, err := bson.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	id, err := cluster.ParseLSID(value.Lookup(raw, "lsid").Doc(), cluster.NoUser)
	if err != nil {
		t.Fatal(err)
	}
	lsid := func(b byte) value.Value { id.ID[15] = b; return value.NewDocument(id.Doc()) }
	text, one := value.NewString("x"), value.NewInt64(1)
	statement := value.NewDocument(value.Doc(value.F("from", value.NewInt32(0)), value.F("to", value.NewInt32(0)), value.F("op", value.NewString(""))))
	huge := value.NewDocument(value.Doc(value.F("from", value.NewInt32(0)), value.F("to", value.NewInt64(1<<31-1)), value.F("op", value.NewString("i"))))
	number := value.F("txnNum", one)
	for ns, docs := range map[string][][]byte{
		txn.TransactionsNS: {
			value.Doc(value.F("_id", text)), value.Doc(value.F("_id", lsid(1)), number, value.F("statements", value.NewArray(value.ArrayOf(statement)))),
			value.Doc(value.F("_id", lsid(3)), number, value.F("statements", value.NewArray(value.ArrayOf(huge)))),
			value.Doc(value.F("_id", lsid(4)), number, value.F("statements", text), value.F("lastWriteOpTime", text), value.F("lastWriteDate", text)),
			value.Doc(value.F("_id", lsid(5)), value.F("txnNum", text)), value.Doc(value.F("_id", lsid(6)), number, value.F("statements", value.NewArray(value.ArrayOf(text)))),
		},
		txn.CoordinatorsNS: {value.Doc(value.F("_id", one)), value.Doc(value.F("_id", value.NewDocument(value.Doc(value.F("lsid", text)))))},
	} {
		for _, doc := range docs {
			if err := n.srv.Node.Docs.Put(context.Background(), ns, doc); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := n.srv.Close(); err != nil {
		t.Fatal(err)
	}
	n = open()
	defer n.srv.Close()
	runSteps(t, n, []step{
		{inSession(`{"insert": "c", "documents": [{"_id": 1}]}`, 1), mongoerr.IncompleteTransactionHistory},
		{inSession(`{"insert": "c", "documents": [{"_id": 1}]}`, 2), 0},
	})
}

// A primary that could not reopen its prepared transactions only logged that, and accepted writes of others to the same
// documents. It must not be writable before it has reopened them.
func TestPrimaryWithoutItsPreparedTransactionsAcceptsNoWrites(t *testing.T) {
	m := newTestMembers(t, 300*time.Millisecond)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	lsid, missing := n.sessionDoc(), value.Doc(value.F("_id", value.NewInt32(9)))
	if err := n.srv.Node.Docs.WriteWith(context.Background(), replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		prepared := n.srv.Engine.NewUnitOfWork(s)
		prepared.SetTransaction(lsid, 1)
		prepared.Oplog(storage.OplogEntry{Op: 'u', NS: "d.c", O: missing, O2: missing, StmtID: -1})
		prepared.LogPrepare(u, "")
		prepared.Rollback()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	m.warned.Store(0)
	n.ok("admin", `{"replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 5, "force": true}`)
	await.State(t, "it is tried again to restore", func() (int64, bool) {
		tries := int64(m.warned.Load())
		for _, x := range m.nodes {
			if x != n && x.srv.Repl.Writable() && tries < 3 {
				t.Fatalf("another is writable after %d tries to restore", tries)
			}
		}
		return tries, tries >= 3
	})
}

// sessionDoc is the tests' usual session as it is stored.
func (n *testNode) sessionDoc() []byte {
	n.ok("d", inSession(`{"insert": "c", "documents": [{"_id": 1000}]}`, 1))
	var id []byte
	n.srv.Node.txns.EachIdle(func(_ cluster.LogicalSessionID, s *txn.Session) { id = s.LSID })
	return id
}
