package txn

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
)

const partNS = "d.c"

// write has a session execute statements on documents with a key, each logged as an update.
func (m *Manager) write(t *testing.T, session byte, number int64, stmt, key int32) {
	t.Helper()
	s, release, err := m.CheckoutRetry(m.op(t, session, number, false))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	u := m.Engine.NewUnitOfWork(nil)
	u.SetSession(s.LSID, number, s.LastEntry())
	u.Oplog(storage.OplogEntry{Op: 'u', NS: partNS, O: value.Doc(), O2: value.Doc(value.F("_id", value.NewInt32(key))), StmtID: stmt})
	s.NoteOnCommit(u, m.Engine.Term(), Run{From: stmt, To: stmt, Op: 'u'})
	if _, err := m.Set.Commit(t.Context(), u, replication.Visible); err != nil {
		t.Fatal(err)
	}
}

// partOf accepts the documents from a key up to another.
func partOf(from, to int32) func(e *storage.OplogEntry) ([]byte, bool) {
	return func(e *storage.OplogEntry) ([]byte, bool) {
		key := value.Lookup(e.O2, "_id")
		return e.O2, e.NS == partNS && key.Int32() >= from && key.Int32() < to
	}
}

// anything accepts all documents.
func anything(e *storage.OplogEntry) ([]byte, bool) { return e.O2, true }

// everything reads all history of the shard.
func (m *Manager) everything(t *testing.T) []value.Value {
	t.Helper()
	return read(t, m.HistoryOf(anything, m.Engine.Published()))
}

// read reads a history to its end, in small parts.
func read(t *testing.T, next func(int) ([][]byte, storage.Timestamp, bool, error)) (out []value.Value) {
	t.Helper()
	for more := true; more; {
		part, _, again, err := next(100)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range part {
			out = append(out, value.NewDocument(e))
		}
		more = again
	}
	return out
}

