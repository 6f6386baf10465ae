package shardnode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/write"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// testNet carries the calls between the members of a set in this process.
type testNet struct {
	mu      sync.Mutex
	servers map[string]*Server
	lost    map[string]bool // hosts that reach nobody and that nobody reaches: a response to a member's own call brings entries, too
	cut     bool
	before  atomic.Pointer[func(command string)] // sees what members send each other
}

// testLink makes the calls of one member.
type testLink struct {
	*testNet
	from string
}

var errCut = errors.New("the network is cut")

func (x testLink) Send(ctx context.Context, host string, payload []byte) ([]byte, error) {
	return SendRaft(payload, func(cmd []byte) ([]byte, error) { return x.ask(ctx, host, cmd) })
}

func (x testLink) ask(ctx context.Context, host string, cmd []byte) ([]byte, error) {
	s := x.reached(host)
	if s == nil {
		time.Sleep(time.Millisecond) // as long as a refused connection takes: callers try again at once
		return nil, errCut
	}
	m := &wire.Message{OpCode: wire.OpMsg, Body: cmd}
	if before := x.before.Load(); before != nil {
		(*before)(string(m.CommandName()))
	}
	reply := s.Service.Run(ctx, s.local, m, nil)
	if x.reached(host) == nil {
		return nil, errCut
	}
	return reply, cluster.ReplyError(reply)
}

// reached returns another member, nil while the connection to it is cut.
func (x testLink) reached(host string) *Server {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cut || x.lost[host] || x.lost[x.from] {
		return nil
	}
	return x.servers[host]
}

// reach cuts a member off, or ends that.
func (x *testNet) reach(host string, reached bool) {
	x.mu.Lock()
	x.lost[host] = !reached
	x.mu.Unlock()
}

// loseMajority cuts every connection between members; heal restores them.
func (x *testNet) loseMajority() { x.setCut(true) }
func (x *testNet) heal()         { x.setCut(false) }

func memberHost(i int) string { return fmt.Sprintf("member%d:27017", i) }

// down cuts off a member other than one until back is called.
func (m *testMembers) down(not *testNode) (back func()) {
	other := 0
	if m.nodes[other] == not {
		other = 1
	}
	m.reach(memberHost(other), false)
	return func() { m.reach(memberHost(other), true) }
}

func (x *testNet) setCut(cut bool) {
	x.mu.Lock()
	x.cut = cut
	x.mu.Unlock()
}

// testMembers is a set of three.
type testMembers struct {
	*testNet
	nodes  []*testNode
	warned atomic.Int32
}

// steady is an election timeout within which no member takes the primary for lost, and the primary without a majority does not step down, however busy the machine is: what
// ends within half of it has not waited for that.
const steady = time.Minute

// newTestMembers creates a set of three in memory.
func newTestMembers(t *testing.T, electionTimeout time.Duration) *testMembers {
	t.Helper()
	m := openTestMembers(t, electionTimeout, 3, func(*replication.SetConfig) {})
	m.primary()
	return m
}

