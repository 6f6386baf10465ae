package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// scriptedKind is the command of the scripts' operation: {_testScripted: <namespace>, phases: "<name> <name>! <name>"}, where "!"
// marks a final phase, "~" one that is not stored, and "+" one with an event.
const scriptedKind = "_testScripted"

// theScript is the running script, which determines what the phases of its operations do. Scripts run one after the other.
var theScript *script

func init() {
	kinds[scriptedKind] = func(cmd []byte) (operation, error) {
		return &scripted{script: theScript, ns: value.Lookup(cmd, scriptedKind).Str(), steps: strings.Fields(value.Lookup(cmd, "phases").Str())}, nil
	}
}

// scripted is an operation whose steps succeed, fail, or do not come to an end, as a script says.
type scripted struct {
	script *script
	ns     string
	steps  []string
}

func (o *scripted) name() string                                      { return "scripted" }
func (o *scripted) locks() (string, []string)                         { return catalog.DBOf(o.ns), []string{o.ns} }
func (o *scripted) check(context.Context, *run) (local bool, e error) { return false, nil }
func (o *scripted) found() msg.Message                                { return nil }
func (o *scripted) undo(ctx context.Context, r *run) error            { return o.script.act(ctx, r, undoing) }
func (o *scripted) reply(dst []byte) []byte                           { return value.Append(dst, "did", value.NewString(o.ns)) }

func (o *scripted) phases() (out []phase) {
	for _, step := range o.steps {
		name := strings.TrimRight(step, "!+~")
		p := phase{name: name, final: strings.Contains(step, "!"), unstored: strings.Contains(step, "~"), do: func(ctx context.Context, r *run) error { return o.script.act(ctx, r, name) }}
		if strings.Contains(step, "+") {
			p.event = func() event {
				return event{ns: o.ns, doc: value.Doc(value.F("phase", value.NewString(name)))}
			}
		}
		out = append(out, p)
	}
	return out
}

// script is the coordinators of a shard, on one engine through changes of its primary.
type script struct {
	t       *testing.T
	engine  *storage.Engine
	m       *Coordinators
	end     context.CancelFunc // ends the time as primary
	ended   chan struct{}
	held    chan string         // a phase that does not come to an end
	request catalog.UUID        // of the last run
	results map[string][]string // outcomes of the next attempts at a phase

	mu  sync.Mutex
	log []string
}

func (s *script) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

// act is an attempt at a phase. It notes what the state document says meanwhile.
func (s *script) act(ctx context.Context, r *run, phase string) error {
	stored := "nothing"
	if d, ok, err := documents(r.m.Docs).Get(r.doc.ID()); err != nil {
		stored = err.Error()
	} else if ok {
		stored = d.phase
	}
	s.mu.Lock()
	result := "ok"
	if list := s.results[phase]; len(list) > 0 {
		result, s.results[phase] = list[0], list[1:]
	}
	s.mu.Unlock()
	s.note("%s (stored: %s): %s", phase, stored, result)
	switch result {
	case "transient":
		return mongoerr.New(mongoerr.LockBusy, "later")
	case "refused":
		return mongoerr.New(mongoerr.IllegalOperation, "never")
	case "stuck", "late": // late: it is done, and the node has stepped down meanwhile
		s.held <- phase
		<-ctx.Done()
		if result == "stuck" {
			return ctx.Err()
		}
	}
	return nil
}

// stepUp makes the node primary, and waits until what was left unfinished has ended or is stuck.
func (s *script) stepUp() {
	warn := func(msg string, err error) { s.note("warning: %s: %v", msg, err) }
	s.m = New(Config{Engine: s.engine, State: stateOf(""), Warn: warn, Docs: &statedoc.Docs{Engine: s.engine, Set: replication.NewSingle(s.engine), Warn: warn}})
	ctx, end := context.WithCancel(s.t.Context())
	s.end, s.ended = end, make(chan struct{})
	service := s.m.Service()
	if err := service.StepUp(ctx, 1); err != nil {
		s.note("stepping up: %v", err)
	}
	s.m.mu.Lock()
	var runs []*run
	for _, r := range s.m.mu.runs {
		runs = append(runs, r)
	}
	s.m.mu.Unlock()
	ended := s.ended
	go func() { defer close(ended); service.Run(ctx, 1) }()
	for _, r := range runs {
		s.wait(r)
	}
}

// wait waits until a run ends, or gets stuck.
func (s *script) wait(r *run) {
	select {
	case phase := <-s.held:
		s.note("it is in %s", phase)
	case <-r.done:
		s.note("it ends: %s", shown(r.err))
	}
}

func shown(err error) string {
	if err == nil {
		return "ok"
	}
	return mongoerr.CodeOf(err).Name()
}

