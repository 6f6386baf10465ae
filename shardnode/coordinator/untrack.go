package coordinator

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// untrack removes the entry of a collection that is not sharded from the catalog. The collection has to be on this shard, to which routers send
// requests for collections without an entry.
type untrack struct {
	req *msg.ShardUntrack
	at  msg.UntrackFound
}

func (m *Coordinators) untrack(op *command.Op, req *msg.ShardUntrack, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

func (u *untrack) name() string { return "untrackUnsplittableCollection" }
func (u *untrack) locks() (string, []string) {
	return catalog.DBOf(u.req.NS), lockedWithBuckets(u.req.NS)
}
func (u *untrack) found() msg.Message      { return &u.at }
func (u *untrack) reply(dst []byte) []byte { return dst }

func (u *untrack) check(ctx context.Context, r *run) (local bool, err error) {
	at, _, e, err := r.m.entryOf(ctx, u.req.NS)
	if err != nil {
		return false, err
	}
	if e == nil {
		return false, errAlreadyDone
	}
	if !e.Unsplittable {
		return false, mongoerr.Newf(mongoerr.IllegalOperation, "collection %s is sharded and cannot be untracked", u.req.NS)
	}
	if u.at.UUID, u.at.Buckets = e.UUID, ""; at != u.req.NS {
		u.at.Buckets = at
	}
	r.m.State.Catalog.InvalidateCollection(at)
	info, err := r.m.State.Catalog.Collection(ctx, at)
	if err != nil {
		return false, err
	}
	c := r.m.Engine.Catalog().Lookup(at)
	if info.Home() != r.m.State.ID || c == nil || c.UUID != catalog.UUID(e.UUID) {
		return false, mongoerr.Newf(mongoerr.IllegalOperation, "collection %s is on shard %s and cannot be untracked unless it is on the primary shard of its database, %s", u.req.NS, info.Home(), r.m.State.ID)
	}
	u.at.Shards, err = r.shardIDs(ctx)
	return false, err
}

// names returns the namespaces of the critical sections, first that of the catalog's entry: of a time series collection those are its buckets'.
func (u *untrack) names() []string {
	if u.at.Buckets != "" {
		return []string{u.at.Buckets, u.req.NS}
	}
	return []string{u.req.NS}
}

func (u *untrack) phases() []phase {
	return []phase{
		{name: "enterCriticalSection", section: u.names(), shards: &u.at.Shards},
		{name: "commit", final: true, do: func(ctx context.Context, r *run) error {
			run := r.name()
			if _, err := r.onConfig(ctx, &msg.RemoveCollection{NS: u.names()[0], UUID: u.at.UUID, Untrack: true, Run: &run}); err != nil {
				return err
			}
			// Other shards may still have a definition from when they were the primary shard, or had the collection.
			return r.onEach(ctx, u.at.Shards[:len(u.at.Shards)-1], func(string) msg.Message {
				return &msg.DropCollectionParticipant{NS: u.names()[0], FromMigrate: true, Section: (*[16]byte)(&r.doc.id)}
			})
		}},
		{name: "exitCriticalSection", harmless: true, do: u.undo},
	}
}

// undo ends the critical section, the only thing to revert before the commit.
func (u *untrack) undo(ctx context.Context, r *run) error {
	return r.block(ctx, msg.Unblock, u.at.Shards, u.names()...)
}
