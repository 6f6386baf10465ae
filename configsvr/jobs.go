package configsvr

import (
	"context"
	"sync"
)

// jobs are operations that the config server's primary drives, by their keys: each in a goroutine of its own, from its step-up, or a client's request, until they end or
// it steps down. The next primary reads them from their state documents.
type jobs[K comparable, J driven] struct {
	mu struct {
		sync.Mutex
		ctx  context.Context // ends when the node steps down; nil before it has stepped up
		wg   *sync.WaitGroup // of this term
		term int64           // as primary
		runs map[K]J
	}
}

// driven is an operation. drive continues with the step that is stored; it returns the error for those who wait for the end.
type driven interface {
	drive(ctx context.Context) error
	asJob() *job
}

// job is the part of an operation that all kinds have.
type job struct {
	started bool // guarded by the lock of jobs
	done    chan struct{}
	err     error // before done is closed
}

func newJob() job { return job{done: make(chan struct{})} }

func (j *job) asJob() *job { return j }

// ended reports whether the operation is over, or left to the next primary.
func (j *job) ended() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// load begins a term with the operations that an earlier primary has not completed, before clients write.
func (s *jobs[K, J]) load(ctx context.Context, term int64, runs map[K]J) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ctx, s.mu.wg, s.mu.term, s.mu.runs = ctx, new(sync.WaitGroup), term, runs
}

// resume drives all operations. wait, which is called once the term's context has ended, returns when its goroutines have.
func (s *jobs[K, J]) resume(ctx context.Context) (wait func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.mu.runs {
		s.start(ctx, r)
	}
	wg := s.mu.wg
	return func() {
		s.mu.Lock() // behind whoever has found the context alive, and begins an operation
		//lint:ignore SA2001 whoever comes later finds that it has ended
		s.mu.Unlock()
		wg.Wait()
	}
}

// start drives an operation in the background, unless it is being driven already: a client's operation may have begun before a new primary starts those that it
// has found. s.mu must be held.
func (s *jobs[K, J]) start(ctx context.Context, r J) {
	j := r.asJob()
	if j.started {
		return
	}
	j.started = true
	s.mu.wg.Go(func() {
		defer close(j.done)
		j.err = r.drive(ctx)
	})
}

// beside runs what belongs to an operation, and outlasts it, in the background.
func (s *jobs[K, J]) beside(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.wg.Go(f)
}

// primary returns an error if no operation can begin here. s.mu must be held.
func (s *jobs[K, J]) primary() error {
	if s.mu.ctx == nil || s.mu.ctx.Err() != nil {
		return errNotPrimary
	}
	return nil
}
