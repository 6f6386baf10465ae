package coordinator

import (
	"bytes"
	"context"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// movePrimary gives a database another primary shard, with the collections that are not sharded. Writes to those are blocked while
// they are cloned; reads are blocked only for the commit. Of sharded collections the new primary gets only the definition.
type movePrimary struct {
	req *msg.ShardMovePrimary
	at  msg.MovePrimaryFound
}

func (m *Coordinators) movePrimary(op *command.Op, req *msg.ShardMovePrimary, dst []byte) ([]byte, error) {
	to, err := m.State.Registry.Shard(op, req.To)
	if err != nil {
		return dst, err
	}
	if to.ID == m.State.ID {
		return dst, nil
	}
	return m.run(op, &msg.ShardMovePrimary{DB: req.DB, To: to.ID}, "", dst)
}

func (p *movePrimary) name() string              { return "movePrimary" }
func (p *movePrimary) locks() (string, []string) { return p.req.DB, nil }
func (p *movePrimary) found() msg.Message        { return &p.at }
func (p *movePrimary) reply(dst []byte) []byte   { return dst }

func (p *movePrimary) check(ctx context.Context, r *run) (local bool, err error) {
	if err := r.m.State.Registry.Reload(ctx); err != nil {
		return false, err
	}
	to, err := r.m.State.Registry.Shard(ctx, p.req.To)
	if err == nil && to.Draining {
		err = mongoerr.Newf(mongoerr.IllegalOperation, "Shard %s is currently draining and cannot be the primary of a database", p.req.To)
	}
	if err != nil {
		return false, err
	}
	r.m.State.Catalog.InvalidateDatabase(p.req.DB)
	db, err := r.m.State.Catalog.Database(ctx, p.req.DB)
	if err != nil {
		return false, err
	}
	p.at.Version, p.at.From = db.Version.Doc(), r.m.State.ID
	return false, nil
}

func (p *movePrimary) phases() []phase {
	return []phase{
		{name: "blockWrites", do: p.blockWrites},
		{name: "clone", do: p.clone},
		{name: "enterCriticalSection", do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.BlockReadsAndWrites, []string{r.m.State.ID}, p.req.DB)
		}},
		{name: "commit", do: p.commit},
		{name: "clean", final: true, event: p.event, do: p.clean},
		{name: "exitCriticalSection", do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.Unblock, []string{p.req.To, r.m.State.ID}, p.req.DB)
		}},
	}
}

// event is what change streams are told once the new primary is named, before anything is written there.
func (p *movePrimary) event() event {
	return event{ns: p.req.DB + ".$cmd", doc: value.Doc(value.F("movePrimary", value.NewString(p.req.DB)), value.F("from", value.NewString(p.at.From)),
		value.F("to", value.NewString(p.req.To)))}
}

// blockWrites blocks the writes to what is to be cloned, and lists it. The section on the new primary fences the messages to
// it: its clone belongs to this run.
func (p *movePrimary) blockWrites(ctx context.Context, r *run) error {
	if err := r.block(ctx, msg.BlockReadsAndWrites, []string{p.req.To}, p.req.DB); err != nil {
		return err
	}
	if err := r.block(ctx, msg.BlockWrites, []string{r.m.State.ID}, p.req.DB); err != nil {
		return err
	}
	entries, err := r.m.entriesOf(ctx, p.req.DB)
	if err != nil {
		return err
	}
	p.at.Collections = nil
	for _, c := range r.m.Engine.Catalog().Collections(p.req.DB) {
		i := slices.IndexFunc(entries, func(e *cluster.CollectionEntry) bool { return e.NS == c.NS })
		if i >= 0 && entries[i].UUID != c.UUID {
			continue // left behind by an earlier collection
		}
		p.at.Collections = append(p.at.Collections, msg.MovedCollection{NS: c.NS, UUID: c.UUID, Sharded: i >= 0})
	}
	return nil
}

// clone creates the collections on the new primary, with the documents of those that are not sharded, and sends it the history
// of retryable writes.
func (p *movePrimary) clone(ctx context.Context, r *run) error {
	for _, c := range p.at.Collections {
		if err := p.cloneOne(ctx, r, c); err != nil {
			return err
		}
	}
	history := r.m.Sessions.History(0)
	for len(history) > 0 {
		list, mark := value.Begin(nil)
		n := 0
		for ; n < len(history) && len(list) < sessionsBatch; n++ {
			rec, err := r.m.Sessions.WithImage(history[n])
			if err != nil {
				return err
			}
			list = value.AppendIndex(list, n, value.NewDocument(rec))
		}
		history = history[n:]
		if err := r.onRecipient(ctx, p.req.To, &msg.AdoptSessions{Sessions: value.End(list, mark)}); err != nil {
			return err
		}
	}
	return nil
}

