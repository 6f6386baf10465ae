package shardnode

import (
	"context"

	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// temporaryService drops the temporary collections that exist when a member becomes primary, like the real server.
// They belong to commands that will not be finished ($out, convertToCapped, renameCollection between databases).
// Clients cannot write yet at that time, so none belongs to a running command.
func (n *Node) temporaryService() replication.Service {
	var found []*catalog.Collection
	return replication.Service{
		Name: "TemporaryCollections",
		StepUp: func(context.Context, int64) error {
			found = nil
			n.Engine.Catalog().Each(func(c *catalog.Collection) {
				if c.Temp && c.Replicated {
					found = append(found, c)
				}
			})
			return nil
		},
		Run: func(ctx context.Context, _ int64) {
			for _, c := range found {
				err := n.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
					if c := s.Catalog().LookupUUID(c.UUID); c != nil && c.Temp {
						return u.DropCollection(c)
					}
					return nil
				})
				if err != nil && ctx.Err() == nil {
					n.warn("A temporary collection could not be dropped", err)
				}
			}
		},
	}
}
