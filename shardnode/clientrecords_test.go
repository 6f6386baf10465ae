package shardnode

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// recordID is the _id of the record of the tests' usual session.
const recordID = `{"id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAQ==", "subType": "04"}}, "uid": {"$binary": {"base64": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "subType": "00"}}}`

// sessionRecord is a record of that session as a client writes it.
func sessionRecord(number int, at bson.Timestamp, term int, more string) string {
	return fmt.Sprintf(`{"_id": %s, "txnNum": {"$numberLong": "%d"}, "lastWriteOpTime": {"ts": {"$timestamp": {"t": %d, "i": %d}}, "t": {"$numberLong": "%d"}}, "lastWriteDate": {"$date": "%s"}%s}`,
		recordID, number, at.T, at.I, term, time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), more)
}

// refusal is the code of a command's error, or of its first write error; 0 for none.
func (n *testNode) refusal(db, cmd string) int32 {
	n.t.Helper()
	r := n.do(db, cmd)
	if list, _ := r["writeErrors"].(bson.A); len(list) > 0 {
		r = asM(list[0])
	}
	if cursor := asM(r["cursor"]); cursor != nil && r["nErrors"] == int32(1) {
		r = asM(cursor["firstBatch"].(bson.A)[0])
	}
	c, _ := r["code"].(int32)
	return c
}

// entryOf returns the time of the oplog's entry of a statement in the tests' session, alone or in a vectored insert.
func (n *testNode) entryOf(number, stmt int) bson.Timestamp {
	n.t.Helper()
	r := n.ok("local", fmt.Sprintf(`{"find": "oplog.rs", "filter": {"txnNumber": %d, "$or": [{"stmtId": %d}, {"o.applyOps.stmtId": %d}]}}`, number, stmt, stmt))
	return asM(asM(r["cursor"])["firstBatch"].(bson.A)[0])["ts"].(bson.Timestamp)
}

const raised = `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}], "stmtId": %d}`

func (n *testNode) raiseAs(number, stmt int) bson.M {
	n.t.Helper()
	return n.ok("d", inSession(fmt.Sprintf(raised, stmt), number))
}

func (n *testNode) expectX(want int, when string) {
	n.t.Helper()
	if got := fmt.Sprint(n.first("d", `{"find": "c", "filter": {"_id": 1}, "projection": {"_id": 0}}`)); got != fmt.Sprintf("[{ x: %d }]", want) {
		n.t.Errorf("%s: %s, want %d", when, got, want)
	}
}

