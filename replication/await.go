package replication

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/storage"
	"go.etcd.io/raft/v3"
)

// Commit implements Set. The engine answers once a majority has the unit, whatever wc asks for: nothing is visible
// earlier.
func (r *Raft) Commit(ctx context.Context, u *storage.UnitOfWork, wc WriteConcern) (storage.Timestamp, error) {
	if err := r.flow.admit(ctx); err != nil && !u.Empty() {
		u.Rollback()
		return 0, err
	}
	var until time.Time
	if wc.Timeout > 0 {
		until = time.Now().Add(wc.Timeout)
	}
	if wc.MayDetach {
		u.MayDetach(wc.Timeout)
	}
	ts, err := r.m.Commit(ctx, u, false)
	if err != nil {
		return ts, err
	}
	if wc.Tag == "" && wc.W <= 1 {
		return ts, nil
	}
	if wc.Timeout > 0 { // one time limit for both waits
		wc.Timeout = max(time.Until(until), 1)
	}
	return ts, r.Await(ctx, ts, wc)
}

// Await implements Set.
func (r *Raft) Await(ctx context.Context, ts storage.Timestamp, wc WriteConcern) error {
	if c := r.Config(); c == nil {
		return errNoConfig
	} else if err := c.CheckWriteConcern(wc); err != nil {
		return err
	}
	if wc.Tag == "" && wc.W <= 1 && r.m.Visible() >= ts {
		return nil
	}
	if wc.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, wc.Timeout, storage.ErrWaitTimeout)
		defer cancel()
	}
	return r.await(ctx, &ackWait{ts: ts, wc: wc, done: make(chan error, 1)})
}

// AwaitMembers waits until met returns true for the members that have applied everything up to ts, this one included. It is called with the configuration
// in force and must not block.
func (r *Raft) AwaitMembers(ctx context.Context, ts storage.Timestamp, met func(c *SetConfig, has func(id int) bool) bool) error {
	return r.await(ctx, &ackWait{ts: ts, met: met, done: make(chan error, 1)})
}

func (r *Raft) await(ctx context.Context, w *ackWait) error {
	if r.waits.add(r, w) {
		return nil
	}
	defer r.waits.remove(w)
	if !w.majority() {
		r.callAll() // they respond with what they have, and learn that a caller waits for it
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

// ackWaits are the writers that wait for members to acknowledge.
type ackWaits struct {
	mu   sync.Mutex
	all  map[*ackWait]struct{}
	many atomic.Int32
}

type ackWait struct {
	ts   storage.Timestamp
	wc   WriteConcern
	met  func(c *SetConfig, has func(id int) bool) bool // in place of wc, unless nil
	done chan error
}

// majority reports whether the wait ends as soon as a majority has what it is for.
func (w *ackWait) majority() bool { return w.met == nil && w.wc.Tag == "" && w.wc.W <= 1 }

// add registers w unless its condition is already met.
func (a *ackWaits) add(r *Raft, w *ackWait) (met bool) {
	a.mu.Lock()
	if a.all == nil {
		a.all = map[*ackWait]struct{}{}
	}
	a.all[w] = struct{}{}
	a.many.Add(1)
	a.mu.Unlock()
	if !r.acknowledged(w) {
		return false
	}
	a.remove(w)
	return true
}

func (a *ackWaits) remove(w *ackWait) {
	a.mu.Lock()
	if _, ok := a.all[w]; ok {
		delete(a.all, w)
		a.many.Add(-1)
	}
	a.mu.Unlock()
}

func (a *ackWaits) some() bool { return a.many.Load() > 0 }

// check wakes the writers whose condition is met.
func (a *ackWaits) check(r *Raft) {
	if !a.some() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.all {
		if r.acknowledged(w) {
			a.end(w, nil)
		}
	}
}

func (a *ackWaits) end(w *ackWait, err error) {
	delete(a.all, w)
	a.many.Add(-1)
	w.done <- err
}

func (a *ackWaits) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.all {
		a.end(w, err)
	}
}

// acknowledged reports whether enough members have applied what w waits for.
func (r *Raft) acknowledged(w *ackWait) bool {
	if r.m.Visible() < w.ts {
		return false
	}
	if w.majority() {
		return true // what is visible is on a majority
	}
	c := r.Config()
	if c == nil {
		return false
	}
	self := int(r.id.Load()) - 1
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	has := func(id int) bool {
		if id == self {
			return true
		}
		s := r.peers.seen[uint64(id)+1]
		return s != nil && s.report.ts >= w.ts
	}
	if w.met != nil {
		return w.met(c, has)
	}
	return c.Satisfied(w.wc, has)
}

// ReadIndex returns once everything that was committed anywhere before the call is visible here, and this member was
// the primary during the call.
func (r *Raft) ReadIndex(ctx context.Context) error {
	if !r.writable.Load() {
		return errNotMain
	}
	done := make(chan error, 1)
	r.reads.add(done)
	r.in.push(input{f: func() { r.reads.issue(r) }})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

// readWaits are linearizable reads in progress. One request to the majority is under way at a time; reads that
// arrive meanwhile share the next.
type readWaits struct {
	mu    sync.Mutex
	next  []chan error
	asked []chan error
	seq   uint64
	at    []readAt // answered, waiting to be applied up to an index
}

type readAt struct {
	index uint64
	who   []chan error
}

func (w *readWaits) add(done chan error) {
	w.mu.Lock()
	w.next = append(w.next, done)
	w.mu.Unlock()
}

// issue sends the request; it runs in the loop.
//
// A read that arrives while a request is under way must not share it. The members may have confirmed that request
// before the read arrived, and another leader may have been elected and have committed a write since, which a
// linearizable read has to see. It waits for the next request, together with all others that have arrived by then.
func (w *readWaits) issue(r *Raft) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.asked) > 0 || len(w.next) == 0 {
		return
	}
	if r.loop.rn == nil || r.loop.rn.BasicStatus().RaftState != raft.StateLeader {
		for _, c := range w.next {
			c <- errNotMain
		}
		w.next = nil
		return
	}
	w.asked, w.next = w.next, nil
	w.seq++
	r.loop.rn.ReadIndex(binary.BigEndian.AppendUint64(nil, w.seq))
}

// ready processes a response.
func (w *readWaits) ready(r *Raft, s *raft.ReadState) {
	w.mu.Lock()
	if len(s.RequestCtx) == 8 && binary.BigEndian.Uint64(s.RequestCtx) == w.seq && len(w.asked) > 0 {
		w.at = append(w.at, readAt{s.Index, w.asked})
		w.asked = nil
	}
	w.mu.Unlock()
	w.applied(r.applied.Load())
	w.issue(r)
}

// applied wakes the reads whose index is applied.
func (w *readWaits) applied(index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for n < len(w.at) && w.at[n].index <= index {
		for _, c := range w.at[n].who {
			c <- nil
		}
		n++
	}
	w.at = w.at[n:]
}

func (w *readWaits) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range append(w.at, readAt{who: w.asked}, readAt{who: w.next}) {
		for _, c := range x.who {
			c <- err
		}
	}
	w.at, w.asked, w.next = nil, nil, nil
}
