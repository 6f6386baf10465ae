package coordinator

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// rename renames a collection on all shards and in the catalog, replacing a target that is dropped.
type rename struct {
	req    *msg.ShardRename
	at     msg.RenameFound
	target namespace.Target // of an $out
}

func (m *Coordinators) rename(op *command.Op, req *msg.ShardRename, dst []byte) ([]byte, error) {
	if err := command.CheckRename(req.NS, req.To); err != nil {
		return dst, err
	}
	return m.run(op, req, "renameCollection", dst)
}

func (n *rename) name() string { return "renameCollection" }
func (n *rename) locks() (string, []string) {
	return catalog.DBOf(n.req.NS), []string{n.req.NS, n.req.To}
}
func (n *rename) found() msg.Message      { return &n.at }
func (n *rename) reply(dst []byte) []byte { return dst }
func (n *rename) rezones() bool           { return n.at.RenamedZones != (msg.RenamedZones{}) }

// place describes what exists under a name.
type place struct {
	there, view bool
	tracked     bool // it has an entry in the catalog
	sharded     bool // it is sharded, not merely tracked
	uuid        [16]byte
}

func (m *Coordinators) place(ctx context.Context, ns string) (p place, err error) {
	_, e, err := m.entry(ctx, ns)
	if err != nil {
		return p, err
	}
	if e != nil {
		return place{there: true, tracked: true, sharded: !e.Unsplittable, uuid: e.UUID}, nil
	}
	s := m.Engine.Snapshot()
	defer s.Release()
	if c := s.Catalog().Lookup(ns); c != nil {
		return place{there: true, uuid: c.UUID}, nil
	}
	v, err := namespace.ViewIn(s, ns)
	return place{there: v != nil, view: v != nil}, err
}

// check finds source and target, and returns an error if the rename is not possible. If neither is tracked in the catalog, only this shard is concerned.
func (n *rename) check(ctx context.Context, r *run) (local bool, err error) {
	from, to := n.req.NS, n.req.To
	source, err := r.m.place(ctx, from)
	if err == nil && source.sharded {
		err = command.CheckShardedNamespace(to)
	}
	if err != nil {
		return false, err
	}
	if _, series := r.m.seriesAt(from); series {
		return false, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "cannot rename view: %s", from)
	}
	target, err := r.m.place(ctx, to)
	if err != nil {
		return false, err
	}
	if err := n.onSameShard(ctx, r); err != nil {
		return false, err
	}
	if err := n.checkOut(ctx, r); err != nil {
		return false, err
	}
	across := catalog.DBOf(from) != catalog.DBOf(to)
	if !source.tracked {
		local, err := n.checkUntracked(ctx, r, source, target, across)
		if local || err != nil {
			return local, err
		}
	}
	if across {
		return false, mongoerr.New(mongoerr.CommandFailed, "Source and destination collections must be on the same database.")
	}
	if err := n.admits(r.m, source, target); err != nil {
		return false, err
	}
	n.at.UUID, n.at.Sharded = source.uuid, source.tracked
	if target.there {
		n.at.Target = &target.uuid
	}
	n.at.Alone = !source.tracked && !target.tracked
	n.at.Shards, err = r.concerned(ctx, n.at.Alone)
	return false, err
}

// checkUntracked is check for a source without an entry. If the target has none either, this shard renames it alone, unless the config server has
// something about them.
func (n *rename) checkUntracked(ctx context.Context, r *run, source, target place, across bool) (local bool, err error) {
	zoned := r.zonedAmong(ctx, n.req.NS, n.req.To)
	sampled := false
	if !target.tracked {
		sampled, err = n.sampled(ctx, r, source, target)
	}
	zones, zerr := zoned()
	if err = cmp.Or(err, zerr); err != nil || target.tracked && across {
		return false, err // the latter is refused
	}
	n.at.RenamedZones = n.sourceZones(zones, target)
	switch {
	case target.tracked:
		return false, nil
	case !sampled && !n.rezones():
		return true, nil
	case !across:
		return false, nil
	case n.admits(r.m, source, target) != nil:
		return true, nil // the command reports it
	}
	// The command copies the collection: sampling ends before it, and a run renames zones after it (follows).
	if err := n.stopSampling(ctx, r, source, target); err != nil {
		return false, err
	}
	n.at.UUID, n.at.Shards, n.at.Alone = source.uuid, []string{r.m.State.ID}, true
	n.at.Copied = n.rezones()
	return true, nil
}

