package sdam

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fakeSet is a Network whose members reply as the test configures them.
type fakeSet struct {
	mu      sync.Mutex
	members map[string]*fakeMember
	calls   []string // host:command of every call but hello
	severed []string
	inUse   map[string]int // calls in progress, by host
	watches map[string]int // connections of monitors that were opened
	asked   map[string]int // hello requests to members, without the streamed ones
	polls   bool           // members do not stream: they answer one hello at a time
	lose    func()         // called by a call that does not reach its member, if it is set
}

// fakeWatch is a monitor's connection to a member.
type fakeWatch struct {
	f       *fakeSet
	host    string
	counter int64
}

func (f *fakeSet) Watch(_ context.Context, host string) (Watch, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.members[host]; m == nil || m.down {
		return nil, mongoerr.Newf(mongoerr.HostUnreachable, "no route to %s", host)
	}
	f.watches[host]++
	return &fakeWatch{f: f, host: host}, nil
}

// seen returns the number of hello requests to a member, and of the connections that they used.
func (f *fakeSet) seen(host string) (asked, watches int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[host], f.watches[host]
}

func (w *fakeWatch) Ask(ctx context.Context, hello []byte, stream bool) ([]byte, bool, error) {
	await, _ := lookup(hello, "maxAwaitTimeMS").AsInt64()
	_, known, there := parseVersion(lookup(hello, "topologyVersion"))
	w.f.mu.Lock()
	w.f.asked[w.host]++
	more := stream && !w.f.polls
	if !there {
		known = -1
	}
	w.f.mu.Unlock()
	return w.answer(ctx, known, time.Duration(await)*time.Millisecond, more)
}

func (w *fakeWatch) Next(ctx context.Context) ([]byte, bool, error) {
	return w.answer(ctx, w.counter, DefaultTiming.Heartbeat, true)
}

func (w *fakeWatch) Close() {}

// answer waits until the member differs from the known version, or until the time has passed.
func (w *fakeWatch) answer(ctx context.Context, known int64, await time.Duration, more bool) ([]byte, bool, error) {
	w.f.mu.Lock()
	m := w.f.members[w.host]
	changed, same, silent := m.changed, known == m.counter, m.silent
	w.f.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, false, contextError(ctx)
	}
	if same {
		t := time.NewTimer(await)
		defer t.Stop()
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
			return nil, false, contextError(ctx)
		}
	}
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	if m.down {
		return nil, false, mongoerr.Newf(mongoerr.HostUnreachable, "%s went away", w.host)
	}
	w.counter = m.counter
	return m.hello(w.host), more, nil
}

type fakeMember struct {
	kind    Kind
	hosts   []string
	term    byte
	down    bool
	counter int64
	changed chan struct{}
	fail    mongoerr.Code // the answer to the next command
	refuse  int           // number of commands to refuse as a secondary does, with the topologyVersion of the last hello
	lost    bool          // the next command runs, and its reply is lost
	silent  bool          // paused: it accepts requests and sends no reply
	busy    bool          // it replies only to hello
	passive bool          // its priority is 0
}

func newFakeSet(hosts ...string) *fakeSet {
	f := &fakeSet{members: map[string]*fakeMember{}, watches: map[string]int{}, asked: map[string]int{}}
	for i, h := range hosts {
		k := Secondary
		if i == 0 {
			k = Primary
		}
		f.members[h] = &fakeMember{kind: k, hosts: hosts, term: 1, changed: make(chan struct{})}
	}
	return f
}

// change alters a member and answers its awaited hellos.
func (f *fakeSet) change(host string, g func(m *fakeMember)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[host]
	g(m)
	m.counter++
	close(m.changed)
	m.changed = make(chan struct{})
}

func (f *fakeSet) elect(host string) {
	f.mu.Lock()
	term := byte(0)
	for _, m := range f.members {
		term = max(term, m.term)
	}
	f.mu.Unlock()
	for h, m := range f.members {
		if m.kind == Primary && h != host {
			f.change(h, func(m *fakeMember) { m.kind = Secondary })
		}
	}
	f.change(host, func(m *fakeMember) { m.kind, m.term = Primary, term+1 })
}

