package configsvr

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Sessions returns the store through which members of the config server access the sessions collection on the
// shards. If it does not exist yet onPrimary asks the set's primary to create it, and reports whether it did; on
// the primary itself the manager creates it.
func (m *Manager) Sessions(timeout time.Duration, onPrimary func(context.Context) (done bool, err error)) cluster.SessionStore {
	return cluster.NewShardedSessions(cluster.NewCatalog(m.local), m.registry, func(ctx context.Context) error {
		if done, err := onPrimary(ctx); done || err != nil {
			return err
		}
		return m.createSessions(ctx, timeout)
	})
}

// createSessions makes the sessions collection, config.system.sessions: sharded, empty, in
// minNumChunksForSessionsCollection chunks that are spread over the shards from the start, with the TTL index that
// removes sessions not used for the given time.
//
// Each shard gets the same number of adjacent chunks. Session ids are random, so each shard gets its part of the
// records without a migration; if a shard is added later, the balancer balances the number of chunks.
func (m *Manager) createSessions(ctx context.Context, timeout time.Duration) error {
	unlock, err := m.ddl.lock(ctx, cluster.SessionsNS)
	if err != nil {
		return err
	}
	defer unlock()
	pattern, err := cluster.ParseShardKey(cluster.SessionsKey)
	if err != nil {
		return err
	}
	j := &shardJob{m: m, req: &msg.ShardCollection{NS: cluster.SessionsNS}, pattern: pattern, uuid: cluster.NewUUID(), epoch: cluster.NewObjectID()}
	if done, err := m.alreadySharded(ctx, j.req, pattern); done || err != nil {
		return err
	}
	shards, err := j.recipients(ctx)
	if err != nil {
		return err
	}
	if len(shards) == 0 {
		return mongoerr.New(mongoerr.ShardNotFound, "Failed to create config.system.sessions: cannot create the collection until there are shards")
	}
	if err := j.adopt(ctx, shards); err != nil {
		return err
	}
	j.db = &cluster.DatabaseInfo{Name: "config"}
	j.indexes = [][]byte{
		value.Doc(fld("v", value.NewInt32(2)), fld("key", doc(fld("_id", value.NewInt32(1)))), fld("name", str("_id_"))),
		value.Doc(fld("v", value.NewInt32(2)), fld("key", doc(fld("lastUse", value.NewInt32(1)))), fld("name", str("lsidTTLIndex")),
			fld("expireAfterSeconds", value.NewInt32(int32(timeout.Seconds())))),
	}
	if err := j.write(ctx, layoutSessions(pattern, shards, int(m.Params.Int("minNumChunksForSessionsCollection")))); err != nil {
		return err
	}
	if slices.Contains(shards, cluster.ConfigShardID) {
		return nil
	}
	// Earlier versions kept the records here; a session in use is soon written to its shard.
	_, err = cluster.Run(ctx, m.local, msg.Doc(&msg.Drop{DB: "config", Coll: "system.sessions"}))
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		return nil
	}
	return err
}

// adopt keeps the UUID that an earlier attempt gave the collection, so that its chunks are replaced and the shards
// that have the collection keep it. If attempts left several collections behind, all but one are dropped.
func (j *shardJob) adopt(ctx context.Context, shards []string) error {
	found := false
	for _, id := range shards {
		left, err := j.m.findOn(ctx, &cluster.DatabaseInfo{Name: "config", Primary: id}, &msg.ListCollections{DB: "config", Filter: value.Doc(fld("name", str("system.sessions")))})
		if err != nil {
			return err
		}
		if len(left) == 0 {
			continue
		}
		uuid := [16]byte(value.Lookup(value.Lookup(left[0], "info").Doc(), "uuid").Bytes())
		if !found {
			j.uuid, found = uuid, true
		}
		if uuid != j.uuid {
			if err := j.m.dropSessionsOn(ctx, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropSessionsOn drops what an earlier attempt has left of the collection on a shard, within a critical section as dropCollection.
func (m *Manager) dropSessionsOn(ctx context.Context, id string) error {
	section, unblock, err := m.block(ctx, "shardCollection", []string{id}, cluster.SessionsNS)
	if err != nil {
		return err
	}
	defer unblock()
	_, err = m.onShard(ctx, id, &msg.DropCollectionParticipant{NS: cluster.SessionsNS, FromMigrate: true, Section: &section})
	return err
}

// layoutSessions divides the ids of sessions into n ranges of the same size.
func layoutSessions(k *cluster.ShardKeyPattern, shards []string, n int) []placed {
	out := make([]placed, n)
	lo := k.GlobalMin()
	for i := range out {
		hi := k.GlobalMax()
		if i < n-1 {
			var id [16]byte
			binary.BigEndian.PutUint32(id[:], uint32(uint64(i+1)<<32/uint64(n)))
			hi = k.KeyDoc([]value.Value{doc(fld("id", value.NewBinary(4, id[:])))})
		}
		out[i] = placed{lo, hi, shards[i*len(shards)/n]}
		lo = hi
	}
	return out
}
