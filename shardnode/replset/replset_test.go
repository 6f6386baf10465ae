package replset

import (
	"context"
	"crypto/tls"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fakeNode keeps its documents in a map.
type fakeNode struct {
	docs     map[string][]byte
	systems  int   // calls of EnsureSystem
	readOnly error // the error of writes, nil for none
	warned   []string
	fatal    []error
}

func (f *fakeNode) EnsureSystem(context.Context) error {
	f.systems++
	return nil
}

func (f *fakeNode) ReadDoc(ns string, id value.Value) ([]byte, error) {
	return f.docs[ns+id.Str()], nil
}

func (f *fakeNode) WriteDoc(_ context.Context, ns string, doc []byte) error {
	if f.readOnly != nil {
		return f.readOnly
	}
	if f.docs == nil {
		f.docs = map[string][]byte{}
	}
	f.docs[ns+value.Lookup(doc, "_id").Str()] = append([]byte(nil), doc...)
	return nil
}

func (f *fakeNode) Warn(msg string, _ error) { f.warned = append(f.warned, msg) }

func (f *fakeNode) Fatal(err error) { f.fatal = append(f.fatal, err) }

// newMembership creates a membership of the set "rs" on an empty store, and counts how often OnPrimary is called.
func newMembership(t *testing.T, n Node, services ...replication.Service) (r *Membership, primaries *int) {
	t.Helper()
	eng, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	all := &replication.Services{}
	for _, s := range services {
		if err := all.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(all.StepDown)
	r = New(n, Config{
		Name: "rs", Host: "here:1", Engine: eng, Member: replication.NewMember(replication.NewSingle(eng)), Topology: command.NewTopology([12]byte{}, 0),
		Service: command.NewService(command.Shard), Services: all, Now: time.Now, NewID: func() [12]byte { return [12]byte{1} },
	}, Options{})
	primaries = new(int)
	r.OnPrimary = func() { *primaries++ }
	return r, primaries
}

// A set of one is initiated by storing its configuration; a member that starts on that store is primary at once.
func TestInitiateAlone(t *testing.T) {
	n := &fakeNode{}
	steps := 0
	service := replication.Service{Name: "counts", StepUp: func(context.Context, int64) error { steps++; return nil }}
	r, primaries := newMembership(t, n, service)
	if err := r.Start(t.Context()); err != nil || r.Initiated() || r.Writable() || r.Readable() || steps != 0 {
		t.Fatalf("before replSetInitiate: %v, initiated %v, writable %v, readable %v, %d steps up", err, r.Initiated(), r.Writable(), r.Readable(), steps)
	}
	if err := r.Initiate(t.Context(), replication.NewConfig("rs", "here:1")); err != nil {
		t.Fatal(err)
	}
	if !r.Writable() || !r.Readable() || n.systems != 1 || steps != 1 || *primaries != 1 {
		t.Errorf("writable %v, readable %v, %d system collections made, %d steps up, primary %d times", r.Writable(), r.Readable(), n.systems, steps, *primaries)
	}
	if err := r.Initiate(t.Context(), replication.NewConfig("rs", "here:1")); mongoerr.CodeOf(err) != mongoerr.AlreadyInitialized {
		t.Errorf("again: %v", err)
	}
	again, primaries := newMembership(t, n)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !again.Writable() || *primaries != 1 || again.ConnString() != "rs/here:1" {
		t.Errorf("started again: writable %v, primary %d times, %s", again.Writable(), *primaries, again.ConnString())
	}
}

// A configuration that was not stored does not take effect.
func TestConfigurationIsStoredFirst(t *testing.T) {
	full := errors.New("no room")
	n := &fakeNode{readOnly: full}
	r, primaries := newMembership(t, n)
	if err := r.Initiate(t.Context(), replication.NewConfig("rs", "here:1")); !errors.Is(err, full) || r.Initiated() || r.Writable() || *primaries != 0 {
		t.Fatalf("%v, initiated %v, writable %v", err, r.Initiated(), r.Writable())
	}
	n.readOnly = nil
	if err := r.Initiate(t.Context(), replication.NewConfig("rs", "here:1")); err != nil {
		t.Fatal(err)
	}
	n.readOnly = full
	if err := r.Rehost(t.Context(), "there:2"); !errors.Is(err, full) || r.ConnString() != "rs/here:1" {
		t.Errorf("%v, and the set is %s", err, r.ConnString())
	}
}

// A step-down ends the primary-only services and refuses writes until the member steps up again.
func TestStepDownAlone(t *testing.T) {
	n := &fakeNode{}
	var running atomic.Int64
	began := make(chan struct{}, 2)
	r, primaries := newMembership(t, n, replication.Service{Name: "counts", Run: func(ctx context.Context, _ int64) {
		running.Add(1)
		defer running.Add(-1)
		began <- struct{}{}
		<-ctx.Done()
	}})
	if err := r.Initiate(t.Context(), replication.NewConfig("rs", "here:1")); err != nil {
		t.Fatal(err)
	}
	<-began
	r.stepDownSingle(time.Hour)
	if code := mongoerr.CodeOf(r.NotPrimary()); code != mongoerr.NotWritablePrimary || r.Writable() || !r.Readable() || running.Load() != 0 {
		t.Errorf("stepped down: %v, writable %v, readable %v, %d services run", code, r.Writable(), r.Readable(), running.Load())
	}
	r.stepUpSingle()
	<-began
	if r.NotPrimary() != nil || *primaries != 2 {
		t.Errorf("stepped up again: %v, primary %d times", r.NotPrimary(), *primaries)
	}
	r.stepDownSingle(time.Hour)
	r.Quiesce(time.Now())
	if r.stepUpSingle(); r.Writable() {
		t.Error("a member that is closing became primary")
	}
}

// The addresses under which hello lists the members, by the address that the client dialed.
func TestHostView(t *testing.T) {
	horizons := func(c *replication.SetConfig) *replication.SetConfig {
		for i, port := range []string{"1", "2"} {
			c.Members[i].Horizons = []replication.Tag{{Name: "outside", Value: "db.example:" + port}, {Name: "lan", Value: "10.0.0.9:" + port}}
		}
		return c
	}
	for _, x := range []struct {
		name, local, sni string
		config           *replication.SetConfig
		want             string
	}{
		{"told, same address", "127.0.0.1:1", "", replication.NewConfig("rs", "127.0.0.1:1", "127.0.0.1:2"), "127.0.0.1:2"},
		{"told, another address", "10.0.0.5:1", "", replication.NewConfig("rs", "a:1", "b:2"), "b:2"},
		{"loopback from another machine", "10.0.0.5:1", "", replication.NewConfig("rs", "127.0.0.1:1", "127.0.0.1:2"), "10.0.0.5:2"},
		{"loopback by another name", "127.0.0.1:1", "", replication.NewConfig("rs", "localhost:1", "localhost:2"), "localhost:2"},
		{"a set of one by the machine's name", "127.0.0.1:1", "", replication.NewConfig("rs", "machine:1"), "127.0.0.1:1"},
		{"a set of one by a chosen name", "127.0.0.1:1", "", replication.NewConfig("rs", "chosen:1"), "chosen:1"},
		{"horizon by name", "10.1.1.1:1", "db.example", horizons(replication.NewConfig("rs", "a:1", "b:2")), "db.example:2"},
		{"horizon by address", "10.0.0.9:1", "", horizons(replication.NewConfig("rs", "a:1", "b:2")), "10.0.0.9:2"},
		{"no horizon", "10.1.1.1:1", "", horizons(replication.NewConfig("rs", "a:1", "b:2")), "b:2"},
	} {
		r := &Membership{conf: Config{Host: "machine:1"}}
		s := &replState{config: x.config, self: &x.config.Members[0]}
		client := command.NewClient(1, "10.9.9.9:5", x.local, nil)
		client.TLS = func() *tls.ConnectionState { return &tls.ConnectionState{ServerName: x.sni} }
		last := &x.config.Members[len(x.config.Members)-1]
		if got := r.view(&command.Op{Client: client}, s).host(last); got != x.want {
			t.Errorf("%s: %s, want %s", x.name, got, x.want)
		}
		client.Internal = true
		if got := r.view(&command.Op{Client: client}, s).host(last); got != last.Host {
			t.Errorf("%s: another node is told %s, want %s", x.name, got, last.Host)
		}
	}
}

// What a member serves in each role: by the kind of command and the client's read preference.
func TestCheckRole(t *testing.T) {
	r, _ := newMembership(t, &fakeNode{})
	insert, find := &command.Spec{Name: "insert", Kind: command.Write}, &command.Spec{Name: "find", Kind: command.Read}
	for _, x := range []struct {
		role                        replication.Role
		write, read, anywhere, here mongoerr.Code
	}{
		{replication.Primary, mongoerr.NotWritablePrimary, mongoerr.NotPrimaryNoSecondaryOk, 0, 0}, // elected, not yet writable
		{replication.Secondary, mongoerr.NotWritablePrimary, mongoerr.NotPrimaryNoSecondaryOk, 0, 0},
		{replication.Recovering, mongoerr.NotWritablePrimary, mongoerr.NotPrimaryNoSecondaryOk, mongoerr.NotPrimaryOrSecondary, 0},
		{replication.Startup2, mongoerr.NotWritablePrimary, mongoerr.NotPrimaryNoSecondaryOk, mongoerr.NotPrimaryOrSecondary, 0},
		{replication.Removed, mongoerr.NotWritablePrimary, mongoerr.NotPrimaryNoSecondaryOk, mongoerr.NotPrimaryOrSecondary, 0},
	} {
		r.state.Store(&replState{role: x.role, leader: replication.NoMember})
		for _, c := range []struct {
			db   string
			spec *command.Spec
			pref *cluster.ReadPreference
			want mongoerr.Code
		}{
			{"d", insert, nil, x.write}, {"d", find, nil, x.read},
			{"d", find, &cluster.ReadPreference{Mode: cluster.ReadNearest}, x.anywhere}, {"local", find, nil, x.here},
		} {
			op := &command.Op{Client: &command.Client{}, Req: command.Request{Spec: c.spec, DB: c.db, ReadPreference: c.pref}}
			if got := mongoerr.CodeOf(r.CheckRole(op)); got != c.want {
				t.Errorf("%s, %s on %s: code %d, want %d", x.role, c.spec.Name, c.db, got, c.want)
			}
		}
	}
}

// deposable is a set of one that may have deposed its member without having notified it.
type deposable struct {
	replication.Set
	deposed atomic.Bool
}

func (d *deposable) IsPrimary() bool { return !d.deposed.Load() && d.Set.IsPrimary() }

// A "not primary" error never carries a topologyVersion in which hello reports the member as writable: clients would
// consider it stale, and send the command to the same member again.
func TestRefusalsAreNews(t *testing.T) {
	r, _ := newMembership(t, &fakeNode{})
	set := &deposable{Set: replication.NewSingle(r.conf.Engine)}
	r.conf.Member.Switch(set)
	if err := r.Initiate(t.Context(), replication.NewConfig("rs", "here:1")); err != nil {
		t.Fatal(err)
	}
	s := r.conf.Service
	s.Topology = r.conf.Topology
	s.Topology.Describe = r.Describe
	s.Table.Add(command.HelloSpec(s.Topology), command.Spec{Name: "write", Roles: command.All, NoAuth: true, API: true,
		Run: func(_ *command.Op, dst []byte) ([]byte, error) { return dst, r.NotPrimary() }})
	run := func(name string) (reply []byte, version int64) {
		t.Helper()
		m := &wire.Message{OpCode: wire.OpMsg, Body: value.Doc(value.F(name, value.NewInt32(1)), value.F("$db", value.NewString("admin")))}
		reply = s.Run(t.Context(), &command.Client{InProcess: true}, m, nil)
		version, _ = value.Lookup(value.Lookup(reply, "topologyVersion").Doc(), "counter").AsInt64()
		return reply, version
	}
	writable := func(hello []byte) bool { return value.Lookup(hello, "isWritablePrimary").Truthy() }
	hello, before := run("hello")
	if reply, _ := run("write"); !writable(hello) || !value.Lookup(reply, "ok").Truthy() {
		t.Fatalf("%s; %s", value.ShowDoc(hello), value.ShowDoc(reply))
	}
	set.deposed.Store(true)
	refused, version := run("write")
	if value.Lookup(refused, "ok").Truthy() || version <= before {
		t.Errorf("hello of version %d said that the member is writable; then %s", before, value.ShowDoc(refused))
	}
	if hello, now := run("hello"); writable(hello) || now != version {
		t.Errorf("hello after an error of version %d: %s", version, value.ShowDoc(hello))
	}
	if _, again := run("write"); again != version {
		t.Errorf("the version went from %d to %d without a change", version, again)
	}
}

// A primary's status lacked the details of its election.
func TestStatusTellsOfTheElection(t *testing.T) {
	elected := time.UnixMilli(1700000000000)
	c := replication.NewConfig("rs", "a:1", "b:1", "c:1")
	st := &replication.Status{Role: replication.Primary, Term: 7, Self: 1, Elections: replication.ElectionStatus{
		LastElection: elected, LastReason: "stepUpRequest", PrimarySince: elected.Add(time.Second), CaughtUpOpTime: replication.OpTime{TS: 5, Term: 6}}}
	dst, m := value.Begin(nil)
	e := value.LookupDoc(value.End(appendElection(dst, st, c), m), "electionCandidateMetrics")
	for name, want := range map[string]string{
		"lastElectionReason": `"stepUpRequest"`, "electionTerm": "7", "numVotesNeeded": "2", "priorityAtElection": "1.0", "electionTimeoutMillis": "10000",
		"lastCommittedOpTimeAtElection": "{ ts: Timestamp(0, 5), t: 6 }", "lastElectionDate": "new Date(1700000000000)", "wMajorityWriteAvailabilityDate": "new Date(1700000001000)",
	} {
		if got := value.Show(value.Lookup(e, name)); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	st.Role, st.Elections.LastVoteTerm, st.Elections.LastVotedFor = replication.Secondary, 7, 2
	dst, m = value.Begin(nil)
	doc := value.End(appendElection(dst, st, c), m)
	if p := value.LookupDoc(doc, "electionParticipantMetrics"); !value.Lookup(doc, "electionCandidateMetrics").IsMissing() || value.SafeInt64(value.Lookup(p, "electionCandidateMemberId")) != 2 {
		t.Errorf("a secondary tells %s", value.ShowDoc(doc))
	}
}

// A node that is to step down, as a vital service has failed, tries again when an attempt fails, and when one ends before its term is over. It used to try once.
func TestSteppingDownIsRepeated(t *testing.T) {
	n := &fakeNode{}
	r, _ := newMembership(t, n)
	leading, over := context.WithCancel(t.Context())
	tries := 0
	r.resign(leading, func() error {
		switch tries++; tries {
		case 1:
			return errors.New("nobody takes over")
		case 3:
			over()
			return context.Canceled // it has been deposed meanwhile
		}
		return nil
	})
	if tries != 3 || len(n.warned) != 1 {
		t.Errorf("%d attempts, warned of %q", tries, n.warned)
	}
	r.resign(leading, func() error { t.Error("it steps down in another term"); return nil })
}
