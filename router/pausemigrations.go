package router

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
)

// Updates and deletes of many documents process each document once even if chunks move meanwhile (see writeparts.go). If the
// cluster parameter pauseMigrationsDuringMultiUpdates is set, nothing moves: the config server refuses to commit a migration of
// the collection until the command is done, and begins none.

const pauseParam = "pauseMigrationsDuringMultiUpdates"

// runPaused runs a batch while migrations of its collection are paused, if the parameter is set and a statement
// concerns many documents. A transaction needs no pause: it sees one placement, or is retried.
func (b *writeBatch) runPaused(ns string, dst []byte) ([]byte, error) {
	if !b.r.params.pauses.Load() || !b.manyDocuments() || transactionOf(b.op) != nil {
		return b.run(ns, dst)
	}
	resume, err := b.r.pauseMigrations(b.op, ns)
	if err != nil {
		return dst, err
	}
	defer resume()
	return b.run(ns, dst)
}

// manyDocuments reports whether a statement of the batch may write more than one document.
func (b *writeBatch) manyDocuments() bool {
	for _, st := range b.items {
		switch b.list {
		case "updates":
			if value.Lookup(st, "multi").Truthy() {
				return true
			}
		case "deletes":
			if n, ok := value.Lookup(st, "limit").AsInt64(); ok && n == 0 {
				return true
			}
		}
	}
	return false
}

// pauseMigrations pauses migrations of a collection until resume is called. Meanwhile it renews the config
// server's lease, which lapses on its own if this router can no longer report that it is done.
func (r *Router) pauseMigrations(op *command.Op, ns string) (resume func(), err error) {
	id := cluster.NewUUID()
	pause := func(ctx context.Context) error {
		reply, err := r.askConfig(ctx, msg.Doc(&msg.PauseMigrations{NS: ns, ID: id}))
		if err == nil {
			err = cluster.ReplyError(reply)
		}
		return err
	}
	if err := pause(op); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(op))
	var renewing sync.WaitGroup
	renewing.Go(func() {
		every := time.NewTicker(msg.PauseLease / 3)
		defer every.Stop()
		for {
			select {
			case <-every.C:
				_ = pause(ctx) // if it fails, the next renewal repeats it; the writes are exact without the pause
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		renewing.Wait()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(op), msg.PauseLease)
		defer cancel()
		_, _ = r.askConfig(ctx, msg.Doc(&msg.ResumeMigrations{NS: ns, ID: id})) // if it fails, the lease lapses
	}, nil
}
