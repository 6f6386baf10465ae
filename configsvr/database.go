package configsvr

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// sizeCache caches the shards' data sizes, so that they are requested only once for a burst of new databases.
type sizeCache struct {
	mu    sync.Mutex
	at    time.Time
	bytes map[string]int64
}

const sizeCacheTime = 30 * time.Second

// createDatabase creates a database's entry, with the named shard or the least loaded one as primary shard.
func (m *Manager) createDatabase(ctx context.Context, db, primary string) (*cluster.DatabaseInfo, error) {
	if err := command.CheckDBName(db); err != nil {
		return nil, err
	}
	if cluster.FixedDatabase(db) || db == "local" {
		return nil, mongoerr.Newf(mongoerr.InvalidOptions, "Cannot manually create database '%s'", db)
	}
	unlock, err := m.ddl.lock(ctx, db)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if have, err := m.databaseLike(ctx, db); err != nil || have != nil {
		return samePrimary(have, db, primary, err)
	}
	m.shards.placing.RLock()
	defer m.shards.placing.RUnlock()
	if primary != "" {
		s, err := m.registry.Listed(ctx, primary)
		if err == nil && s.Draining {
			err = mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s is currently draining", s.ID)
		}
		if err != nil {
			return nil, err
		}
		primary = s.ID
	} else if primary, err = m.leastLoaded(ctx); err != nil {
		return nil, err
	}
	v := cluster.DatabaseVersion{UUID: cluster.NewUUID(), Timestamp: m.tick(), LastMod: 1}
	entry := doc(fld("_id", str(db)), fld("primary", str(primary)), fld("version", value.NewDocument(v.Doc())))
	put := &msg.WriteTogether{NS: "config.databases", Changes: msg.Changes{Put: [][]byte{entry.Doc()}}}
	if err := m.writePlaced(ctx, put, placing{nss: db, shards: []string{primary}}); err != nil {
		return nil, err
	}
	m.log(ctx, "createDatabase", db, entry)
	return &cluster.DatabaseInfo{Name: db, Primary: primary, Version: v}, nil
}

// databaseLike finds a database by name; one that differs only in case is an error.
func (m *Manager) databaseLike(ctx context.Context, db string) (*cluster.DatabaseInfo, error) {
	have, err := m.database(ctx, db)
	if err == nil || mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return have, err
	}
	names, err := m.findOnly(ctx, "databases", doc())
	if err != nil {
		return nil, err
	}
	for _, d := range names {
		if n := value.Lookup(d, "_id").Str(); strings.EqualFold(n, db) {
			return nil, mongoerr.Newf(mongoerr.DatabaseDifferCase, "can't have 2 databases that just differ on case  have: %s want to add: %s", n, db)
		}
	}
	return nil, nil
}

func samePrimary(have *cluster.DatabaseInfo, db, primary string, err error) (*cluster.DatabaseInfo, error) {
	if err == nil && primary != "" && have.Primary != primary {
		return nil, mongoerr.Newf(mongoerr.NamespaceExists, "database already created on a primary which is different from %s", primary)
	}
	return have, err
}

// leastLoaded returns the shard with the least data and, among equal ones, with the fewest databases.
func (m *Manager) leastLoaded(ctx context.Context) (string, error) {
	all, err := m.registry.All(ctx)
	if err != nil {
		return "", err
	}
	sizes, err := m.shardSizes(ctx, all)
	if err != nil {
		return "", err
	}
	dbs, err := m.findOnly(ctx, "databases", doc(), "primary")
	if err != nil {
		return "", err
	}
	count := map[string]int{}
	for _, d := range dbs {
		count[value.Lookup(d, "primary").Str()]++
	}
	best := ""
	for _, s := range all {
		if s.Draining {
			continue
		}
		if best == "" || sizes[s.ID] < sizes[best] || sizes[s.ID] == sizes[best] && count[s.ID] < count[best] {
			best = s.ID
		}
	}
	if best == "" {
		return "", mongoerr.New(mongoerr.ShardNotFound, "No non-draining shards found")
	}
	return best, nil
}

// shardSizes asks each shard for the size of its databases, rounded to megabytes so that small differences do not count.
func (m *Manager) shardSizes(ctx context.Context, all []*cluster.Shard) (map[string]int64, error) {
	m.sizes.mu.Lock()
	defer m.sizes.mu.Unlock()
	if m.sizes.bytes != nil && len(m.sizes.bytes) == len(all) && time.Since(m.sizes.at) < sizeCacheTime {
		return m.sizes.bytes, nil
	}
	out := make(map[string]int64, len(all))
	for _, s := range all {
		reply, err := cluster.Run(ctx, s.Peer, msg.Doc(new(msg.ListDatabases)))
		if err != nil {
			return nil, err
		}
		n, _ := value.Lookup(reply, "totalSize").AsInt64()
		out[s.ID] = n >> 20
	}
	m.sizes.bytes, m.sizes.at = out, time.Now()
	return out, nil
}