// openTestMembers creates a set in memory whose configuration is changed by configure before it is initiated.
func openTestMembers(t *testing.T, electionTimeout time.Duration, size int, configure func(c *replication.SetConfig)) *testMembers {
	t.Helper()
	x := &testNet{servers: map[string]*Server{}, lost: map[string]bool{}}
	m := &testMembers{testNet: x}
	var hosts []string
	for i := range size {
		host := memberHost(i)
		l := testLink{x, host}
		hosts = append(hosts, host)
		srv, err := Open(Config{Memory: true, SetName: "rs", Host: host, Info: &command.Info{Host: host}, Warn: func(string, error) { m.warned.Add(1) },
			Repl: ReplOptions{Transport: l, Ask: l.ask, Memory: true, Together: true}})
		if err != nil {
			t.Fatal(err)
		}
		x.servers[host] = srv
		m.nodes = append(m.nodes, &testNode{t: t, srv: srv, cl: command.NewClient(1, "test:1", host, nil)})
	}
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, n := range m.nodes {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := n.srv.Close(); err != nil {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
	})
	c := replication.NewConfig("rs", hosts...)
	c.Settings.ElectionTimeout, c.Settings.HeartbeatInterval = electionTimeout, electionTimeout/5
	configure(c)
	if err := m.nodes[0].srv.Repl.Initiate(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	return m
}

// primary waits until there is one and the others follow it.
func (m *testMembers) primary() *testNode {
	t := m.nodes[0].t
	t.Helper()
	return await.State(t, "a primary that both others follow", func() (found *testNode, done bool) {
		follow := 0
		for _, n := range m.nodes {
			if n.srv.Repl.Writable() {
				found = n
			} else if n.srv.Repl.Readable() {
				follow++
			}
		}
		return found, found != nil && follow == 2 && found.votes() == 3
	})
}

// votes is the number of voting members: a new one votes once it has caught up.
func (n *testNode) votes() (count int) {
	for _, m := range n.srv.Repl.Status().Members {
		if m.Voting {
			count++
		}
	}
	return count
}

// wcTimeout is a command with a write concern with a short wtimeout.
func wcTimeout(cmd string) string {
	return cmd[:len(cmd)-1] + `, "writeConcern": {"w": "majority", "wtimeout": 10}}`
}

// timedOut checks a reply for the write concern error of a wtimeout, and returns some of its fields as text.
func timedOut(t *testing.T, n *testNode, db, cmd string, fields ...string) string {
	t.Helper()
	start := time.Now()
	r := n.do(db, cmd)
	want := `{ ok: 1.0, writeConcernError: { code: 64, codeName: "WriteConcernTimeout", errmsg: "waiting for replication timed out",` +
		` errInfo: { wtimeout: true, writeConcern: { w: "majority", wtimeout: 10, provenance: "clientSupplied" } } } }`
	if got := shown(t, r, "ok", "writeConcernError"); got != want || time.Since(start) > steady/2 {
		t.Errorf("%s: after %v %v", cmd, time.Since(start), r)
	}
	if len(fields) == 0 {
		return ""
	}
	return shown(t, r, fields...)
}

// Writes without a majority return their result after their wtimeout. When the majority is back they have been executed
// once, and a retry returns the same.
func TestWriteConcernTimesOutWithoutAMajority(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}, {"_id": 2}, {"_id": 3, "x": 0}, {"_id": 4, "x": 0}]}`)
	n.ok("d", `{"create": "dropped"}`)
	fields := []string{"n", "nModified", "upserted", "lastErrorObject", "value", "retriedStmtIds", "retriedStmtId"}
	cases := []struct{ cmd, want, again string }{
		{`{"insert": "c", "documents": [{"_id": 10}, {"_id": 11}]}`, `{ n: 2 }`, `{ n: 2, retriedStmtIds: [ 0, 1 ] }`},
		{
			`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`,
			`{ n: 1, nModified: 1 }`, `{ n: 1, nModified: 1, retriedStmtIds: [ 0 ] }`,
		},
		{
			`{"update": "c", "updates": [{"q": {"_id": 7}, "u": {"$inc": {"x": 1}}, "upsert": true}]}`,
			`{ n: 1, nModified: 0, upserted: [ { index: 0, _id: 7 } ] }`,
			`{ n: 1, nModified: 0, upserted: [ { index: 0, _id: 7 } ], retriedStmtIds: [ 0 ] }`,
		},
		{
			`{"update": "c", "updates": [{"q": {"_id": 4}, "u": {"$inc": {"x": 1}}}, {"q": {"x": 1, "_id": 4}, "u": {"$inc": {"x": 1}}}]}`,
			`{ n: 2, nModified: 2 }`, `{ n: 2, nModified: 2, retriedStmtIds: [ 0, 1 ] }`,
		},
		{`{"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]}`, `{ n: 1 }`, `{ n: 1, retriedStmtIds: [ 0 ] }`},
		{
			`{"findAndModify": "c", "query": {"_id": 3}, "update": {"$inc": {"x": 1}}, "new": true}`,
			`{ lastErrorObject: { n: 1, updatedExisting: true }, value: { _id: 3, x: 1 } }`,
			`{ lastErrorObject: { n: 1, updatedExisting: true }, value: { _id: 3, x: 1 }, retriedStmtId: 0 }`,
		},
	}
	m.loseMajority()
	for i, tc := range cases {
		cmd := wcTimeout(inSession(tc.cmd, i+1))
		if got := timedOut(t, n, "d", cmd, fields...); got != tc.want {
			t.Errorf("%s: %s", cmd, got)
		}
		if got := timedOut(t, n, "d", cmd, fields...); got != tc.again {
			t.Errorf("%s, again: %s", cmd, got)
		}
	}
	bulk := `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 20}}, {"insert": 0, "document": {"_id": 21}}], "nsInfo": [{"ns": "d.c"}]}`
	if got := timedOut(t, n, "admin", wcTimeout(bulk), "nInserted", "nErrors"); got != "{ nInserted: 2, nErrors: 0 }" {
		t.Errorf("bulkWrite: %s", got)
	}
	timedOut(t, n, "d", wcTimeout(`{"create": "made"}`))
	if got := timedOut(t, n, "d", wcTimeout(`{"drop": "dropped"}`), "nIndexesWas", "ns"); got != `{ nIndexesWas: 1, ns: "d.dropped" }` {
		t.Errorf("drop: %s", got)
	}
	last := len(cases) // whose command is the session's newest: older numbers can no longer be retried
	retry := inSession(cases[last-1].cmd, last)
	answer := make(chan string, 1)
	go func() { answer <- shown(t, n.do("d", retry), append(fields, "ok")...) }()
	select {
	case a := <-answer:
		t.Fatalf("a retry without wtimeout is answered before the decision: %s", a)
	case <-time.After(100 * time.Millisecond):
	}
	m.heal()
	if got, want := <-answer, cases[last-1].again; got != want[:len(want)-2]+", ok: 1.0 }" {
		t.Errorf("the retry: %s", got)
	}
	got := fmt.Sprint(n.first("d", `{"find": "c", "sort": {"_id": 1}}`))
	want := "[{ _id: 1, x: 1 } { _id: 3, x: 1 } { _id: 4, x: 2 } { _id: 7, x: 1 } { _id: 10 } { _id: 11 } { _id: 20 } { _id: 21 }]"
	if got != want {
		t.Errorf("after the majority is back: %s", got)
	}
	if got := n.first("d", `{"listCollections": 1, "nameOnly": true, "filter": {"name": {"$in": ["made", "dropped"]}}}`); len(got) != 1 {
		t.Errorf("collections: %v", got)
	}
	n.awaitNoneDetached()
}

