package profile

import (
	"testing"
	"time"

	"github.com/shoaldb/shoal/command"
	_ "github.com/shoaldb/shoal/command/commandtest"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
)

// Whether an operation is recorded depends on the level of its database, its duration, and the filter.
func TestWhatIsToldOf(t *testing.T) {
	eng, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	logged := 0
	p := New(Config{Engine: eng, Set: replication.NewSingle(eng), Now: time.Now, SlowLog: func() func(int64, bool, []byte) {
		return func(int64, bool, []byte) { logged++ }
	}})
	service := command.NewService(command.Shard)
	service.Table.Add(p.Specs()...)
	client := command.NewClient(1, "test:1", "test:27017", nil)
	set := func(level int32, more ...value.Field) {
		t.Helper()
		body := value.Doc(append([]value.Field{value.F("profile", value.NewInt32(level)), value.F("$db", value.NewString("d"))}, more...)...)
		if r := service.Run(t.Context(), client, &wire.Message{Body: body}, nil); value.Lookup(r, "ok").Double() != 1 {
			t.Fatal(value.ShowDoc(r))
		}
	}
	op := service.Background(t.Context(), client)
	op.Req.Spec, op.Req.DB, op.Req.Body = &command.Spec{Name: "find", Kind: command.Read}, "d", value.Doc(value.F("find", value.NewString("c")))
	filter := value.F("filter", value.NewDocument(value.Doc(value.F("ns", value.NewString("d.wanted")))))
	for _, c := range []struct {
		name             string
		level            int32
		more             []value.Field
		ns               string
		took             time.Duration
		logged, profiled int
	}{
		{"fast, off", 0, nil, "d.c", time.Millisecond, 0, 0},
		{"slow, off", 0, nil, "d.c", time.Second, 1, 0},
		{"slow, level 1", 1, nil, "d.c", time.Second, 1, 1},
		{"fast, level 1", 1, nil, "d.c", time.Millisecond, 0, 0},
		{"fast, level 2", 2, nil, "d.c", time.Millisecond, 0, 1},
		{"the filter asks for others", 2, []value.Field{filter}, "d.c", time.Second, 0, 0},
		{"the filter asks for it", 2, []value.Field{filter}, "d.wanted", time.Millisecond, 1, 1},
	} {
		set(c.level, c.more...)
		logged = 0
		before := entries(eng)
		p.Note(&Execution{Op: op, Name: "find", NS: c.ns, Stats: &op.Stats, Took: c.took})
		if n := entries(eng) - before; logged != c.logged || n != int64(c.profiled) {
			t.Errorf("%s: %d lines and %d entries, want %d and %d", c.name, logged, n, c.logged, c.profiled)
		}
	}
}

func entries(eng *storage.Engine) int64 {
	if c := eng.Catalog().Lookup("d.system.profile"); c != nil {
		return c.Counters.Records.Load()
	}
	return 0
}
