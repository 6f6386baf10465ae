package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Service is work that only a primary does: every member that becomes primary starts it again from its stored
// state.
type Service struct {
	Name string
	// Vital means that clients must not write if the service did not step up: their writes could contradict its
	// state.
	Vital bool
	// StepUp loads what the service must know before clients write. The member is already primary, and the service
	// may write. Optional.
	StepUp func(ctx context.Context, term int64) error
	// Run does the work until ctx ends, which happens when the member steps down or closes. Clients may not be
	// able to write yet when it starts. Optional.
	Run func(ctx context.Context, term int64)
}

// VitalError reports that a vital service did not step up.
type VitalError struct {
	Service string
	Err     error
}

func (e *VitalError) Error() string { return e.Service + ": " + e.Err.Error() }

func (e *VitalError) Unwrap() error { return e.Err }

// Services are the primary-only services of a member. They step up one after the other, in the order they were
// added, and then all run; they step down together, and StepDown waits until none is running.
//
// Invariant: at most one run of a service is under way on a member, and the StepUp of a service begins after those of the services that
// were added before it have ended. Later ones rely on that: sessions and prepared transactions are loaded before the coordinators
// of transactions and of DDL continue.
//
// Hazard: a StepUp may wait for other members, or for a majority that is gone. Interrupt must therefore not wait for it, or a
// member that has been deposed could not become what it is to become next: it takes mu alone, never life.
//
// Rejected: services that compare the term at each step and are not waited for. A run that is late by one step would then work
// beside its successor on the same member, with memory that the new StepUp has just loaded; comparing and acting are two
// moments, however close. Rejected, too: stepping up in parallel. It would save little, since most of it is reading, and each service
// would have to name what it depends on.
type Services struct {
	life sync.Mutex // held to change the state; taken before mu

	mu struct {
		sync.Mutex
		list   []Service
		up     bool
		term   int64
		ctx    context.Context
		cancel context.CancelFunc
		failed map[string]error
		atWork []string // those whose Run has not returned
	}
	running sync.WaitGroup
}

// Add adds a service. If the member is already primary, the service steps up at once.
func (s *Services) Add(v Service) error {
	s.life.Lock()
	defer s.life.Unlock()
	s.mu.Lock()
	s.mu.list = append(s.mu.list, v)
	up, ctx, term := s.mu.up, s.mu.ctx, s.mu.term
	s.mu.Unlock()
	if !up {
		return nil
	}
	return s.start(ctx, term, []Service{v})
}

// StepUp starts all services in a term, which lasts as long as ctx. If one fails, the others still start; the
// result joins the errors of all that failed, as a VitalError for vital ones. Those that failed do not run.
func (s *Services) StepUp(ctx context.Context, term int64) error {
	s.life.Lock()
	defer s.life.Unlock()
	s.mu.Lock()
	if s.mu.up {
		s.mu.Unlock()
		return nil
	}
	s.mu.ctx, s.mu.cancel = context.WithCancel(ctx)
	s.mu.up, s.mu.term, s.mu.failed = true, term, map[string]error{}
	ctx, list := s.mu.ctx, append([]Service(nil), s.mu.list...)
	s.mu.Unlock()
	return s.start(ctx, term, list)
}

func (s *Services) start(ctx context.Context, term int64, list []Service) error {
	var errs []error
	ready := list[:0:0]
	for _, v := range list {
		var err error
		if v.StepUp != nil {
			err = v.StepUp(ctx, term)
		}
		if err == nil {
			ready = append(ready, v)
			continue
		}
		if v.Vital {
			errs = append(errs, &VitalError{v.Name, err})
		} else {
			errs = append(errs, fmt.Errorf("%s: %w", v.Name, err))
		}
		s.mu.Lock()
		s.mu.failed[v.Name] = err
		s.mu.Unlock()
	}
	for _, v := range ready {
		if v.Run == nil {
			continue
		}
		s.running.Add(1)
		s.mu.Lock()
		s.mu.atWork = append(s.mu.atWork, v.Name)
		s.mu.Unlock()
		go func() {
			defer s.running.Done()
			v.Run(ctx, term)
			s.mu.Lock()
			defer s.mu.Unlock()
			i := slices.Index(s.mu.atWork, v.Name)
			s.mu.atWork = slices.Delete(s.mu.atWork, i, i+1)
		}()
	}
	return errors.Join(errs...)
}

// Interrupt tells all services to stop, without waiting. The context of a StepUp in progress ends.
func (s *Services) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.up {
		s.mu.cancel()
	}
}

// StepDown stops all services and waits for them.
func (s *Services) StepDown() {
	s.Interrupt()
	s.life.Lock()
	defer s.life.Unlock()
	s.running.Wait()
	s.mu.Lock()
	s.mu.up = false
	s.mu.Unlock()
}

// Each calls f with every service's name and state, for serverStatus.
func (s *Services) Each(f func(name, state string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.mu.list {
		switch {
		case !s.mu.up:
			f(v.Name, "paused")
		case s.mu.failed[v.Name] != nil:
			f(v.Name, "rebuildFailed")
		default:
			f(v.Name, "running")
		}
	}
}

// AtWork names the services that run now.
func (s *Services) AtWork() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.atWork)
}
