package configsvr

import (
	"cmp"
	"context"
	"maps"
	"slices"
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
	asking nameLocks // its only name is held while the shards are asked: no other lock is, as one of them may be frozen
	mu     sync.Mutex
	at     time.Time
	asked  map[string]bool  // by shard
	bytes  map[string]int64 // of the shards that have replied
}

const (
	sizeCacheTime = 30 * time.Second
	// sizesWait is how long shards may take to report their sizes once one has. A shard that takes longer is not chosen.
	sizesWait = time.Second
)

// recent returns the sizes of those of some shards that have reported them, nil if not all were asked or the sizes are no longer current.
func (c *sizeCache) recent(shards []*cluster.Shard) map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := false
	for _, s := range shards {
		if !c.asked[s.ID] {
			return nil
		}
		_, ok := c.bytes[s.ID]
		known = known || ok
	}
	if !known || time.Since(c.at) >= sizeCacheTime {
		return nil
	}
	return c.bytes
}

// set replaces the sizes; bytes lacks the shards that were asked and have not replied.
func (c *sizeCache) set(asked []*cluster.Shard, bytes map[string]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = make(map[string]bool, len(asked))
	for _, s := range asked {
		c.asked[s.ID] = true
	}
	c.bytes, c.at = bytes, time.Now()
}

// forget removes the size of a shard that does not answer any more.
func (c *sizeCache) forget(shard string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes = maps.Clone(c.bytes) // callers read the map that they were given
	delete(c.bytes, shard)
}

// createDatabase creates a database's entry, with the named shard or the least loaded one as primary shard. The shard is chosen before anything is locked, since
// all of them are asked for their sizes; if it is no longer to be had when the entry is written, another one is chosen.
func (m *Manager) createDatabase(ctx context.Context, db, primary string) (*cluster.DatabaseInfo, error) {
	if err := command.CheckDBName(db); err != nil {
		return nil, err
	}
	if cluster.FixedDatabase(db) || db == "local" {
		return nil, mongoerr.Newf(mongoerr.InvalidOptions, "Cannot manually create database '%s'", db)
	}
	for {
		if have, err := m.databaseLike(ctx, db); err != nil || have != nil {
			return samePrimary(have, db, primary, err)
		}
		on, err := m.primaryFor(ctx, primary)
		if err != nil {
			return nil, err
		}
		info, err := m.writeDatabase(ctx, db, primary, on)
		if primary != "" || mongoerr.CodeOf(err) != mongoerr.ShardNotFound {
			return info, err
		}
		if err := m.registry.Reload(ctx); err != nil { // so that another shard is chosen
			return nil, err
		}
	}
}

// primaryFor returns the id of the shard that a new database gets: the one that is asked for, or the least loaded one.
func (m *Manager) primaryFor(ctx context.Context, primary string) (string, error) {
	if primary == "" {
		return m.leastLoaded(ctx)
	}
	s, err := m.registry.Listed(ctx, primary)
	if err != nil {
		return "", err
	}
	return s.ID, nil
}

// writeDatabase writes the entry of a database that is to have the shard on as primary shard, unless it exists by now.
func (m *Manager) writeDatabase(ctx context.Context, db, primary, on string) (info *cluster.DatabaseInfo, err error) {
	unlock, err := m.lockDatabase(ctx, db)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if have, err := m.databaseLike(ctx, db); err != nil || have != nil {
		return samePrimary(have, db, primary, err)
	}
	defer m.creating.begin()()
	if err := m.checkUsersBlocked(ctx); err != nil {
		return nil, err
	}
	err = m.place(ctx, []string{on}, func(to []*cluster.Shard) error {
		if to[0].Draining {
			return mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s is currently draining", on)
		}
		entry := m.newDatabase(db, on)
		put := &msg.WriteTogether{NS: "config.databases", Changes: msg.Changes{Put: [][]byte{entry}}}
		if err := m.writePlaced(ctx, put, placing{nss: db, shards: []string{on}}); err != nil {
			return err
		}
		m.log(ctx, "createDatabase", db, value.NewDocument(entry))
		info, err = cluster.ParseDatabase(entry)
		return err
	})
	return info, err
}

// creations counts the databases that are being created, so that setUserWriteBlockMode can wait for them.
type creations struct {
	mu  sync.Mutex
	all map[chan struct{}]struct{} // closed when they have ended
}

func (c *creations) begin() (end func()) {
	done := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = make(map[chan struct{}]struct{})
	}
	c.all[done] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.all, done)
		close(done)
	}
}

