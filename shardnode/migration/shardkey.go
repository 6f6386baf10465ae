package migration

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// runValidateShardKey checks whether a collection's indexes on this shard support a shard key. If asked to, it makes sure that this node is the primary: one that was
// deposed would answer for indexes that have been dropped since.
func (m *Manager) runValidateShardKey(op *command.Op, req *msg.ValidateShardKey, dst []byte) ([]byte, error) {
	if req.Confirm {
		if err := m.Linearize(op); err != nil {
			return dst, err
		}
	}
	key, err := cluster.ParseShardKey(req.Key)
	if err != nil {
		return dst, err
	}
	c := m.Engine.Catalog().Lookup(req.NS)
	if c == nil || c.UUID != catalog.UUID(req.UUID) {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s does not exist on shard %s", req.NS, m.state.ID)
	}
	serves, err := ServesShardKey(c, key, req.Unique, req.Enforce)
	if err == nil && !serves {
		err = mongoerr.New(mongoerr.InvalidOptions, "Please create an index that starts with the proposed shard key before refining the shard key. ")
	}
	return dst, err
}

// ServesShardKey reports whether one of a collection's indexes contains every document under its shard key exactly once, and is unique if
// the key has to be. With enforce, a unique index that cannot be enforced across shards is an error.
func ServesShardKey(c *catalog.Collection, key *cluster.ShardKeyPattern, unique, enforce bool) (serves bool, err error) {
	for _, x := range c.Indexes {
		if enforce && !key.AdmitsIndex(x.Spec.Raw) {
			return false, mongoerr.Newf(mongoerr.InvalidOptions, "can't shard collection '%s' with unique index on %s and proposed shard key. Uniqueness can't be maintained unless shard key is a prefix",
				c.NS, x.Name)
		}
		serves = serves || servesShardKey(x, key) && (!unique || x.Spec.Unique || x.IsID)
	}
	return serves || clusteredBy(c, key), nil
}

// clusteredBy reports whether the records of a collection are in the order of the shard key, which then needs no index: the collection is clustered by _id,
// and the key is _id.
func clusteredBy(c *catalog.Collection, key *cluster.ShardKeyPattern) bool {
	return c.Clustered && c.Collator == nil && len(key.Parts) == 1 && key.Parts[0].Path == "_id" && !key.Parts[0].Hashed
}

// ShardKeyIndexes lists the indexes of a collection that serve its shard key and are not hidden; none if it is not sharded. required is false for a hashed key: the last of
// its indexes may be dropped by its name, and be hidden.
func (s *ShardState) ShardKeyIndexes(ctx context.Context, c *catalog.Collection) (names []string, required bool, err error) {
	info, err := s.Catalog.Collection(ctx, c.NS)
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound { // a database of this shard alone
		return nil, false, nil
	}
	if err != nil || !info.Sharded() || info.Map.UUID != c.UUID {
		return nil, false, err
	}
	for _, x := range c.Indexes {
		if !x.Hidden && servesShardKey(x, info.Map.Key) {
			names = append(names, x.Name)
		}
	}
	if clusteredBy(c, info.Map.Key) {
		names = append(names, c.ClusteredName)
	}
	return names, !info.Map.Key.IsHashed(), nil
}

// servesShardKey reports whether an index contains every document under its shard key exactly once.
func servesShardKey(x *catalog.Index, key *cluster.ShardKeyPattern) bool {
	return x.Ready && !x.Multikey && x.Collator == nil && !x.Spec.Sparse && x.Spec.PartialFilter == nil && key.IsPrefixOfIndex(x.Spec.KeyPattern)
}