func (f *fakeSet) Local(string) bool { return false }
func (f *fakeSet) Drop(string)       {}
func (f *fakeSet) Connections() (out []wire.HostStats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for host, n := range f.inUse {
		out = append(out, wire.HostStats{Host: host, InUse: int64(n)})
	}
	return out
}
func (f *fakeSet) Sever(host string) {
	f.mu.Lock()
	f.severed = append(f.severed, host)
	f.mu.Unlock()
}

func (f *fakeSet) Call(ctx context.Context, host string, m *wire.Message, dst []byte) ([]byte, bool, error) {
	f.mu.Lock()
	mem := f.members[host]
	unreachable := mongoerr.Newf(mongoerr.HostUnreachable, "no route to %s", host)
	if mem == nil || mem.down {
		f.mu.Unlock()
		return dst, false, unreachable
	}
	defer f.mu.Unlock()
	if f.lose != nil {
		f.lose()
		return dst, false, unreachable
	}
	f.calls = append(f.calls, host+":"+string(m.CommandName()))
	if mem.silent || mem.busy {
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
		return dst, true, contextError(ctx)
	}
	if mem.lost {
		mem.lost = false
		return dst, true, unreachable
	}
	if c := mem.fail; c != 0 {
		mem.fail = 0
		return errorReply(dst, c), true, nil
	}
	if mem.refuse > 0 {
		mem.refuse--
		return append(dst, value.Doc(value.F("ok", value.NewDouble(0)), value.F("code", value.NewInt32(int32(mongoerr.NotWritablePrimary))),
			value.F("errmsg", value.NewString("not primary")), value.F("topologyVersion", value.NewDocument(mem.version())))...), true, nil
	}
	pref, _ := cluster.ParseReadPreference(lookup(m.Body, "$readPreference").Doc())
	if mem.kind != Primary && pref.OrPrimary() == cluster.ReadPrimary {
		return errorReply(dst, mongoerr.NotWritablePrimary), true, nil
	}
	return append(dst, value.Doc(value.F("at", value.NewString(host)), value.F("ok", value.NewDouble(1)))...), true, nil
}

func errorReply(dst []byte, c mongoerr.Code) []byte {
	return append(dst, value.Doc(value.F("ok", value.NewDouble(0)), value.F("code", value.NewInt32(int32(c))), value.F("errmsg", value.NewString(c.Name())))...)
}

func (m *fakeMember) hello(host string) []byte {
	var hosts []value.Value
	for _, h := range m.hosts {
		hosts = append(hosts, value.NewString(h))
	}
	return value.Doc(
		value.F("isWritablePrimary", value.NewBool(m.kind == Primary)), value.F("secondary", value.NewBool(m.kind == Secondary)),
		value.F("setName", value.NewString("rs")), value.F("setVersion", value.NewInt32(int32(len(m.hosts)))),
		value.F("hosts", value.NewArray(value.ArrayOf(hosts...))), value.F("me", value.NewString(host)),
		value.F("electionId", value.NewObjectID([12]byte{11: m.term})), value.F("passive", value.NewBool(m.passive)),
		value.F("topologyVersion", value.NewDocument(m.version())), value.F("ok", value.NewDouble(1)))
}

func (m *fakeMember) version() []byte {
	return value.Doc(value.F("processId", value.NewObjectID([12]byte{1})), value.F("counter", value.NewInt64(m.counter)))
}

func command(name string, more ...value.Field) *wire.Message {
	f := append([]value.Field{value.F(name, value.NewInt32(1))}, more...)
	return &wire.Message{OpCode: wire.OpMsg, Body: value.Doc(append(f, value.F("$db", value.NewString("admin")))...)}
}

func at(reply []byte) string { return lookup(reply, "at").Str() }

var secondaryOnly = &cluster.ReadPreference{Mode: cluster.ReadSecondary}

