package coordinator

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// convert makes a collection capped. For one without an entry in the catalog this shard runs the client's command. One that moveCollection or
// unshardCollection has placed is replaced by a copy with a new UUID on its shard, on this one, which has its definition, and in the catalog.
type convert struct {
	req *msg.ShardConvertToCapped
	at  msg.ConvertFound
}

func (m *Coordinators) convertToCapped(op *command.Op, req *msg.ShardConvertToCapped, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

func (v *convert) ns() string                { return v.req.DB + "." + v.req.Coll }
func (v *convert) name() string              { return "convertToCapped" }
func (v *convert) locks() (string, []string) { return v.req.DB, lockedWithBuckets(v.ns()) }
func (v *convert) found() msg.Message        { return &v.at }
func (v *convert) clientCommand() []byte     { return v.req.Command }
func (v *convert) reply(dst []byte) []byte   { return dst }

// check finds the shard of the collection, and has it check the command.
func (v *convert) check(ctx context.Context, r *run) (local bool, err error) {
	at, _, e, err := r.m.entryOf(ctx, v.ns())
	switch {
	case err != nil:
		return false, err
	case e == nil:
		return true, nil
	case at != v.ns(): // as the command refuses a time series that has no entry
		return false, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "cloneCollectionAsCapped not supported for views: %s", v.ns())
	case !e.Unsplittable:
		return false, mongoerr.New(mongoerr.IllegalOperation, "You can't convertToCapped a sharded collection")
	}
	r.m.State.Catalog.InvalidateCollection(at)
	info, err := r.m.State.Catalog.Collection(ctx, at)
	if err != nil {
		return false, err
	}
	if info.Map == nil || info.Sharded() || info.Map.UUID != e.UUID {
		return false, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the placement of %s is changing", at)
	}
	v.at = msg.ConvertFound{UUID: e.UUID, NewUUID: catalog.UUID(cluster.NewUUID()), NewEpoch: cluster.NewObjectID(), Home: info.Home()}
	if v.at.Shards, err = r.shardIDs(ctx); err != nil {
		return false, err
	}
	f := &forward{kind: v.name(), req: &v.req.ShardCommand, at: msg.ForwardFound{UUID: e.UUID}}
	return false, r.onRecipient(ctx, v.at.Home, &msg.CheckCommand{ShardCommand: msg.ShardCommand{DB: v.req.DB, Coll: v.req.Coll, Command: f.command(nil)}})
}

func (v *convert) phases() []phase {
	return []phase{
		{name: "acquireCriticalSection", section: []string{v.ns()}, shards: &v.at.Shards},
		{name: "copyCollection", do: v.copy},
		{name: "convertCollection", final: true, do: v.carryOut},
		{name: "releaseCriticalSection", harmless: true, do: v.release},
	}
}

// copy makes the copies. There may be no room for them; once convertCollection begins, which needs none, the operation can only be completed.
func (v *convert) copy(ctx context.Context, r *run) error {
	return r.onEach(ctx, v.at.Shards, func(id string) msg.Message {
		m := v.participant(r, id)
		m.Copy = true
		return m
	})
}

func (v *convert) participant(r *run, id string) *msg.ConvertToCappedParticipant {
	return &msg.ConvertToCappedParticipant{
		NS: v.ns(), UUID: v.at.UUID, NewUUID: v.at.NewUUID, Size: value.Lookup(v.req.Command, "size"), FromMigrate: id != v.at.Home, Section: r.doc.id,
	}
}

// carryOut replaces the collection on the shards that have it, then in the catalog. The critical section blocks readers meanwhile.
func (v *convert) carryOut(ctx context.Context, r *run) error {
	if err := r.onEach(ctx, v.at.Shards, func(id string) msg.Message { return v.participant(r, id) }); err != nil {
		return err
	}
	_, err := r.onConfig(ctx, &msg.ReplaceUnsplittable{NS: v.ns(), UUID: v.at.UUID, NewUUID: v.at.NewUUID, NewEpoch: v.at.NewEpoch})
	return err
}

// release ends the critical section.
func (v *convert) release(ctx context.Context, r *run) error {
	return r.block(ctx, msg.Unblock, v.at.Shards, v.ns())
}

// undo ends the critical section, and then drops the copies: a message that comes later and would make one is refused.
func (v *convert) undo(ctx context.Context, r *run) error {
	if err := v.release(ctx, r); err != nil {
		return err
	}
	return r.onEach(ctx, v.at.Shards, func(id string) msg.Message {
		m := v.participant(r, id)
		m.Discard = true
		return m
	})
}