// statements lists entries as session/number/statement.
func statements(entries []value.Value) string {
	var out []string
	for _, e := range entries {
		id := value.Lookup(value.LookupDoc(e.Doc(), "lsid"), "id").Bytes()
		out = append(out, fmt.Sprintf("%d/%d/%s", id[0], value.SafeInt64(value.Lookup(e.Doc(), "txnNumber")), value.Show(value.Lookup(e.Doc(), "stmtId"))))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// adopting makes a shard that has adopted entries.
func adopting(t *testing.T, entries []value.Value) *Manager {
	t.Helper()
	m, _ := newTestManager(t)
	if err := m.Adopt(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
	return m
}

// again loads what is stored, as a new primary does.
func (m *Manager) again(t *testing.T) {
	t.Helper()
	if err := m.LoadRetries(); err != nil {
		t.Fatal(err)
	}
}

// Of a shard's history exactly the statements on documents of a part are sent, whether they were executed before or after the history is
// begun to be read, and by the next owner as by the first; statements of whose entries nothing is left always are.
func TestHistoryIsThatOfAPart(t *testing.T) {
	m, _ := newTestManager(t)
	for i := range int32(3) { // of each session one statement within, and one without
		m.write(t, byte(i+1), 5, 0, i)
		m.write(t, byte(i+1), 5, 1, 100+i)
	}
	m.write(t, 4, 1, 0, 1)
	m.write(t, 4, 2, 0, 101) // and of number 1 nothing is needed any more
	m.write(t, 5, 1, 0, 2)
	m.execute(t, 5, 2) // of number 1 it is: nothing was written under number 2
	m.execute(t, 6, 3, 7)
	const before, unknown = "1/5/0 2/5/0 3/5/0 5/1/0", "6/3/[ 7 ]"
	after := m.Engine.Visible()
	next := m.HistoryOf(partOf(0, 100), after)
	if got := statements(read(t, next)); got != before+" 6/3/7" {
		t.Errorf("%s is sent before, want %s", got, before)
	}
	m.write(t, 7, 9, 3, 5)
	m.write(t, 7, 9, 4, 105)
	if got := statements(read(t, next)); got != "7/9/3" {
		t.Errorf("%s is sent of what was executed since", got)
	}
	want := before + " 6/3/7 7/9/3"
	for _, restart := range []bool{false, true} {
		if restart {
			m.again(t)
		}
		all := read(t, m.HistoryOf(partOf(0, 100), m.Engine.Visible()))
		if got := statements(all); restart && got != strings.Replace(want, " 6/3/7", "", 1) || !restart && got != want {
			t.Fatalf("restarted %v: %s, want %s", restart, got, want)
		}
		second := adopting(t, all)
		if restart {
			second.again(t)
		}
		// The second owner has it as its own, sends on what belongs to a part of the part, and what it has no document of.
		if got := statements(read(t, second.HistoryOf(partOf(0, 100), second.Engine.Visible()))); got != statements(all) {
			t.Errorf("restarted %v: the second owner sends %s, want %s", restart, got, statements(all))
		}
		got := statements(read(t, second.HistoryOf(partOf(2, 100), second.Engine.Visible())))
		if part := "3/5/0 5/1/0 6/3/7 7/9/3"; restart && got != strings.Replace(part, " 6/3/7", "", 1) || !restart && got != part {
			t.Errorf("restarted %v: the second owner sends %s of a part of it, want %s", restart, got, part)
		}
		third := adopting(t, read(t, second.HistoryOf(partOf(0, 100), second.Engine.Visible())))
		for _, x := range []struct {
			session byte
			number  int64
			stmt    int32
		}{{1, 5, 0}, {5, 1, 0}, {7, 9, 3}} {
			if !third.restarted(t, x.session, x.number, x.stmt) {
				t.Errorf("restarted %v: the third owner does not know %v", restart, x)
			}
		}
	}
}

// What is adopted again changes nothing, and writes nothing.
func TestHistoryIsAdoptedOnce(t *testing.T) {
	donor, _ := newTestManager(t)
	donor.write(t, 1, 5, 0, 1)
	entries := read(t, donor.HistoryOf(partOf(0, 100), donor.Engine.Visible()))
	m := adopting(t, entries)
	at := m.Engine.Visible()
	if err := m.Adopt(t.Context(), entries); err != nil || m.Engine.Visible() != at {
		t.Errorf("%v: what is known was written again", err)
	}
}

// A session that is in use where a chunk arrives is not waited for, whatever uses it: the critical section in which the last part of the
// history arrives blocks the chunk's writers. What it executed under a number is known to the next command of that number, before and after
// an election, and whether the table was stored in between or not.
func TestHistoryDoesNotWaitForCommands(t *testing.T) {
	const number = 5
	donor, _ := newTestManager(t)
	donor.write(t, 1, number, 3, 1)
	entries := read(t, donor.HistoryOf(partOf(0, 100), donor.Engine.Visible()))
	for name, use := range map[string]func(m *Manager) (release func()){
		"a write of an earlier number": func(m *Manager) func() {
			_, release, err := m.CheckoutRetry(m.op(t, 1, number-1, false))
			if err != nil {
				t.Fatal(err)
			}
			return release
		},
		"a write of that number": func(m *Manager) func() {
			s, release, err := m.CheckoutRetry(m.op(t, 1, number, false))
			if err != nil {
				t.Fatal(err)
			}
			s.ran(Run{From: 8, To: 8, Op: 'u'})
			return release
		},
		"a transaction of an earlier number": func(m *Manager) func() {
			s := m.begin(t, 1, number-1)
			<-s.busy
			return func() { s.busy <- struct{}{} }
		},
	} {
		for _, flush := range []bool{false, true} {
			for _, elected := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, flush %v, elected %v", name, flush, elected), func(t *testing.T) {
					m, _ := newTestManager(t)
					release := use(m)
					if err := m.Adopt(t.Context(), entries); err != nil { // the test would hang here
						t.Fatal(err)
					}
					for range 3 {
						if err := m.FlushRetries(t.Context()); flush && err != nil {
							t.Fatal(err)
						}
						if !flush {
							break
						}
					}
					release()
					if elected {
						m.AbortTxns()
						m.again(t)
					}
					s, free, err := m.CheckoutRetry(m.op(t, 1, number, false))
					if err != nil {
						t.Fatal(err)
					}
					defer free()
					if _, ok := s.Executed(3); !ok {
						t.Error("the statement that another shard has executed is not known")
					}
					if n := m.counters.Open.Load(); n != 0 {
						t.Errorf("%d transactions are open whose client has moved on", n)
					}
				})
			}
		}
	}
}

