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

// refine gives a sharded collection a shard key with more fields. No document moves, and reads continue; writes are blocked from the
// check of the indexes to the commit, because a document with an array in a new field would belong to no chunk.
type refine struct {
	req *msg.ShardRefine
	at  msg.RefineFound
}

func (m *Coordinators) refine(op *command.Op, req *msg.ShardRefine, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

func (f *refine) name() string { return "refineCollectionShardKey" }
func (f *refine) locks() (string, []string) {
	return catalog.DBOf(f.req.NS), lockedWithBuckets(f.req.NS)
}
func (f *refine) found() msg.Message      { return &f.at }
func (f *refine) reply(dst []byte) []byte { return dst }

// ns returns the namespace whose key is refined: that of the buckets for a time series collection.
func (f *refine) ns() string {
	if f.at.Buckets != "" {
		return f.at.Buckets
	}
	return f.req.NS
}

// key returns the new key in terms of the documents that are stored.
func (f *refine) key() []byte {
	if f.at.Buckets != "" {
		return f.at.BucketKey
	}
	return f.req.Key
}

func (f *refine) check(ctx context.Context, r *run) (local bool, err error) {
	ns := f.req.NS
	at, raw, e, err := r.m.entryOf(ctx, ns)
	if err != nil {
		return false, err
	}
	f.at = msg.RefineFound{}
	if t, there := r.m.seriesAt(ns); there && at != ns {
		f.at.Buckets = at
		if f.at.BucketKey, err = seriesKey(t.Options, f.req.Key); err != nil {
			return false, err
		}
	}
	if e == nil || value.Lookup(raw, "unsplittable").Truthy() {
		return false, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", ns)
	}
	key, err := cluster.ParseShardKey(f.key())
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
	f.at.UUID, f.at.Key, f.at.Unique, f.at.Epoch, f.at.NewEpoch = e.UUID, e.Key.Doc(), e.Unique, e.Generation.Epoch, cluster.NewObjectID()
	if f.at.Shards, err = r.shardIDs(ctx); err != nil {
		return false, err
	}
	return false, f.ask(ctx, r, false)
}

func (f *refine) phases() []phase {
	return []phase{
		{name: "freezeMigrations", do: func(ctx context.Context, r *run) error {
			return r.allowMigrations(ctx, f.ns(), f.at.UUID, false)
		}},
		{name: "blockCrud", section: []string{f.ns()}, shards: &f.at.Shards, blocks: msg.BlockWrites},
		{name: "remoteIndexValidation", do: f.validate},
		{name: "commit", do: f.commit},
		{name: "releaseCritSec", final: true, event: f.event, do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.Unblock, f.at.Shards, f.ns())
		}},
		{name: "resumeMigrations", harmless: true, do: func(ctx context.Context, r *run) error {
			return r.allowMigrations(ctx, f.ns(), f.at.UUID, true)
		}},
	}
}

// validate makes every shard that owns chunks compare its indexes with the key, once no index can be dropped.
func (f *refine) validate(ctx context.Context, r *run) error { return f.ask(ctx, r, true) }

// ask is validate. Before the run exists nothing depends on a shard's being certain, for which it may have to wait.
func (f *refine) ask(ctx context.Context, r *run, certain bool) error {
	r.m.State.Catalog.InvalidateCollection(f.ns())
	info, err := r.m.State.Catalog.Collection(ctx, f.ns())
	if err != nil {
		return err
	}
	return r.onEach(ctx, info.Shards(), func(string) msg.Message {
		return &msg.ValidateShardKey{NS: f.ns(), UUID: f.at.UUID, Key: f.key(), Unique: f.at.Unique, Enforce: f.req.Enforce, Confirm: certain}
	})
}

// commit makes the config server write the key with a new epoch, and the bounds of chunks and zones with the new fields.
func (f *refine) commit(ctx context.Context, r *run) error {
	_, err := r.onConfig(ctx, &msg.CommitRefine{NS: f.ns(), UUID: f.at.UUID, Key: f.key(), Epoch: f.at.Epoch, NewEpoch: f.at.NewEpoch, Run: r.name()})
	return r.decided(err, mongoerr.StaleEpoch)
}

func (f *refine) event() event {
	return event{ns: f.ns(), uuid: f.at.UUID, doc: value.Doc(
		value.F("refineCollectionShardKey", value.NewString(f.ns())), value.F("shardKey", value.NewDocument(f.key())),
		value.F("oldShardKey", value.NewDocument(f.at.Key)))}
}

func (f *refine) undo(ctx context.Context, r *run) error {
	if err := r.block(ctx, msg.Unblock, f.at.Shards, f.ns()); err != nil {
		return err
	}
	return r.allowMigrations(ctx, f.ns(), f.at.UUID, true)
}
