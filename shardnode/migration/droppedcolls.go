package migration

import (
	"context"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// A shard records the collections that are dropped on it: the history that moves with a chunk is found under the UUIDs that the collection has
// had (resharding gives it a new one), and a UUID that no collection has any more is either one of those, or that of a dropped collection.
//
//	config.system.droppedCollections    {_id: UUID, at: a time before the drop, and after the collection's last entry in the oplog}
//
// Rejected: recording the UUIDs that each collection has had. A shard that has owned nothing of the collection for a while misses some of them, and would withhold
// history that the next owner needs. A record that is missing here only causes history to be sent needlessly.

// DroppedNS is the collection of the records.
const DroppedNS = "config.system.droppedCollections"

// NoteDropped stages the records in the unit of work that drops collections.
func NoteDropped(s *storage.Snapshot, u *storage.UnitOfWork, dropped ...*catalog.Collection) (err error) {
	notes := s.Catalog().Lookup(DroppedNS)
	for _, c := range dropped {
		if !c.Replicated {
			continue
		}
		if notes == nil {
			notes, err = u.CreateCollection(storage.CollectionSpec{NS: DroppedNS, Unreplicated: true, Shared: true,
				Options: value.Doc(value.F("clusteredIndex", value.NewBool(true)))})
			if err != nil {
				return err
			}
		}
		id := c.UUID.Value()
		if err := statedoc.PutRecord(s, u, notes, id, value.Doc(value.F("_id", id), value.F("at", s.Timestamp().Value()))); err != nil {
			return err
		}
	}
	return nil
}

// isDropped reports whether a collection is known to have been dropped on this shard.
func isDropped(docs *statedoc.Docs, uuid catalog.UUID) bool {
	doc, err := docs.Get(DroppedNS, uuid.Value())
	return err == nil && doc != nil
}

// ForgetDropped removes the records of collections of which the oplog has no entries any more.
func ForgetDropped(ctx context.Context, docs *statedoc.Docs) error {
	cut, err := docs.Engine.OplogCut()
	if err != nil {
		return err
	}
	var old []value.Value
	err = docs.Each(DroppedNS, func(doc []byte) error {
		if storage.Timestamp(value.Lookup(doc, "at").TimestampU64()) <= cut {
			old = append(old, value.Lookup(doc, "_id").Clone())
		}
		return nil
	})
	if err != nil || len(old) == 0 {
		return err
	}
	return docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c := s.Catalog().Lookup(DroppedNS)
		if c == nil {
			return nil
		}
		for _, id := range old {
			if err := statedoc.PutRecord(s, u, c, id, nil); err != nil {
				return err
			}
		}
		return nil
	})
}