// follow runs a test in a bubble with a set of three members that is monitored starting from one of them.
func follow(t *testing.T, run func(t *testing.T, f *fakeSet, s *Handle)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1", "c:1")
		ms := NewMonitors(f, DefaultTiming)
		s, err := ms.Dial("rs", []string{"b:1"})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		run(t, f, s)
		s.Close() // the bubble fails if a goroutine is left
	})
}

func TestCallsFollowElections(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		for _, c := range []struct {
			name string
			do   func()
			want string
			wait time.Duration // the longest that the call may take
		}{
			{"found from a secondary", func() {}, "a:1", 0},
			{"planned hand-over", func() { f.elect("b:1"); synctest.Wait() }, "b:1", 0},
			{"not noticed yet", func() {
				f.mu.Lock()
				f.members["b:1"].kind = Secondary
				f.mu.Unlock()
				go func() { time.Sleep(300 * time.Millisecond); f.elect("c:1") }()
			}, "c:1", time.Second},
			{"primary killed", func() {
				f.change("c:1", func(m *fakeMember) { m.down = true })
				go func() { time.Sleep(5 * time.Second); f.elect("a:1") }()
			}, "a:1", 6 * time.Second},
		} {
			c.do()
			start := time.Now()
			reply, err := s.Call(t.Context(), command("insert"), nil)
			if err != nil || at(reply) != c.want || time.Since(start) > c.wait {
				t.Errorf("%s: %s answered after %v (%v), want %s within %v", c.name, at(reply), time.Since(start), err, c.want, c.wait)
			}
		}
	})
}

// A primary that steps down may refuse calls, more often than a call that may have run is retried, before its hello reports the
// change: a call that has done nothing waits until then, whatever it is, and one that no member accepts fails when the wait for a
// primary times out.
func TestRefusedCallsWait(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		for _, name := range []string{"insert", "find", "renameCollection"} {
			f.mu.Lock()
			f.members["a:1"].refuse = 10
			f.mu.Unlock()
			if reply, err := s.Call(t.Context(), command(name), nil); err != nil || at(reply) != "a:1" {
				t.Errorf("%s: %s, %v", name, value.ShowDoc(reply), err)
			}
		}
		f.mu.Lock()
		f.members["a:1"].refuse = 1 << 30
		f.mu.Unlock()
		go func() { time.Sleep(2 * time.Second); f.elect("b:1") }()
		if reply, err := s.Call(t.Context(), command("insert"), nil); err != nil || at(reply) != "b:1" {
			t.Errorf("until another is elected: %s, %v", value.ShowDoc(reply), err)
		}
		f.mu.Lock()
		f.members["b:1"].refuse = 1 << 30
		f.calls = nil
		f.mu.Unlock()
		began := time.Now()
		reply, err := s.Call(t.Context(), command("insert"), nil)
		if code := mongoerr.CodeOf(memberError(reply)); err != nil || code != mongoerr.NotWritablePrimary {
			t.Errorf("refused forever: %s, %v", value.ShowDoc(reply), err)
		}
		if took := time.Since(began); took < DefaultTiming.Select || took > DefaultTiming.Select+time.Second || len(f.calls) > 200 {
			t.Errorf("%d calls within %v", len(f.calls), took)
		}
	})
}

