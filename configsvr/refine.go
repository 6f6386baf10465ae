package configsvr

import (
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// runCommitRefine gives a collection a shard key with more fields. The entry, with a new epoch, and the zones are written together;
// from then on all nodes read the bounds of chunks as bounds of the new key (ExtendBound), whether their documents have been
// rewritten yet or not, so that a table of any size is refined in bounded units.
func (m *Manager) runCommitRefine(op *command.Op, req *msg.CommitRefine, dst []byte) ([]byte, error) {
	key, err := cluster.ParseShardKey(req.Key)
	if err != nil {
		return dst, err
	}
	unlock, err := m.ddl.lock(op, req.NS)
	if err != nil {
		return dst, err
	}
	defer unlock()
	if err := m.stillWanted(op, req.NS, &req.Run, true); err != nil {
		return dst, err
	}
	free, err := m.lockTables(op)
	if err != nil {
		return dst, err
	}
	defer free()
	raw, e, err := m.entry(op, req.NS)
	if err != nil {
		return dst, err
	}
	switch {
	case e == nil || e.UUID != req.UUID:
		return dst, mongoerr.Newf(mongoerr.StaleEpoch, "the collection %s no longer exists", req.NS)
	case e.Generation.Epoch == req.NewEpoch:
		return dst, m.extendChunks(op, req.UUID, key) // which an earlier attempt may not have completed
	case e.Generation.Epoch != req.Epoch:
		return dst, mongoerr.Newf(mongoerr.StaleEpoch, "the collection %s changed while its shard key was refined", req.NS)
	}
	if err := m.writeRefined(op, raw, req, key); err != nil {
		return dst, err
	}
	if err := m.extendChunks(op, req.UUID, key); err != nil {
		return dst, err
	}
	m.log(op, "refineCollectionShardKey.end", req.NS, doc(fld("key", value.NewDocument(req.Key)), fld("oldKey", value.NewDocument(e.Key.Doc()))))
	return dst, nil
}

// writeRefined writes the entry with the new key, and the collection's zones with its bounds.
func (m *Manager) writeRefined(ctx context.Context, raw []byte, req *msg.CommitRefine, key *cluster.ShardKeyPattern) error {
	w := &catalogWrites{m: m}
	entry := raw
	for _, f := range []value.Field{
		fld("lastmodEpoch", value.NewObjectID(req.NewEpoch)), fld("lastmod", value.NewTime(time.Now())),
		fld("timestamp", value.NewTimestampU64(m.tick())), fld("key", value.NewDocument(req.Key)),
	} {
		entry = value.Doc(withField(entry, f.Key, f.Val)...)
	}
	w.entries.Put = [][]byte{entry}
	zones, err := m.find(ctx, "tags", doc(fld("ns", str(req.NS))))
	if err != nil {
		return err
	}
	for _, z := range zones {
		if out := extendBounds(z, key); out != nil {
			w.zones.Put = append(w.zones.Put, out)
		}
	}
	return w.commit(ctx)
}

// extendBounds returns a chunk's or zone's document with the bounds of a longer key; nil if it has them already.
func extendBounds(d []byte, key *cluster.ShardKeyPattern) []byte {
	out := d
	for _, name := range []string{"min", "max"} {
		bound := value.LookupDoc(d, name)
		if longer := key.ExtendBound(bound); len(longer) != len(bound) {
			out = value.Doc(withField(out, name, value.NewDocument(longer))...)
		}
	}
	if len(out) == len(d) {
		return nil
	}
	return out
}

// extendChunks writes the documents of a collection's chunks with the bounds of its new key, in the order of their versions, which
// do not change.
func (m *Manager) extendChunks(ctx context.Context, uuid [16]byte, key *cluster.ShardKeyPattern) error {
	const batch = 1000
	id := value.NewBinary(4, uuid[:])
	for last := value.NewTimestampU64(0); ; {
		docs, err := m.first(ctx, batch, "chunks", doc(fld("uuid", id), fld("lastmod", doc(fld("$gt", last)))), fld("lastmod", value.NewInt32(1)))
		if err != nil || len(docs) == 0 {
			return err
		}
		last = value.Lookup(docs[len(docs)-1], "lastmod").Clone()
		w := &chunkWrites{m: m, uuid: uuid}
		for _, d := range docs {
			if out := extendBounds(slices.Clone(d), key); out != nil {
				w.writes.Put = append(w.writes.Put, out)
			}
		}
		if len(w.writes.Put) > 0 {
			if err := w.commit(ctx); err != nil {
				return err
			}
		}
	}
}
