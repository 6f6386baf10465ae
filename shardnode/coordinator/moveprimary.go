package coordinator

import (
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

// movePrimary gives a database another primary shard, with the collections that are not sharded. They are cloned, and the changes made
// meanwhile are sent while clients continue to write; then writes are blocked for the rest, and reads for the commit (databasecopy.go). Of
// sharded collections the new primary gets only the definition.
type movePrimary struct {
	req     *msg.ShardMovePrimary
	at      msg.MovePrimaryFound
	history *sentHistory // nil for a primary that has sent none
}

func (m *Coordinators) movePrimary(op *command.Op, req *msg.ShardMovePrimary, dst []byte) ([]byte, error) {
	if req.To == m.State.ID {
		return dst, m.checkVersion(op, req.DB+".$cmd")
	}
	return m.run(op, req, "", dst)
}

func (p *movePrimary) name() string              { return "movePrimary" }
func (p *movePrimary) locks() (string, []string) { return p.req.DB, nil }
func (p *movePrimary) found() msg.Message        { return &p.at }
func (p *movePrimary) reply(dst []byte) []byte   { return dst }

func (p *movePrimary) check(ctx context.Context, r *run) (local bool, err error) {
	if err := r.m.State.Registry.Reload(ctx); err != nil {
		return false, err
	}
	listed := r.m.State.Registry.Topology() // before the shard: what is found may be newer
	to, err := r.m.State.Registry.Listed(ctx, p.req.To)
	if err == nil && to.ID != p.req.To { // another name of it, which the catalog must not get
		err = mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", p.req.To)
	}
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
	p.at.Version, p.at.From, p.at.Topology = db.Version.Doc(), r.m.State.ID, listed
	return false, nil
}

func (p *movePrimary) phases() []phase {
	return []phase{
		{name: "clone", do: p.clone},
		{name: "blockWrites", do: p.blockWrites},
		{name: "enterCriticalSection", do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.BlockReadsAndWrites, []string{r.m.State.ID}, p.req.DB)
		}},
		{name: "commit", do: p.commit},
		{name: "clean", final: true, event: p.event, do: p.clean},
		{name: "exitCriticalSection", opens: true, do: func(ctx context.Context, r *run) error {
			if err := r.block(ctx, msg.Unblock, []string{p.req.To, r.m.State.ID}, p.req.DB); err != nil {
				return err
			}
			return p.forget(ctx, r) // not within the section: a part that arrived late would begin the copy anew
		}},
	}
}

// event returns the event for change streams, which is logged once the new primary is chosen, before anything is written there.
func (p *movePrimary) event() event {
	return event{ns: p.req.DB + ".$cmd", doc: value.Doc(value.F("movePrimary", value.NewString(p.req.DB)), value.F("from", value.NewString(p.at.From)),
		value.F("to", value.NewString(p.req.To)))}
}

// onRecipient is onShard for a shard that must exist.
func (r *run) onRecipient(ctx context.Context, id string, m msg.Message) error {
	_, err := r.askRecipient(ctx, id, r.message(m))
	return err
}

func (r *run) askRecipient(ctx context.Context, id string, cmd []byte) ([]byte, error) {
	s, err := r.m.State.Registry.Shard(ctx, id)
	if err != nil {
		return nil, err
	}
	defer r.asks(s.Peer)()
	return cluster.RunWrite(ctx, s.Peer, cmd)
}

// onRecipient sends the new primary shard a message.
func (p *movePrimary) onRecipient(ctx context.Context, r *run, m msg.Message) error {
	_, err := p.askRecipient(ctx, r, r.message(m))
	return err
}

// askRecipient sends the new primary shard a message. If the shard does not hold the section of the run, since it is another set by now, the move fails: repeated, it would be refused for ever.
func (p *movePrimary) askRecipient(ctx context.Context, r *run, cmd []byte) ([]byte, error) {
	reply, err := r.askRecipient(ctx, p.req.To, cmd)
	if mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress || p.at.Topology == 0 {
		return reply, err
	}
	if rerr := r.m.State.Registry.Reload(ctx); rerr != nil {
		return nil, rerr
	}
	now, rerr := r.m.State.Registry.Shard(ctx, p.req.To)
	if rerr != nil {
		return nil, rerr
	}
	same, rerr := cluster.SameSet(ctx, r.m.State.Registry.Config(), now, p.at.Topology)
	switch {
	case rerr != nil:
		return nil, rerr
	case !same:
		return nil, permanent{cluster.ErrOtherSet(p.req.To)}
	}
	return nil, err
}

// commit makes the config server set the new primary shard. If it refuses, nothing was changed; after any other error the request is repeated.
func (p *movePrimary) commit(ctx context.Context, r *run) error {
	run := r.name()
	_, err := r.onConfig(ctx, &msg.CommitMovePrimary{DB: p.req.DB, Version: p.at.Version, To: p.req.To, Topology: p.at.Topology, Run: &run})
	return r.decided(err, mongoerr.ShardNotFound, mongoerr.IllegalOperation, mongoerr.NamespaceNotFound)
}

// clean drops what has moved to the new primary shard, and the definitions that only the primary shard has: those of unsharded collections
// on other shards.
func (p *movePrimary) clean(ctx context.Context, r *run) error {
	entries, err := r.m.entriesOf(ctx, p.req.DB)
	if err != nil {
		return err
	}
	for _, c := range p.at.Collections {
		if c.Sharded {
			placed := slices.ContainsFunc(entries, func(e *cluster.CollectionEntry) bool { return e.NS == c.NS && e.UUID == c.UUID && e.Unsplittable })
			if !placed {
				continue
			}
			r.m.State.Catalog.InvalidateCollection(c.NS)
			info, err := r.m.State.Catalog.Collection(ctx, c.NS)
			if err != nil {
				return err
			}
			if info.Map == nil || info.Map.UUID != c.UUID || info.Home() == r.m.State.ID {
				continue
			}
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

// undo unblocks the database, and drops what was cloned. A recipient that holds no section of the run has received nothing.
//
// It begins with a message that takes the database's lock on the config server: a commit that was sent earlier and comes after it is refused.
func (p *movePrimary) undo(ctx context.Context, r *run) error {
	run := r.name()
	_, err := r.onConfig(ctx, &msg.CommitMovePrimary{DB: p.req.DB, Version: p.at.Version, To: r.m.State.ID, Run: &run, Undo: true})
	if err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return err
	}
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
	if err := r.block(ctx, msg.Unblock, []string{p.req.To}, p.req.DB); err != nil {
		return err
	}
	return p.forget(ctx, r) // likewise
}

// forget removes what the recipient knows of the run. It refuses parts that arrive later, once the run does none (HoldsSection).
func (p *movePrimary) forget(ctx context.Context, r *run) error {
	return r.onShard(ctx, p.req.To, &msg.MovePrimaryForget{DB: p.req.DB, Section: r.doc.id})
}