// Commands are retried after a failure only if that is harmless.
func TestOnlyHarmlessCommandsAreRepeated(t *testing.T) {
	txn := value.F("txnNumber", value.NewInt64(1))
	out := value.F("pipeline", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("$out", value.NewString("x")))))))
	for _, c := range []struct {
		name   string
		m      *wire.Message
		lost   bool
		fail   mongoerr.Code
		repeat bool
	}{
		{"write refused", command("insert"), false, mongoerr.NotWritablePrimary, true},
		{"write interrupted", command("insert"), false, mongoerr.InterruptedDueToReplStateChange, false},
		{"write lost", command("insert"), true, 0, false},
		{"retryable write interrupted", command("insert", txn), false, mongoerr.PrimarySteppedDown, true},
		{"retryable write lost", command("update", txn), true, 0, true},
		{"statement of a transaction", command("update", txn, value.F("autocommit", value.NewBool(false))), true, 0, false},
		{"read lost", command("find"), true, 0, true},
		{"read at shutdown", command("find"), false, mongoerr.InterruptedAtShutdown, true},
		{"aggregate that writes", command("aggregate", out), true, 0, false},
		{"getMore lost", command("getMore"), true, 0, false},
		{"commit lost", command("commitTransaction", txn, value.F("autocommit", value.NewBool(false))), true, 0, true},
		{"abort interrupted", command("abortTransaction", txn, value.F("autocommit", value.NewBool(false))), false, mongoerr.InterruptedDueToReplStateChange, true},
		{"indexes interrupted", command("createIndexes"), false, mongoerr.InterruptedDueToReplStateChange, true},
		{"drop lost", command("drop"), true, 0, false},
		{"rename lost", command("renameCollection"), true, 0, false},
		{"rename refused", command("renameCollection"), false, mongoerr.NotWritablePrimary, true},
		{"indexes dropped, lost", command("dropIndexes"), true, 0, false},
		{"getMore interrupted", command("getMore"), false, mongoerr.InterruptedDueToReplStateChange, false},
		{"other error", command("find"), false, mongoerr.BadValue, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
				f.mu.Lock()
				f.members["a:1"].lost, f.members["a:1"].fail = c.lost, c.fail
				f.mu.Unlock()
				reply, err := s.Call(t.Context(), c.m, nil)
				if repeated := len(f.calls) > 1; repeated != c.repeat {
					t.Errorf("repeated: %v (%v)", repeated, f.calls)
				}
				ok := err == nil && lookup(reply, "ok").Truthy()
				if ok != c.repeat || c.lost && !c.repeat && mongoerr.CodeOf(err) != mongoerr.HostUnreachable {
					t.Errorf("reply %s, error %v", value.ShowDoc(reply), err)
				}
			})
		})
	}
}

func TestSecondaryReadsAndPinnedMembers(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		seen := map[string]bool{}
		for range 50 {
			reply, p, err := s.CallOn(t.Context(), secondaryOnly, command("find"), nil)
			if err != nil {
				t.Fatal(err)
			}
			seen[at(reply)] = true
			more, err := p.Call(t.Context(), command("getMore", value.F("$readPreference", value.NewDocument(secondaryOnly.Doc()))), nil)
			if err != nil || at(more) != at(reply) {
				t.Fatalf("the cursor of %s was continued at %s (%v)", at(reply), at(more), err)
			}
		}
		if len(seen) != 2 || seen["a:1"] {
			t.Errorf("secondaries that answered: %v", seen)
		}
		f.change("b:1", func(m *fakeMember) { m.down = true })
		for range 10 {
			if reply, _, err := s.CallOn(t.Context(), secondaryOnly, command("find"), nil); err != nil || at(reply) != "c:1" {
				t.Fatalf("%s, %v", at(reply), err)
			}
		}
	})
}

func TestNobodyToCall(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		for _, h := range []string{"a:1", "b:1"} {
			f.change(h, func(m *fakeMember) { m.down = true })
		}
		synctest.Wait()
		start := time.Now()
		_, err := s.Call(t.Context(), command("insert"), nil)
		want := `Could not find host matching read preference { mode: "primary" } for set rs`
		if mongoerr.CodeOf(err) != mongoerr.FailedToSatisfyReadPreference || !strings.Contains(err.Error(), want) || time.Since(start) != DefaultTiming.Select {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Call(ctx, command("insert"), nil); mongoerr.CodeOf(err) != mongoerr.MaxTimeMSExpired {
			t.Errorf("past its time: %v", err)
		}
		if reply, _, err := s.CallOn(t.Context(), cluster.Nearest, command("find"), nil); err != nil || at(reply) != "c:1" {
			t.Errorf("nearest: %s, %v", at(reply), err)
		}
	})
}

