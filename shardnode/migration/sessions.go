package migration

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// The history of sessions moves with a chunk: a retryable write that was executed on the donor may be sent again
// to the recipient. The history does not record which statement wrote to which chunk, so all of it is sent. That
// does no harm: a statement is executed on one shard only.
//
// The recipient asks twice: after the clone, for what was executed until then, and once the donor accepts no
// more writes, for the rest.

// sessionsAgain is the time by which the second part overlaps the first: a statement may be recorded a moment after it is visible.
const sessionsAgain = 10 // seconds

// runSessionMods returns the next part of the history.
func (m *Manager) runSessionMods(_ *command.Op, req *msg.GetNextSessionMods, dst []byte) ([]byte, error) {
	d, err := m.outgoing(req.ID)
	if err != nil {
		return dst, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if final := req.Final; d.mu.history == nil || final && !d.mu.finalHistory {
		since := storage.Timestamp(0)
		if d.mu.finalHistory = final; final {
			since = d.began - min(d.began, storage.TimestampOf(sessionsAgain, 0))
		}
		d.mu.history = m.sessions.History(since)
	}
	list, mark := value.Begin(nil)
	i := 0
	for i < len(d.mu.history) && len(list) < maxTransfer {
		rec := d.mu.history[i]
		rec, err := m.sessions.WithImage(rec)
		if err != nil {
			return dst, err
		}
		list = value.AppendIndex(list, i, value.NewDocument(rec))
		i++
	}
	d.mu.history = d.mu.history[i:]
	return msg.AppendFields(dst, &msg.GetNextSessionModsReply{Sessions: value.End(list, mark)}), nil
}

// transferSessions fetches a part of the donor's history until nothing of it remains.
func (r *recipient) transferSessions(ctx context.Context, final bool) error {
	for {
		var next msg.GetNextSessionModsReply
		if _, err := r.ask(ctx, &msg.GetNextSessionMods{Migration: r.header(), Final: final}, &next); err != nil {
			return err
		}
		records := value.Values(next.Sessions)
		if len(records) == 0 {
			return nil
		}
		if err := r.m.sessions.Adopt(ctx, records); err != nil {
			return err
		}
	}
}
