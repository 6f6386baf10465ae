package migration

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// cloneBatch is the number of documents requested from the other shard at a time.
const cloneBatch = 2000

// runCloneCollection fetches the documents of a collection whose database moves to this shard. Nobody writes to it meanwhile on
// either shard, so documents that an earlier attempt has stored here are current.
func (m *Manager) runCloneCollection(op *command.Op, req *msg.CloneCollection, dst []byte) ([]byte, error) {
	from, err := m.state.Registry.Shard(op, req.From)
	if err != nil {
		return dst, err
	}
	db, coll := cluster.SplitNS(req.NS)
	cmd := value.Doc(value.F("find", value.NewString(coll)), value.F("batchSize", value.NewInt32(cloneBatch)), value.F("noCursorTimeout", value.NewBool(true)),
		value.F("$db", value.NewString(db)))
	for part := "firstBatch"; ; part = "nextBatch" {
		reply, err := cluster.Run(op, from.Peer, cmd)
		if err != nil {
			return dst, err
		}
		cursor := value.LookupDoc(reply, "cursor")
		batch := value.Lookup(cursor, part)
		if batch.T != value.Array {
			return dst, mongoerr.Newf(mongoerr.FailedToParse, "shard %s answers without documents of %s", req.From, req.NS)
		}
		if err := m.insertCloned(op, req, value.Values(batch.Doc())); err != nil {
			return dst, err
		}
		id, _ := value.Lookup(cursor, "id").AsInt64()
		if id == 0 {
			break
		}
		cmd = value.Doc(value.F("getMore", value.NewInt64(id)), value.F("collection", value.NewString(coll)), value.F("batchSize", value.NewInt32(cloneBatch)),
			value.F("$db", value.NewString(db)))
	}
	// Once this write is durable, the inserted documents are, too.
	return dst, m.Docs.WriteWith(op, replication.Durable, func(_ *storage.Snapshot, u *storage.UnitOfWork) error {
		u.Oplog(storage.OplogEntry{Op: 'n', StmtID: -1, O: value.Doc(value.F("msg", value.NewString("collection "+req.NS+" was cloned")))})
		return nil
	})
}

// insertCloned stores the documents that are not there yet, while the DDL run holds the database.
func (m *Manager) insertCloned(op *command.Op, req *msg.CloneCollection, docs []value.Value) error {
	unlock, err := m.Locks.Collection(op, req.NS, lock.IX)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.state.HoldsSection(req.NS, req.Section); err != nil {
		return err
	}
	for len(docs) > 0 {
		n, size := 0, 0
		for n < len(docs) && n < 500 && size < maxTransfer {
			size += len(docs[n].Doc())
			n++
		}
		err := m.Docs.WriteWith(op, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			c := s.Catalog().Lookup(req.NS)
			if c == nil || c.UUID != req.UUID {
				return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped while it was cloned", req.NS)
			}
			u.SetFromMigrate()
			for _, d := range docs[:n] {
				if _, _, there, err := s.FindByID(c, value.Lookup(d.Doc(), "_id")); err != nil {
					return err
				} else if there {
					continue
				}
				if _, err := u.Insert(c, d.Doc(), storage.NoInfo); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		docs = docs[n:]
	}
	return nil
}

// runAdoptSessions adopts another shard's history of retryable writes.
func (m *Manager) runAdoptSessions(op *command.Op, req *msg.AdoptSessions, dst []byte) ([]byte, error) {
	return dst, m.sessions.Adopt(op, value.Values(req.Sessions))
}
