package write

import (
	"bytes"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// LockVersioned locks collections exclusively for a command that changes the catalog, and compares the command's
// versions for one of them: from then on, operations that would move or drop it wait. A user's command is refused if users have been blocked since it was checked first.
func (w *Command) LockVersioned(ns string, names ...string) (unlock func(), err error) {
	if unlock, err = w.lock(lock.X, names...); err != nil {
		return nil, err
	}
	if err = w.writer.checkVersions(w.Op, ns); err == nil {
		err = w.writer.node.CheckBlocked(w.Op, ns)
	}
	if err != nil {
		unlock()
		w.refused(slices.Compact(slices.Sorted(slices.Values(names)))...)
		return nil, migration.WaitCritical(w.Op, err)
	}
	return unlock, nil
}

// writtenRanges is the field in which a router lists the ranges of a collection whose documents a statement has changed
// already, under an earlier placement, on the shard that owned them then. The router knows them because a shard either
// executes a whole statement under the version that came with it, or rejects it.
const writtenRanges = "alreadyWrittenRanges"

// checkWrittenRanges returns an error for the field in a command that does not come from a router.
func (wr *Writer) checkWrittenRanges(op *command.Op) error {
	router := wr.node.Sharding() != nil && op.Req.ShardVersion != nil && (op.Client.InProcess || op.Client.Internal)
	if router || op.Req.Shared(writtenRanges).IsMissing() {
		return nil
	}
	return command.UnknownField(op.Req.Spec.Name + "." + writtenRanges)
}

// ownedBy returns the shard filter of the command's statements on a collection: by the version in the command, and
// without the ranges that are already written. One filter serves the whole command, which holds the collection's lock:
// documents that arrive by a migration in the meantime belonged to the donor's part of the statement.
func (w *Command) ownedBy(c *catalog.Collection) (exec.Ownership, error) {
	if w.writer.node.Sharding() == nil || c == nil || w.Op.Req.ShardVersion == nil {
		return nil, nil
	}
	if c.NS != w.acquired { // the target of a $merge: the version is that of the source
		return w.writer.node.Sharding().Ownership(w.Op, c), nil
	}
	if w.owns.coll == c.UUID {
		return w.owns.filter, nil
	}
	owned, table, err := w.writer.node.Sharding().ReadFilter(w.Op, c)
	if err != nil {
		return nil, err
	}
	written, err := w.written(table)
	if err != nil {
		return nil, err
	}
	if len(written) > 0 {
		mine := exec.Ownership(owned)
		owned = func(doc []byte) (bool, error) {
			if slices.ContainsFunc(written, func(r *migration.KeyRange) bool { return r.Contains(doc) }) {
				return false, nil
			}
			return mine.Has(doc)
		}
	}
	w.owns.coll, w.owns.filter = c.UUID, owned
	return owned, nil
}

// written reads the ranges that have been written already. Ranges from before a resharding come with the shard key of that
// time.
func (w *Command) written(table *cluster.ChunkMap) ([]*migration.KeyRange, error) {
	list := w.Op.Req.Shared(writtenRanges).Doc()
	if list == nil {
		return nil, nil
	}
	var out []*migration.KeyRange
	var former *cluster.ShardKeyPattern
	for _, v := range value.Values(list) {
		min, max, pattern := value.Lookup(v.Doc(), "min"), value.Lookup(v.Doc(), "max"), value.Lookup(v.Doc(), "key")
		if min.T != value.Document || max.T != value.Document {
			return nil, mongoerr.New(mongoerr.FailedToParse, "a range needs min and max")
		}
		var key *cluster.ShardKeyPattern
		switch {
		case pattern.T == value.Document:
			if former == nil || !bytes.Equal(former.Doc(), pattern.Doc()) {
				var err error
				if former, err = cluster.ParseShardKey(pattern.Doc()); err != nil {
					return nil, err
				}
			}
			key = former
		case table == nil:
			return nil, mongoerr.New(mongoerr.NamespaceNotSharded, "ranges of a collection that is not sharded")
		default:
			key = table.Key
		}
		out = append(out, migration.NewKeyRange(key, min.Doc(), max.Doc()))
	}
	return out, nil
}

// checkOwner returns an error for an update that would move a document to another shard.
func (w *Command) checkOwner(q *exec.Query, st *statement, old, next []byte) error {
	if w.writer.node.Sharding() == nil {
		return nil
	}
	return w.writer.node.Sharding().CheckUpdate(w.Op, q.Coll, old, next, st.multi)
}

// checkUpsert returns an error for an upsert of a document that belongs on another shard.
func (w *Command) checkUpsert(ns string, doc []byte) error {
	if w.writer.node.Sharding() == nil {
		return nil
	}
	return w.writer.node.Sharding().CheckUpsert(w.Op, ns, doc)
}