// checkOut checks that the target of an $out is as the router has found it.
func (n *rename) checkOut(ctx context.Context, r *run) error {
	if !n.req.Out {
		return nil
	}
	to := n.req.To
	if at, _, e, err := r.m.entryOf(ctx, to); err != nil {
		return err
	} else if e != nil && !e.Unsplittable {
		return mongoerr.Newf(mongoerr.NamespaceCannotBeSharded, "%s cannot be sharded", to)
	} else if e != nil && at != to {
		return namespace.TargetChanged(to, "it was made a time series collection")
	}
	n.target = namespace.TargetOf(r.m.Engine.Catalog().Lookup(to))
	db, coll := catalog.DBOf(to), catalog.CollOf(to)
	list, err := r.findAt(ctx, r.m.State.ID, to, msg.Doc(&msg.ListCollections{DB: db, Filter: value.Doc(value.F("name", value.NewString(coll)))}))
	switch {
	case err != nil:
		return err
	case len(list) == 0:
		if n.req.Indexes != nil {
			return namespace.TargetChanged(to, "it was dropped")
		}
		return nil
	case n.req.Indexes == nil:
		return namespace.TargetChanged(to, "it was created")
	case !bytes.Equal(value.LookupDoc(list[0], "options"), n.req.Options):
		return namespace.TargetChanged(to, "its options were changed")
	}
	indexes, err := r.findAt(ctx, r.m.State.ID, to, msg.Doc(&msg.ListIndexes{DB: db, Coll: coll}))
	if err == nil && !slices.EqualFunc(indexes, n.req.Indexes, bytes.Equal) {
		err = namespace.TargetChanged(to, "its indexes were changed")
	}
	return err
}

// prepare has the client's command, which this shard runs alone, repeat the check under its own locks: indexes of a collection without an
// entry are created without the DDL lock.
func (n *rename) prepare(in *command.Op) {
	if n.req.Out {
		namespace.ExpectTarget(in, n.target)
	}
}

// onSameShard checks that the target's database has the same primary shard; the router's request has no version for it.
func (n *rename) onSameShard(ctx context.Context, r *run) error {
	db := catalog.DBOf(n.req.To)
	if db == catalog.DBOf(n.req.NS) {
		return nil
	}
	r.m.State.Catalog.InvalidateDatabase(db)
	info, err := r.m.State.Catalog.Database(ctx, db)
	if err == nil && info.Primary != r.m.State.ID {
		err = mongoerr.New(mongoerr.CommandFailed, "Source and destination collections must be on same shard")
	}
	return err
}

func (n *rename) admits(m *Coordinators, source, target place) error {
	from, to := n.req.NS, n.req.To
	drop, expected, err := parseDropTarget(n.req.DropTarget)
	if err != nil {
		return err
	}
	if err := m.checkUUID(from, source.uuid, n.req.UUID); err != nil { // first of all, as on a lone member
		return err
	}
	if err := m.checkUUID(to, target.uuid, expected); err != nil {
		return err
	}
	switch {
	case from == to:
		return mongoerr.New(mongoerr.IllegalOperation, "Can't rename a collection to itself")
	case !source.there:
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "Source collection %s does not exist", from)
	case source.view:
		return mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "cannot rename view: %s", from)
	case target.view:
		return mongoerr.Newf(mongoerr.NamespaceExists, "a view already exists with that name: %s", to)
	case target.there && !drop:
		return errTargetExists
	}
	return nil
}

