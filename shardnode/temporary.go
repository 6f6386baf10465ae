package shardnode

import (
	"context"

	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// temporaryService drops the temporary collections that are there when a member becomes primary, as servers do: those of
// commands that nobody will finish ($out, convertToCapped, renameCollection between databases). Clients do not write yet
// when they are looked for, so that none is of a command under way.
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
