package coordinator

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// shard makes a collection sharded. The config server lays out its chunks and writes its entry last; sent again,
// it begins again where the entry is not there, and finds it done where it is.
type shard struct {
	req  *msg.ShardShardCollection
	none msg.Nothing
}

func (m *Coordinators) shard(op *command.Op, req *msg.ShardShardCollection, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

func (s *shard) name() string              { return "shardCollection" }
func (s *shard) locks() (string, []string) { return catalog.DBOf(s.req.NS), []string{s.req.NS} }
func (s *shard) found() msg.Message        { return &s.none }

func (s *shard) check(ctx context.Context, r *run) (local bool, err error) {
	if catalog.CollOf(s.req.NS) == "" {
		return false, mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", s.req.NS)
	}
	return false, nil
}

func (s *shard) phases() []phase {
	return []phase{{name: "shardCollection", do: func(ctx context.Context, r *run) error {
		_, err := r.onConfig(ctx, &s.req.ShardCollection)
		return err
	}}}
}

func (s *shard) undo(context.Context, *run) error { return nil }

func (s *shard) reply(dst []byte) []byte {
	return value.Append(dst, "collectionsharded", value.NewString(s.req.NS))
}
