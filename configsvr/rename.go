package configsvr

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// renameJob is one renameCollection in progress whose source or target is sharded. The target is not touched
// before the source has been examined, with both names locked. Each step may be repeated: until the entries are
// swapped, a rename that is sent again finds the source and completes what an earlier one began.
type renameJob struct {
	m                        *Manager
	from, to                 string
	dropTarget               bool
	expected, expectedTarget *[16]byte // UUIDs that the client named; nil if it did not

	db             *cluster.DatabaseInfo
	ids            []string // all shards, the database's primary last
	source, target place
}

// place is what a rename finds at a name.
type place struct {
	there   bool
	view    bool
	sharded bool
	entry   []byte
	uuid    [16]byte
}

func (j *renameJob) run(ctx context.Context) error {
	fdb, _ := cluster.SplitNS(j.from)
	tdb, _ := cluster.SplitNS(j.to)
	switch {
	case fdb != tdb:
		return mongoerr.New(mongoerr.CommandFailed, "Source and destination collections must be on the same database.")
	case j.from == j.to:
		return mongoerr.New(mongoerr.IllegalOperation, "Can't rename a collection to itself")
	}
	unlock, err := j.m.ddl.lockAll(ctx, j.from, j.to)
	if err != nil {
		return err
	}
	defer unlock()
	if j.db, err = j.m.database(ctx, fdb); err != nil {
		return err
	}
	if err := j.resolve(ctx); err != nil {
		return err
	}
	if err := j.listShards(ctx); err != nil {
		return err
	}
	unblock, err := j.m.block(ctx, "renameCollection", j.ids, j.from, j.to)
	if err != nil {
		return err
	}
	defer unblock()
	if err := j.carryOut(ctx); err != nil {
		return err
	}
	j.m.refreshShards(ctx, j.from, j.ids)
	j.m.refreshShards(ctx, j.to, j.ids)
	j.m.log(ctx, "renameCollection", j.from, doc(fld("to", str(j.to))))
	return nil
}

// find returns what exists under a name: an entry of the catalog, or what the database's primary shard has.
func (j *renameJob) find(ctx context.Context, ns string) (p place, err error) {
	raw, e, err := j.m.entry(ctx, ns)
	if err != nil {
		return p, err
	}
	if e != nil {
		return place{there: true, sharded: true, entry: raw, uuid: e.UUID}, nil
	}
	_, coll := cluster.SplitNS(ns)
	listed, err := j.m.findOn(ctx, j.db, fld("listCollections", value.NewInt32(1)), fld("filter", doc(fld("name", str(coll)))))
	if err != nil || len(listed) == 0 {
		return p, err
	}
	p.there, p.view = true, value.Lookup(listed[0], "type").Str() != "collection"
	copy(p.uuid[:], value.Lookup(value.Lookup(listed[0], "info").Doc(), "uuid").Bytes())
	return p, nil
}

// resolve finds source and target, and returns an error if the rename is not possible.
func (j *renameJob) resolve(ctx context.Context) (err error) {
	if j.source, err = j.find(ctx, j.from); err != nil {
		return err
	}
	switch {
	case !j.source.there:
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "Source collection %s does not exist", j.from)
	case j.source.view:
		return mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "cannot rename view: %s", j.from)
	}
	if err := checkUUID(j.from, j.source.uuid, j.expected); err != nil {
		return err
	}
	if j.target, err = j.find(ctx, j.to); err != nil {
		return err
	}
	if j.target.uuid == j.source.uuid {
		j.target = place{} // the source itself, as an interrupted rename left it on the primary shard
	}
	switch {
	case j.target.view:
		return mongoerr.Newf(mongoerr.NamespaceExists, "a view already exists with that name: %s", j.to)
	case j.target.there && !j.dropTarget:
		return mongoerr.New(mongoerr.NamespaceExists, "target namespace exists")
	}
	return checkUUID(j.to, j.target.uuid, j.expectedTarget)
}

func (j *renameJob) listShards(ctx context.Context) error {
	ids, err := j.m.shardIDs(ctx)
	for _, id := range ids {
		if id != j.db.Primary {
			j.ids = append(j.ids, id)
		}
	}
	j.ids = append(j.ids, j.db.Primary)
	return err
}

// carryOut renames on the shards, then in the catalog. A source that is not sharded is on the primary shard alone: the entry
// of its target has to be gone before it takes the name.
func (j *renameJob) carryOut(ctx context.Context) error {
	others, primary := j.ids[:len(j.ids)-1], j.db.Primary
	for _, id := range others {
		if err := j.onParticipant(ctx, id); err != nil {
			return err
		}
	}
	if j.source.sharded {
		if err := j.onParticipant(ctx, primary); err != nil {
			return err
		}
		return j.renameEntry(ctx)
	}
	if err := j.m.forget(ctx, j.to, j.target.uuid); err != nil {
		return err
	}
	return j.onParticipant(ctx, primary)
}

func (j *renameJob) onParticipant(ctx context.Context, id string) error {
	_, err := j.m.onShard(ctx, id, &msg.RenameCollectionParticipant{NS: j.from, To: j.to, UUID: j.source.uuid, FromMigrate: id != j.db.Primary})
	return err
}

// renameEntry swaps the entries, with the zones.
func (j *renameJob) renameEntry(ctx context.Context) error {
	entry := withField(j.source.entry, "_id", str(j.to))
	for i := range entry {
		if entry[i].Key == "timestamp" {
			entry[i].Val = value.NewTimestampU64(j.m.tick())
		}
	}
	w := &catalogWrites{m: j.m}
	w.entries = msg.Changes{Delete: []value.Value{str(j.from)}, Put: [][]byte{value.Doc(entry...)}}
	if err := w.dropZones(ctx, j.to); err != nil {
		return err
	}
	if err := w.moveZones(ctx, j.from, j.to); err != nil {
		return err
	}
	if err := w.commit(ctx); err != nil {
		return err
	}
	if !j.target.sharded {
		return nil
	}
	return j.m.removeChunks(ctx, j.target.uuid)
}
