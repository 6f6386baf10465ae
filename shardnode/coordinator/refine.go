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

// refine gives a sharded collection a shard key with more fields. No document moves, and reads go on; writes are blocked from the
// check of the indexes to the commit, because a document with an array in a new field would belong to no chunk.
type refine struct {
	req *msg.ShardRefine
	at  msg.RefineFound
}

func (m *Coordinators) refine(op *command.Op, req *msg.ShardRefine, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

func (f *refine) name() string              { return "refineCollectionShardKey" }
func (f *refine) locks() (string, []string) { return catalog.DBOf(f.req.NS), []string{f.req.NS} }
func (f *refine) found() msg.Message        { return &f.at }
func (f *refine) reply(dst []byte) []byte   { return dst }

func (f *refine) check(ctx context.Context, r *run) (local bool, err error) {
	ns := f.req.NS
	raw, e, err := r.m.entry(ctx, ns)
	if err != nil {
		return false, err
	}
	if e == nil || value.Lookup(raw, "unsplittable").Truthy() {
		return false, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", ns)
	}
	key, err := cluster.ParseShardKey(f.req.Key)
	if err != nil {
		return false, err
	}
	if value.CompareDocs(key.Doc(), e.Key.Doc(), nil) == 0 {
		return false, errAlreadyDone
	}
	if !e.Key.ExtendedBy(key) {
		return false, mongoerr.Newf(mongoerr.InvalidOptions, "the shard key %s does not extend the shard key %s of %s", value.ShowDoc(key.Doc()), value.ShowDoc(e.Key.Doc()), ns)
	}
	if e.Unique && key.IsHashed() {
		return false, mongoerr.New(mongoerr.InvalidOptions, "Hashed shard keys cannot be declared unique. It's possible to ensure uniqueness on the hashed field by declaring an additional (non-hashed) unique index on the field.")
	}
	f.at = msg.RefineFound{UUID: e.UUID, Key: e.Key.Doc(), Unique: e.Unique, Epoch: e.Generation.Epoch, NewEpoch: cluster.NewObjectID()}
	if f.at.Shards, err = r.shardIDs(ctx); err != nil {
		return false, err
	}
	return false, f.validate(ctx, r)
}

func (f *refine) phases() []phase {
	return []phase{
		{name: "freezeMigrations", do: func(ctx context.Context, r *run) error {
			return r.allowMigrations(ctx, f.req.NS, f.at.UUID, false)
		}},
		{name: "blockCrud", do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.BlockWrites, f.at.Shards, f.req.NS)
		}},
		{name: "remoteIndexValidation", do: f.validate},
		{name: "commit", do: f.commit},
		{name: "releaseCritSec", final: true, event: f.event, do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.Unblock, f.at.Shards, f.req.NS)
		}},
		{name: "resumeMigrations", do: func(ctx context.Context, r *run) error {
			return r.allowMigrations(ctx, f.req.NS, f.at.UUID, true)
		}},
	}
}

// validate has every shard that owns chunks compare its indexes with the key.
func (f *refine) validate(ctx context.Context, r *run) error {
	r.m.State.Catalog.InvalidateCollection(f.req.NS)
	info, err := r.m.State.Catalog.Collection(ctx, f.req.NS)
	if err != nil {
		return err
	}
	return r.onEach(ctx, info.Shards(), func(string) msg.Message {
		return &msg.ValidateShardKey{NS: f.req.NS, UUID: f.at.UUID, Key: f.req.Key, Unique: f.at.Unique, Enforce: f.req.Enforce}
	})
}

// commit has the config server write the key with a new epoch, and the bounds of chunks and zones with the new fields.
func (f *refine) commit(ctx context.Context, r *run) error {
	_, err := r.onConfig(ctx, &msg.CommitRefine{NS: f.req.NS, UUID: f.at.UUID, Key: f.req.Key, Epoch: f.at.Epoch, NewEpoch: f.at.NewEpoch, Run: r.name()})
	return r.decided(err, mongoerr.StaleEpoch)
}

func (f *refine) event() event {
	return event{ns: f.req.NS, uuid: f.at.UUID, doc: value.Doc(
		value.F("refineCollectionShardKey", value.NewString(f.req.NS)), value.F("shardKey", value.NewDocument(f.req.Key)),
		value.F("oldShardKey", value.NewDocument(f.at.Key)))}
}

func (f *refine) undo(ctx context.Context, r *run) error {
	if err := r.block(ctx, msg.Unblock, f.at.Shards, f.req.NS); err != nil {
		return err
	}
	return r.allowMigrations(ctx, f.req.NS, f.at.UUID, true)
}
