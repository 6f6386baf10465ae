package configsvr

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// pauses tracks the updates and deletes of many documents that routers execute while the cluster parameter
// pauseMigrationsDuringMultiUpdates is set: no migration of their collections commits meanwhile. Each is a lease,
// which its router renews as long as the statement runs. Leases are not durable: a router that is gone stops
// renewing, and a new primary of the config server learns of running statements with the next renewal.
type pauses struct {
	mu    sync.Mutex
	held  map[string]map[[16]byte]time.Time // by namespace and id: when each lapses
	ended chan struct{}                     // closed when a pause ends; nil if there are no waiters
}

// begin takes or renews a lease.
func (p *pauses) begin(ns string, id [16]byte, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		p.held = make(map[string]map[[16]byte]time.Time)
	}
	if p.held[ns] == nil {
		p.held[ns] = make(map[[16]byte]time.Time)
	}
	p.held[ns][id] = until
}

func (p *pauses) end(ns string, id [16]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.held[ns], id); len(p.held[ns]) == 0 {
		delete(p.held, ns)
	}
	if p.ended != nil {
		close(p.ended)
		p.ended = nil
	}
}

// lapse drops the leases of a namespace that were not renewed, and returns when the next of the others lapses;
// zero if there is none. p.mu must be held.
func (p *pauses) lapse(ns string, now time.Time) (next time.Time) {
	for id, until := range p.held[ns] {
		switch {
		case !now.Before(until):
			delete(p.held[ns], id)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	if len(p.held[ns]) == 0 {
		delete(p.held, ns)
	}
	return next
}

// paused reports whether migrations of a namespace are paused.
func (p *pauses) paused(ns string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.lapse(ns, now).IsZero()
}

// wait returns when migrations of a namespace are not paused, or with an error when ctx ends.
func (p *pauses) wait(ctx context.Context, ns string, now func() time.Time) error {
	for {
		p.mu.Lock()
		at := now()
		next := p.lapse(ns, at)
		if next.IsZero() {
			p.mu.Unlock()
			return nil
		}
		if p.ended == nil {
			p.ended = make(chan struct{})
		}
		ended := p.ended
		p.mu.Unlock()
		t := time.NewTimer(next.Sub(at))
		select {
		case <-ended:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		t.Stop()
	}
}

// maxPause limits how long a migration waits for updates and deletes before it begins.
const maxPause = 30 * time.Second

func errPaused(ns string) error {
	return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "migrations of %s are paused by an update or delete of many documents", ns)
}

// awaitUnpaused waits until a migration of a collection may begin, at most until its operation ends or for
// maxPause. It holds no lock: a statement that begins afterwards makes the migration's commit fail.
func (m *Manager) awaitUnpaused(ctx context.Context, ns string) error {
	bounded, cancel := context.WithTimeout(ctx, maxPause)
	defer cancel()
	switch {
	case m.pauses.wait(bounded, ns, m.now) == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err() // says why the operation ended
	}
	return errPaused(ns)
}

func (m *Manager) runPauseMigrations(op *command.Op, req *msg.PauseMigrations, dst []byte) ([]byte, error) {
	unlock, err := m.lockTables(op) // waits for a migration that is being committed
	if err != nil {
		return dst, err
	}
	defer unlock()
	m.pauses.begin(req.NS, req.ID, m.now().Add(msg.PauseLease))
	return dst, nil
}

func (m *Manager) runResumeMigrations(op *command.Op, req *msg.ResumeMigrations, dst []byte) ([]byte, error) {
	m.pauses.end(req.NS, req.ID)
	return dst, nil
}