func (s *script) stepDown() {
	s.end()
	<-s.ended
}

// run begins an operation, as lead does once nothing speaks against it.
func (s *script) run(ns, phases string) {
	cmd := value.Doc(value.F(scriptedKind, value.NewString(ns)), value.F("phases", value.NewString(phases)))
	op, err := parseOperation(cmd)
	if err != nil {
		s.t.Fatal(err)
	}
	s.request[0]++
	r := &run{m: s.m, done: make(chan struct{}), doc: &document{id: s.request, op: op, ns: ns, command: cmd, request: s.request}}
	if r.locks, err = s.m.lock(s.t.Context(), op, 10*time.Millisecond); err != nil {
		s.note("no locks: %s", shown(err))
		return
	}
	if err := s.m.begin(nil, r); err != nil {
		s.note("not begun: %s", shown(err))
		return
	}
	s.wait(r)
}

// left shows what there is besides the log: state documents, locks, the reply to the last request, events.
func (s *script) left() {
	docs := documents(s.m.Docs)
	if err := docs.Each(func(d *document) error {
		why := ""
		if d.failed != nil {
			why = " because of " + shown(d.failed)
		}
		s.note("  document of %s: %s%s", d.ns, d.phase, why)
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	for _, l := range s.m.LockInfo() {
		s.note("  lock: %s", value.Lookup(l.Doc(), "resourceId").Str())
	}
	if reply, ok, err := s.m.outcome(s.request); err != nil {
		s.t.Fatal(err)
	} else if ok {
		dst, mark := value.Begin(nil)
		s.note("  kept reply: %s", value.ShowDoc(value.End(append(dst, reply...), mark)))
	}
	snap := s.engine.Snapshot()
	defer snap.Release()
	cur := snap.Scan(snap.Catalog().Lookup(storage.OplogNS), storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		if e := value.LookupDoc(value.LookupDoc(cur.Doc(), "o"), "msg"); len(e) > 0 {
			s.note("  event: %s", value.ShowDoc(e))
		}
	}
}

// TestScripts runs testdata: what a run does when its phases fail, and when its node steps down in the middle.
//
//	results     outcomes of the next attempts at a phase, "phase: result result …" (ok after the last one):
//	            ok, transient, refused, stuck (it never ends), late (it ends, but the node has stepped down meanwhile)
//	run         an operation on ns=, with phases=(…)
//	stepdown    the node is no longer primary
//	stepup      it, or another member with the same content, is primary
//	store       a state document as it stands there
//	remove      the state document with an _id
//	holds       whether a run with the id n= holds its sections and, with forward or phase=, whether it goes on there
//
// Each prints what happened, and what is left.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		engine, err := storage.Open(storage.Options{Memory: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = engine.Close() }()
		s := &script{t: t, engine: engine, held: make(chan string, 1), results: map[string][]string{}}
		theScript = s
		s.stepUp()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.do(t, d) })
		s.stepDown()
	})
}

// holds asks whether the run with an id holds its sections.
func (s *script) holds(args []datadriven.CmdArg) {
	req := &msg.HoldsCriticalSection{ID: [16]byte{6: 0x40, 8: 0x80}}
	for _, a := range args {
		switch a.Key {
		case "n":
			req.ID[15] = a.Vals[0][0] - '0'
		case "forward":
			req.Forward = true
		case "phase":
			req.Phase = a.Vals[0]
		}
	}
	held, err := s.m.holds(req)
	s.note("held: %v, %s", held, shown(err))
}

func (s *script) do(t *testing.T, d *datadriven.TestData) string {
	s.log = nil
	switch d.Cmd {
	case "results":
		for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
			phase, list, _ := strings.Cut(line, ":")
			s.results[phase] = strings.Fields(list)
		}
		return ""
	case "run":
		var ns string
		var phases []string
		for _, a := range d.CmdArgs {
			if a.Key == "ns" {
				ns = a.Vals[0]
			} else {
				phases = a.Vals
			}
		}
		s.run(ns, strings.Join(phases, " "))
	case "stepdown":
		s.stepDown()
		for range s.m.CurrentOps(time.Now()) {
			s.note("  shown by currentOp")
		}
	case "stepup":
		s.stepUp()
	case "holds":
		s.holds(d.CmdArgs)
	case "remove":
		if err := s.m.Docs.Remove(t.Context(), documentsNS, valuetest.Value(t, d.Input)); err != nil {
			t.Fatal(err)
		}
	case "store":
		if err := s.m.Docs.Put(t.Context(), documentsNS, valuetest.Doc(t, d.Input)); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("%s: there is no %s", d.Pos, d.Cmd)
	}
	s.left()
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(slices.Concat(s.log, []string{""}), "\n")
}
