package coordinator

import (
	"context"
	"slices"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkFirst returns the error for which a shard refuses a dropIndexes that would end builds: one that is refused ends none. Every shard that has the collection is asked, and is told
// what the builds make, since they may not have begun there: an index that is dropped by its key must be the only one with that key, finished or not.
//
// A shard that does not answer is waited for, as it would be later, but no longer than the client's wtimeout.
func (m *Coordinators) checkFirst(op *command.Op, drop *forward, builds []*run) error {
	if len(builds) == 0 {
		return nil
	}
	build := builds[0].doc.op.(*forward) // all are of one collection
	f := &forward{kind: drop.kind, req: drop.req}
	f.at.UUID = build.at.UUID
	if tracked := build.tracked(); tracked != f.ns() {
		f.at.Buckets = catalog.CollOf(tracked)
	}
	for _, b := range builds {
		f.builds = append(f.builds, b.doc.op.(*forward).command(nil))
	}
	r := &run{m: m, doc: &document{op: f, ns: f.ns(), forwarded: forwardedOf(op)}, done: make(chan struct{})}
	m.mu.Lock()
	ctx, cancel := context.WithCancel(m.mu.ctx)
	defer cancel()
	if ctx.Err() != nil {
		m.mu.Unlock()
		return errSteppedDown
	}
	m.wg.Add(1)
	m.mu.Unlock()
	go func() {
		defer m.wg.Done()
		defer close(r.done)
		r.err = r.retry(ctx, false, func() error {
			if !slices.ContainsFunc(builds, (*run).running) {
				return nil // nothing is left to end, and the collection may be another one
			}
			if err := f.locate(ctx, r); err != nil {
				return err
			}
			return f.checkAll(ctx, r)
		})
	}()
	switch err := r.end(op, op); {
	case err == errGoesOn:
		return errBehind
	case err != nil:
		return err
	case ctx.Err() != nil:
		return errSteppedDown
	}
	switch mongoerr.CodeOf(r.err) {
	case mongoerr.IndexNotFound, mongoerr.NamespaceNotFound:
		return nil
	}
	return r.err
}

// running reports whether the run has not ended.
func (r *run) running() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// checkAll has each shard check the command. A shard refuses to drop the last finished index for the shard key; whether an index that is being created counts is known once the
// createIndexes has asked the shards what they lack.
func (f *forward) checkAll(ctx context.Context, r *run) error {
	for {
		unfinished, unknown := r.unfinished(f)
		err := f.checkEach(ctx, r, unfinished)
		if unknown == nil || mongoerr.CodeOf(err) != mongoerr.CannotDropShardKeyIndex {
			return err
		}
		if err := r.follow(ctx, unknown, unknown.makes.known); err != nil {
			return err
		}
	}
}
