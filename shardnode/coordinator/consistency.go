package coordinator

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/consistency"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// runCheckConsistency compares the catalog's entries of a database, or of one of its collections, with the shards' collections, while no DDL
// of this shard changes them.
func (m *Coordinators) runCheckConsistency(op *command.Op, req *msg.CheckConsistency, dst []byte) ([]byte, error) {
	wait := lockWait
	if req.LockMS != nil {
		wait = time.Duration(*req.LockMS) * time.Millisecond
	}
	names := []lockedName{{lock.Resource{Kind: lock.DDLDatabase, Name: req.DB}, lock.S}}
	ns := req.DB + ".$cmd"
	if req.Coll != "" {
		ns = req.DB + "." + req.Coll
		names = []lockedName{{lock.Resource{Kind: lock.DDLDatabase, Name: req.DB}, lock.IS}}
		for _, coll := range slices.Sorted(slices.Values(lockedWithBuckets(ns))) {
			names = append(names, lockedName{lock.Resource{Kind: lock.DDLCollection, Name: coll}, lock.S})
		}
	}
	h, err := m.lockNames(op, names, &held{reason: "checkMetadataConsistency"}, wait)
	if err != nil {
		return dst, err
	}
	defer m.unlock(h)
	if err := migration.WaitCritical(op, m.State.CheckVersion(op, ns)); err != nil {
		return dst, err
	}
	if _, series := m.seriesAt(ns); series && req.Coll != "" { // it is a view: its buckets are what the catalog and the shards have
		req.Coll = catalog.CollOf(timeseries.BucketsOf(ns))
	}
	c := &checker{m: m, req: req}
	if err := c.read(op); err != nil {
		return dst, err
	}
	if err := c.check(op); err != nil {
		return dst, err
	}
	if err := m.stillAbsent(op, ns); err != nil {
		return dst, err
	}
	return msg.AppendFields(dst, &msg.CheckConsistencyReply{Found: c.bad}), nil
}

// checker is one check of a database.
type checker struct {
	m       *Coordinators
	req     *msg.CheckConsistency
	entries map[string][]byte              // of config.collections, by namespace
	locals  map[string][]consistency.Local // what shards have, by namespace
	peers   map[string]cluster.Peer        // of the shards
	deletes map[string][]value.Value       // the UUIDs of collections of which a shard has ranges to delete
	bad     [][]byte
}

// read reads the entries, and what every shard has.
func (c *checker) read(ctx context.Context) error {
	c.entries, c.locals, c.peers, c.deletes = make(map[string][]byte), make(map[string][]consistency.Local), make(map[string]cluster.Peer), make(map[string][]value.Value)
	ids := value.Doc(value.F("$gt", value.NewString(c.req.DB+".")), value.F("$lt", value.NewString(c.req.DB+"/")))
	named := value.Doc()
	if c.req.Coll != "" {
		ids = value.Doc(value.F("$eq", value.NewString(c.req.DB+"."+c.req.Coll)))
		named = value.Doc(value.F("name", value.NewString(c.req.Coll)))
	}
	entries, err := c.config(ctx, "collections", value.Doc(value.F("_id", value.NewDocument(ids))))
	if err != nil {
		return err
	}
	for _, d := range entries {
		c.entries[value.Lookup(d, "_id").Str()] = d
	}
	if err := c.m.State.Registry.Reload(ctx); err != nil {
		return err
	}
	shards, err := c.m.State.Registry.All(ctx)
	if err != nil {
		return err
	}
	for _, s := range shards {
		c.peers[s.ID] = s.Peer
		if err := c.list(ctx, s.ID, named); err != nil {
			return err
		}
		tasks, err := cluster.Find{NS: "config.rangeDeletions", Projection: value.Doc(value.F("collectionUuid", value.NewInt32(1)))}.All(ctx, s.Peer)
		if err != nil {
			return err
		}
		for _, d := range tasks {
			if id := value.Lookup(d, "collectionUuid"); !slices.ContainsFunc(c.deletes[s.ID], func(have value.Value) bool { return value.Equal(id, have) }) {
				c.deletes[s.ID] = append(c.deletes[s.ID], id)
			}
		}
	}
	return nil
}

// list notes the collections that a shard has.
func (c *checker) list(ctx context.Context, shard string, filter []byte) error {
	list, err := cluster.FindAll(ctx, c.peers[shard], c.req.DB, msg.Doc(&msg.ListCollections{DB: c.req.DB, Filter: filter}))
	for _, d := range list {
		if value.Lookup(d, "type").Str() == "collection" {
			ns := c.req.DB + "." + value.Lookup(d, "name").Str()
			l := consistency.Local{Shard: shard, UUID: value.Lookup(value.LookupDoc(d, "info"), "uuid"), Options: value.LookupDoc(d, "options"), Auxiliary: value.Doc()}
			if namespace.IsBuckets(ns) {
				l.Auxiliary = value.Doc(value.F(namespace.MixedSchema, value.NewBool(namespace.MixedSchemaIn(l.Options))))
			}
			c.locals[ns] = append(c.locals[ns], l)
		}
	}
	return err
}