// awaitNoneDetached waits until all detached commits are decided.
func (n *testNode) awaitNoneDetached() {
	n.t.Helper()
	await.State(n.t, "no commit is detached", func() (int, bool) {
		left := n.srv.Engine.DetachedCommits()
		return int(left), left == 0
	})
}

// Detached writes keep their locks and claims: no other operation sees or overwrites anything in between.
func TestDetachedWritesKeepTheirClaims(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}, {"_id": 2, "x": 0}]}`)
	m.loseMajority()
	timedOut(t, n, "d", wcTimeout(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`))
	if got := n.first("d", `{"find": "c", "filter": {"_id": 1}}`); got[0] != "{ _id: 1, x: 0 }" {
		t.Errorf("a reader: %v", got)
	}
	same := n.do("d", wcTimeout(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 10}}}]}`))
	if got := shown(t, same, "ok", "n", "writeErrors"); got != `{ ok: 1.0, n: 0, writeErrors: [ { index: 0, code: 64, errmsg: "`+write.ErrBlocked.Message+`" } ] }` {
		t.Errorf("another writer: %s", got)
	}
	// The second statement sees the first of its own command, and no other detached writes.
	two := wcTimeout(`{"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$inc": {"x": 1}}}, {"q": {"x": 1}, "u": {"$set": {"y": 1}}}]}`)
	if got := timedOut(t, n, "d", two, "n", "nModified", "writeErrors"); got != `{ n: 2, nModified: 2 }` {
		t.Errorf("two statements: %s", got)
	}
	if code := n.code("d", `{"drop": "c", "maxTimeMS": 50}`); code != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("a drop meanwhile: %d", code)
	}
	m.heal()
	n.ok("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 100}}}]}`)
	if got := fmt.Sprint(n.first("d", `{"find": "c"}`)); got != "[{ _id: 1, x: 101 } { _id: 2, x: 1, y: 1 }]" {
		t.Errorf("in the end: %s", got)
	}
	n.ok("d", `{"drop": "c"}`)
}