// sessionsBatch is the size of the part of the history in one message.
const sessionsBatch = 4 << 20

func (p *movePrimary) cloneOne(ctx context.Context, r *run, c msg.MovedCollection) error {
	here := r.m.Engine.Catalog().Lookup(c.NS)
	if here == nil || here.UUID != catalog.UUID(c.UUID) {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped while its database was moved", c.NS)
	}
	section := (*[16]byte)(&r.doc.id)
	if !c.Sharded {
		// Left by an interrupted run: the catalog has no entry for it there.
		if err := r.onRecipient(ctx, p.req.To, &msg.DropCollectionParticipant{NS: c.NS, FromMigrate: true, Section: section}); err != nil {
			return err
		}
	}
	made := &msg.CreateCollectionParticipant{NS: c.NS, UUID: c.UUID, Options: bytes.Clone(here.Options), Section: section}
	for _, i := range here.Indexes {
		if i.Ready && !i.IsID {
			made.Indexes = append(made.Indexes, bytes.Clone(i.Spec.Raw))
		}
	}
	if err := r.onRecipient(ctx, p.req.To, made); err != nil || c.Sharded {
		return err
	}
	return r.onRecipient(ctx, p.req.To, &msg.CloneCollection{NS: c.NS, UUID: c.UUID, From: r.m.State.ID, Section: r.doc.id})
}

// onRecipient is onShard for a shard that must exist.
func (r *run) onRecipient(ctx context.Context, id string, m msg.Message) error {
	s, err := r.m.State.Registry.Shard(ctx, id)
	if err == nil {
		_, err = cluster.RunWrite(ctx, s.Peer, r.message(m))
	}
	return err
}

// commit makes the config server set the new primary shard. If it refuses, nothing was changed; after any other error the request is repeated.
func (p *movePrimary) commit(ctx context.Context, r *run) error {
	_, err := r.onConfig(ctx, &msg.CommitMovePrimary{DB: p.req.DB, Version: p.at.Version, To: p.req.To})
	return r.decided(err, mongoerr.ShardNotFound, mongoerr.IllegalOperation)
}

// clean drops here what has moved to the new primary.
func (p *movePrimary) clean(ctx context.Context, r *run) error {
	for _, c := range p.at.Collections {
		if c.Sharded {
			continue
		}
		if err := r.m.dropHere(ctx, c.NS, c.UUID); err != nil {
			return err
		}
	}
	return nil
}

// dropHere drops a collection of this shard without an event for change streams.
func (m *Coordinators) dropHere(ctx context.Context, ns string, uuid catalog.UUID) error {
	unlock, err := m.Locks.Collection(ctx, ns, lock.X)
	if err != nil {
		return err
	}
	defer unlock()
	if c := m.Engine.Catalog().Lookup(ns); c == nil || c.UUID != uuid {
		return nil
	}
	return m.Docs.Write(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c := s.Catalog().Lookup(ns)
		if c == nil || c.UUID != uuid {
			return nil
		}
		u.SetFromMigrate()
		m.Forget(u, c)
		return u.DropCollection(c)
	})
}

// undo unblocks the database, and drops what was cloned. If the recipient holds no section of the run, it has nothing of it.
func (p *movePrimary) undo(ctx context.Context, r *run) error {
	if err := r.block(ctx, msg.Unblock, []string{r.m.State.ID}, p.req.DB); err != nil {
		return err
	}
	for _, c := range p.at.Collections {
		if c.Sharded {
			continue
		}
		err := r.onShard(ctx, p.req.To, &msg.DropCollectionParticipant{NS: c.NS, FromMigrate: true, Section: (*[16]byte)(&r.doc.id)})
		if mongoerr.CodeOf(err) == mongoerr.ConflictingOperationInProgress {
			break
		}
		if err != nil {
			return err
		}
	}
	return r.block(ctx, msg.Unblock, []string{p.req.To}, p.req.DB)
}
