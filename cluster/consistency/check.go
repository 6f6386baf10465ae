package consistency

import (
	"context"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Check compares the catalog's entries of a database, or of one of its collections, with the shards' collections.
type Check struct {
	Req       *msg.CheckConsistency
	Registry  *cluster.Registry
	Primary   string // the primary shard of the database by its entry; "" for config, of which each node has collections of its own
	Auxiliary func(ns string, options []byte) []byte

	entries map[string][]byte        // of config.collections, by namespace
	locals  map[string][]Local       // what shards have, by namespace
	peers   map[string]cluster.Peer  // of the shards
	deletes map[string][]value.Value // the UUIDs of collections of which a shard has ranges to delete
	bad     [][]byte
}

// Run returns what is inconsistent. No DDL of the database may run meanwhile; migrations may.
func (c *Check) Run(ctx context.Context) ([][]byte, error) {
	if err := c.read(ctx); err != nil {
		return nil, err
	}
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	return c.bad, nil
}

// read reads the entries, and what every shard has.
func (c *Check) read(ctx context.Context) error {
	c.entries, c.locals, c.peers, c.deletes = make(map[string][]byte), make(map[string][]Local), make(map[string]cluster.Peer), make(map[string][]value.Value)
	named := value.Doc()
	if c.Req.Coll != "" {
		named = value.Doc(value.F("name", value.NewString(c.Req.Coll)))
	}
	entries, err := Entries(ctx, c.Registry.Config(), c.Req)
	if err != nil {
		return err
	}
	for _, d := range entries {
		c.entries[value.Lookup(d, "_id").Str()] = d
	}
	if err := c.Registry.Reload(ctx); err != nil {
		return err
	}
	shards, err := c.Registry.All(ctx)
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

// Entries reads the entries of the collections that a request is about.
func Entries(ctx context.Context, config cluster.Peer, req *msg.CheckConsistency) ([][]byte, error) {
	ids := value.Doc(value.F("$gt", value.NewString(req.DB+".")), value.F("$lt", value.NewString(req.DB+"/")))
	if req.Coll != "" {
		ids = value.Doc(value.F("$eq", value.NewString(req.DB+"."+req.Coll)))
	}
	return cluster.FindConfig(ctx, config, cluster.Find{NS: "config.collections", Filter: value.Doc(value.F("_id", value.NewDocument(ids)))}.Doc())
}

// list notes the collections that a shard has.
func (c *Check) list(ctx context.Context, shard string, filter []byte) error {
	list, err := cluster.FindAll(ctx, c.peers[shard], c.Req.DB, msg.Doc(&msg.ListCollections{DB: c.Req.DB, Filter: filter}))
	for _, d := range list {
		if value.Lookup(d, "type").Str() == "collection" {
			ns := c.Req.DB + "." + value.Lookup(d, "name").Str()
			options := value.LookupDoc(d, "options")
			c.locals[ns] = append(c.locals[ns], Local{Shard: shard, UUID: value.Lookup(value.LookupDoc(d, "info"), "uuid"), Options: options, Auxiliary: c.Auxiliary(ns, options)})
		}
	}
	return err
}

func (c *Check) config(ctx context.Context, coll string, filter []byte) ([][]byte, error) {
	return cluster.FindConfig(ctx, c.Registry.Config(), cluster.Find{NS: "config." + coll, Filter: filter}.Doc())
}

// check compares each entry with the shards, and checks that each collection without an entry is on the primary shard of the database.
func (c *Check) check(ctx context.Context) error {
	var names []string
	for ns := range c.entries {
		names = append(names, ns)
	}
	for ns := range c.locals {
		if c.entries[ns] == nil && c.Primary != "" {
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
			if l.Shard != c.Primary && !nodesOwn(collOf(ns)) {
				c.bad = append(c.bad, Misplaced(ns, l.Shard, l.UUID))
			}
		}
	}
	return nil
}

func collOf(ns string) string {
	_, coll := cluster.SplitNS(ns)
	return coll
}

// nodesOwn reports whether every node may have a collection of its own under a name, as system.profile.
func nodesOwn(coll string) bool {
	return strings.HasPrefix(coll, "system.") && !strings.HasPrefix(coll, "system.buckets.") && coll != "system.views"
}

func (c *Check) tracked(ctx context.Context, ns string, entry []byte) error {
	coll, err := Parse(entry)
	if err != nil {
		return err
	}
	chunks, err := c.config(ctx, "chunks", value.Doc(value.F("uuid", coll.UUID)))
	if err != nil {
		return err
	}
	owners := Owners(chunks)
	for _, id := range owners { // migrations go on: a shard may have received the collection and its first chunk since it was listed
		if c.peers[id] != nil && !slices.ContainsFunc(c.locals[ns], func(l Local) bool { return l.Shard == id }) {
			if err := c.list(ctx, id, value.Doc(value.F("name", value.NewString(collOf(ns))))); err != nil {
				return err
			}
		}
	}
	locals := c.locals[ns]
	for i := range locals {
		l := &locals[i]
		l.Deletes = slices.ContainsFunc(c.deletes[l.Shard], func(id value.Value) bool { return value.Equal(id, coll.UUID) })
		if l.Owner = slices.Contains(owners, l.Shard); l.Owner || l.Deletes {
			l.Indexes, err = cluster.FindAll(ctx, c.peers[l.Shard], c.Req.DB, msg.Doc(&msg.ListIndexes{DB: c.Req.DB, Coll: collOf(ns)}))
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
	if c.Req.Indexes {
		c.bad = append(c.bad, coll.Indexes(locals)...)
	}
	return nil
}

// stored asks the owners of a collection's chunks for the tables that they have stored. A shard of an earlier version does not know the question.
func (c *Check) stored(ctx context.Context, ns string, owners []string) (map[string]*msg.CheckParticipantReply, error) {
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
