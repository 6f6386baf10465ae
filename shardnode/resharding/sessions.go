package resharding

import (
	"context"
	"math/rand/v2"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The history of sessions moves with the collection, as with a chunk: the history of the statements that wrote to it, as oplog entries. A recipient
// fetches it along with the changes, and the rest once the donors block writes. Each recipient gets the history of the whole collection, since an entry
// identifies its document by the former shard key alone.

// sentHistory is the history that a recipient is reading. A part that is asked for again is sent again.
type sentHistory struct {
	name  int64 // identifies this reading: another one may have the entries in another order
	next  func(size int) (part [][]byte, upTo storage.Timestamp, more bool, err error)
	pin   *storage.OplogPin
	parts int64 // how many have been read
	last  [][]byte
	more  bool
}

// runFetchSessions returns a part of the history of retryable writes.
func (m *Manager) runFetchSessions(_ *command.Op, req *msg.ReshardFetchSessions, dst []byte) ([]byte, error) {
	d, err := m.donating(req.ID)
	if err != nil {
		return dst, err
	}
	reply, err := d.history(req)
	if err != nil {
		return dst, err
	}
	return msg.AppendFields(dst, reply), nil
}

// history returns the part that a recipient asks for.
func (d *donor) history(req *msg.ReshardFetchSessions) (_ *msg.ReshardFetchSessionsReply, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.ended {
		return nil, noSuch(req.ID)
	}
	restart := &msg.ReshardFetchSessionsReply{Sessions: value.Doc(), Restart: true}
	h := d.mu.sessions[req.Recipient]
	switch {
	case req.Parts == 0:
		if h, err = d.openHistory(req.Recipient); err != nil {
			return nil, err
		}
	case h == nil || req.Reading != h.name || req.Parts != h.parts && req.Parts != h.parts-1:
		return restart, nil
	}
	if req.Parts == h.parts {
		if err := h.advance(); err != nil {
			d.closeHistory(req.Recipient)
			if mongoerr.CodeOf(err) == mongoerr.CappedPositionLost {
				return restart, nil
			}
			return nil, err
		}
	}
	list, mark := value.Begin(nil)
	for i, e := range h.last {
		list = value.AppendIndex(list, i, value.NewDocument(e))
	}
	return &msg.ReshardFetchSessionsReply{Sessions: value.End(list, mark), Reading: h.name, More: h.more}, nil
}

// openHistory begins to read the history of the collection's sessions for a recipient. d.mu must be held.
func (d *donor) openHistory(recipient string) (*sentHistory, error) {
	d.closeHistory(recipient)
	at := d.m.Engine.Published()
	pin, err := d.m.Engine.PinOplog(at)
	if err != nil {
		return nil, err
	}
	h := &sentHistory{name: rand.Int64(), pin: pin, next: d.m.Sessions.HistoryOf(d.concerns, at)}
	d.mu.sessions[recipient] = h
	return h, nil
}

// closeHistory ends a recipient's reading. d.mu must be held.
func (d *donor) closeHistory(recipient string) {
	if h := d.mu.sessions[recipient]; h != nil {
		h.pin.Release()
		delete(d.mu.sessions, recipient)
	}
}

// concerns reports whether an entry of the oplog is about the collection, and returns its document's key. The entry is sent with the UUID that the
// collection is about to have: a later migration finds it by that.
func (d *donor) concerns(e *storage.OplogEntry) (key []byte, ok bool) {
	if !migration.MayConcern(d.m.Docs, d.doc.ns, d.doc.uuid, e) {
		return nil, false
	}
	e.UUID = d.doc.id
	return migration.KeyOf(e), true
}

// advance reads the next part.
func (h *sentHistory) advance() error {
	part, upTo, more, err := h.next(maxReply)
	if err == nil {
		err = h.pin.Check() // truncated entries may not have been read
	}
	if err != nil {
		return err
	}
	h.parts++
	h.last, h.more = part, more
	h.pin.Advance(upTo)
	return nil
}

// fetchSessions adopts what there is of a donor's history of retryable writes, if it is due.
func (f *follower) fetchSessions(ctx context.Context, final bool) error {
	r, now := f.r, f.r.m.Now()
	if f.donor == r.m.State.ID || !final && now.Sub(f.sessions) < sessionsEvery {
		return nil
	}
	for more := true; more; {
		ask := &msg.ReshardFetchSessions{Resharding: r.header(), Recipient: r.m.State.ID, Reading: f.reading, Parts: f.parts}
		var reply msg.ReshardFetchSessionsReply
		if err := f.ask(ctx, ask, &reply); err != nil {
			return err
		}
		if reply.Restart {
			f.parts = 0 // not an error to retry: the donor would refuse the same request forever
			continue
		}
		entries := value.Values(reply.Sessions)
		if len(entries) > 0 {
			if err := r.m.Sessions.Adopt(ctx, entries); err != nil {
				return err
			}
		}
		f.reading, f.parts, more = reply.Reading, f.parts+1, reply.More
	}
	f.sessions = now
	return nil
}
