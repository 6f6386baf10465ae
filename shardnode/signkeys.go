package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
)

// keysNS holds the keys that cluster times are signed with.
const keysNS = "admin.system.keys"

// ownKeys stores the signing keys in the node's own store, which is replicated to every member of its set.
type ownKeys struct{ n *Node }

// LoadKeys implements cluster.KeyStore.
func (k ownKeys) LoadKeys(context.Context) ([]cluster.SigningKey, error) {
	var keys []cluster.SigningKey
	err := k.n.Docs.Each(keysNS, func(doc []byte) error {
		if value.Lookup(doc, "purpose").Str() != cluster.KeyPurpose {
			return nil
		}
		key, err := cluster.ParseSigningKey(doc)
		if err != nil {
			k.n.Docs.Unreadable(keysNS, doc, err)
			return nil
		}
		keys = append(keys, key)
		return nil
	})
	return keys, err
}

// InsertKey implements cluster.KeyStore.
func (k ownKeys) InsertKey(ctx context.Context, key cluster.SigningKey) error {
	return k.n.Docs.Put(ctx, keysNS, key.Doc())
}

// keyCheck is the interval at which the primary checks whether the next key is due, unless keys live for less than four times that.
const keyCheck = time.Hour

// keyService makes the members of a set that is not a shard sign with the set's own keys, which the primary generates in advance.
func (s *Server) keyService() replication.Service {
	ring := cluster.NewKeyRing(ownKeys{s.Node})
	if s.Clock.Keys() == nil {
		_ = ring.Load(context.Background()) // a restarted member has them; a new one receives them with the first data
		s.Clock.UseKeys(ring)
	}
	rotation := time.Duration(s.Node.Params.Int("KeysRotationIntervalSec")) * time.Second
	return replication.Service{
		Name: "KeysCollectionManager",
		StepUp: func(ctx context.Context, _ int64) error {
			return ring.EnsureAhead(storage.WithReserve(ctx), s.Clock, rotation)
		},
		Run: func(ctx context.Context, _ int64) {
			tick := time.NewTicker(min(keyCheck, max(rotation/4, time.Second)))
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					_ = ring.EnsureAhead(ctx, s.Clock, rotation) // after an error the existing keys remain valid for a while
				case <-ctx.Done():
					return
				}
			}
		},
	}
}

// secretService makes the secret with which nonexistent users look like existing ones to a client that tries to authenticate. Each set with users of its own
// has one: the config server for those of a cluster, a shard for those of its direct connections.
func secretService(n *Node) replication.Service {
	return replication.Service{
		Name: "SimulatedCredentials",
		StepUp: func(ctx context.Context, _ int64) error {
			found := false
			err := n.Docs.Each(keysNS, func(doc []byte) error {
				found = found || value.Lookup(doc, "purpose").Str() == auth.SimulationPurpose && auth.ParseSimulationSecret(doc) != nil
				return nil
			})
			if err != nil || found {
				return err
			}
			return n.Docs.Put(storage.WithReserve(ctx), keysNS, auth.NewSimulationSecret())
		},
	}
}

// KeepKeys makes the server sign with keys that its own set keeps: a config server, or a set that is not a shard.
func (s *Server) KeepKeys() error { return s.Node.Services.Add(s.keyService()) }
