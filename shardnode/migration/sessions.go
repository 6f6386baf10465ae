package migration

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The history of sessions moves with a chunk: a retryable write that was executed on the donor may be sent again to the recipient. Only the
// chunk's history is sent, as oplog entries. What was executed before the migration, and most of what is executed during it,
// arrives before the critical section, in parts of a bounded size; what remains for the critical section is bounded, too (fewStatements).

// sessionsPart is about the size of one part. The recipient stores it before it asks for the next one.
const sessionsPart = 1 << 20

// fewStatements is the maximum number of entries in a part for which the donor may block writes for the rest, once the recipient has caught up.
const fewStatements = 1000

// concerns reports whether an entry of the oplog may be about a document of a range, and returns the document's key as far as it is known.
// An entry from which the shard key cannot be told may be.
func concerns(docs *statedoc.Docs, r *KeyRange, ns string, uuid [16]byte, e *storage.OplogEntry) (key []byte, ok bool) {
	if !MayConcern(docs, ns, uuid, e) {
		return nil, false
	}
	key = KeyOf(e)
	vals, known := r.key.FromDocumentKey(key)
	if !known && e.Op == 'i' && e.O != nil {
		key = r.key.DocumentKey(e.O)
		vals, known = r.key.FromDocumentKey(key)
	}
	return key, !known || cluster.InRange(vals, r.minV, r.maxV)
}

// MayConcern reports whether an entry of the oplog may be about a collection: it has its name or its UUID or, since a collection gets another UUID when it is
// resharded and another name when it is renamed, a UUID that no collection has any more, and that is not known to be one that was dropped.
//
// The name is enough, whatever collection had it: a client retries its statement by name.
func MayConcern(docs *statedoc.Docs, ns string, uuid [16]byte, e *storage.OplogEntry) bool {
	return e.NS == ns || e.UUID == uuid || catalog.DBOf(e.NS) == catalog.DBOf(ns) && docs.Engine.Catalog().LookupUUID(e.UUID) == nil && !isDropped(docs, e.UUID)
}

// KeyOf returns the key of the document that an entry of the oplog is about, as far as the entry has it.
func KeyOf(e *storage.OplogEntry) []byte {
	if e.Op == 'd' {
		return e.O
	}
	return e.O2
}

// openHistory begins to read the history of the range's sessions: all that was visible when the clone's snapshot was taken is read from the
// sessions, and the rest from the oplog. d.mu must be held.
func (d *donor) openHistory() (err error) {
	if d.mu.historyPin, err = d.m.Engine.PinOplog(d.mu.from); err != nil {
		return err
	}
	d.mu.history = d.m.sessions.HistoryOf(func(e *storage.OplogEntry) ([]byte, bool) {
		return concerns(d.m.Docs, d.rng, d.ns, d.uuid, e)
	}, d.mu.from)
	return nil
}

// runSessionMods returns the next part of the history.
func (m *Manager) runSessionMods(_ *command.Op, req *msg.GetNextSessionMods, dst []byte) ([]byte, error) {
	d, err := m.outgoing(req.ID)
	if err != nil {
		return dst, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.history == nil {
		return dst, mongoerr.New(mongoerr.IllegalOperation, "the migration has not begun to clone, or has ended")
	}
	part, upTo, more, err := d.mu.history(sessionsPart)
	if err == nil {
		err = d.mu.historyPin.Check()
	}
	if err != nil {
		return dst, err
	}
	d.mu.historyPin.Advance(upTo)
	list, mark := value.Begin(nil)
	for i, e := range part {
		list = value.AppendIndex(list, i, value.NewDocument(e))
	}
	return msg.AppendFields(dst, &msg.GetNextSessionModsReply{Oplog: value.End(list, mark), More: more}), nil
}

// transferSessions fetches and adopts the next part of the history; n is the number of entries.
func (r *recipient) transferSessions(ctx context.Context) (n int, more bool, err error) {
	var next msg.GetNextSessionModsReply
	if _, err := r.ask(ctx, &msg.GetNextSessionMods{Migration: r.header()}, &next, nil); err != nil {
		return 0, false, err
	}
	entries := value.Values(next.Oplog)
	if len(entries) > 0 {
		err = r.m.sessions.Adopt(ctx, entries)
	}
	return len(entries), next.More, err
}