// maxTimeMS and killOp end a write that waits for a majority.
func TestEndedWithoutAMajority(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	m.loseMajority()
	r := n.do("d", `{"insert": "c", "documents": [{"_id": 2}], "maxTimeMS": 60}`)
	if got := shown(t, r, "n", "ok", "writeConcernError"); got != `{ n: 1, ok: 1.0, writeConcernError: { code: 50, codeName: "MaxTimeMSExpired",`+
		` errmsg: "operation exceeded time limit", errInfo: { writeConcern: { w: "majority", wtimeout: 0, provenance: "implicitDefault" } } } }` {
		t.Errorf("maxTimeMS: %s", got)
	}
	done, last := make(chan bson.M, 1), n.srv.Repl.Status().Log.Last
	go func() { done <- n.do("d", `{"insert": "c", "documents": [{"_id": 3}]}`) }()
	// Killed earlier it would not be written.
	await.True(t, "the log has it", func() bool { return n.srv.Repl.Status().Log.Last != last })
	await.True(t, "the insert is killed", func() (killed bool) {
		progress, _ := n.ok("admin", `{"currentOp": 1, "op": "insert"}`)["inprog"].(bson.A)
		for _, op := range progress {
			for _, e := range op.(bson.D) {
				if e.Key == "opid" {
					n.ok("admin", fmt.Sprintf(`{"killOp": 1, "op": %v}`, e.Value))
					killed = true
				}
			}
		}
		return killed
	})
	if got := shown(t, <-done, "n", "ok", "writeConcernError"); !strings.HasPrefix(got, `{ n: 1, ok: 1.0, writeConcernError: { code: 11601, codeName: "Interrupted"`) {
		t.Errorf("killed: %s", got)
	}
	m.heal()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 4}]}`)
	if got := n.first("d", `{"find": "c"}`); len(got) != 4 {
		t.Errorf("%v", got)
	}
}

// commitTransaction returns after its wtimeout, too; a retry waits for the decision or times out again. The session can
// be used meanwhile.
func TestCommitTransactionTimesOutWithoutAMajority(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 2}, {"_id": 3}]}`, 1, true))
	m.loseMajority()
	commit := inTxn(`{"commitTransaction": 1}`, 1, false)
	timedOut(t, n, "admin", wcTimeout(commit))
	timedOut(t, n, "admin", wcTimeout(commit))
	if code := n.code("admin", inTxn(`{"abortTransaction": 1}`, 1, false)); code != int32(mongoerr.TransactionCommitted) {
		t.Errorf("abortTransaction: %d", code)
	}
	n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 4}]}`, 2, true))
	if got := n.ok("admin", wcTimeout(inTxn(`{"abortTransaction": 1}`, 2, false))); got["writeConcernError"] != nil {
		t.Errorf("abortTransaction: %v", got)
	}
	other := otherSession(inTxn(`{"insert": "c", "documents": [{"_id": 5}]}`, 1, true))
	n.ok("d", other)
	commit = otherSession(inTxn(`{"commitTransaction": 1}`, 1, false))
	timedOut(t, n, "admin", wcTimeout(commit))
	answer := make(chan int32, 1)
	go func() { answer <- n.code("admin", commit) }()
	select {
	case code := <-answer:
		t.Fatalf("a retry without wtimeout is answered before the decision: %d", code)
	case <-time.After(50 * time.Millisecond):
	}
	m.heal()
	if code := <-answer; code != 0 {
		t.Errorf("the retry after the decision: %d", code)
	}
	if got := fmt.Sprint(n.first("d", `{"find": "c"}`)); got != "[{ _id: 1 } { _id: 2 } { _id: 3 } { _id: 5 }]" {
		t.Errorf("in the end: %s", got)
	}
	n.awaitNoneDetached()
	if open := n.srv.Node.txns.Counters().Open.Load(); open != 0 {
		t.Errorf("%d transactions are open", open)
	}
}

// The majority does not come back in time: the primary steps down, unacknowledged writes are lost unless the others
// have them, and a retry is executed by the next primary.
func TestStepDownRollsDetachedWritesBack(t *testing.T) {
	m := newTestMembers(t, 400*time.Millisecond)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`)
	m.loseMajority()
	cmd := inSession(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, 1)
	timedOut(t, n, "d", wcTimeout(cmd))
	timedOut(t, n, "admin", wcTimeout(`{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 2}}], "nsInfo": [{"ns": "d.c"}]}`))
	if code := n.code("d", cmd); !mongoerr.Code(code).IsRetryableWrite() {
		t.Errorf("a retry that waits for the decision: %d", code)
	}
	n.awaitNoneDetached()
	m.heal()
	p := m.primary()
	for end := time.Now().Add(20 * time.Second); p.code("d", cmd) != 0; p = m.primary() { // on a busy machine the primary may be deposed again
		if time.Now().After(end) {
			t.Fatal("the retry does not get through")
		}
	}
	got := p.first("d", `{"find": "c", "filter": {"_id": 1}}`)
	if got[0] != "{ _id: 1, x: 1 }" {
		t.Errorf("the retried update: %v", got)
	}
	if err := p.srv.Node.Set.Await(context.Background(), p.srv.Engine.Visible(), replication.WriteConcern{W: 3}); err != nil {
		t.Fatal(err)
	}
}

// A server can stop while there are detached writes.
func TestClosingWithDetachedWrites(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	n.ok("d", `{"create": "other"}`)
	m.loseMajority()
	if code := n.code("d", wcTimeout(`{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x_1"}]}`)); code != int32(mongoerr.WriteConcernTimeout) {
		t.Errorf("an index build: %d", code)
	}
	for i := range 40 { // more than may be in flight
		timedOut(t, n, "d", fmt.Sprintf(`{"insert": "other", "documents": [{"_id": %d}], "writeConcern": {"w": "majority", "wtimeout": 10}}`, i+10))
		if i == 20 {
			timedOut(t, n, "d", wcTimeout(inSession(`{"insert": "other", "documents": [{"_id": 2}]}`, 1)))
		}
	}
}
