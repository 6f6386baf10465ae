package router

import (
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/consistency"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkMetadataConsistency checks that the sharding catalog is consistent, and agrees with the shards' catalogs. The primary shard of each database
// does it, while no DDL changes the database. The command's value is a collection, or 1 for a database; 1 on admin checks the whole cluster.
func (r *Router) checkMetadataConsistency(op *command.Op, dst []byte) ([]byte, error) {
	m := msg.CheckConsistency{DB: op.DB(), Indexes: op.Bool("checkIndexes")}
	ns := op.DB() + ".$cmd.aggregate"
	if op.Req.Cmd.T == value.String {
		coll, err := op.Req.Coll()
		if err != nil {
			return dst, err
		}
		m.Coll, ns = coll, op.Req.NS(coll)
	}
	if v := op.Arg("dbMetadataLockMaxTimeMS"); !v.IsMissing() {
		ms := value.SafeInt64(v)
		if ms < 0 {
			return dst, mongoerr.Newf(mongoerr.BadValue, "BSON field 'dbMetadataLockMaxTimeMS' value must be >= 0, actual value '%d'", ms)
		}
		m.LockMS = &ms
	}
	var found [][]byte
	var err error
	if m.DB == "admin" && m.Coll == "" {
		found, err = r.checkCluster(op, m)
	} else {
		found, err = r.checkDatabase(op, m)
	}
	if err != nil {
		return dst, err
	}
	size := int64(defaultBatch)
	if cur := op.Req.Doc("cursor"); cur != nil {
		if n, ok := value.Lookup(cur, "batchSize").AsInt64(); ok {
			size = n
		}
	}
	return r.openMerged(op, ns, &mergeCursor{source: agg.NewSliceSource(found)}, size, false, dst)
}

// checkCluster checks all databases, and that each collection's database exists.
func (r *Router) checkCluster(op *command.Op, m msg.CheckConsistency) (found [][]byte, err error) {
	entries, err := r.configDocs(op, "collections")
	if err != nil {
		return nil, err
	}
	names := map[string]bool{"config": true}
	dbs, err := r.configDocs(op, "databases")
	if err != nil {
		return nil, err
	}
	for _, d := range dbs {
		names[value.Lookup(d, "_id").Str()] = true
	}
	for _, e := range entries {
		ns, uuid := value.Lookup(e, "_id").Str(), value.Lookup(e, "uuid")
		if db, _ := cluster.SplitNS(ns); names[db] {
			continue
		}
		// A database is created before its collections and dropped after them: only an entry that exists both before and after the databases are read counts.
		still, err := cluster.FindConfig(op, r.config, cluster.Find{NS: "config.collections", Filter: value.Doc(value.F("_id", value.NewString(ns)), value.F("uuid", uuid))}.Doc())
		if err != nil {
			return nil, err
		}
		if len(still) > 0 {
			found = append(found, consistency.Hidden(ns, e))
		}
	}
	for _, d := range append(dbs, value.Doc(value.F("_id", value.NewString("config")))) {
		m.DB = value.Lookup(d, "_id").Str()
		bad, err := r.checkDatabase(op, m)
		if err != nil {
			return nil, err
		}
		found = append(found, bad...)
	}
	return found, nil
}

func (r *Router) configDocs(op *command.Op, coll string) ([][]byte, error) {
	return cluster.FindConfig(op, r.config, cluster.Find{NS: "config." + coll, Sort: cluster.ByID()}.Doc())
}

// checkDatabase has the primary shard of a database check it; one that does not exist is consistent.
func (r *Router) checkDatabase(op *command.Op, m msg.CheckConsistency) (found [][]byte, err error) {
	if cluster.FixedDatabase(m.DB) {
		return r.checkFixed(op, m)
	}
	err = r.routed(op, m.DB+".$cmd", false, func(info *cluster.CollectionInfo) error {
		reply, mark := value.Begin(nil)
		reply, err := r.coordinated(op, info, &m, reply)
		if err != nil {
			return err
		}
		var answer msg.CheckConsistencyReply
		if err := msg.Parse(value.End(reply, mark), &answer); err != nil {
			return err
		}
		found = nil
		for _, d := range answer.Found {
			found = append(found, value.NewDocument(d).Clone().Doc())
		}
		return nil
	})
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		return nil, nil
	}
	return found, err
}

// checkFixed checks the sharded collections of a database that no shard is primary of, such as that of sessions. The config server creates and drops them under locks of its own: what was found
// does not count if the collection is another one, or has gone, in the meantime. (Its entry is written after its copies.)
func (r *Router) checkFixed(op *command.Op, m msg.CheckConsistency) ([][]byte, error) {
	before, err := consistency.Entries(op, r.config, &m)
	if err != nil {
		return nil, err
	}
	c := &consistency.Check{Req: &m, Registry: r.Registry, Auxiliary: func(string, []byte) []byte { return value.Doc() }}
	found, err := c.Run(op)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	after, err := consistency.Entries(op, r.config, &m)
	if err != nil {
		return nil, err
	}
	uuid := func(entries [][]byte, ns string) value.Value {
		i := slices.IndexFunc(entries, func(e []byte) bool { return value.Lookup(e, "_id").Str() == ns })
		if i < 0 {
			return value.Value{}
		}
		return value.Lookup(entries[i], "uuid")
	}
	return slices.DeleteFunc(found, func(d []byte) bool {
		ns := value.Lookup(value.LookupDoc(d, "details"), "namespace").Str()
		return !value.Equal(uuid(before, ns), uuid(after, ns))
	}), nil
}
