package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
)

// What a shard knows of the config server's address has to outlive those that the config server had when the shard was
// added: the stored identity follows the set's members, as its monitor sees them.

// ConfigHosts is the config server's connection string: as its primary lists the members, else as it was stored.
func (s *ShardState) ConfigHosts() string {
	if f, ok := s.Registry.Config().(interface{ ConnString() string }); ok {
		if conn := f.ConnString(); conn != "" {
			return conn
		}
	}
	return s.ConfigDB
}

// ConfigMoved tells that the config server may have other members. It does not block.
func (s *ShardState) ConfigMoved() {
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// identityRetry is how long an address waits that could not be stored.
const identityRetry = 5 * time.Second

// identityService keeps the config server's address in the stored identity, on the primary.
func (s *ShardState) identityService(n *Node) replication.Service {
	return replication.Service{Name: "ShardIdentity", Run: func(ctx context.Context, _ int64) {
		for {
			again := (<-chan time.Time)(nil)
			if err := s.storeConfigHosts(ctx, n); err != nil {
				again = time.After(identityRetry)
			}
			select {
			case <-s.moved:
			case <-again:
			case <-ctx.Done():
				return
			}
		}
	}}
}

// storeConfigHosts brings the stored identity up to date.
func (s *ShardState) storeConfigHosts(ctx context.Context, n *Node) error {
	doc, err := n.Docs.Get(identityNS, value.NewString("shardIdentity"))
	if err != nil || doc == nil {
		return err
	}
	id, err := parseIdentity(doc)
	conn := s.ConfigHosts()
	if err != nil || conn == id.ConfigDB {
		return err
	}
	id.ConfigDB = conn
	return n.Docs.Put(ctx, identityNS, id.doc())
}
