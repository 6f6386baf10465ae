package configsvr

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A client's command that changes a setting of the whole cluster is coordinated by the config server's primary, in steps. The operation is in a state document before
// anything is done, and its current step before the step begins; a step may be repeated by the next primary. Once the config server has the setting, the operation can
// only be completed. Operations of one kind run one after another: a request for what is being done joins it, another one is refused.

// coordinatorDocs is the collection of the state documents.
const coordinatorDocs = "sharding_configsvr_coordinators"

// settingRuns holds the operations that this primary coordinates, by kind, the name of the client's command.
type settingRuns struct {
	patience time.Duration // clientPatience, except in tests
	refused  refusals
	jobs[string, *settingRun]
}

// settingRun is one operation.
type settingRun struct {
	job
	m    *Manager
	kind string
	cmd  []byte // the client's command without generic arguments
	step string // of the goroutine that drives it; "" before the first
	back takenBack

	mu struct {
		sync.Mutex
		failing time.Time // since when each attempt at the current step has failed; zero if it has not
		last    error
	}
}

func newSettingRun(m *Manager, cmd []byte) *settingRun {
	it := value.Walk(cmd)
	kind, _, _ := it.Next()
	return &settingRun{job: newJob(), m: m, kind: string(kind), cmd: cmd}
}

// LoadCoordinators reads the operations that an earlier primary has not completed, before clients write.
func (m *Manager) LoadCoordinators(ctx context.Context, term int64) error {
	docs, err := m.find(ctx, coordinatorDocs, doc())
	if err != nil {
		return err
	}
	runs := make(map[string]*settingRun)
	for _, raw := range docs {
		r := newSettingRun(m, bytes.Clone(value.LookupDoc(raw, "command")))
		if r.steps(ctx) == nil {
			continue // skip documents that a client has inserted
		}
		r.step, r.back = value.Lookup(raw, "phase").Str(), readTakenBack(raw)
		runs[r.kind] = r
	}
	m.settings.load(ctx, term, runs)
	return nil
}

// RunCoordinators drives all operations until ctx ends.
func (m *Manager) RunCoordinators(ctx context.Context) {
	wait := m.settings.resume(ctx)
	<-ctx.Done()
	wait()
}

// active reports whether an operation is under way.
func (s *settingRuns) active() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.runs) > 0
}

// Coordinate stores a setting on the whole cluster, for a client's command that has been checked. It returns when all have it, or when the client does not wait any longer; the
// operation continues then.
func (m *Manager) Coordinate(op *command.Op, setting msg.Message) error {
	r, err := m.settings.begin(newSettingRun(m, msg.Doc(setting)))
	if err != nil {
		return err
	}
	return r.wait(op)
}

// begin starts an operation, or returns the one that does the same already.
func (s *settingRuns) begin(r *settingRun) (*settingRun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.primary(); err != nil {
		return nil, err
	}
	switch other := s.mu.runs[r.kind]; {
	case other == nil:
	case bytes.Equal(other.cmd, r.cmd):
		return other, nil
	default:
		return nil, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "Another %s command with different arguments is already in progress", r.kind)
	}
	s.mu.runs[r.kind] = r
	s.start(s.mu.ctx, r)
	return r, nil
}

// clientPatience is the time for which a client without a time limit waits for a shard that cannot be reached. The operation goes on without it.
const clientPatience = 15 * time.Second

// SetPatience changes that time, for tests.
func (m *Manager) SetPatience(d time.Duration) { m.settings.patience = d }

// stalledPoll is the interval at which a client that waits checks that.
const stalledPoll = 100 * time.Millisecond

// wait waits for the end of the operation.
func (r *settingRun) wait(op *command.Op) error {
	tick := time.NewTicker(stalledPoll)
	defer tick.Stop()
	for {
		select {
		case <-r.done:
			return r.err
		case <-op.Done():
			return op.Err()
		case <-tick.C:
			if err := r.stalled(); err != nil {
				return err
			}
		}
	}
}

// stalled returns the last error of a step whose attempts have been failing for longer than clients wait.
func (r *settingRun) stalled() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.failing.IsZero() || time.Since(r.mu.failing) < r.m.settings.patience {
		return nil
	}
	return r.mu.last
}

// noteAttempt notes how an attempt at the current step, which has begun at a time, has ended.
func (r *settingRun) noteAttempt(began time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.last = err
	switch {
	case err == nil:
		r.mu.failing = time.Time{}
	case r.mu.failing.IsZero():
		r.mu.failing = began
	}
}

// drive executes the steps from the stored one on, and removes the state document. If the node steps down, the operation is left as it is, for the next primary.
func (r *settingRun) drive(ctx context.Context) error {
	defer r.m.settings.forget(r)
	failed := r.through(ctx)
	if ctx.Err() == nil {
		if err := r.retry(ctx, func() error { return r.m.remove(ctx, coordinatorDocs, doc(fld("_id", str(r.kind)))) }); failed == nil {
			failed = err
		}
	}
	if ctx.Err() != nil {
		return errNotPrimary
	}
	return failed
}

// forget lets another operation of the kind begin.
func (s *settingRuns) forget(r *settingRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.runs[r.kind] == r { // another one continues the run of an earlier term
		delete(s.mu.runs, r.kind)
	}
}

// through executes the steps and, if a shard refuses the setting for good, those that take it back.
func (r *settingRun) through(ctx context.Context) error {
	if r.step == "" {
		if err := r.retry(ctx, func() (err error) { r.back.cmd, err = r.before(ctx); return err }); err != nil {
			return err
		}
	}
	if r.back.why == nil {
		err := r.follow(ctx, r.steps(ctx))
		if err == nil || ctx.Err() != nil || r.back.cmd == nil || !r.changed() {
			return err
		}
		r.back.why = mongoerr.From(err)
	}
	if err := r.follow(ctx, r.stepsBack(ctx)); err != nil {
		return err
	}
	return r.back.why
}

