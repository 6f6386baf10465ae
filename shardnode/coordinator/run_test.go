package coordinator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func stateOf(shard string) *migration.ShardState {
	return &migration.ShardState{ID: shard, Clock: cluster.NewVectorClock(time.Now)}
}

// The outcome of an operation on the config server is not retried, whatever its code: a run that took it for an error of the request asked forever, and
// kept its locks. The same error of a request is retried.
func TestOutcomeIsNotRepeated(t *testing.T) {
	why := mongoerr.New(mongoerr.ConflictingOperationInProgress, "something is behind")
	for _, c := range []struct {
		err   error
		calls int
	}{{permanent{why}, 1}, {why, 3}} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		r, calls := &run{m: &Coordinators{}}, 0
		err := r.retry(ctx, false, func() error {
			if calls++; calls == 3 {
				return nil
			}
			return c.err
		})
		cancel()
		if calls != c.calls || c.calls == 1 && (!errors.Is(err, c.err) || failure(err) != why) {
			t.Errorf("%v: called %d times, %v", c.err, calls, err)
		}
	}
}

// What asks a shard to refuse a section because of an index build is sent only to begin one: a shard of an earlier version refuses a message with a field that it does not
// know, and a section that could not be ended would block its collection for good.
func TestEndsOfSectionsSayNothingOfBuilds(t *testing.T) {
	m := &Coordinators{Config: Config{State: stateOf("shard1")}}
	r := &run{m: m, doc: &document{op: &rename{req: &msg.ShardRename{NS: "d.c", To: "d.x"}}}}
	for kind, want := range map[string]bool{msg.BlockWrites: true, msg.BlockReadsAndWrites: true, msg.Unblock: false} {
		if has := !value.Lookup(msg.Doc(r.participantBlock(kind, "d.c", "d.x")), "noIndexBuilds").IsMissing(); has != want {
			t.Errorf("%s: %v", kind, has)
		}
	}
}

// The sections of an operation that is not executed beside index builds are refused during one, unless another primary has begun the run: it may be beyond the point
// of no return, after which a refusal would be repeated until the build ends.
func TestContinuedRunsAreNotRefusedForBuilds(t *testing.T) {
	m := &Coordinators{Config: Config{State: stateOf("shard1")}}
	for _, x := range []struct {
		op        operation
		continued bool
		want      bool
	}{
		{&rename{req: &msg.ShardRename{NS: "d.c", To: "d.x"}}, false, true},
		{&rename{req: &msg.ShardRename{NS: "d.c", To: "d.x"}}, true, false},
		{&convert{req: &msg.ShardConvertToCapped{}}, false, true},
		{&convert{req: &msg.ShardConvertToCapped{}}, true, false},
		{&drop{req: &msg.ShardDropCollection{}}, false, false}, // it ends the build
	} {
		r := &run{m: m, doc: &document{op: x.op}, continued: x.continued}
		if got := r.participantBlock(msg.BlockReadsAndWrites, "d.c").NoBuilds; got != x.want {
			t.Errorf("%s, continued %v: %v", x.op.name(), x.continued, got)
		}
	}
}

// besides returns runs about the indexes of one collection.
func besides(ats ...string) (m *Coordinators, runs []*run) {
	m = New(Config{State: stateOf("shard1")})
	for i, at := range ats {
		r := &run{m: m, at: at, done: make(chan struct{}), doc: &document{ns: "d.c" + at, op: &forward{kind: []string{createIndexesKind, dropIndexesKind}[i], req: &msg.ShardCommand{DB: "d", Coll: "c"}}}}
		runs = append(runs, r)
		m.mu.runs[r.key()] = r
	}
	return m, runs
}

// A run that ends lets chunks move unless another one does so later, which has to be stored: if the node died, the flag of the config server used to stay as it was for good.
func TestThawIsLeftToStoredRuns(t *testing.T) {
	for at, want := range map[string]bool{"": true, "freezeMigrations": false} {
		_, runs := besides("unfreezeMigrations", at)
		if got := runs[0].thaws(runs[0].doc.op.(*forward)); got != want {
			t.Errorf("beside a run in phase %q: %v", at, got)
		}
	}
}

// A run that waits for another one is stalled if that is: its client used to wait longer than its wtimeout.
func TestStalledBehindAnotherRun(t *testing.T) {
	m, runs := besides("unfreezeMigrations", "freezeMigrations")
	runs[0].leaves, runs[0].thaw = true, true
	end := runs[0].awaits()
	waits := make(chan error, 1)
	go func() { waits <- runs[1].doc.op.(*forward).freeze(t.Context(), runs[1]) }()
	await.True(t, "the run is stalled", func() bool { return runs[1].stalled(time.Millisecond) })
	end()
	if runs[1].stalled(time.Millisecond) {
		t.Error("it is stalled behind a run that goes on")
	}
	m.mu.Lock()
	delete(m.mu.runs, runs[0].key())
	m.mu.Unlock()
}