// A transaction that has voted to commit is decided as if no history had arrived; its session's next number is the one that another shard has
// executed.
func TestHistoryDoesNotWaitForPreparedTransactions(t *testing.T) {
	donor, _ := newTestManager(t)
	donor.write(t, 1, 7, 3, 1)
	entries := read(t, donor.HistoryOf(partOf(0, 100), donor.Engine.Visible()))
	for _, elected := range []int{0, 1, 2} { // after the vote, and after the decision
		m, _ := newTestManager(t)
		s := beginLarge(t, m) // number 5
		if err := m.prepare(m.op(t, 1, 5, false), s.Txn, "shard7"); err != nil {
			t.Fatal(err)
		}
		if err := m.Adopt(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
		flush := func() {
			for range 3 {
				if err := m.FlushRetries(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		flush()
		release := func() {}
		if elected > 0 {
			s, release = m.restored(t)
		}
		if err := m.abortPrepared(m.op(t, 1, 5, false), s); err != nil {
			t.Fatal(err)
		}
		release()
		if elected > 1 {
			m.again(t)
		}
		if s, free, err := m.CheckoutRetry(m.op(t, 1, 7, false)); err != nil {
			t.Fatal(err)
		} else if _, ok := s.Executed(3); !ok {
			t.Errorf("%d elections: the statement that another shard has executed is not known after the decision", elected)
		} else {
			free()
		}
		flush()
		if !m.restarted(t, 1, 7, 3) {
			t.Errorf("%d elections: it is not known after one more", elected)
		}
	}
}

// History is durable when Adopt returns: the machine of a lone member may lose its power then, and the shard that sent it
// does not send it again.
func TestAdoptedHistoryIsDurable(t *testing.T) {
	donor, _ := newTestManager(t)
	donor.write(t, 1, 5, 3, 1)
	disk := vfs.NewCrashableMem()
	o := storage.Options{Dir: "db", FS: disk, MinFreeDisk: 1, JournalInterval: time.Hour}
	m, _ := newTestManagerOn(t, o)
	if err := m.Adopt(t.Context(), donor.everything(t)); err != nil {
		t.Fatal(err)
	}
	o.FS = disk.CrashClone(vfs.CrashCloneCfg{}) // nothing that was not synced is left
	again, _ := newTestManagerOn(t, o)
	if !again.restarted(t, 1, 5, 3) {
		t.Error("what another shard has executed is forgotten")
	}
}

// The transactions of a part go with it as numbers that are used up: neither a write nor a transaction can begin with one again.
func TestNumbersOfTransactionsGoWithAPart(t *testing.T) {
	donor, n := newTestManager(t)
	for session, key := range map[byte]int32{1: 1, 2: 101} {
		s := donor.begin(t, session, 5)
		s.Txn.Unit.Oplog(storage.OplogEntry{Op: 'u', NS: partNS, O: value.Doc(), O2: value.Doc(value.F("_id", value.NewInt32(key))), StmtID: -1})
		s.noteTxnOnCommit(s.Txn.Unit, donor.Engine.Term(), nil)
		if _, err := n.set.Commit(t.Context(), s.Txn.Unit, replication.Visible); err != nil {
			t.Fatal(err)
		}
		donor.closeTxn(s, Committed)
	}
	entries := read(t, donor.HistoryOf(partOf(0, 100), donor.Engine.Visible()))
	if got := statements(entries); got != "1/5/-1" {
		t.Fatalf("%s is sent", got)
	}
	m := adopting(t, entries)
	for range 2 {
		s, free, err := m.CheckoutRetry(m.op(t, 1, 5, false))
		if err != nil {
			t.Fatal(err)
		}
		if !s.Incomplete() {
			t.Error("a write may begin with the number of a transaction")
		}
		if _, err := m.enterTxn(m.op(t, 1, 5, true), s); err == nil {
			t.Error("another transaction may begin with the number")
		}
		free()
		m.again(t)
	}
	if got := statements(read(t, m.HistoryOf(partOf(500, 600), m.Engine.Visible()))); got != "1/5/-1" {
		t.Errorf("the next owner sends %s", got)
	}
}

// Records that an earlier version has stored, with statements in them, are read, and stored in the present form by the next flush.
func TestRecordsOfEarlierVersionsAreMoved(t *testing.T) {
	m, _ := newTestManager(t)
	id := cluster.LogicalSessionID{}
	id.ID[0] = 1
	run := func(from, to int32) value.Value {
		return value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("from", value.NewInt32(from)), value.F("to", value.NewInt32(to)), value.F("op", value.NewString("u"))))))
	}
	lsid, number := value.NewDocument(id.Doc()), value.F("txnNum", value.NewInt64(5))
	for ns, doc := range map[string][]byte{
		TransactionsNS: value.Doc(value.F("_id", lsid), number, value.F("lastWriteOpTime", storage.NoOpTime.Value()), value.F("lastWriteDate", value.NewTime(m.Now())),
			value.F("statements", run(0, 4)), value.F(tornField, value.NewBool(true))),
		StatementsNS: value.Doc(value.F("_id", value.NewDocument(value.Doc(value.F("lsid", lsid), value.F("part", value.NewInt32(1))))), number, value.F("statements", run(7, 8))),
	} {
		if err := m.Docs.Put(t.Context(), ns, doc); err != nil {
			t.Fatal(err)
		}
	}
	for _, when := range []string{"opened", "stored again"} {
		m.again(t)
		s, free, err := m.CheckoutRetry(m.op(t, 1, 5, false))
		if err != nil {
			t.Fatal(err)
		}
		for stmt, want := range map[int32]bool{0: true, 4: true, 5: false, 7: true, 8: true, 9: false} {
			if _, ok := s.Executed(stmt); ok != want {
				t.Errorf("%s: statement %d is known: %v", when, stmt, ok)
			}
		}
		if !s.Incomplete() {
			t.Errorf("%s: the history counts as whole", when)
		}
		free()
		if err := m.FlushRetries(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	doc, err := m.Docs.Get(TransactionsNS, lsid)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for k := range value.Elements(doc) {
		names = append(names, k)
	}
	if got := strings.Join(names, " "); got != "_id txnNum lastWriteOpTime lastWriteDate" {
		t.Errorf("the record has %s", got)
	}
}

// insertTogether has a session insert documents with the keys from..from+n-1 by one command: they share an entry of the oplog.
func (m *Manager) insertTogether(t *testing.T, session byte, number int64, from, n int32) {
	t.Helper()
	s, release, err := m.CheckoutRetry(m.op(t, session, number, false))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	u := m.Engine.NewUnitOfWork(nil)
	if m.Engine.Catalog().Lookup(partNS) == nil {
		if _, err := u.CreateCollection(storage.CollectionSpec{NS: partNS}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Set.Commit(t.Context(), u, replication.Visible); err != nil {
			t.Fatal(err)
		}
		u = m.Engine.NewUnitOfWork(nil)
	}
	var docs [][]byte
	for i := range n {
		docs = append(docs, value.Doc(value.F("_id", value.NewInt32(from+i))))
	}
	u.SetSession(s.LSID, number, s.LastEntry())
	info := storage.OpInfo{StmtID: 0, Vectored: true}
	if _, err := u.InsertMany(m.Engine.Catalog().Lookup(partNS), docs, info); err != nil {
		t.Fatal(err)
	}
	s.NoteOnCommit(u, m.Engine.Term(), Run{From: 0, To: n - 1, Op: 'i'})
	if _, err := m.Set.Commit(t.Context(), u, replication.Visible); err != nil {
		t.Fatal(err)
	}
}

// The documents of an insert command share an entry: a part of the history that is full in the midst of it lacks none of them, and only
// those of the range are sent.
func TestHistoryOfABatchOfInserts(t *testing.T) {
	m, _ := newTestManager(t)
	keyOf := func(e *storage.OplogEntry) ([]byte, bool) {
		doc := e.O2
		if e.Op == 'i' {
			doc = e.O
		}
		id := value.Lookup(doc, "_id")
		return value.Doc(value.F("_id", id)), e.NS == partNS && id.Int32() < 9
	}
	m.insertTogether(t, 1, 5, 0, 12)
	next := m.HistoryOf(keyOf, m.Engine.Visible())
	want := func(session int) string {
		var out []string
		for i := range 9 {
			out = append(out, fmt.Sprintf("%d/5/%d", session, i))
		}
		return strings.Join(out, " ")
	}
	if got := statements(read(t, next)); got != want(1) {
		t.Errorf("of what was executed before %s is sent, want %s", got, want(1))
	}
	m.insertTogether(t, 2, 5, -20, 12) // read from the oplog, in parts of less than one entry
	if got := statements(read(t, next)); len(strings.Fields(got)) != 12 {
		t.Errorf("of what was executed since %s is sent", got)
	}
	second := adopting(t, read(t, m.HistoryOf(keyOf, m.Engine.Visible())))
	for _, restart := range []bool{false, true} {
		if restart {
			second.again(t)
		}
		for stmt := range int32(9) {
			if !second.restarted(t, 1, 5, stmt) {
				t.Errorf("restarted %v: the new owner does not know statement %d", restart, stmt)
			}
		}
	}
}
