package coordinator

import (
	"cmp"
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
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
func (d *drop) locks() (string, []string) { return d.req.DB, lockedWithBuckets(d.ns()) }
func (d *drop) found() msg.Message        { return &d.at }
func (d *drop) rezones() bool             { return d.at.Zones }

func (d *drop) check(ctx context.Context, r *run) (local bool, err error) {
	at, _, e, err := r.m.entryOf(ctx, d.ns())
	if err != nil {
		return false, err
	}
	if at != d.ns() {
		d.at.Buckets = at
	}
	c := r.m.Engine.Catalog().Lookup(at)
	switch {
	case e != nil:
		d.at.UUID = e.UUID
	case c != nil:
		d.at.UUID = c.UUID
	}
	if e == nil {
		zoned := r.zonedAmong(ctx, d.ns(), timeseries.BucketsOf(d.ns()))
		sampled, err := r.sampled(ctx, d.ns(), d.at.UUID)
		zones, zerr := zoned()
		if err = cmp.Or(err, zerr); err != nil {
			return false, err
		}
		d.at.Zones, d.at.Alone = len(zones) > 0, !r.hasStray(ctx, d.ns())
		if !sampled && !d.at.Zones && d.at.Alone {
			return true, nil
		}
	}
	if err := r.m.checkUUID(d.ns(), d.at.UUID, d.req.UUID); err != nil {
		return false, err
	}
	if c != nil {
		d.at.Indexes = int64(len(c.Indexes))
	}
	d.at.Shards, err = r.concerned(ctx, d.at.Alone)
	return false, err
}

// strayWait limits how long a drop asks the other shards for collections of its name that the catalog does not know of.
const strayWait = time.Second

// hasStray reports whether another shard has a collection of a name that the catalog does not place anywhere: it cannot be read, but it
// would obstruct a migration, and checkMetadataConsistency reports it. A shard that does not reply in time is passed over, since the
// drop itself does not concern it.
func (r *run) hasStray(ctx context.Context, ns string) bool {
	ctx, cancel := context.WithTimeout(ctx, strayWait)
	defer cancel()
	all, err := r.m.State.Registry.All(ctx)
	if err != nil {
		return false
	}
	db, coll := cluster.SplitNS(ns)
	list := msg.Doc(&msg.ListCollections{DB: db, Filter: value.Doc(value.F("name", value.NewString(coll)))})
	found := make(chan bool, len(all))
	for _, s := range all {
		go func() {
			if s.ID == r.m.State.ID {
				found <- false
				return
			}
			docs, err := cluster.FindAll(ctx, s.Peer, db, list)
			found <- err == nil && len(docs) > 0
		}()
	}
	stray := false
	for range all {
		stray = <-found || stray
	}
	return stray
}

// tracked returns the namespace that has the catalog's entry: that of the buckets for a time series collection.
func (d *drop) tracked() string {
	if d.at.Buckets != "" {
		return d.at.Buckets
	}
	return d.ns()
}

// names returns the namespaces of the critical sections.
func (d *drop) names() []string {
	if d.at.Buckets != "" {
		return []string{d.at.Buckets, d.ns()}
	}
	return []string{d.ns()}
}

func (d *drop) phases() []phase {
	return []phase{
		{name: "enterCriticalSection", former: []string{"freezeCollection"}, section: d.names(), shards: &d.at.Shards, alone: d.at.Alone},
		{name: "dropCollection", final: true, unstored: true, do: d.remove},
		{name: "releaseCriticalSection", final: true, unstored: true, harmless: true, do: func(ctx context.Context, r *run) error {
			return r.release(ctx, d.at.Shards, d.names()...)
		}},
	}
}

// remove drops the catalog entry and, meanwhile, the documents: all shards block the names, and this run will drop both, whatever happens. Change streams get the event from this shard's oplog.
func (d *drop) remove(ctx context.Context, r *run) error {
	gone := &msg.RemoveCollection{NS: d.tracked(), UUID: d.at.UUID, Zones: d.at.Zones}
	if run := r.name(); gone.Zones {
		gone.Run = &run
	}
	return r.commit(ctx, gone, d.at.Alone, &d.at.Shards, d.names(), func(id string) msg.Message {
		ns := d.tracked()
		if id == r.m.State.ID {
			ns = d.ns() // a time series with its view
		}
		return &msg.DropCollectionParticipant{NS: ns, FromMigrate: id != r.m.State.ID, Section: (*[16]byte)(&r.doc.id), ForGood: true}
	})
}

func (d *drop) undo(ctx context.Context, r *run) error {
	if err := r.block(ctx, msg.Unblock, d.at.Shards, d.names()...); err != nil {
		return err
	}
	return r.allowMigrations(ctx, d.tracked(), d.at.UUID, true) // a run of an earlier version may have forbidden them
}

func (d *drop) reply(dst []byte) []byte {
	dst = value.Append(dst, "nIndexesWas", value.NewInt32(int32(d.at.Indexes)))
	return value.Append(dst, "ns", value.NewString(d.ns()))
}

// allowMigrations allows or forbids migrations of a collection.
func (r *run) allowMigrations(ctx context.Context, ns string, uuid [16]byte, allow bool) error {
	defer r.awaits()()
	_, err := r.onConfig(ctx, &msg.SetAllowMigrations{NS: ns, UUID: uuid, Allow: allow, Run: r.phase()})
	return err
}
