package chaos

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxSteps is the number of steps that an engine remembers; its log has all of them.
const maxSteps = 1000

// Engine executes steps, one after another, from Start or Replay until Stop.
type Engine struct {
	target target
	log    func(*Step)

	mu struct {
		sync.Mutex
		plan   *Plan // of the current run; nil for a replay
		began  time.Time
		end    context.CancelFunc // nil if there is no run
		ended  chan struct{}
		steps  []*Step
		count  int64
		failed int64
		idle   int64 // draws that found nothing to act on
	}
}

// NewEngine returns an engine that acts through a router that no client uses. log is called with each step once it has been executed.
func NewEngine(router cluster.Peer, registry *cluster.Registry, d *Disturber, log func(*Step)) *Engine {
	return &Engine{target: target{router, registry, d}, log: log}
}

// errStopped is the error of a step that was interrupted by Stop.
var errStopped = errors.New("chaos was stopped during the step")

// ErrRunning is the error of a start during another run.
var ErrRunning = mongoerr.New(mongoerr.ConflictingOperationInProgress, "chaos is already running; stop it first")

// Start begins a run that draws its steps from a plan.
func (e *Engine) Start(p *Plan) error {
	return e.begin(p, func(ctx context.Context, began time.Time) {
		for next := began; ; {
			d := p.next()
			next = next.Add(d.gap)
			if !waitUntil(ctx, next) {
				return
			}
			s, err := e.target.choose(ctx, &d)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				e.note(&Step{At: time.Since(began), Kind: d.kind, Do: emptyDoc, Err: err})
			case s == nil:
				e.mu.Lock()
				e.mu.idle++
				e.mu.Unlock()
			default:
				e.do(ctx, s, began)
			}
		}
	})
}

var emptyDoc = []byte{5, 0, 0, 0, 0}

// Replay repeats the steps of a log, each at its recorded time or as soon as the one before has ended.
func (e *Engine) Replay(steps []*Step) error {
	return e.begin(nil, func(ctx context.Context, began time.Time) {
		for _, old := range steps {
			if !waitUntil(ctx, began.Add(old.At)) {
				return
			}
			e.do(ctx, &Step{Kind: old.Kind, Do: old.Do, On: old.On}, began)
		}
	})
}

func (e *Engine) begin(p *Plan, run func(ctx context.Context, began time.Time)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.end != nil {
		return ErrRunning
	}
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan struct{})
	began := time.Now()
	e.mu.plan, e.mu.began, e.mu.end, e.mu.ended = p, began, end, ended
	e.mu.steps, e.mu.count, e.mu.failed, e.mu.idle = nil, 0, 0, 0
	go func() {
		defer close(ended)
		run(ctx, began)
		end()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.mu.end = nil
	}()
	return nil
}

// do executes a step and records it.
func (e *Engine) do(ctx context.Context, s *Step, began time.Time) {
	start := time.Now()
	s.At = start.Sub(began)
	s.Err = e.target.run(ctx, s)
	s.Took = time.Since(start)
	if s.Err != nil && ctx.Err() != nil { // the nodes may report the cancellation under any error code
		s.Err = errStopped
	}
	e.note(s)
}

func (e *Engine) note(s *Step) {
	e.mu.Lock()
	e.mu.count++
	if s.Err != nil {
		e.mu.failed++
	}
	if e.mu.steps = append(e.mu.steps, s); len(e.mu.steps) > maxSteps {
		e.mu.steps = e.mu.steps[len(e.mu.steps)-maxSteps:]
	}
	e.mu.Unlock()
	e.log(s)
}

// Stop ends the run, if there is one, and waits for the current step. Pending disturbances are cancelled.
func (e *Engine) Stop() {
	e.mu.Lock()
	end, ended := e.mu.end, e.mu.ended
	e.mu.Unlock()
	if end != nil {
		end()
		<-ended
	}
	e.target.disturb.cancelAll()
}

// Status is the state of the current or the last run.
type Status struct {
	Running             bool
	Plan                *Plan // nil for a replay
	Began               time.Time
	Steps, Failed, Idle int64
	Last                []*Step
}

// Status returns the state of the current or the last run, with its latest steps, oldest first.
func (e *Engine) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Status{
		Running: e.mu.end != nil, Plan: e.mu.plan, Began: e.mu.began,
		Steps: e.mu.count, Failed: e.mu.failed, Idle: e.mu.idle, Last: append([]*Step(nil), e.mu.steps...),
	}
}

// waitUntil waits until t; it returns false if ctx ends first.
func waitUntil(ctx context.Context, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
