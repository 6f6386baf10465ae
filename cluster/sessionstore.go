package cluster

import (
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// PeerSessionStore keeps session records in config.system.sessions of a peer.
type PeerSessionStore struct {
	Peer    Peer
	Version []byte // elements of a command that carry the collection's version; nil for one that is not sharded
}

// maxSessionBatch limits one write to the sessions collection.
const maxSessionBatch = 1000

// RefreshSessions implements SessionStore.
func (s PeerSessionStore) RefreshSessions(ctx context.Context, ids []LogicalSessionID, at time.Time) error {
	set := value.NewDocument(value.Doc(value.F("$set", value.NewDocument(value.Doc(value.F("lastUse", value.NewTime(at)))))))
	return s.batches(ctx, ids, func(ids []LogicalSessionID) msg.Message {
		m := &msg.Update{DB: "config", Coll: "system.sessions", Unordered: true}
		for _, id := range ids {
			m.Updates = append(m.Updates, msg.UpdateStatement{Query: sessionByID(id), Change: set, Upsert: true})
		}
		return m
	})
}

// RemoveSessions implements SessionStore.
func (s PeerSessionStore) RemoveSessions(ctx context.Context, ids []LogicalSessionID) error {
	return s.batches(ctx, ids, func(ids []LogicalSessionID) msg.Message {
		m := &msg.Delete{DB: "config", Coll: "system.sessions", Unordered: true}
		for _, id := range ids {
			m.Deletes = append(m.Deletes, msg.DeleteStatement{Query: sessionByID(id), Limit: 1})
		}
		return m
	})
}

func sessionByID(id LogicalSessionID) []byte {
	return value.Doc(value.F("_id", value.NewDocument(id.Doc())))
}

// MissingSessions implements SessionStore.
func (s PeerSessionStore) MissingSessions(ctx context.Context, ids []LogicalSessionID) ([]LogicalSessionID, error) {
	var missing []LogicalSessionID
	for len(ids) > 0 {
		n := min(len(ids), maxSessionBatch)
		vals := make([]value.Value, n)
		for i, id := range ids[:n] {
			vals[i] = value.NewDocument(id.Doc())
		}
		in := value.Doc(value.F("_id", value.NewDocument(value.Doc(value.F("$in", value.NewArray(value.ArrayOf(vals...)))))))
		docs, err := FindAll(ctx, s.Peer, "config", Find{NS: SessionsNS, Filter: in, Projection: ByID(), BatchSize: maxSessionBatch}.Doc(s.Version))
		if err != nil {
			return nil, err
		}
		there := make(map[LogicalSessionID]bool, len(docs))
		for _, d := range docs {
			if id, err := ParseLSID(value.Lookup(d, "_id").Doc(), NoUser); err == nil {
				there[id] = true
			}
		}
		for _, id := range ids[:n] {
			if !there[id] {
				missing = append(missing, id)
			}
		}
		ids = ids[n:]
	}
	return missing, nil
}

func (s PeerSessionStore) batches(ctx context.Context, ids []LogicalSessionID, write func([]LogicalSessionID) msg.Message) error {
	for batch := range slices.Chunk(ids, maxSessionBatch) {
		if _, err := RunWrite(ctx, s.Peer, msg.With(write(batch), s.Version)); err != nil {
			return err
		}
	}
	return nil
}

// SessionsNS is the sessions collection: the one collection of the config database that is sharded, in a cluster.
const SessionsNS = "config.system.sessions"

// SessionsKey is its shard key.
var SessionsKey = value.Doc(value.F("_id", value.NewInt32(1)))

// ShardedSessions keeps the session records of a cluster, each on the shard that owns its range.
type ShardedSessions struct {
	catalog  *Catalog
	registry *Registry
	create   func(ctx context.Context) error
}

// NewShardedSessions returns a store for a node of a cluster. create creates the collection if there is none yet;
// nil asks the config server to do so.
func NewShardedSessions(catalog *Catalog, registry *Registry, create func(ctx context.Context) error) *ShardedSessions {
	s := &ShardedSessions{catalog, registry, create}
	if create == nil {
		s.create = s.askConfig
	}
	return s
}

// askConfig makes the config server's primary write its own sessions, which creates the collection.
func (s *ShardedSessions) askConfig(ctx context.Context) error {
	_, err := Run(ctx, s.registry.Config(), msg.Doc(new(msg.RefreshSessions)))
	return err
}

// RefreshSessions implements SessionStore. The first node that writes records creates the collection.
//
// Hazard: the config server's primary, which is asked to create it, may have no sessions to write, and would not notice that the collection that it knows has been dropped. Its table is therefore read again.
func (s *ShardedSessions) RefreshSessions(ctx context.Context, ids []LogicalSessionID, at time.Time) error {
	s.catalog.InvalidateCollection(SessionsNS)
	refresh := func(p PeerSessionStore, part []LogicalSessionID) error { return p.RefreshSessions(ctx, part, at) }
	err := s.each(ctx, ids, refresh)
	if mongoerr.CodeOf(err) != mongoerr.NamespaceNotSharded {
		return err
	}
	if err := s.create(ctx); err != nil {
		return err
	}
	return s.each(ctx, ids, refresh)
}

// RemoveSessions implements SessionStore.
func (s *ShardedSessions) RemoveSessions(ctx context.Context, ids []LogicalSessionID) error {
	return s.each(ctx, ids, func(p PeerSessionStore, part []LogicalSessionID) error { return p.RemoveSessions(ctx, part) })
}

// MissingSessions implements SessionStore.
func (s *ShardedSessions) MissingSessions(ctx context.Context, ids []LogicalSessionID) (missing []LogicalSessionID, err error) {
	err = s.each(ctx, ids, func(p PeerSessionStore, part []LogicalSessionID) error {
		gone, err := p.MissingSessions(ctx, part)
		if err == nil {
			missing = append(missing, gone...)
		}
		return err
	})
	return missing, err
}

// staleTries limits how often the sessions are reassigned to shards.
const staleTries = 10

// each calls f for the shards that own sessions, with the sessions of each. A shard that reports moved ranges is
// called again with the sessions that it owns then: f may be called a second time for a session, but not after
// it has succeeded.
func (s *ShardedSessions) each(ctx context.Context, ids []LogicalSessionID, f func(PeerSessionStore, []LogicalSessionID) error) error {
	for try := 0; ; try++ {
		info, err := s.catalog.Collection(ctx, SessionsNS)
		if err != nil {
			return err
		}
		if !info.Sharded() {
			return mongoerr.New(mongoerr.NamespaceNotSharded, "Collection "+SessionsNS+" is not sharded.")
		}
		parts := make(map[string][]LogicalSessionID)
		for _, id := range ids {
			shard := info.Map.Find([]value.Value{value.NewDocument(id.Doc())}).Shard
			parts[shard] = append(parts[shard], id)
		}
		ids = nil
		var stale error
		for id, part := range parts {
			shard, err := s.registry.Shard(ctx, id)
			if err != nil {
				return err
			}
			err = f(PeerSessionStore{Peer: shard.Peer, Version: info.Suffix(id)}, part)
			switch code := mongoerr.CodeOf(err); {
			case err == nil:
			case code == mongoerr.StaleConfig || code == mongoerr.StaleEpoch:
				ids, stale = append(ids, part...), err
			default:
				return err
			}
		}
		if stale == nil {
			return nil
		}
		if try == staleTries {
			return stale
		}
		s.catalog.InvalidateCollection(SessionsNS)
		if err := Backoff(ctx, try); err != nil {
			return err
		}
	}
}
