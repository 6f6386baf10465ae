package txn

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fakeNode is a member of a set that reads the newest data and collects warnings in a list.
type fakeNode struct {
	eng    *storage.Engine
	set    replication.Set
	role   error // result of NotPrimary
	warned []string
	killed []*Txn
}

func (f *fakeNode) Lone() bool { return false }

func (f *fakeNode) NotPrimary() error { return f.role }

func (f *fakeNode) CheckConcern(*command.Op, command.WriteConcern) error { return nil }

func (f *fakeNode) ReadSnapshot(*command.Op) (*storage.Snapshot, error) { return f.eng.Snapshot(), nil }

func (f *fakeNode) WaitVisible(context.Context, storage.Timestamp) error { return nil }

func (f *fakeNode) CommitAt(ctx context.Context, u *storage.UnitOfWork, at storage.Timestamp, wc replication.WriteConcern) (storage.Timestamp, error) {
	f.eng.AdvanceClock(at)
	return f.set.Commit(ctx, u, wc)
}

func (f *fakeNode) KillCursors(t *Txn) { f.killed = append(f.killed, t) }

func (f *fakeNode) Background(func(life context.Context)) {}

func (f *fakeNode) Warn(msg string, _ error) { f.warned = append(f.warned, msg) }

// newTestManager creates the session manager of a node with an empty store in memory.
func newTestManager(t testing.TB) (*Manager, *fakeNode) {
	t.Helper()
	return newTestManagerOn(t, storage.Options{Memory: true})
}

func newTestManagerOn(t testing.TB, o storage.Options) (*Manager, *fakeNode) {
	t.Helper()
	eng, err := storage.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	n := &fakeNode{eng: eng, set: replication.NewSingle(eng)}
	m := New(Config{
		Engine: eng, Set: n.set, Docs: &statedoc.Docs{Engine: eng, Set: n.set}, Params: cluster.NewParams(), Points: cluster.NewFailPoints(),
		Service: command.NewService(command.Shard), Locks: lock.NewManager(), Now: time.Now,
		Writes: func() int64 { return 0 },
	}, n)
	if err := m.LoadRetries(); err != nil {
		t.Fatal(err)
	}
	return m, n
}

// op is an operation of a session with a transaction number.
func (m *Manager) op(t testing.TB, session byte, number int64, start bool) *command.Op {
	t.Helper()
	op := m.Service.Background(t.Context(), command.OwnClient())
	op.Req.Spec = &command.Spec{Name: "insert"}
	id := cluster.LogicalSessionID{}
	id.ID[0] = session
	op.Req.LSID, op.Req.TxnNumber, op.Req.HasTxnNumber, op.Req.StartTxn = id.Doc(), number, true, start
	return op
}

// begin opens the transaction of a session, as its first command does.
func (m *Manager) begin(t *testing.T, session byte, number int64) *Session {
	t.Helper()
	op := m.op(t, session, number, true)
	s, release, err := m.take(op)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := m.enterTxn(op, s); err != nil {
		t.Fatal(err)
	}
	return s
}

// A newer transaction of a session ends the one before, with the cursors that it opened; an older one is refused.
func TestNewerTransactionEndsTheOneBefore(t *testing.T) {
	m, n := newTestManager(t)
	s := m.begin(t, 1, 5)
	first := s.Txn
	m.begin(t, 1, 6)
	if first.State != Aborted || s.Txn.State != Open || len(n.killed) != 1 || n.killed[0] != first {
		t.Errorf("the first is in state %d, the second in %d, cursors of %d transactions were ended", first.State, s.Txn.State, len(n.killed))
	}
	if open, started := m.counters.Open.Load(), m.counters.Started.Load(); open != 1 || started != 2 {
		t.Errorf("%d open of %d started", open, started)
	}
	if _, err := m.enterTxn(m.op(t, 1, 5, false), s); mongoerr.CodeOf(err) != mongoerr.TransactionTooOld {
		t.Errorf("the older one goes on: %v", err)
	}
	m.AbortTxns()
	if open := m.counters.Open.Load(); open != 0 {
		t.Errorf("%d are open after the node stepped down", open)
	}
}

