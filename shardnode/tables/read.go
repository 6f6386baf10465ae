package tables

import (
	"bytes"
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/consistency"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/keystring"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// lastmodIndex is the index of stored chunks by version.
const lastmodIndex = "lastmod_1"

// Stored describes the stored table of a collection, for a check.
func (t *Tables) Stored(ns string) (*msg.CheckParticipantReply, error) {
	for {
		doc, err := t.Docs.Get(CollectionsNS, value.NewString(ns))
		if err != nil || doc == nil {
			return new(msg.CheckParticipantReply), err
		}
		e, err := cluster.ParseCachedEntry(doc)
		if err != nil || e.Refreshing {
			return new(msg.CheckParticipantReply), err
		}
		p, _, ok := t.read(ns, nil)
		if again, err := t.Docs.Get(CollectionsNS, value.NewString(ns)); err != nil {
			return new(msg.CheckParticipantReply), err
		} else if !bytes.Equal(doc, again) {
			continue // written meanwhile
		}
		out := &msg.CheckParticipantReply{Entry: e.Entry, Version: e.Version, Damaged: !ok}
		if ok && p.Map != nil {
			out.Sum = consistency.Sum(p.Map.All())
		}
		return out, nil
	}
}

// readAll reads a stored table, with the sum of its documents.
func readAll(s *storage.Snapshot, c *catalog.Collection, e *cluster.CollectionEntry) (m *cluster.ChunkMap, sum uint64, err error) {
	var chunks []*cluster.Chunk
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		ch, err := cluster.ParseCachedChunk(cur.Doc(), e.Generation)
		if err != nil {
			return nil, 0, err
		}
		sum += hashOf(cur.Doc())
		chunks = append(chunks, ch)
	}
	if cur.Err() != nil {
		return nil, 0, cur.Err()
	}
	m, err = cluster.NewChunkMap(e.UUID, e.Key, e.Unique, e.Generation, chunks)
	return m, sum, err
}

// readSince brings a table up to date by the stored chunks that are newer.
func readSince(s *storage.Snapshot, c *catalog.Collection, e *cluster.CollectionEntry, old *cluster.ChunkMap) (*cluster.ChunkMap, error) {
	x := c.Index(lastmodIndex)
	if x == nil {
		return nil, mongoerr.Newf(mongoerr.IndexNotFound, "%s has no index %s", c.NS, lastmodIndex)
	}
	idx := s.IndexScan(c, x, false)
	defer idx.Close()
	idx.Seek(keystring.AppendKey(nil, value.NewTimestampU64(old.Version().Combined()), false, nil))
	var chunks []*cluster.Chunk
	for idx.Next() {
		doc, ok, err := s.Get(c, idx.RecordID())
		if err != nil || !ok {
			return nil, mongoerr.Newf(mongoerr.DataCorruptionDetected, "an entry of the index %s of %s names no document", lastmodIndex, c.NS)
		}
		ch, err := cluster.ParseCachedChunk(doc, e.Generation)
		if err != nil {
			return nil, err
		}
		chunks = append(chunks, ch)
	}
	if err := idx.Err(); err != nil {
		return nil, err
	}
	if len(chunks) == 0 {
		return nil, mongoerr.New(mongoerr.ConflictingOperationInProgress, "no stored chunk is as new as the newest one known")
	}
	return old.Update(chunks)
}

// primaryTimeout limits the time that a secondary waits for its primary's reply before it asks the config server itself.
const primaryTimeout = time.Second

// Follow implements cluster.Disk.
func (t *Tables) Follow(ctx context.Context, ns string, old *cluster.ChunkMap) (p cluster.Placement, ok bool) {
	if t.Primary() || !t.follow(ctx, msg.Doc(&msg.FlushRoutingTableDurably{NS: ns})) {
		return p, false
	}
	p, _, ok = t.read(ns, old)
	return p, ok
}

// FollowDatabase implements cluster.Disk.
func (t *Tables) FollowDatabase(ctx context.Context, db string) (doc []byte, ok bool) {
	if t.Primary() || !t.follow(ctx, msg.Doc(&msg.FlushDatabaseDurably{DB: db})) {
		return nil, false
	}
	doc, err := t.Docs.Get(DatabasesNS, value.NewString(db))
	return doc, err == nil
}

// follow makes the primary refresh a placement and store it, and waits until this member has the stored documents, however far behind it is: the documents of a range that has
// arrived come before the placement in the log.
//
// Hazard: a member that is behind, and asks the config server instead, reads by a placement that gives its shard ranges of which it does not have the documents yet.
func (t *Tables) follow(ctx context.Context, cmd []byte) bool {
	asking, cancel := context.WithTimeout(ctx, primaryTimeout)
	reply, err := t.AskPrimary(asking, cmd)
	cancel()
	if err != nil {
		return false
	}
	var stored msg.FlushReply
	if err := msg.Parse(reply, &stored); err != nil {
		return false
	}
	return t.reach(ctx, storage.Timestamp(stored.Visible)) == nil
}

// reach waits until everything up to a time is visible on this member.
func (t *Tables) reach(ctx context.Context, at storage.Timestamp) error {
	for {
		now := t.Docs.Engine.Visible()
		if now >= at {
			return nil
		}
		if _, err := t.Docs.Engine.WaitVisible(ctx, now); err != nil {
			return err
		}
	}
}

// AwaitDatabase implements cluster.Disk. The version by which movePrimary makes the shard a database's primary shard has a time of the config server that is later than the copies of the
// documents, and earlier than the write by which the shard forgets the operation. A database that was not moved has no documents to wait for.
func (t *Tables) AwaitDatabase(ctx context.Context, db *cluster.DatabaseInfo) error {
	if t.Primary() || db.Primary != t.Shard || db.Version.LastMod <= 1 {
		return nil
	}
	return t.reach(ctx, storage.Timestamp(db.Version.Timestamp))
}

// Await implements cluster.Disk. A range arrives at a time of the config server that is later than the copies of its documents, and earlier than the writes by which the shard
// concludes the migration.
func (t *Tables) Await(ctx context.Context, m *cluster.ChunkMap) error {
	if t.Primary() {
		return nil
	}
	return t.reach(ctx, storage.Timestamp(m.Arrived(t.Shard)))
}
