package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

const sessionsNS = "config.system.sessions"

// sessionStore keeps the sessions collection of a replica set, on its primary; a TTL index takes out what nobody used. In
// a cluster it is the routers that keep it, on the config server.
type sessionStore struct{ s *Server }

// keeps tells whether this node writes the collection.
func (k sessionStore) keeps() bool {
	n := k.s.Node
	return n.Repl != nil && n.Repl.Name != "" && n.notPrimary() == nil && (n.Sharding() == nil || n.ConfigServer)
}

// RefreshSessions implements cluster.SessionStore.
func (k sessionStore) RefreshSessions(ctx context.Context, ids []cluster.LogicalSessionID, at time.Time) error {
	if !k.keeps() {
		return nil
	}
	if err := k.ensure(ctx); err != nil {
		return err
	}
	return cluster.PeerSessionStore{Peer: k.s.OwnPeer()}.RefreshSessions(ctx, ids, at)
}

// RemoveSessions implements cluster.SessionStore.
func (k sessionStore) RemoveSessions(ctx context.Context, ids []cluster.LogicalSessionID) error {
	if len(ids) == 0 || !k.keeps() {
		return nil
	}
	return cluster.PeerSessionStore{Peer: k.s.OwnPeer()}.RemoveSessions(ctx, ids)
}

// ensure makes the collection with the index that reaps it.
func (k sessionStore) ensure(ctx context.Context) error {
	const name = "lsidTTLIndex"
	if c := k.s.Engine.Catalog().Lookup(sessionsNS); c != nil && c.Index(name) != nil {
		return nil
	}
	index := value.Doc(value.F("key", value.NewDocument(value.Doc(value.F("lastUse", value.NewInt32(1))))), value.F("name", value.NewString(name)),
		value.F("expireAfterSeconds", value.NewInt32(int32(k.s.Base.Sessions.Timeout().Seconds()))))
	_, err := cluster.RunWrite(ctx, k.s.OwnPeer(), value.Doc(value.F("createIndexes", value.NewString("system.sessions")),
		value.F("indexes", value.NewArray(value.ArrayOf(value.NewDocument(index)))), value.F("$db", value.NewString("config"))))
	return err
}

// endSession ends what a session that has ended or expired left open.
func (s *Server) endSession(id cluster.LogicalSessionID) {
	s.Node.killSessionCursors(func(other cluster.LogicalSessionID) bool { return other == id })
	t := &s.Node.retries
	t.mu.Lock()
	r := t.mu.sessions[id]
	t.mu.Unlock()
	if r == nil {
		return
	}
	select {
	case <-r.busy:
		s.Node.abortTxn(r)
		r.busy <- struct{}{}
	default: // a command is at work in it
	}
}

// sessionsDue tells whether it is time to write the sessions collection again.
func (n *Node) sessionsDue(since time.Duration) bool {
	return since > time.Duration(n.Params.Int("logicalSessionRefreshMillis"))*time.Millisecond && !n.Params.Bool("disableLogicalSessionCacheRefresh")
}

// storedSessions is what $listSessions shows.
func storedSessions(s *storage.Snapshot, shown func(owner [32]byte) bool) (docs [][]byte, err error) {
	all, err := allDocs(s, sessionsNS)
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		uid := value.Lookup(value.Lookup(d, "_id").Doc(), "uid").Bytes()
		if len(uid) == 32 && shown([32]byte(uid)) {
			docs = append(docs, d)
		}
	}
	return docs, nil
}