// A call whose time ends while its member cannot be reached, or refuses it, ends with that: it used to report the last attempt, of which routers make HostUnreachable.
func TestTimeEndsBetweenAttempts(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		limited := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			t.Cleanup(cancel)
			return ctx
		}
		f.change("a:1", func(m *fakeMember) { m.refuse = 1 << 30 })
		if reply, err := s.Call(limited(), command("insert"), nil); mongoerr.CodeOf(err) != mongoerr.MaxTimeMSExpired {
			t.Errorf("refused: %s, %v", value.ShowDoc(reply), err)
		}
		f.change("a:1", func(m *fakeMember) { m.refuse = 0 })
		ctx, cancel := context.WithCancelCause(t.Context())
		f.lose = func() { cancel(mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit")) }
		if _, err := s.Call(ctx, command("insert"), nil); mongoerr.CodeOf(err) != mongoerr.MaxTimeMSExpired {
			t.Errorf("unreachable: %v", err)
		}
	})
}

// A server that belongs to no set is called by its address.
func TestNobodyAtAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1")
		f.change("a:1", func(m *fakeMember) { m.down = true })
		ms := NewMonitors(f, DefaultTiming)
		defer ms.Close()
		s, err := ms.Dial("", []string{"a:1"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err = s.Call(t.Context(), command("hello"), nil); err == nil || !strings.HasSuffix(err.Error(), ` { mode: "primary" } for set a:1`) {
			t.Errorf("%v", err)
		}
	})
}

func TestMembershipIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1")
		ms := NewMonitors(f, DefaultTiming)
		var told []string
		ms.OnMove(func(set, conn string, version int64) { told = append(told, fmt.Sprint(set, " ", conn, " ", version)) })
		s, _ := ms.Dial("rs", []string{"a:1"})
		twin, _ := ms.Dial("rs", []string{"a:1"})
		synctest.Wait()
		grown := []string{"a:1", "d:1", "e:1"}
		for _, h := range grown[1:] {
			f.members[h] = &fakeMember{kind: Secondary, hosts: grown, term: 1, changed: make(chan struct{})}
		}
		f.change("a:1", func(m *fakeMember) { m.hosts = grown })
		synctest.Wait()
		if got := s.ConnString(); got != "rs/a:1,d:1,e:1" || twin.Set != s.Set {
			t.Errorf("grown: %s", got)
		}
		f.change("d:1", func(m *fakeMember) { m.hosts = grown[1:]; m.kind, m.term = Primary, 2 })
		synctest.Wait()
		if got := s.ConnString(); got != "rs/d:1,e:1" {
			t.Errorf("shrunk: %s", got)
		}
		want := "rs rs/a:1 1; rs rs/a:1,d:1,e:1 3; rs rs/d:1,e:1 2"
		if got := strings.Join(told, "; "); got != want {
			t.Errorf("reported %s, want %s", got, want)
		}
		s.Close()
		if _, err := twin.Call(t.Context(), command("ping"), nil); err != nil {
			t.Errorf("with a holder left: %v", err)
		}
		twin.Close()
		if _, err := twin.Call(t.Context(), command("ping"), nil); mongoerr.CodeOf(err) == 0 && len(ms.Sets()) != 0 {
			t.Error("a set without a handle is still monitored")
		}
	})
}

// A set's members list themselves under other addresses than those by which it was added, while a call to one of the latter is running. It used to be
// severed at once.
func TestCallsToARemovedAddressEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1")
		f.members["a:1"].hosts = []string{"localhost:1"}
		f.members["localhost:1"] = &fakeMember{kind: Primary, hosts: []string{"localhost:1"}, term: 1, changed: make(chan struct{})}
		f.inUse = map[string]int{"a:1": 1}
		ms := NewMonitors(f, DefaultTiming)
		s, err := ms.Dial("rs", []string{"a:1"})
		if err != nil {
			t.Fatal(err)
		}
		severed := func() []string {
			f.mu.Lock()
			defer f.mu.Unlock()
			return slices.Clone(f.severed)
		}
		time.Sleep(3 * DefaultTiming.Heartbeat)
		if hosts := s.Hosts(); !slices.Equal(hosts, []string{"localhost:1"}) || len(severed()) != 0 {
			t.Errorf("the set has %v, severed are %v", hosts, severed())
		}
		// It stops replying, and is given up.
		f.mu.Lock()
		f.members["a:1"].silent = true
		f.mu.Unlock()
		time.Sleep(DefaultTiming.Heartbeat + DefaultTiming.Timeout + time.Second)
		if got := severed(); !slices.Equal(got, []string{"a:1"}) {
			t.Errorf("severed %v", got)
		}
		s.Close() // the bubble fails if a goroutine is left
	})
}