// end waits until those that have begun have ended.
func (c *creations) end(ctx context.Context) error {
	c.mu.Lock()
	begun := slices.Collect(maps.Keys(c.all))
	c.mu.Unlock()
	for _, done := range begun {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// checkUsersBlocked returns an error for the creation of a database if users have been blocked since its request was checked first, unless that is of a client who bypasses the block.
func (m *Manager) checkUsersBlocked(ctx context.Context) error {
	if bypasses, _ := ctx.Value(cluster.BypassesWriteBlock).(bool); bypasses {
		return nil
	}
	docs, err := m.find(ctx, "user_writes_critical_sections", doc(fld("_id", str("")), fld("blockNewUserShardedDDL", value.NewBool(true))))
	if err == nil && len(docs) > 0 {
		err = mongoerr.New(mongoerr.UserWritesBlocked, "User writes blocked")
	}
	return err
}

// newDatabase returns the entry of a new database.
func (m *Manager) newDatabase(db, primary string) []byte {
	v := cluster.DatabaseVersion{UUID: cluster.NewUUID(), Timestamp: m.tick(), LastMod: 1}
	return value.Doc(fld("_id", str(db)), fld("primary", str(primary)), fld("version", value.NewDocument(v.Doc())))
}

// databaseLike finds a database by name; one that differs only in case is an error. Without the name's lock the answer may be out of date when it returns.
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
		switch n := value.Lookup(d, "_id").Str(); {
		case n == db: // created since the first read
			return m.databaseLike(ctx, db)
		case strings.EqualFold(n, db):
			return nil, errDifferCase(n, db)
		}
	}
	return nil, nil
}

func errDifferCase(have, db string) error {
	return mongoerr.Newf(mongoerr.DatabaseDifferCase, "can't have 2 databases that just differ on case  have: %s want to add: %s", have, db)
}

func samePrimary(have *cluster.DatabaseInfo, db, primary string, err error) (*cluster.DatabaseInfo, error) {
	if err == nil && primary != "" && have.Primary != primary {
		return nil, mongoerr.Newf(mongoerr.NamespaceExists, "database already created on a primary which is different from %s", primary)
	}
	return have, err
}

// leastLoaded returns the shard with the least data and, among equal ones, with the fewest databases. Draining ones, which it cannot be, are not asked: a shard that
// is being removed may have failed for good. One that does not report its size in time, or does not answer any more if it has reported it for an earlier database, is not
// chosen.
func (m *Manager) leastLoaded(ctx context.Context) (string, error) {
	all, err := m.registry.All(ctx)
	if err != nil {
		return "", err
	}
	all = slices.DeleteFunc(slices.Clone(all), func(s *cluster.Shard) bool { return s.Draining })
	if len(all) == 0 {
		return "", mongoerr.New(mongoerr.ShardNotFound, "No non-draining shards found")
	}
	dbs, err := m.findOnly(ctx, "databases", doc(), "primary")
	if err != nil {
		return "", err
	}
	count := map[string]int{}
	for _, d := range dbs {
		count[value.Lookup(d, "primary").Str()]++
	}
	for {
		sizes, cached, err := m.shardSizes(ctx, all)
		if err != nil {
			return "", err
		}
		var best *cluster.Shard
		for _, s := range all {
			if _, known := sizes[s.ID]; !known {
				continue
			}
			if best == nil || sizes[s.ID] < sizes[best.ID] || sizes[s.ID] == sizes[best.ID] && count[s.ID] < count[best.ID] {
				best = s
			}
		}
		if !cached || answers(ctx, best) {
			return best.ID, nil
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		m.sizes.forget(best.ID)
	}
}

// answers reports whether a shard answers within sizesWait.
func answers(ctx context.Context, s *cluster.Shard) bool {
	ctx, cancel := context.WithTimeout(ctx, sizesWait)
	defer cancel()
	_, err := cluster.Run(ctx, s.Peer, msg.Doc(new(msg.Ping)))
	return err == nil
}

// shardSizes asks each shard for the size of its databases, rounded to megabytes so that small differences do not count. The result has at least one shard, and lacks those
// that did not reply in time. It is cached if it was asked for earlier.
func (m *Manager) shardSizes(ctx context.Context, all []*cluster.Shard) (sizes map[string]int64, cached bool, err error) {
	if have := m.sizes.recent(all); have != nil {
		return have, true, nil
	}
	unlock, err := m.sizes.asking.lock(ctx, "")
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	if have := m.sizes.recent(all); have != nil {
		return have, true, nil
	}
	out, err := askSizes(ctx, all)
	if err == nil {
		m.sizes.set(all, out)
	}
	return out, false, err
}

// askSizes asks the shards, all at once: one of them may be frozen. It waits for the first reply as long as the operation may, and then
// not much longer. An error means that no shard has replied.
func askSizes(ctx context.Context, all []*cluster.Shard) (map[string]int64, error) {
	type report struct {
		shard string
		mb    int64
		err   error
	}
	reports := make(chan report, len(all))
	asking, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, s := range all {
		wg.Go(func() {
			reply, err := cluster.Run(asking, s.Peer, msg.Doc(new(msg.ListDatabases)))
			n, _ := value.Lookup(reply, "totalSize").AsInt64()
			reports <- report{s.ID, n >> 20, err}
		})
	}
	out := make(map[string]int64, len(all))
	var failed error
	var late <-chan time.Time
	for range all {
		select {
		case r := <-reports:
			if r.err != nil {
				failed = cmp.Or(failed, r.err)
				continue
			}
			if out[r.shard] = r.mb; late == nil {
				late = time.After(sizesWait)
			}
		case <-late:
			return out, nil
		}
	}
	if len(out) == 0 {
		return nil, failed
	}
	return out, nil
}