// What a client writes to config.transactions is the node's state of the session from then on, at once and after an election: its
// number, and the statements that the oplog has up to lastWriteOpTime. Other statements are refused when they are sent again.
func TestWrittenSessionRecordsAreReadAgain(t *testing.T) {
	const terms = 1
	set := func(record string) string {
		return `{"update": "transactions", "updates": [{"q": {"_id": ` + recordID + `}, "u": ` + record + `, "upsert": true}]}`
	}
	for _, write := range []struct{ how, begin, cmd string }{
		{"inserted", `{"delete": "transactions", "deletes": [{"q": {}, "limit": 0}]}`, `{"insert": "transactions", "documents": [%s]}`},
		{"upserted", `{"drop": "transactions"}`, set("%s")},
		{"replaced", "", set("%s")},
		{"updated by a pipeline", "", set(`[{"$replaceWith": {"$literal": %s}}]`)},
		{"findAndModify", "", `{"findAndModify": "transactions", "query": {}, "update": %s}`},
	} {
		for _, elected := range []bool{false, true} {
			t.Run(fmt.Sprint(write.how, ", elected ", elected), func(t *testing.T) {
				n := newTestNode(t)
				state := func(number int, at bson.Timestamp, term int, more string) {
					t.Helper()
					if write.begin != "" {
						n.ok("config", write.begin)
					}
					cmd := fmt.Sprintf(write.cmd, sessionRecord(number, at, term, more))
					if r := n.ok("config", cmd); r["writeErrors"] != nil {
						t.Fatalf("%s: %v", cmd, r)
					}
					if elected {
						n.forgetSessions()
					}
				}
				n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`)
				for stmt := range 3 {
					n.raiseAs(5, stmt)
				}
				n.expectX(3, "three statements")

				state(5, n.entryOf(5, 2), terms, "")
				for stmt := range 3 {
					n.raiseAs(5, stmt)
				}
				n.expectX(3, "the record names the last of them, and they are sent again")

				state(5, n.entryOf(5, 1), terms, "")
				for stmt := range 3 {
					n.raiseAs(5, stmt)
				}
				n.expectX(4, "the record names the second, and they are sent again")

				gone := n.entryOf(5, 0)
				gone.T -= 1000
				state(7, gone, terms, "")
				if code := n.refusal("d", inSession(fmt.Sprintf(raised, 0), 7)); code != int32(mongoerr.IncompleteTransactionHistory) {
					t.Errorf("a statement of a number of which nothing is found: %d", code)
				}
				if code := n.refusal("d", inSession(fmt.Sprintf(raised, 0), 6)); code != int32(mongoerr.TransactionTooOld) {
					t.Errorf("a number before the record's: %d", code)
				}
				n.expectX(4, "behind the refusals")
				n.raiseAs(8, 0)
				n.expectX(5, "a number behind the record's")

				state(8, n.entryOf(8, 0), terms+1, "")
				if code := n.refusal("d", inSession(fmt.Sprintf(raised, 0), 8)); code != int32(mongoerr.IncompleteTransactionHistory) {
					t.Errorf("the oplog's entry is of another term: %d", code)
				}
				state(3, n.entryOf(5, 0), terms, "")
				if code := n.refusal("d", inSession(fmt.Sprintf(raised, 0), 3)); code != int32(mongoerr.IncompleteTransactionHistory) {
					t.Errorf("the oplog's entry is of another number: %d", code)
				}

				commit := func(number int) int32 {
					return n.code("admin", inSession(`{"commitTransaction": 1, "autocommit": false}`, number))
				}
				state(20, n.entryOf(5, 0), terms, `, "state": "committed"`)
				if code := commit(20); code != 0 {
					t.Errorf("commit of what is committed: %d", code)
				}
				for number, of := range map[int]string{30: "aborted", 31: "inProgress"} {
					state(number, n.entryOf(5, 0), terms, `, "state": "`+of+`"`)
					if code := commit(number); code != int32(mongoerr.NoSuchTransaction) {
						t.Errorf("commit of what is %s: %d", of, code)
					}
				}
				n.raiseAs(40, 0)
				n.raiseAs(40, 0)
				n.expectX(6, "and the session goes on")
			})
		}
	}
}

// A history that fills several blocks of the oplog is followed to its first entry. The other fields of the record do not affect it.
func TestLongHistoriesAreReadFromTheOplog(t *testing.T) {
	n := newTestNode(t)
	var docs []string
	for i := range 3000 {
		docs = append(docs, fmt.Sprintf(`{"_id": %d}`, i))
	}
	insert := inSession(`{"insert": "c", "documents": [`+strings.Join(docs, ",")+`]}`, 5)
	n.ok("d", insert)
	last := n.entryOf(5, 2999)
	for _, elected := range []bool{false, true} {
		n.ok("config", `{"delete": "transactions", "deletes": [{"q": {}, "limit": 0}]}`)
		n.ok("config", `{"insert": "transactions", "documents": [`+sessionRecord(5, last, 1, "")+`]}`)
		n.ok("config", `{"update": "transactions", "updates": [{"q": {}, "u": {"$currentDate": {"lastWriteDate": true}}}]}`)
		if elected {
			n.forgetSessions()
		}
		if r := n.ok("d", insert); r["writeErrors"] != nil || len(r["retriedStmtIds"].(bson.A)) != 3000 {
			t.Errorf("elected %v: %.300v", elected, r)
		}
	}
}

// Records that no node could have written are refused, each with what is wrong with it, and nothing of the session changes.
func TestOddRecordsOfSessionsAreRefused(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`)
	n.raiseAs(5, 0)
	at := n.entryOf(5, 0)
	future := at
	future.T += 1000
	good := sessionRecord(6, at, 1, "")
	with := func(old, other string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%s has no %s", good, old)
		}
		return strings.Replace(good, old, other, 1)
	}
	for _, c := range []struct {
		record string
		code   mongoerr.Code
	}{
		{`{"_id": 1}`, mongoerr.TypeMismatch},
		{`{"_id": {"id": 1, "uid": 1}, "txnNum": 1}`, mongoerr.TypeMismatch},
		{with(`, "uid":`, `, "who":`), mongoerr.IDLFailedToParse},
		{with(`"txnNum":`, `"txnNumber":`), mongoerr.IDLUnknownField},
		{with(`{"$numberLong": "6"}`, `6.0`), mongoerr.TypeMismatch},
		{with(`{"$numberLong": "6"}`, `-6`), mongoerr.BadValue},
		{with(`"lastWriteOpTime": {`, `"lastWriteOpTime": {"x": 1}, "startOpTime": {"x": 1`+`, `), mongoerr.IDLFailedToParse},
		{with(`"ts": {"$timestamp"`, `"t2": {"$timestamp"`), mongoerr.IDLFailedToParse},
		{sessionRecord(6, future, 1, ""), mongoerr.BadValue},
		{sessionRecord(6, at, 1, `, "state": "prepared"`), mongoerr.BadValue},
		{sessionRecord(6, at, 1, `, "state": "done"`), mongoerr.BadValue},
		{sessionRecord(6, at, 1, `, "state": 1`), mongoerr.TypeMismatch},
		{sessionRecord(6, at, 1, `, "affectedNamespaces": "d.c"`), mongoerr.TypeMismatch},
		{sessionRecord(6, at, 1, `, "parentLsid": {}`), mongoerr.BadValue},
		{sessionRecord(6, at, 1, `, "extra": 1`), mongoerr.IDLUnknownField},
	} {
		for _, cmd := range []string{
			`{"insert": "transactions", "documents": [%s]}`,
			`{"update": "transactions", "updates": [{"q": {"_id": {"$exists": true}}, "u": [{"$replaceWith": {"$mergeObjects": [{"$literal": %s}, {"_id": "$_id"}]}}]}]}`,
		} {
			if strings.Contains(cmd, "update") && (strings.Contains(c.record, `"_id": 1`) || strings.Contains(c.record, `"uid": 1`) || strings.Contains(c.record, `"who"`)) {
				continue // the _id cannot be changed
			}
			if code := n.refusal("config", fmt.Sprintf(cmd, c.record)); code != int32(c.code) {
				t.Errorf(cmd+": %d, want %d", c.record, code, int32(c.code))
			}
		}
	}
	for _, cmd := range []string{`{"insert": "transactions", "documents": [` + good + `]}`, `{"update": "transactions", "updates": [{"q": {}, "u": {"$set": {"txnNum": 9}}}]}`} {
		if code := n.refusal("config", cmd[:len(cmd)-1]+", "+testLSID+"}"); code != 40528 {
			t.Errorf("on a session, %s: %d", cmd, code)
		}
	}
	n.raiseAs(5, 0)
	n.expectX(1, "the statement sent again behind all of that")
}

// A transaction that has voted to commit is not forgotten by a write of its record; an open one ends with it.
func TestRecordsOfTransactionsUnderWay(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 0}]}`)
	n.ok("d", inSession(`{"insert": "c", "documents": [{"_id": 5}]}`, 1))
	at := n.entryOf(1, 0)
	n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 1}]}`, 2, true))
	set := func(number int) string {
		return fmt.Sprintf(`{"update": "transactions", "updates": [{"q": {"_id": %s}, "u": {"$set": {"txnNum": {"$numberLong": "%d"}}, "$unset": {"state": 1, "startOpTime": 1}}}]}`, recordID, number)
	}
	bulk := fmt.Sprintf(`{"bulkWrite": 1, "ops": [{"update": 0, "filter": {"_id": %s}, "updateMods": %s}], "nsInfo": [{"ns": "config.transactions"}]}`, recordID, sessionRecord(3, at, 1, ""))
	n.ok("admin", bulk)
	if code := n.code("admin", inTxn(`{"commitTransaction": 1}`, 2, false)); code != int32(mongoerr.TransactionTooOld) {
		t.Errorf("commit of a transaction whose session has a record with a newer number: %d", code)
	}
	if got := n.first("d", `{"find": "c", "filter": {"_id": 1}}`); len(got) != 0 {
		t.Errorf("%v is there", got)
	}

	n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 2}]}`, 4, true))
	n.ok("admin", inTxn(`{"prepareTransaction": 1}`, 4, false))
	for db, cmd := range map[string]string{"config": set(9), "admin": bulk} {
		if code := n.refusal(db, cmd); code != int32(mongoerr.PreparedTransactionInProgress) {
			t.Errorf("%s: %d", cmd, code)
		}
	}
	n.ok("admin", inTxn(fmt.Sprintf(`{"commitTransaction": 1, "commitTimestamp": {"$timestamp": {"t": %d, "i": %d}}}`, at.T, at.I), 4, false))
	if got := n.first("d", `{"find": "c", "filter": {"_id": 2}}`); len(got) != 1 {
		t.Errorf("%v is there", got)
	}
	n.ok("config", set(9))

	// The same applies to the internal transaction that executes a statement of the session.
	child := func(cmd string, start bool) string { return ofChild(inTxn(cmd, 0, start), 10, 1) }
	n.ok("d", child(`{"insert": "c", "documents": [{"_id": 3}]}`, true))
	n.ok("admin", child(`{"prepareTransaction": 1}`, false))
	if code := n.refusal("config", set(20)); code != int32(mongoerr.PreparedTransactionInProgress) {
		t.Errorf("while an internal transaction is prepared: %d", code)
	}
	n.ok("admin", child(`{"abortTransaction": 1}`, false))
	n.ok("config", set(20))
}

// A record is written between the commands of a session that is in use: each statement runs once whatever number the record brings.
func TestRecordsAreWrittenWhileTheirSessionIsInUse(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`)
	n.raiseAs(1, 0)
	other := &testNode{t: t, srv: n.srv, cl: n.cl}
	done := make(chan int)
	go func() {
		defer close(done)
		for number := 2; number < 400; number++ {
			for range 2 {
				if r := other.do("d", inSession(fmt.Sprintf(raised, 0), number)); r["ok"] != 1.0 {
					t.Errorf("number %d: %v", number, r)
				}
			}
		}
	}()
	for writing := true; writing; {
		select {
		case <-done:
			writing = false
		default:
			n.ok("config", `{"update": "transactions", "updates": [{"q": {}, "u": {"$currentDate": {"lastWriteDate": true}}}]}`)
		}
	}
	n.expectX(399, "each number once")
}