func TestStalePrimaryIsNotBelieved(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		f.elect("b:1")
		f.change("a:1", func(m *fakeMember) { m.kind, m.term = Primary, 1 }) // it does not know of the election yet
		synctest.Wait()
		if p := s.Topology().Primary(); p == nil || p.Host != "b:1" {
			t.Errorf("primary %v", p)
		}
	})
}

// Two sets have the same name: each is dialled by its own members, under whatever address it lists them. The one that was dialled first used to be returned for both.
func TestSetsOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1")
		f.members["a:1"].hosts, f.members["b:1"].hosts = []string{"a:1"}, []string{"b:1"}
		f.members["b:1"].kind = Primary
		ms := NewMonitors(f, DefaultTiming)
		defer ms.Close()
		dial := func(host string) *Handle {
			h, err := ms.Dial("rs", []string{host})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if p := h.Topology().Primary(); p == nil || p.Host != host {
				t.Errorf("the primary of the set of %s is %v", host, p)
			}
			return h
		}
		a, b := dial("a:1"), dial("b:1")
		if again := dial("a:1"); again.Set != a.Set || len(ms.Sets()) != 2 {
			t.Errorf("the set is monitored twice: %d sets", len(ms.Sets()))
		} else {
			again.Close()
		}
		a.Close()
		if sets := ms.Sets(); len(sets) != 1 || sets[0] != b.Set {
			t.Errorf("%d sets are left", len(sets))
		}
		b.Close()
		if len(ms.Sets()) != 0 {
			t.Error("a released set stays")
		}
	})
}

// Dialing a set and receiving news of its members do not block each other.
func TestDialWhileMembersChange(t *testing.T) {
	f := newFakeSet("a:1", "b:1")
	ms := NewMonitors(f, DefaultTiming)
	defer ms.Close()
	moved := make(chan struct{}, 1)
	ms.OnMove(func(string, string, int64) {
		select {
		case moved <- struct{}{}:
		default:
		}
	})
	if _, err := ms.Dial("rs", []string{"a:1"}); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		<-moved
		f.change("a:1", func(m *fakeMember) { m.hosts = []string{"a:1", "b:1", fmt.Sprint("c:", i)} })
		for range 20 {
			h, err := ms.Dial("rs", []string{"a:1"})
			if err != nil {
				t.Fatal(err)
			}
			h.Close()
		}
	}
}

// Members stream their state changes: a monitor sends one hello and reads the replies.
func TestHellosAreStreamed(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		for _, h := range []string{"b:1", "c:1", "a:1", "b:1"} {
			f.elect(h)
			synctest.Wait() // no time passes
			if p := s.Topology().Primary(); p == nil || p.Host != h {
				t.Errorf("%s was elected, primary %v", h, p)
			}
		}
		time.Sleep(17*pingEvery + pingEvery/2)
		for h := range f.members {
			// The first hello, the one that begins the stream, and those that take the round trip's time.
			if asked, watches := f.seen(h); watches != 2 || asked != 2+18 {
				t.Errorf("%s: %d connections, asked %d times, want 2 and 20", h, watches, asked)
			}
		}
	})
}

