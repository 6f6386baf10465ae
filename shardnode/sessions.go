package shardnode

import (
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
)

// sessionStore gives access to the sessions collection: a replica set keeps its own, on its primary, where a TTL
// index removes unused sessions; in a cluster it is sharded.
type sessionStore struct{ s *Server }

// store returns the store of the collection; nil on a standalone server, which has none.
func (k sessionStore) store() cluster.SessionStore {
	n := k.s.Node
	state := n.shard.State()
	switch {
	case n.Repl == nil || n.Repl.Name == "":
		return nil
	case k.s.sessions != nil:
		return k.s.sessions
	case state != nil:
		return cluster.NewShardedSessions(state.Catalog, state.Registry, nil)
	case n.notPrimary() == nil:
		return cluster.PeerSessionStore{Peer: k.s.OwnPeer()}
	}
	return cluster.PeerSessionStore{Peer: cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
		reply, err := n.Repl.AskPrimary(ctx, m.Body)
		return append(dst, reply...), err
	})}
}

// KeepSessionsIn makes the server share a cluster's sessions collection: the config server, which is not a shard.
func (s *Server) KeepSessionsIn(store cluster.SessionStore) { s.sessions = store }

// RefreshOnPrimary makes the primary of the set write its sessions; done is false on the primary itself.
func (s *Server) RefreshOnPrimary(ctx context.Context) (done bool, err error) {
	if s.Node.notPrimary() == nil {
		return false, nil
	}
	_, err = s.Repl.AskPrimary(ctx, msg.Doc(new(msg.RefreshSessions)))
	return true, err
}

// RefreshSessions implements cluster.SessionStore.
func (k sessionStore) RefreshSessions(ctx context.Context, ids []cluster.LogicalSessionID, at time.Time) error {
	to := k.store()
	if to == nil {
		return nil
	}
	if n := k.s.Node; n.notPrimary() == nil && n.shard.State() == nil && k.s.sessions == nil {
		if err := k.ensure(ctx); err != nil {
			return err
		}
	}
	return to.RefreshSessions(ctx, ids, at)
}

// RemoveSessions implements cluster.SessionStore.
func (k sessionStore) RemoveSessions(ctx context.Context, ids []cluster.LogicalSessionID) error {
	to := k.store()
	if len(ids) == 0 || to == nil {
		return nil
	}
	return to.RemoveSessions(ctx, ids)
}

// MissingSessions implements cluster.SessionStore. A standalone server considers only the sessions that were used on it.
func (k sessionStore) MissingSessions(ctx context.Context, ids []cluster.LogicalSessionID) ([]cluster.LogicalSessionID, error) {
	if to := k.store(); to != nil {
		return to.MissingSessions(ctx, ids)
	}
	used, limit := k.s.Base.Sessions.Live(), k.s.Node.now().Add(-k.s.Base.Sessions.Timeout())
	return slices.DeleteFunc(slices.Clone(ids), func(id cluster.LogicalSessionID) bool { return used[id].After(limit) }), nil
}

// ensure creates the collection with its TTL index.
func (k sessionStore) ensure(ctx context.Context) error {
	const name = "lsidTTLIndex"
	if c := k.s.Engine.Catalog().Lookup(cluster.SessionsNS); c != nil && c.Index(name) != nil {
		return nil
	}
	index := value.Doc(value.F("key", value.NewDocument(value.Doc(value.F("lastUse", value.NewInt32(1))))), value.F("name", value.NewString(name)),
		value.F("expireAfterSeconds", value.NewInt32(int32(k.s.Base.Sessions.Timeout().Seconds()))))
	_, err := cluster.RunWrite(ctx, k.s.OwnPeer(), msg.Doc(&msg.CreateIndexes{DB: "config", Coll: "system.sessions", Indexes: [][]byte{index}, Quorum: msg.NoQuorum()}))
	return err
}

// endSession kills the cursors and the transaction that an ended or expired session left open.
func (s *Server) endSession(id cluster.LogicalSessionID) {
	s.Base.Sessions.ClosedCursors(s.Node.killSessionCursors(func(other cluster.LogicalSessionID) bool { return other == id }))
	s.Node.txns.AbortSession(id)
}

// sessions lists the sessions that cursors were opened in.
func (t *cursorTable) sessions() (ids []cluster.LogicalSessionID) {
	seen := make(map[cluster.LogicalSessionID]bool)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.mu.byID {
		if id, err := cluster.ParseLSID(c.lsid, cluster.NoUser); c.lsid != nil && err == nil && !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	return ids
}

// openSessions makes the cache of sessions, and connects the commands that end sessions with what is open in them.
func (s *Server) openSessions() {
	c := cluster.NewSessionCache(sessionStore{s}, time.Now, s.endSession)
	c.WithCursors(s.Node.cursors.sessions)
	s.Base.Sessions, s.Node.Sessions = c, c
	s.Base.Reap = func(ctx context.Context) error {
		return c.Reap(ctx, func(ctx context.Context) (int, error) { return reapSessions(ctx, s.Node) })
	}
	s.Base.SessionCatalog = s.Node.txns.Sessions
	s.Base.KillCursors = func(f func(cluster.LogicalSessionID) bool) int {
		killed := s.Node.killSessionCursors(f)
		s.Node.txns.AbortWhere(f)
		return killed
	}
}

// keepSessions does the periodic work on sessions. What fails is repeated in the next period.
func (s *Server) keepSessions(ctx context.Context) {
	_ = s.Base.Sessions.Sync(ctx)
	_ = s.Base.Reap(ctx)
}

// reapSessions forgets the sessions that have not been used for TransactionRecordMinimumLifetimeMinutes and that the
// sessions collection no longer contains.
func reapSessions(ctx context.Context, n *Node) (int, error) {
	if n.shard.State() != nil && n.notPrimary() == nil {
		if err := migration.ForgetDropped(ctx, n.Docs); err != nil {
			return 0, err
		}
	}
	return n.txns.Reap(ctx, n.now().Add(-time.Duration(n.Params.Int("TransactionRecordMinimumLifetimeMinutes"))*time.Minute))
}

// sessionsDue reports whether it is time to write the sessions collection again.
func (n *Node) sessionsDue(since time.Duration) bool {
	return since > time.Duration(n.Params.Int("logicalSessionRefreshMillis"))*time.Millisecond && !n.Params.Bool("disableLogicalSessionCacheRefresh")
}

// storedSessions returns the output of $listSessions, without the records that belong to another shard now.
func storedSessions(s *storage.Snapshot, owned exec.Ownership, shown func(owner [32]byte) bool) (docs [][]byte, err error) {
	all, err := allDocs(s, cluster.SessionsNS)
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		ours, err := owned.Has(d)
		if err != nil {
			return nil, err
		}
		uid := value.Lookup(value.Lookup(d, "_id").Doc(), "uid").Bytes()
		if ours && len(uid) == 32 && shown([32]byte(uid)) {
			docs = append(docs, d)
		}
	}
	return docs, nil
}
