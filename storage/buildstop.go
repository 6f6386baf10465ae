package storage

import "context"

// stopped is the error for which a build is stopped from outside, if it is.
type stopped struct {
	ctx  context.Context
	stop context.CancelCauseFunc
}

func newStopped() (s stopped) {
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	return s
}

// why returns the error; nil for none.
func (s *stopped) why() error { return context.Cause(s.ctx) }

// within returns a context that ends with ctx, or when the build is stopped.
func (s *stopped) within(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	detach := context.AfterFunc(s.ctx, func() { cancel(s.why()) })
	return ctx, func() {
		detach()
		cancel(nil)
	}
}

// Stop makes a build fail with an error, and returns at once. A build that is committing already, or has failed, ends as it would have.
func (b *IndexBuild) Stop(why error) { b.stop.stop(why) }

// StopBuilds makes the builds on the collections that which selects fail with an error. One that an earlier primary has left, and that has not begun again yet, is aborted. It reports
// whether there were any: a build that is stopped takes a while to remove its indexes.
func (e *Engine) StopBuilds(ctx context.Context, which func(ns string) bool, why error) (some bool, err error) {
	for _, b := range e.Builds() {
		if which(b.Namespace()) {
			b.Stop(why)
			some = true
		}
	}
	for _, c := range e.Catalog().All() {
		if c.Building() == nil || !which(c.NS) {
			continue
		}
		some = true
		for _, b := range e.leftBuilds(c) {
			b.cause = why
			if err := b.Abort(ctx); err != nil {
				return some, err
			}
		}
	}
	return some, nil
}
