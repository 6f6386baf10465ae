package migration

import (
	"sort"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// splitSpecs are the rows of the commands that look for places to split.
func (m *Manager) splitSpecs() []command.Spec {
	flush := command.Internal(m.runFlushDatabase)
	flush.Roles, flush.PrimaryOnly = command.Shard, true
	return []command.Spec{
		{
			Name: "splitVector", Roles: command.Shard | command.Config, Internal: true, ArgTypes: command.TString, Lenient: true, Run: m.runSplitVector,
			Fields: []command.Field{
				command.Req("keyPattern", command.TObject), command.Opt("min", command.TObject), command.Opt("max", command.TObject),
				command.Opt("force", command.TSafeBool), command.Opt("maxChunkSizeBytes", command.TNumber), command.Opt("maxChunkSize", command.TNumber),
				command.Opt("maxSplitPoints", command.TNumber),
			},
		},
		flush,
	}
}

// runFlushDatabase forgets a database that was dropped, here and on the shard's secondaries.
func (m *Manager) runFlushDatabase(op *command.Op, req *msg.FlushDatabase, dst []byte) ([]byte, error) {
	m.state.Catalog.PurgeDatabase(req.DB)
	return dst, m.Docs.WriteWith(op, replication.Visible, func(_ *storage.Snapshot, u *storage.UnitOfWork) error {
		u.Notice(placingNotice("dropped", value.NewString(req.DB), req.DB))
		u.Oplog(storage.OplogEntry{Op: 'n', StmtID: -1, O: value.Doc(value.F("msg", value.NewString("database "+req.DB+" was dropped")))})
		return nil
	})
}

// keyed is a document's shard key and size, for finding where to split.
type keyed struct {
	key  []value.Value
	size int64
}

// runSplitVector finds keys to split a range at: its median with force, else one for every half of a chunk's size.
func (m *Manager) runSplitVector(op *command.Op, dst []byte) ([]byte, error) {
	ns := op.Req.Cmd.Str()
	key, err := cluster.ParseShardKey(op.Req.Doc("keyPattern"))
	if err != nil {
		return dst, err
	}
	lo, hi := key.GlobalMin(), key.GlobalMax()
	if d := op.Req.Doc("min"); d != nil {
		lo = d
	}
	if d := op.Req.Doc("max"); d != nil {
		hi = d
	}
	docs, err := m.keysIn(op, ns, NewKeyRange(key, lo, hi))
	if err != nil {
		return dst, err
	}
	limit := op.Req.Int("maxChunkSizeBytes", op.Req.Int("maxChunkSize", 0)<<20)
	if !op.Bool("force") && limit <= 0 {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "need to specify the desired max chunk size (maxChunkSize or maxChunkSizeBytes)")
	}
	dst, am := value.BeginKey(dst, value.Array, "splitKeys")
	for i, at := range splitPoints(docs, limit, op.Bool("force"), value.Values(lo)) {
		dst = value.AppendIndex(dst, i, value.NewDocument(key.KeyDoc(at)))
	}
	return value.End(dst, am), nil
}

// keysIn lists the keys of the documents in a range, in order.
func (m *Manager) keysIn(op *command.Op, ns string, rng *KeyRange) ([]keyed, error) {
	s := m.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	if c == nil {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "ns %s not found", ns)
	}
	scan := s.Scan(c, storage.ScanOptions{})
	defer scan.Close()
	var out []keyed
	for scan.Next() {
		if err := op.Check(); err != nil {
			return nil, err
		}
		doc := scan.Doc()
		vals, err := rng.key.FromDocument(doc, nil)
		if err != nil || !cluster.InRange(vals, rng.minV, rng.maxV) {
			continue
		}
		for i := range vals {
			vals[i] = vals[i].Clone()
		}
		out = append(out, keyed{vals, int64(len(doc))})
	}
	if err := scan.Err(); err != nil {
		return nil, err
	}
	sort.SliceStable(out, func(i, j int) bool { return cluster.CompareKeys(out[i].key, out[j].key) < 0 })
	return out, nil
}

// splitPoints picks keys out of sorted ones such that documents with the same key stay together.
func splitPoints(docs []keyed, limit int64, force bool, lo []value.Value) [][]value.Value {
	var out [][]value.Value
	last := lo
	add := func(k []value.Value) bool {
		if cluster.CompareKeys(last, k) >= 0 {
			return false
		}
		out, last = append(out, k), k
		return true
	}
	if force {
		for i := len(docs) / 2; i < len(docs); i++ {
			if add(docs[i].key) {
				return out
			}
		}
		for i := len(docs)/2 - 1; i > 0; i-- {
			if add(docs[i].key) {
				return out
			}
		}
		return out
	}
	size := int64(0)
	for i, d := range docs {
		if size += d.size; size > limit/2 && i > 0 && add(d.key) {
			size = 0
		}
	}
	return out
}
