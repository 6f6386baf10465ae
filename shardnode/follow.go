package shardnode

import (
	"context"

	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/settings"
	"github.com/shoaldb/shoal/storage"
)

// What a node keeps in memory of its own documents (parameters, defaults, signing keys, its place in a cluster) is
// updated by the commands that write the documents. On a secondary the documents arrive with the replicated log:
// follow detects that, and the follower reads them again.

// follow is called for every entry that another member committed, and for every snapshot received, once it is visible.
func (s *Server) follow(info storage.ApplyInfo) {
	if s.Clock != nil {
		s.Clock.AdvanceCluster(uint64(info.TS))
	}
	if info.Snapshot {
		s.Node.cursors.feed.Replaced()
		if err := s.Node.loadNoticed(); err != nil {
			s.Node.warn("Running transactions and migrations could not be read from a snapshot", err)
		}
	}
	again := info.Snapshot
	for _, c := range info.Touched {
		again = again || c.DB() == "admin" || settings.StoredIn(c.NS)
	}
	if again {
		s.Service.Access.Invalidate()
		s.reread()
	}
}

// reread schedules a reload of everything by the follower.
func (s *Server) reread() {
	select {
	case s.again <- struct{}{}:
	default: // a reload is pending already
	}
}

// runFollower reloads the node's own documents whenever follow has detected a change.
func (s *Server) runFollower(ctx context.Context) {
	for {
		select {
		case <-s.again:
		case <-ctx.Done():
			return
		}
		s.Service.Access.EndWaits(ctx)
		if err := s.Node.settings.Load(); err != nil {
			s.Node.warn("Parameters and defaults could not be read", err)
		}
		if s.Clock != nil {
			if keys := s.Clock.Keys(); keys != nil {
				_ = keys.Load(ctx) // a missing key is looked up again when it is needed
			}
		}
		if err := s.joinStored(); err != nil {
			s.Node.warn("The node could not join its cluster", err)
		}
	}
}

// joinStored makes the node a shard if its set has been added to a cluster through another member.
func (s *Server) joinStored() error {
	join := s.joins.Load()
	if join == nil || s.Node.Sharding() != nil {
		return nil
	}
	id, ok, err := s.Identity()
	if err != nil || !ok {
		return err
	}
	return s.becomeShard(id, *join)
}

// becomeShard initialises the node's sharding state, once.
func (s *Server) becomeShard(id migration.Identity, join func(migration.Identity) (*migration.ShardState, error)) error {
	s.joining.Lock()
	defer s.joining.Unlock()
	if s.Node.Sharding() != nil {
		return nil
	}
	state, err := join(id)
	if err != nil {
		return err
	}
	s.Node.BecomeShard(state)
	return nil
}

// forgetWriting drops what the node cached about its own writes, since another member has written meanwhile.
func (n *Node) forgetWriting() {
	n.writes.ForgetBuckets()
}