// Secondaries have the records that a client writes, and a new primary uses them.
func TestWrittenSessionRecordsAreReplicated(t *testing.T) {
	m := newTestMembers(t, 300*time.Millisecond)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`)
	n.raiseAs(5, 0)
	n.raiseAs(5, 1)
	first := n.entryOf(5, 0)
	term := n.ok("local", `{"find": "oplog.rs", "filter": {"txnNumber": 5, "stmtId": 0}}`)
	t0 := asM(asM(term["cursor"])["firstBatch"].(bson.A)[0])["t"].(int64)
	n.ok("config", fmt.Sprintf(`{"update": "transactions", "updates": [{"q": {"_id": %s}, "u": %s}], "writeConcern": {"w": 3}}`, recordID, sessionRecord(5, first, int(t0), "")))
	for _, x := range m.nodes {
		got := fmt.Sprint(x.first("config", `{"find": "transactions", "projection": {"_id": 0, "txnNum": 1, "lastWriteOpTime": 1}, "$readPreference": {"mode": "secondaryPreferred"}}`))
		if want := fmt.Sprintf("txnNum: 5, lastWriteOpTime: { ts: Timestamp(%d, %d)", first.T, first.I); !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	n.ok("admin", `{"replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 10, "force": true}`)
	for old := n; n == old; {
		n = m.primary()
	}
	n.raiseAs(5, 0)
	n.expectX(2, "the statement that the record names, sent again")
	n.raiseAs(5, 1)
	n.expectX(3, "the statement behind it")
}