func (c *checker) config(ctx context.Context, coll string, filter []byte) ([][]byte, error) {
	return c.m.readCatalog(ctx, coll, filter)
}

// check compares each entry with the shards, and checks that each collection without an entry is on this shard, the primary shard of the database.
func (c *checker) check(ctx context.Context) error {
	var names []string
	for ns := range c.entries {
		names = append(names, ns)
	}
	for ns := range c.locals {
		if c.entries[ns] == nil {
			names = append(names, ns)
		}
	}
	slices.Sort(names)
	for _, ns := range names {
		if entry := c.entries[ns]; entry != nil {
			if err := c.tracked(ctx, ns, entry); err != nil {
				return err
			}
			continue
		}
		for _, l := range c.locals[ns] {
			if l.Shard != c.m.State.ID && !nodesOwn(catalog.CollOf(ns)) {
				c.bad = append(c.bad, consistency.Misplaced(ns, l.Shard, l.UUID))
			}
		}
	}
	return nil
}

// nodesOwn reports whether every node may have a collection of its own under a name, as system.profile.
func nodesOwn(coll string) bool {
	return strings.HasPrefix(coll, "system.") && !strings.HasPrefix(coll, "system.buckets.") && coll != "system.views"
}

func (c *checker) tracked(ctx context.Context, ns string, entry []byte) error {
	coll, err := consistency.Parse(entry)
	if err != nil {
		return err
	}
	chunks, err := c.config(ctx, "chunks", value.Doc(value.F("uuid", coll.UUID)))
	if err != nil {
		return err
	}
	owners := consistency.Owners(chunks)
	for _, id := range owners { // migrations go on: a shard may have received the collection and its first chunk since it was listed
		if c.peers[id] != nil && !slices.ContainsFunc(c.locals[ns], func(l consistency.Local) bool { return l.Shard == id }) {
			if err := c.list(ctx, id, value.Doc(value.F("name", value.NewString(catalog.CollOf(ns))))); err != nil {
				return err
			}
		}
	}
	locals := c.locals[ns]
	for i := range locals {
		l := &locals[i]
		l.Deletes = slices.ContainsFunc(c.deletes[l.Shard], func(id value.Value) bool { return value.Equal(id, coll.UUID) })
		if l.Owner = slices.Contains(owners, l.Shard); l.Owner || l.Deletes {
			l.Indexes, err = cluster.FindAll(ctx, c.peers[l.Shard], c.req.DB, msg.Doc(&msg.ListIndexes{DB: c.req.DB, Coll: catalog.CollOf(ns)}))
			if err != nil {
				return err
			}
		}
	}
	gaps := coll.RoutingTable(chunks)
	c.bad = append(c.bad, gaps...)
	if len(gaps) == 0 {
		stored, err := c.stored(ctx, ns, owners)
		if err != nil {
			return err
		}
		c.bad = append(c.bad, coll.Cached(chunks, stored)...)
	}
	c.bad = append(c.bad, coll.Locals(owners, locals)...)
	if !value.Lookup(entry, "unsplittable").Truthy() { // its zones are for a key that it will have
		zones, err := c.config(ctx, "tags", value.Doc(value.F("ns", value.NewString(ns))))
		if err != nil {
			return err
		}
		c.bad = append(c.bad, coll.Zones(zones)...)
		c.bad = append(c.bad, coll.ShardKeyIndex(locals)...)
	}
	if c.req.Indexes {
		c.bad = append(c.bad, coll.Indexes(locals)...)
	}
	return nil
}

// stored asks the owners of a collection's chunks for the tables that they have stored. A shard of an earlier version does not know the question.
func (c *checker) stored(ctx context.Context, ns string, owners []string) (map[string]*msg.CheckParticipantReply, error) {
	all := make(map[string]*msg.CheckParticipantReply)
	for _, id := range owners {
		if c.peers[id] == nil {
			continue
		}
		reply, err := cluster.Run(ctx, c.peers[id], msg.Doc(&msg.CheckParticipant{NS: ns}))
		if mongoerr.CodeOf(err) == mongoerr.CommandNotFound {
			continue
		}
		has := new(msg.CheckParticipantReply)
		if err == nil {
			err = msg.Parse(reply, has)
		}
		if err != nil {
			return nil, err
		}
		all[id] = has
	}
	return all, nil
}
