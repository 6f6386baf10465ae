package migration

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Identity is a shard's knowledge of the cluster it belongs to: the document {_id: "shardIdentity"} of
// admin.system.version.
type Identity struct {
	Shard     string
	ClusterID [12]byte
	ConfigDB  string
}

// IdentityNS is the namespace of a shard's identity.
const IdentityNS = "admin.system.version"

// ParseIdentity reads a shard identity.
func ParseIdentity(doc []byte) (id Identity, err error) {
	name, cluster, config := value.Lookup(doc, "shardName"), value.Lookup(doc, "clusterId"), value.Lookup(doc, "configsvrConnectionString")
	if name.T != value.String || cluster.T != value.ObjectID || config.T != value.String {
		return id, mongoerr.New(mongoerr.FailedToParse, "a shard identity needs shardName, clusterId and configsvrConnectionString")
	}
	return Identity{Shard: name.Str(), ClusterID: cluster.ObjectID(), ConfigDB: config.Str()}, nil
}

// Doc returns the identity as it is stored.
func (id *Identity) Doc() []byte {
	return value.Doc(value.F("_id", value.NewString("shardIdentity")), value.F("shardName", value.NewString(id.Shard)),
		value.F("clusterId", value.NewObjectID(id.ClusterID)), value.F("configsvrConnectionString", value.NewString(id.ConfigDB)))
}

// ConfigSet returns the name of the config server's set.
func (id *Identity) ConfigSet() string {
	set, _ := cluster.SplitHosts(id.ConfigDB)
	return set
}

// The shard must be able to find the config server even when none of the members that it had when the shard was
// added remain. Therefore the stored identity follows the set's members as its monitor sees them.

// ConfigHosts returns the config server's connection string: the members that its primary lists, or else the
// stored ones.
func (s *ShardState) ConfigHosts() string {
	if f, ok := s.Registry.Config().(interface{ ConnString() string }); ok {
		if conn := f.ConnString(); conn != "" {
			return conn
		}
	}
	return s.ConfigDB
}

// ConfigMoved is called when the members of the config server may have changed. It does not block.
func (s *ShardState) ConfigMoved() {
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// identityRetry is the time before a failed attempt to store the addresses is repeated.
const identityRetry = 5 * time.Second

// identityService keeps the config server's address in the stored identity up to date, on the primary.
func (s *ShardState) identityService(docs *statedoc.Docs) replication.Service {
	return replication.Service{Name: "ShardIdentity", Run: func(ctx context.Context, _ int64) {
		for {
			again := (<-chan time.Time)(nil)
			if err := s.storeConfigHosts(ctx, docs); err != nil {
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
func (s *ShardState) storeConfigHosts(ctx context.Context, docs *statedoc.Docs) error {
	doc, err := docs.Get(IdentityNS, value.NewString("shardIdentity"))
	if err != nil || doc == nil {
		return err
	}
	id, err := ParseIdentity(doc)
	conn := s.ConfigHosts()
	if err != nil || conn == id.ConfigDB {
		return err
	}
	id.ConfigDB = conn
	return docs.Put(ctx, IdentityNS, id.Doc())
}
