package coordinator

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// dropDatabase removes a database with its contents from all shards and the catalog.
type dropDatabase struct {
	req *msg.ShardDropDatabase
	at  msg.DropDatabaseFound
	// repeated means that the database may have been removed from the catalog before.
	repeated bool
}

func (m *Coordinators) dropDatabase(op *command.Op, req *msg.ShardDropDatabase, dst []byte) ([]byte, error) {
	return m.run(op, req, "dropDatabase", dst)
}

func (d *dropDatabase) name() string              { return "dropDatabase" }
func (d *dropDatabase) locks() (string, []string) { return d.req.DB, nil }
func (d *dropDatabase) found() msg.Message        { return &d.at }
func (d *dropDatabase) reply(dst []byte) []byte   { return dst }

func (d *dropDatabase) check(ctx context.Context, r *run) (local bool, err error) {
	m := r.m
	m.State.Catalog.InvalidateDatabase(d.req.DB)
	db, err := m.State.Catalog.Database(ctx, d.req.DB)
	if err != nil {
		return false, err
	}
	d.at.Version = db.Version.UUID
	entries, err := m.entriesOf(ctx, d.req.DB)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		d.at.Collections = append(d.at.Collections, msg.Tracked{NS: e.NS, UUID: e.UUID})
	}
	d.at.Shards, err = r.shardIDs(ctx)
	return false, err
}

func (d *dropDatabase) phases() []phase {
	return []phase{
		{name: "freezeCollections", do: func(ctx context.Context, r *run) error { return d.allowMigrations(ctx, r, false) }},
		{name: "enterCriticalSection", section: []string{d.req.DB}, shards: &d.at.Shards},
		{name: "dropDatabase", final: true, opens: true, do: d.remove},
		{name: "releaseCriticalSection", do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.Unblock, d.at.Shards, d.req.DB)
		}},
	}
}

func (d *dropDatabase) allowMigrations(ctx context.Context, r *run, allow bool) error {
	for _, c := range d.at.Collections {
		if err := r.allowMigrations(ctx, c.NS, c.UUID, allow); err != nil {
			return err
		}
	}
	return nil
}

// remove drops the entries of the collections, the documents (this shard's last, since change streams get the event from its
// oplog), and the entry of the database.
//
// Hazard: when that is repeated, the database may have gone and another one of its name have come, on a shard that has joined since. All documents of the former one have gone before its entry.
func (d *dropDatabase) remove(ctx context.Context, r *run) error {
	if d.repeated || r.continued {
		if gone, err := d.gone(ctx, r); err != nil || gone {
			return err
		}
	}
	d.repeated = true
	for _, c := range d.at.Collections {
		if _, err := r.onConfig(ctx, &msg.RemoveCollection{NS: c.NS, UUID: c.UUID}); err != nil {
			return err
		}
	}
	err := r.onEachThenHere(ctx, d.at.Shards, func(id string) msg.Message {
		return &msg.DropDatabaseParticipant{DB: d.req.DB, FromMigrate: id != r.m.State.ID, Section: (*[16]byte)(&r.doc.id)}
	})
	if err != nil {
		return err
	}
	_, err = r.onConfig(ctx, &msg.RemoveDatabase{DB: d.req.DB, Version: d.at.Version})
	return err
}

// gone reports whether the catalog no longer has the database, or has another one of its name.
func (d *dropDatabase) gone(ctx context.Context, r *run) (bool, error) {
	docs, err := r.m.readCatalog(ctx, "databases", value.Doc(value.F("_id", value.NewString(d.req.DB))))
	if err != nil || len(docs) == 0 {
		return err == nil, err
	}
	id, _ := catalog.UUIDFrom(value.Lookup(value.LookupDoc(docs[0], "version"), "uuid"))
	return id != catalog.UUID(d.at.Version), nil
}

func (d *dropDatabase) undo(ctx context.Context, r *run) error {
	if err := r.block(ctx, msg.Unblock, d.at.Shards, d.req.DB); err != nil {
		return err
	}
	return d.allowMigrations(ctx, r, true)
}
