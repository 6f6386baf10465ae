package coordinator

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
)

// drop removes a collection from all shards and the catalog.
type drop struct {
	req *msg.ShardDropCollection
	at  msg.DropFound
}

func (m *Coordinators) drop(op *command.Op, req *msg.ShardDropCollection, dst []byte) ([]byte, error) {
	return m.run(op, req, "drop", dst)
}

func (d *drop) ns() string                { return d.req.DB + "." + d.req.Coll }
func (d *drop) name() string              { return "dropCollection" }
func (d *drop) locks() (string, []string) { return d.req.DB, []string{d.ns()} }
func (d *drop) found() msg.Message        { return &d.at }

func (d *drop) check(ctx context.Context, r *run) (local bool, err error) {
	_, e, err := r.m.entry(ctx, d.ns())
	if err != nil || e == nil {
		return err == nil, err
	}
	if err := checkUUID(d.ns(), e.UUID, d.req.UUID); err != nil {
		return false, err
	}
	d.at.UUID = e.UUID
	if c := r.m.Engine.Catalog().Lookup(d.ns()); c != nil {
		d.at.Indexes = int64(len(c.Indexes))
	}
	d.at.Shards, err = r.shardIDs(ctx)
	return false, err
}

func (d *drop) phases() []phase {
	return []phase{
		{name: "freezeCollection", do: func(ctx context.Context, r *run) error {
			return r.allowMigrations(ctx, d.ns(), d.at.UUID, false)
		}},
		{name: "enterCriticalSection", do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.BlockReadsAndWrites, d.at.Shards, d.ns())
		}},
		{name: "dropCollection", final: true, do: d.remove},
		{name: "releaseCriticalSection", do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.Unblock, d.at.Shards, d.ns())
		}},
	}
}

// remove drops the catalog entry, then the documents: this shard's last, since change streams get the event from its oplog.
func (d *drop) remove(ctx context.Context, r *run) error {
	if _, err := r.onConfig(ctx, &msg.RemoveCollection{NS: d.ns(), UUID: d.at.UUID}); err != nil {
		return err
	}
	return r.onEachThenHere(ctx, d.at.Shards, func(id string) msg.Message {
		return &msg.DropCollectionParticipant{NS: d.ns(), FromMigrate: id != r.m.State.ID, Section: (*[16]byte)(&r.doc.id)}
	})
}

func (d *drop) undo(ctx context.Context, r *run) error {
	if err := r.block(ctx, msg.Unblock, d.at.Shards, d.ns()); err != nil {
		return err
	}
	return r.allowMigrations(ctx, d.ns(), d.at.UUID, true)
}

func (d *drop) reply(dst []byte) []byte {
	dst = value.Append(dst, "nIndexesWas", value.NewInt32(int32(d.at.Indexes)))
	return value.Append(dst, "ns", value.NewString(d.ns()))
}

// allowMigrations allows or forbids migrations of a collection.
func (r *run) allowMigrations(ctx context.Context, ns string, uuid [16]byte, allow bool) error {
	_, err := r.onConfig(ctx, &msg.SetAllowMigrations{NS: ns, UUID: uuid, Allow: allow, Run: r.name()})
	return err
}
