package coordinator

import (
	"errors"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A command that ended with an error begins its run if it has been executed nevertheless, as the stored document tells. If not, the error is that of the run, which does
// nothing and keeps no reply.
func TestRunOfACommandWithAnUnknownOutcome(t *testing.T) {
	for _, executed := range []bool{true, false} {
		engine, err := storage.Open(storage.Options{Memory: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = engine.Close() }()
		s := &script{t: t, engine: engine}
		theScript = s
		s.m = New(Config{Engine: engine, State: stateOf(""), Docs: &statedoc.Docs{Engine: engine, Set: replication.NewSingle(engine)}})
		if err := s.m.stepUp(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		cmd := value.Doc(value.F(scriptedKind, value.NewString("d.c")), value.F("phases", value.NewString("move!")))
		op, err := parseOperation(cmd)
		if err != nil {
			t.Fatal(err)
		}
		why := mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit")
		h, err := s.m.lock(t.Context(), op, lockWait)
		if err != nil {
			t.Fatal(err)
		}
		r := &run{m: s.m, locks: h, done: make(chan struct{}), unsure: why, doc: &document{id: catalog.UUID{1}, op: op, ns: "d.c", command: cmd, phase: "move", request: catalog.UUID{2}}}
		if executed {
			if err := documents(s.m.Docs).Put(t.Context(), r.doc); err != nil {
				t.Fatal(err)
			}
		}
		r.execute(t.Context())
		_, kept, err := s.m.outcome(r.doc.request)
		if err != nil {
			t.Fatal(err)
		}
		if did := len(s.log) > 0; did != executed || kept != executed || errors.Is(r.err, why) == executed {
			t.Errorf("executed %v: the run has done %q, ends with %v, keeps a reply: %v", executed, s.log, r.err, kept)
		}
	}
}
