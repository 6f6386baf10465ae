package coordinator

import (
	"context"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
)

// An operation that this shard executes alone may leave something to do on the config server: a collection that has been copied into another database takes its zones
// along. The unit of work of the client's command writes the state document of a run that does it, and the run begins when the command has ended: whatever
// happens in between, the document is stored exactly if the command has been executed.
//
// Rejected: the copy as a phase of a run. A client's time limit would not end it, and a primary that continues the run would have to find out whether it is done.

// following is an operation that a run completes after this shard has executed it alone.
type following interface {
	follows() (phase string) // the run's phase; "" for no run
}

// follows returns the phase of the run that completes an operation which this shard executes alone; "" for none.
func follows(o operation) string {
	if f, ok := o.(following); ok {
		return f.follows()
	}
	return ""
}

// localThenRun executes an operation like local, and begins the run whose state document its unit of work has written, at a phase.
func (m *Coordinators) localThenRun(op *command.Op, r *run, as, phase string, dst []byte) (begun bool, _ []byte, err error) {
	r.doc.phase = phase
	staged := false
	keep := func(u *storage.UnitOfWork, _ []byte) error { // the run keeps the reply
		staged = true
		s := m.Engine.Snapshot()
		defer s.Release()
		put, _ := r.puts()
		return put(s, u)
	}
	dst, err = m.local(op, as, r.doc.op, func(in *command.Op) { namespace.KeepOutcome(in, keep) }, dst)
	if !staged {
		m.unlock(r.locks)
		return false, dst, err
	}
	m.mu.Lock() // requests that have joined it look
	r.unsure, r.committed = err, err == nil
	m.mu.Unlock()
	if err := m.begin(op, r); err != nil {
		m.unlock(r.locks)
		return false, dst, err
	}
	return true, dst, nil
}

// settle finds out whether the command of localThenRun that ended with an error has been executed nevertheless: its client may have stopped waiting for a commit that the
// set had not decided yet. A command that has not been executed has no run. It returns an error only if ctx has ended.
func (r *run) settle(ctx context.Context) error {
	if r.unsure == nil {
		return nil
	}
	return r.persist(ctx, func() error {
		// The log has the command's unit before this one, or never.
		err := r.m.Docs.WriteWith(ctx, replication.Durable, func(_ *storage.Snapshot, u *storage.UnitOfWork) error {
			u.Oplog(storage.OplogEntry{Op: 'n', StmtID: -1, O: value.Doc(value.F("msg", value.NewString("the outcome of a DDL operation was looked for")))})
			return nil
		})
		if err != nil {
			return err
		}
		_, there, err := documents(r.m.Docs).Get(r.doc.ID())
		if err == nil && !there {
			r.doc.failed = failure(r.unsure)
		}
		return err
	})
}