// A command that waits for the one before it is not active meanwhile: a transaction is not active for longer than it is open.
func TestCommandsThatWaitForTheSessionAreNotActive(t *testing.T) {
	m, _ := newTestManager(t)
	now := time.Unix(1000, 0)
	began := now
	m.Now = func() time.Time { return now }
	var s *Session
	for i := range 2 {
		op := m.op(t, 1, 1, i == 0)
		op.Start = began // both arrive at once
		end, err := m.Begin(op)
		if err != nil {
			t.Fatal(err)
		}
		now = now.Add(10 * time.Second)
		end(nil)
		s = m.retries.of(op)
	}
	if active, open := s.Txn.Active, now.Sub(s.Txn.Started); active > open {
		t.Errorf("active for %v, and open for %v", active, open)
	}
}

// Executed statements are known after the table is loaded: from what was flushed, with the _id that an upsert created.
func TestStatementsAreKnownAfterAFlush(t *testing.T) {
	m, _ := newTestManager(t)
	s, release, err := m.CheckoutRetry(m.op(t, 1, 3, false))
	if err != nil {
		t.Fatal(err)
	}
	s.ran(Run{From: 0, To: 2, Op: 'u'})
	s.ran(Run{From: 7, To: 7, Op: 'i', ID: value.NewInt32(9)})
	release()
	for range 3 { // the last of them records that the table is complete
		if err := m.FlushRetries(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.LoadRetries(); err != nil {
		t.Fatal(err)
	}
	again, release, err := m.CheckoutRetry(m.op(t, 1, 3, false))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if again == s {
		t.Fatal("the table is the one of before")
	}
	for _, stmt := range []int32{0, 1, 2} {
		if run, ok := again.Executed(stmt); !ok || run.Op != 'u' {
			t.Errorf("statement %d: %v, %+v", stmt, ok, run)
		}
	}
	if run, ok := again.Executed(7); !ok || run.ID.Int32() != 9 {
		t.Errorf("the upsert: %v, %+v", ok, run)
	}
	if _, ok := again.Executed(3); ok {
		t.Error("a statement that nobody sent was executed")
	}
}

// execute has a session execute statements under a number.
func (m *Manager) execute(t *testing.T, session byte, number int64, stmts ...int32) {
	t.Helper()
	s, release, err := m.CheckoutRetry(m.op(t, session, number, false))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for _, id := range stmts {
		s.ran(Run{From: id, To: id, Op: 'i'})
	}
}

// storedRuns counts the runs of a number in StatementsNS.
func (m *Manager) storedRuns(t *testing.T, number int64) (n int) {
	t.Helper()
	err := m.Docs.Each(StatementsNS, func(doc []byte) error {
		if value.SafeInt64(value.Lookup(doc, "txnNum")) == number {
			n += value.Count(value.Lookup(doc, "statements").Doc())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The session record that is written is built after the snapshot of the unit that writes it. A record built earlier replaced
// what had been written since: the flush what a chunk had brought, a chunk what the flush had written. The oplog does not
// contain the former, and need not be read any more for the latter.
func TestNewerSessionRecordsStay(t *testing.T) {
	donor, _ := newTestManager(t)
	donor.execute(t, 1, 6, 0)
	sent := donor.everything(t)
	lsid := value.Lookup(sent[0].Doc(), "lsid")
	m, _ := newTestManager(t)
	ctx := t.Context()
	m.execute(t, 1, 5, 0)
	late, load := m.retries.changed(m.Now())
	if len(late) != 1 {
		t.Fatalf("%d sessions have changed", len(late))
	}
	if err := m.Adopt(ctx, sent); err != nil {
		t.Fatal(err)
	}
	if err := m.retries.store(ctx, m.Docs, late, load); err != nil {
		t.Fatal(err)
	}
	doc, err := m.Docs.Get(TransactionsNS, lsid)
	if err != nil {
		t.Fatal(err)
	}
	if n := m.storedRuns(t, 6); value.SafeInt64(value.Lookup(doc, "txnNum")) != 6 || n != 1 {
		t.Errorf("a flush that was under way when a chunk brought number 6 has stored %s with %d runs", value.ShowDoc(doc), n)
	}

	donor.execute(t, 1, 7, 0)
	m.execute(t, 1, 8, 0, 1)
	for range 3 {
		if err := m.FlushRetries(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Adopt(ctx, donor.everything(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.LoadRetries(); err != nil {
		t.Fatal(err)
	}
	s, release, err := m.CheckoutRetry(m.op(t, 1, 8, false))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for _, id := range []int32{0, 1} {
		if _, ok := s.Executed(id); !ok {
			t.Errorf("statement %d of number 8 is not known after number 7 had come with a chunk", id)
		}
	}
}

// The history of a number is transferred with a chunk even if its session has continued without writing, at either end.
func TestHistoryOfNumbersBeforeGoesWithAChunk(t *testing.T) {
	donor, _ := newTestManager(t)
	donor.execute(t, 1, 5, 0, 1)
	donor.execute(t, 1, 6)
	sent := donor.everything(t)
	if got := statements(sent); got != "1/5/[ 0, 1 ]" {
		t.Fatalf("the history of a session that executed number 5 and began number 6 is %s", got)
	}
	m, _ := newTestManager(t)
	m.begin(t, 1, 6)
	if err := m.Adopt(t.Context(), sent); err != nil {
		t.Fatal(err)
	}
	m.AbortTxns()
	if err := m.LoadRetries(); err != nil {
		t.Fatal(err)
	}
	s, release, err := m.CheckoutRetry(m.op(t, 1, 5, false))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for _, id := range []int32{0, 1} {
		if _, ok := s.Executed(id); !ok {
			t.Errorf("statement %d of number 5 is not known after a restart", id)
		}
	}
}

// The outcome of a detached commit is recorded, although the session has continued without writing.
func TestLateCommitsAreNoted(t *testing.T) {
	m, n := newTestManager(t)
	s := m.begin(t, 1, 5)
	u := m.Engine.NewUnitOfWork(nil)
	u.Oplog(storage.OplogEntry{Op: 'n', StmtID: -1, O: value.Doc()})
	s.noteTxnOnCommit(u, 1, nil)
	m.begin(t, 1, 6)
	if _, err := n.set.Commit(t.Context(), u, replication.Visible); err != nil {
		t.Fatal(err)
	}
	if err := m.FlushRetries(t.Context()); err != nil {
		t.Fatal(err)
	}
	doc, err := m.Docs.Get(TransactionsNS, value.NewDocument(s.LSID))
	if err != nil || value.SafeInt64(value.Lookup(doc, "txnNum")) != 5 || value.Lookup(doc, "state").Str() != "committed" {
		t.Errorf("stored: %s, %v", value.ShowDoc(doc), err)
	}
}

// Of a large command over several shards, each shard executes every few statements, in parts and not always in order.
func TestStatementsOfManyRunsAreFound(t *testing.T) {
	s := newSession()
	s.begin(1)
	const n = 100_000
	for _, from := range []int32{0, n, 1, n + 1} { // every fourth remains for another shard
		for id := from; id < from+n; id += 4 {
			s.ran(Run{From: id, To: id, Op: 'u'})
		}
	}
	s.ran(Run{From: 2, To: 2, Op: 'i', ID: value.NewInt32(7)})
	start := time.Now()
	for id := range int32(2 * n) {
		if r, ok := s.Executed(id); ok != (id%4 < 2 || id == 2) || ok && (r.Op == 'i') != (id == 2) {
			t.Fatalf("statement %d: %+v, %v", id, r, ok)
		}
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("%d look-ups took %v", 2*n, d)
	}
	if len(s.runs) != n/2+1 {
		t.Errorf("%d runs, want %d", len(s.runs), n/2+1)
	}
	back := newSession()
	s.LSID = value.Doc(value.F("id", value.NewInt32(1)))
	h := s.newest()
	if err := back.readRecord(value.Doc(append([]value.Field{value.F("_id", value.NewDocument(s.LSID)), value.F("txnNum", value.NewInt64(h.number))}, h.fields(h.statements()[0])...)...)); err != nil {
		t.Fatal(err)
	}
	if _, ok := back.Executed(2*n - 3); !ok || len(back.runs) != len(s.runs) {
		t.Errorf("%d runs are read from the record, want %d", len(back.runs), len(s.runs))
	}
}

// A history larger than a document goes to another shard in several parts, and is stored there in several documents.
func TestLongHistoryGoesInParts(t *testing.T) {
	donor, _ := newTestManager(t)
	donor.execute(t, 1, 5, 0)
	const statements, size = 10, 2 << 20
	for i := int32(1); i < statements; i++ {
		for _, from := range donor.retries.mu.sessions {
			from.ran(Run{From: i, To: i, Op: 'i', ID: value.NewString(strings.Repeat("x", size+int(i)))})
		}
	}
	m, _ := newTestManager(t)
	if err := m.LoadRetries(); err != nil {
		t.Fatal(err)
	}
	next, parts := donor.HistoryOf(anything, donor.Engine.Published()), 0
	for more := true; more; parts++ {
		part, _, again, err := next(4 << 20)
		if err != nil {
			t.Fatal(err)
		}
		var sent []value.Value
		bytes := 0
		for _, e := range part {
			sent, bytes = append(sent, value.NewDocument(e)), bytes+len(e)
		}
		if bytes > command.MaxBSONSize {
			t.Errorf("a part has %d bytes", bytes)
		}
		if err := m.Adopt(t.Context(), sent); err != nil {
			t.Fatal(err)
		}
		more = again
	}
	if parts < 3 {
		t.Errorf("the history has %d parts", parts)
	}
	if err := m.LoadRetries(); err != nil {
		t.Fatal(err)
	}
	s, release, err := m.CheckoutRetry(m.op(t, 1, 5, false))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for i := int32(1); i < statements; i++ {
		if r, ok := s.Executed(i); !ok || len(r.ID.Str()) != size+int(i) {
			t.Errorf("statement %d after a restart: %v", i, ok)
		}
	}
}

// restarted reports whether a node that opens with the stored records has a statement.
func (m *Manager) restarted(t *testing.T, session byte, number int64, stmt int32) bool {
	t.Helper()
	if err := m.LoadRetries(); err != nil {
		t.Fatal(err)
	}
	s, release, err := m.CheckoutRetry(m.op(t, session, number, false))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	_, ok := s.Executed(stmt)
	return ok
}

// A node that is no longer primary, or is again but has not loaded the table yet, flushed the table of its earlier term
// if its sessions were reaped then: older records replaced those of the primary in between, whose writes ran again.
func TestStaleTablesAreNotFlushed(t *testing.T) {
	m, _ := newTestManager(t)
	m.execute(t, 1, 5, 0)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	m.RetryService().Run(over, 1)
	other := New(m.Config, m.node) // the primary in between
	if err := other.LoadRetries(); err != nil {
		t.Fatal(err)
	}
	other.execute(t, 1, 6, 0)
	for range 3 {
		if err := other.FlushRetries(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.FlushRetries(t.Context()); !errors.Is(err, errStaleTable) {
		t.Errorf("a stale table was flushed: %v", err)
	}
	if !m.restarted(t, 1, 6, 0) {
		t.Error("the statement that the primary in between executed is not known")
	}
}

// slowSet blocks its first commit until the test makes it fail.
type slowSet struct {
	replication.Set
	first atomic.Bool
	begun chan struct{}
	fail  chan struct{}
}

func (s *slowSet) Commit(ctx context.Context, u *storage.UnitOfWork, wc replication.WriteConcern) (storage.Timestamp, error) {
	if s.first.CompareAndSwap(false, true) {
		close(s.begun)
		<-s.fail
		return 0, mongoerr.New(mongoerr.OutOfDiskSpace, "no room")
	}
	return s.Set.Commit(ctx, u, wc)
}

// The reaper of sessions flushed the table beside a periodic flush that was still storing its records, and declared the table
// complete: after a crash those records' writes ran again.
func TestFlushesDoNotOvertakeEachOther(t *testing.T) {
	m, n := newTestManager(t)
	slow := &slowSet{Set: n.set, begun: make(chan struct{}), fail: make(chan struct{})}
	m.Docs.Set = slow
	m.execute(t, 1, 5, 0)
	var flushes sync.WaitGroup
	flushes.Go(func() { _ = m.FlushRetries(t.Context()) })
	<-slow.begun
	reaped := make(chan struct{})
	flushes.Go(func() {
		for range 3 {
			_ = m.FlushRetries(t.Context())
		}
		close(reaped)
	})
	select {
	case <-reaped:
		if !New(m.Config, m.node).restarted(t, 1, 5, 0) {
			t.Error("the table was declared complete before it was stored")
		}
	case <-time.After(200 * time.Millisecond): // it waits for the first
	}
	close(slow.fail)
	flushes.Wait()
}

// A transaction that waits for the end of a critical section has its session meanwhile. The history of an earlier number, which has to be
// adopted before that section ends, does not wait for it.
func TestHistoryDoesNotWaitForANewerNumber(t *testing.T) {
	donor, _ := newTestManager(t)
	donor.execute(t, 1, 5, 0)
	m, _ := newTestManager(t)
	_, release, err := m.CheckoutRetry(m.op(t, 1, 6, false))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	adopted := make(chan error, 1)
	sent := donor.everything(t)
	go func() { adopted <- m.Adopt(t.Context(), sent) }()
	select {
	case err := <-adopted:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the history waits for a session that has moved on")
	}
	if !New(m.Config, m.node).restarted(t, 1, 5, 0) {
		t.Error("the history is not stored")
	}
}