// A member that replies to each hello and does not stream is sent another after each reply, and monitored equally well.
func TestMembersThatDoNotStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1", "c:1")
		f.polls = true
		ms := NewMonitors(f, DefaultTiming)
		s, _ := ms.Dial("rs", []string{"b:1"})
		synctest.Wait()
		before, _ := f.seen("c:1")
		f.elect("c:1")
		synctest.Wait()
		asked, watches := f.seen("c:1")
		if p := s.Topology().Primary(); p == nil || p.Host != "c:1" || watches != 2 || asked != before+1 {
			t.Errorf("primary %v, %d connections, asked %d times", p, watches, asked)
		}
		s.Close()
		// The parameter replicaSetMonitorProtocol: sdam sends one hello per heartbeat.
		ms.Retime(func(tm *Timing) { tm.Poll, tm.Heartbeat = true, 2*time.Second })
		asked, watches = f.seen("b:1")
		s, _ = ms.Dial("rs", []string{"b:1"})
		time.Sleep(9 * time.Second)
		s.Close()
		if a, w := f.seen("b:1"); a-asked != 5 || w-watches != 1 {
			t.Errorf("asked %d times over %d connections, want 5 over 1", a-asked, w-watches)
		}
	})
}

// A paused member sends no replies: it is considered unreachable when its stream is late, and its running calls are aborted.
func TestPausedMember(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		f.mu.Lock()
		f.members["a:1"].silent = true
		f.mu.Unlock()
		began := time.Now()
		for s.Topology().Primary() != nil {
			time.Sleep(100 * time.Millisecond)
		}
		// The monitor was reading a stream, which had one more reply.
		if took, most := time.Since(began), 2*DefaultTiming.Heartbeat+DefaultTiming.Timeout; took > most+time.Second {
			t.Errorf("noticed after %v", took)
		}
		synctest.Wait()
		f.mu.Lock()
		if len(f.severed) == 0 || f.severed[0] != "a:1" {
			t.Errorf("severed: %v", f.severed)
		}
		f.members["a:1"].silent = false
		f.mu.Unlock()
		time.Sleep(DefaultTiming.Timeout + time.Second)
		if p := s.Topology().Primary(); p == nil || p.Host != "a:1" {
			t.Errorf("it runs again: primary %v", p)
		}
	})
}

// A primary is paused, and another one elected. Calls sent to the first used to wait while it was paused: it was
// already known not to be primary, so its silence changed no state, and nothing aborted them.
func TestCallsToAFrozenPrimaryAreCutOff(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		f.mu.Lock()
		f.members["a:1"].silent = true
		f.mu.Unlock()
		f.change("b:1", func(m *fakeMember) { m.kind, m.term = Primary, 9 })
		began := time.Now()
		for severed := false; !severed; {
			time.Sleep(50 * time.Millisecond)
			f.mu.Lock()
			severed = slices.Contains(f.severed, "a:1")
			f.mu.Unlock()
			if took := time.Since(began); took > 3*DefaultTiming.MinBetween/2 {
				t.Fatalf("calls to the old primary are not cut off after %v", took)
			}
		}
		if p := s.Topology().Primary(); p == nil || p.Host != "b:1" {
			t.Errorf("primary %v", p)
		}
	})
}

// A reader with a short timeout tries another member, and the slow one is not marked as failed.
func TestPatience(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		f.mu.Lock()
		f.members["a:1"].busy, f.members["b:1"].busy = true, true
		f.mu.Unlock()
		p := &cluster.ReadPreference{Mode: cluster.ReadNearest, TryNext: time.Second}
		for range 5 {
			began := time.Now()
			reply, _, err := s.CallOn(t.Context(), p, command("find"), nil)
			if took := time.Since(began); err != nil && took < 15*time.Second || err == nil && (at(reply) != "c:1" || took > 7*time.Second) {
				t.Errorf("%s after %v, %v", at(reply), took, err)
			}
		}
		if k := s.Topology().server("a:1").Kind; k != Primary {
			t.Errorf("the slow member has kind %d", k)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		f.mu.Lock()
		f.members["c:1"].busy = true
		f.mu.Unlock()
		if _, _, err := s.CallOn(ctx, p, command("find"), nil); mongoerr.CodeOf(err) != mongoerr.MaxTimeMSExpired {
			t.Errorf("past the caller's own time: %v", err)
		}
	})
}