var errTargetExists = mongoerr.New(mongoerr.NamespaceExists, "target namespace exists")

// parseDropTarget reads dropTarget: a flag, or the UUID of the target.
func parseDropTarget(v value.Value) (drop bool, uuid *[16]byte, err error) {
	switch v.T {
	case value.Missing:
		return false, nil, nil
	case value.Boolean:
		return v.Bool(), nil, nil
	case value.Binary:
		id, ok := catalog.UUIDFrom(v)
		if !ok {
			return false, nil, mongoerr.New(mongoerr.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
		}
		return true, (*[16]byte)(&id), nil
	}
	return false, nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'renameCollection.dropTarget' is the wrong type '%s', expected types '[bool, binData]'", v.T.Name())
}

// names returns the namespaces of the critical sections.
func (n *rename) names() []string { return []string{n.req.NS, n.req.To} }

func (n *rename) phases() []phase {
	all := []phase{
		{name: "blockCrudAndRename", former: []string{"freezeMigrations"}, section: n.names(), shards: &n.at.Shards, alone: n.at.Alone},
		{name: "renameMetadata", final: true, unstored: !n.at.Copied, do: n.carryOut},
		{name: "unblockCRUD", final: true, unstored: true, harmless: true, do: func(ctx context.Context, r *run) error {
			return r.release(ctx, n.at.Shards, n.names()...)
		}},
	}
	if n.at.Copied { // the collection is renamed; the document is stored once more, so that the copy is durable before its zones are renamed
		return all[1:2]
	}
	return all
}

// carryOut renames in the catalog and on all shards. Change streams get the event from this one's oplog.
//
// Invariant: a write under the new name has a later time than the event. No shard lets anybody in before all have done their parts, and the messages by which the sections end carry the time.
func (n *rename) carryOut(ctx context.Context, r *run) error {
	if n.at.Copied {
		return n.renameZones(ctx, r)
	}
	run := r.name()
	entry := &msg.RenameMetadata{NS: n.req.NS, To: n.req.To, UUID: n.at.UUID, Sharded: n.at.Sharded, Target: n.at.Target, RenamedZones: n.at.RenamedZones, Run: &run}
	return r.commit(ctx, entry, n.at.Alone, &n.at.Shards, n.names(), func(id string) msg.Message {
		return &msg.RenameCollectionParticipant{NS: n.req.NS, To: n.req.To, UUID: n.at.UUID, StayTemp: n.req.StayTemp, FromMigrate: id != r.m.State.ID, Section: r.doc.id, ForGood: true}
	})
}

// sampled reports whether queries of the source or the target are sampled.
func (n *rename) sampled(ctx context.Context, r *run, source, target place) (bool, error) {
	one, err := r.sampled(ctx, n.req.NS, source.uuid)
	if err != nil {
		return false, err
	}
	other, err := r.sampled(ctx, n.req.To, target.uuid)
	return one || other, err
}

// stopSampling ends the sampling of source and target at once.
func (n *rename) stopSampling(ctx context.Context, r *run, source, target place) error {
	if err := r.stopSampling(ctx, n.req.NS, value.NewBinary(4, source.uuid[:])); err != nil {
		return err
	}
	return r.stopSampling(ctx, n.req.To, value.NewBinary(4, target.uuid[:]))
}

func (n *rename) undo(ctx context.Context, r *run) error {
	if err := r.block(ctx, msg.Unblock, n.at.Shards, n.names()...); err != nil {
		return err
	}
	err := r.allowMigrations(ctx, n.req.NS, n.at.UUID, true) // a run of an earlier version may have forbidden them
	if err == nil && n.at.Target != nil {
		err = r.allowMigrations(ctx, n.req.To, *n.at.Target, true)
	}
	return err
}
