package coordinator

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// The write of a phase with an event may have committed although it returned an error, and is repeated: change streams see one event. The next phase has
// its own.
func TestRepeatedWriteHasOneEvent(t *testing.T) {
	engine, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	s := &script{t: t, engine: engine}
	theScript = s
	s.m = New(Config{Engine: engine, State: stateOf(""), Docs: &statedoc.Docs{Engine: engine, Set: replication.NewSingle(engine)}})
	cmd := value.Doc(value.F(scriptedKind, value.NewString("d.c")), value.F("phases", value.NewString("a b+! c+")))
	op, err := parseOperation(cmd)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{m: s.m, doc: &document{id: catalog.UUID{1}, op: op, ns: "d.c", command: cmd, phase: "a"}}
	if err := r.store(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range op.phases()[1:] {
		r.doc.phase = p.name
		for range 3 {
			if err := r.store(t.Context(), p.event); err != nil {
				t.Fatal(err)
			}
		}
		if d, ok, err := documents(s.m.Docs).Get(r.doc.ID()); err != nil || !ok || d.phase != p.name {
			t.Errorf("in %s: %v %v %v", p.name, d, ok, err)
		}
	}
	s.left()
	events := slices.DeleteFunc(s.log, func(line string) bool { return !strings.HasPrefix(line, "  event: ") })
	want := []string{`  event: { phase: "b" }`, `  event: { phase: "c" }`}
	if !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
}