// When a connection breaks during a call, the monitor checks the member over a new one at once.
func TestBrokenConnectionEndsTheStream(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		f.mu.Lock()
		f.members["a:1"].lost = true
		f.mu.Unlock()
		if _, err := s.Call(t.Context(), command("insert"), nil); mongoerr.CodeOf(err) != mongoerr.HostUnreachable {
			t.Fatal(err)
		}
		synctest.Wait()
		_, broken := f.seen("a:1")
		_, whole := f.seen("b:1")
		if p := s.Topology().Primary(); p == nil || p.Host != "a:1" || broken != 3 || whole != 2 { // one of each measures
			t.Errorf("primary %v, %d connections to it, %d to another", p, broken, whole)
		}
	})
}

func TestSelection(t *testing.T) {
	now := time.Unix(1e6, 0)
	server := func(host string, k Kind, rtt int, behind int, tags ...string) *Server {
		s := &Server{Host: host, Kind: k, RTT: time.Duration(rtt) * time.Millisecond, Updated: now, LastWrite: now.Add(-time.Duration(behind) * time.Second)}
		for _, x := range tags {
			n, v, _ := strings.Cut(x, ":")
			s.Tags = append(s.Tags, cluster.Tag{Name: n, Value: v})
		}
		return s
	}
	full := []*Server{server("p", Primary, 5, 0, "dc:ny"), server("s1", Secondary, 1, 10, "dc:ny", "disk:ssd"), server("s2", Secondary, 10, 100, "dc:sf"),
		server("s3", Secondary, 40, 5, "dc:sf"), {Host: "u"}, {Host: "o", Kind: Other}, {Host: "h", Kind: Secondary, Hidden: true}}
	for _, c := range []struct {
		pref    string
		servers []*Server
		want    string
	}{
		{`{"mode": "primary"}`, full, "p"},
		{`{"mode": "primaryPreferred"}`, full, "p"},
		{`{"mode": "secondary"}`, full, "s1 s2"},
		{`{"mode": "secondaryPreferred"}`, full, "s1 s2"},
		{`{"mode": "nearest"}`, full, "p s1 s2"},
		{`{"mode": "primary"}`, full[1:], ""},
		{`{"mode": "primaryPreferred"}`, full[1:], "s1 s2"},
		{`{"mode": "secondaryPreferred"}`, full[:1], "p"},
		{`{"mode": "secondary"}`, full[:1], ""},
		{`{"mode": "secondary", "tags": [{"dc": "sf"}]}`, full, "s2"},
		{`{"mode": "secondary", "tags": [{"dc": "ny", "disk": "hdd"}, {"dc": "ny"}]}`, full, "s1"},
		{`{"mode": "secondary", "tags": [{"dc": "la"}]}`, full, ""},
		{`{"mode": "secondary", "tags": [{"dc": "la"}, {}]}`, full, "s1 s2"},
		{`{"mode": "secondaryPreferred", "tags": [{"dc": "la"}]}`, full, "p"},
		{`{"mode": "nearest", "tags": [{"dc": "ny"}]}`, full, "p s1"},
		{`{"mode": "secondary", "maxStalenessSeconds": 100}`, full, "s1"},
		{`{"mode": "secondary", "maxStalenessSeconds": 120}`, full, "s1 s2"},
		{`{"mode": "nearest", "maxStalenessSeconds": 90}`, full, "p s1"},
		{`{"mode": "secondary", "maxStalenessSeconds": 100}`, full[1:], "s1"},
		{`{"mode": "nearest", "hedge": {"enabled": true}}`, full, "p s1 s2"},
	} {
		var d bson.Raw
		if err := bson.UnmarshalExtJSON([]byte(c.pref), false, &d); err != nil {
			t.Fatal(err)
		}
		doc := []byte(d)
		p, err := cluster.ParseReadPreference(doc)
		if err != nil {
			t.Fatalf("%s: %v", c.pref, err)
		}
		topo := &Topology{Servers: c.servers}
		topo.primary = topo.findPrimary()
		var got []string
		for _, s := range topo.candidates(p, &DefaultTiming) {
			got = append(got, s.Host)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s of %d: %v, want %s", c.pref, len(c.servers), got, c.want)
		}
	}
}