// follow executes steps, from the stored one on if it is one of them.
func (r *settingRun) follow(ctx context.Context, steps []step) error {
	from := 0
	for i, s := range steps {
		if s.name == r.step {
			from = i
		}
	}
	for _, s := range steps[from:] {
		if err := r.checkpoint(ctx, s.name); err != nil {
			return err
		}
		if err := r.m.hang(ctx, r.kind, s.name); err != nil {
			return err
		}
		if err := r.retry(ctx, s.do); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint stores a step, before it begins.
func (r *settingRun) checkpoint(ctx context.Context, step string) error {
	if r.step == step {
		return nil
	}
	r.step = step
	id := fld("_id", str(r.kind))
	return r.retry(ctx, func() error {
		f := append([]value.Field{id, fld("phase", str(step)), fld("command", value.NewDocument(r.cmd))}, r.back.fields()...)
		_, err := r.m.update(ctx, coordinatorDocs, doc(id), doc(f...), true)
		return err
	})
}

// retry repeats f until it succeeds, fails with an error that remains, or ctx has ended.
func (r *settingRun) retry(ctx context.Context, f func() error) error {
	for try := 0; ; try++ {
		began := time.Now()
		err := f()
		r.noteAttempt(began, err)
		if err == nil || ctx.Err() != nil || !cluster.Transient(err) {
			return err
		}
		if err := cluster.Backoff(ctx, try); err != nil {
			return err
		}
	}
}

// steps returns the steps of the operation; nil if there is no such kind.
func (r *settingRun) steps(ctx context.Context) []step {
	send := func() error { return r.onShards(ctx, r.cmd) }
	switch r.kind {
	case "setUserWriteBlockMode":
		return r.blockSteps(ctx)
	case "setFeatureCompatibilityVersion":
	case "setClusterParameter":
		send = func() error { return r.sendParameter(ctx) }
	default:
		return nil
	}
	store := step{"storeOnConfigServer", func() error { return r.onConfigServer(ctx, r.cmd) }}
	share := step{shareStep, send}
	return []step{store, share}
}

// blockSteps returns the steps of setUserWriteBlockMode. To block writes, DDL is blocked first: a node replies when what has begun on it has ended, which may have to write on others.
func (r *settingRun) blockSteps(ctx context.Context) []step {
	var set msg.SetUserWriteBlock
	if msg.Parse(r.cmd, &set) != nil {
		return nil
	}
	part := func(phase string) []byte {
		return msg.Doc(&msg.ShardSetUserWriteBlock{Global: set.Global, Reason: set.Reason, Phase: phase})
	}
	store := step{"storeOnConfigServer", func() error { return r.onConfigServer(ctx, part(msg.CompleteBlock)) }}
	share := step{"storeOnShards", func() error { return r.onShards(ctx, part(msg.CompleteBlock)) }}
	if !set.Global {
		return []step{store, share}
	}
	prepare := step{"prepareOnConfigServer", func() error {
		if err := r.onConfigServer(ctx, part(msg.PrepareBlock)); err != nil {
			return err
		}
		return r.m.creating.end(ctx)
	}}
	shards := step{"prepareOnShards", func() error { return r.onShards(ctx, part(msg.PrepareBlock)) }}
	return []step{prepare, shards, store, share}
}

// onConfigServer has the config server execute its part.
func (r *settingRun) onConfigServer(ctx context.Context, cmd []byte) error {
	_, err := cluster.RunWrite(ctx, r.m.local, cmd)
	return err
}

// sendParameter sends the shards the parameter as the config server has it, with its time.
func (r *settingRun) sendParameter(ctx context.Context) error {
	var set msg.SetOneParameter
	if err := msg.Parse(r.cmd, &set); err != nil {
		return err
	}
	params, err := r.m.find(ctx, "clusterParameters", doc(fld("_id", str(nameIn(set.Param)))))
	if err != nil || len(params) == 0 {
		return err
	}
	return r.onShards(ctx, msg.Doc(&msg.SetClusterParameter{Param: params[0]}))
}

// onShards sends all shards a command that may be repeated. A shard that is added meanwhile takes over what the config server has; one that has been removed is not waited for.
// While a setting is taken back, a shard may refuse that, too (admits).
func (r *settingRun) onShards(ctx context.Context, cmd []byte) error {
	if err := r.m.registry.Reload(ctx); err != nil {
		return err
	}
	all, err := r.m.registry.All(ctx)
	if err != nil {
		return err
	}
	errs := make([]error, len(all))
	var sent sync.WaitGroup
	for i, s := range all {
		if s.ID == cluster.ConfigShardID {
			continue // it has the setting
		}
		sent.Go(func() {
			_, err := cluster.RunWrite(ctx, s.Peer, cmd)
			if err == nil || r.back.why != nil { // the error of a setting that is not taken back is its client's
				r.m.settings.refused.note(s.ID, cmd, err)
			}
			if err = r.back.admits(err); err != nil {
				errs[i] = mongoerr.From(err).Prefix("shard " + s.ID + ": ")
			}
		})
	}
	sent.Wait()
	return worst(errs)
}

// worst returns an error for which it makes no sense to try again, if there is one, or else the first one.
func worst(errs []error) (first error) {
	for _, err := range errs {
		switch {
		case err == nil:
		case !cluster.Transient(err):
			return err
		case first == nil:
			first = err
		}
	}
	return first
}
