package migration

import (
	"bytes"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// splitPoints finds keys at which ranges of a node's collections can be split. It needs no cluster.
type splitPoints struct{ engine *storage.Engine }

// SplitSpecs returns the rows of the commands that find split points. Applications that read a collection in parallel use them on
// servers outside of clusters, too.
func SplitSpecs(e *storage.Engine) []command.Spec {
	p := splitPoints{e}
	auto := command.Internal(p.runAutoSplitVector)
	auto.Roles, auto.AdminOnly = command.Shard, false
	return []command.Spec{
		{
			Name: "splitVector", Roles: command.Shard | command.Config, ArgTypes: command.TString, Lenient: true, Run: p.runSplitVector,
			Fields: []command.Field{
				command.Req("keyPattern", command.TObject), command.Opt("min", command.TObject), command.Opt("max", command.TObject),
				command.Opt("force", command.TSafeBool), command.Opt("maxChunkSizeBytes", command.TNumber), command.Opt("maxChunkSize", command.TNumber),
				command.Opt("maxSplitPoints", command.TNumber), command.Opt("maxChunkObjects", command.TNumber),
			},
		},
		auto,
		{
			Name: "checkShardingIndex", Roles: command.Shard | command.Config, ArgTypes: command.TString, Lenient: true, Run: p.runCheckIndex,
			Fields: []command.Field{command.Req("keyPattern", command.TObject), command.Opt("min", command.TObject), command.Opt("max", command.TObject)},
		},
	}
}

// runCheckIndex reports whether an index of a collection on this shard supports a shard key, of which a range may be named.
func (p splitPoints) runCheckIndex(op *command.Op, dst []byte) ([]byte, error) {
	rng, err := splitRange(op.Req.Doc("keyPattern"), msg.Range{Min: op.Req.Doc("min"), Max: op.Req.Doc("max")})
	if err != nil {
		return dst, err
	}
	c := p.engine.Catalog().Lookup(op.Req.Cmd.Str())
	if c == nil {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "ns %s not found", op.Req.Cmd.Str())
	}
	serves, err := ServesShardKey(c, rng.key, false, false)
	if err == nil && !serves {
		err = mongoerr.New(mongoerr.UnknownError, "couldn't find valid index for shard key")
	}
	return dst, err
}

// splitRequest describes where to look for split points, and how much data should be between them.
type splitRequest struct {
	ns     string
	rng    *KeyRange
	every  int64 // documents between two keys; 0 for the middle only
	limit  int   // how many keys at most, 0 for any number
	adjust bool  // the last two pieces are made equal if the last one would be small
}

// splitBytes limits the size of a reply, which is one document.
const splitBytes = 12 << 20

// splitKeys finds the keys. It reads only the shard key's index, and keeps in memory only what it has found. more is true if
// the reply cannot hold all keys.
func (p splitPoints) splitKeys(op *command.Op, q *splitRequest) (out [][]byte, more bool, err error) {
	s := p.engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(q.ns)
	if c == nil {
		return nil, false, mongoerr.Newf(mongoerr.NamespaceNotFound, "ns %s not found", q.ns)
	}
	every := q.every
	if every == 0 {
		n, err := countKeys(op, s, c, q.rng, 0)
		if err != nil {
			return nil, false, err
		}
		if every = n / 2; every == 0 {
			return nil, false, nil
		}
	}
	w, err := walkKeys(s, c, q.rng, false)
	if err != nil {
		return nil, false, err
	}
	defer w.Close()
	out, more, rest, err := w.every(op, every, q.limit)
	if err != nil || !q.adjust || more || len(out) == 0 || rest*5 >= every*4 {
		return out, more, err
	}
	return p.evenOut(op, s, c, q.rng, out, every+rest)
}

// every picks a key after each n documents so that documents with the same key stay together, and returns the number
// of documents after the last one.
func (w *keyWalk) every(op *command.Op, n int64, limit int) (out [][]byte, more bool, rest int64, err error) {
	var last []byte // the key that the current piece began with
	size := 0
	for {
		ks, ok := w.nextKey()
		if !ok {
			return out, false, rest, w.Err()
		}
		if err := op.Check(); err != nil {
			return nil, false, 0, err
		}
		if last == nil {
			last = bytes.Clone(ks)
		}
		if rest++; rest <= n || bytes.Equal(ks, last) {
			continue
		}
		vals, ok := w.values()
		if !ok {
			return nil, false, 0, mongoerr.New(mongoerr.InternalError, "a key of the shard key's index cannot be read")
		}
		at := w.r.key.KeyDoc(vals)
		if size += len(at) + 16; size > splitBytes {
			return out, true, rest, nil
		}
		out, last, rest = append(out, at), append(last[:0], ks...), 1
		if len(out) == limit {
			return out, false, rest, nil
		}
	}
}

// evenOut moves the last key so that the pieces before and after it have the same size.
func (p splitPoints) evenOut(op *command.Op, s *storage.Snapshot, c *catalog.Collection, r *KeyRange, keys [][]byte, docs int64) ([][]byte, bool, error) {
	tail := NewKeyRange(r.key, r.min, r.max)
	if n := len(keys); n > 1 {
		tail = NewKeyRange(r.key, keys[n-2], r.max)
	}
	w, err := walkKeys(s, c, tail, false)
	if err != nil {
		return nil, false, err
	}
	defer w.Close()
	last, _, _, err := w.every(op, max(1, docs/2), 1)
	if err == nil && len(last) == 1 {
		keys[len(keys)-1] = last[0]
	}
	return keys, false, err
}

// walkKeys begins a walk over the keys of a range.
func walkKeys(s *storage.Snapshot, c *catalog.Collection, r *KeyRange, reverse bool) (*keyWalk, error) {
	scan := scanRange(s, c, r, reverse)
	if !scan.ordered {
		scan.Close()
		return nil, mongoerr.Newf(mongoerr.IndexNotFound, "couldn't find index over splitting key %s", value.ShowDoc(r.key.Doc()))
	}
	return &keyWalk{keyScan: scan}, nil
}

// countKeys counts the documents of a range by its index, at most enough+1; with 0 it counts all.
func countKeys(op *command.Op, s *storage.Snapshot, c *catalog.Collection, r *KeyRange, enough int64) (n int64, err error) {
	scan := scanRange(s, c, r, false)
	defer scan.Close()
	for next := scan.step(); next() && (enough == 0 || n <= enough); n++ {
		if err := op.Check(); err != nil {
			return 0, err
		}
	}
	return n, scan.Err()
}

// perChunk returns how many documents of a collection make up a number of bytes, by their average size.
func perChunk(c *catalog.Collection, bytes int64) int64 {
	docs, size := c.Counters.Records.Load(), c.Counters.DataSize.Load()
	if docs <= 0 || size <= 0 {
		return max(1, bytes)
	}
	return max(1, int64(float64(bytes)/(float64(size)/float64(docs))))
}

// openEnd finds the bound that a request to move a range leaves out, so that the range is within the chunk and has about maxBytes.
func (m *Manager) openEnd(op *command.Op, ns string, within *KeyRange, forward bool, maxBytes int64) ([]byte, error) {
	chunkEnd := within.max
	if !forward {
		chunkEnd = within.min
	}
	s := m.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	if c == nil || maxBytes <= 0 {
		return chunkEnd, nil
	}
	w, err := walkKeys(s, c, within, !forward)
	if mongoerr.CodeOf(err) == mongoerr.IndexNotFound {
		return chunkEnd, nil
	}
	if err != nil {
		return nil, err
	}
	defer w.Close()
	n := perChunk(c, maxBytes)
	if forward {
		keys, _, _, err := w.every(op, n, 1)
		if err == nil && len(keys) == 1 {
			chunkEnd = keys[0]
		}
		return chunkEnd, err
	}
	for ; n > 0; n-- {
		if _, ok := w.nextKey(); !ok {
			return chunkEnd, w.Err()
		}
		if err := op.Check(); err != nil {
			return nil, err
		}
	}
	vals, ok := w.values()
	if !ok {
		return nil, mongoerr.New(mongoerr.InternalError, "a key of the shard key's index cannot be read")
	}
	if cluster.CompareKeys(vals, within.minV) < 0 {
		return chunkEnd, nil // undefined, which sorts before null in an index
	}
	return within.key.KeyDoc(vals), nil
}

// splitRange reads the keyPattern, min and max of a command.
func splitRange(pattern []byte, bounds msg.Range) (*KeyRange, error) {
	key, err := cluster.ParseShardKey(pattern)
	if err != nil {
		return nil, err
	}
	lo, hi := bounds.Min, bounds.Max
	if (len(value.Values(lo)) == 0) != (len(value.Values(hi)) == 0) {
		return nil, mongoerr.New(mongoerr.BadValue, "either provide both min and max or leave both empty")
	}
	if len(value.Values(lo)) == 0 {
		return NewKeyRange(key, key.GlobalMin(), key.GlobalMax()), nil
	}
	if lo, err = key.NormalizeBound(lo); err != nil {
		return nil, err
	}
	if hi, err = key.NormalizeBound(hi); err != nil {
		return nil, err
	}
	r := NewKeyRange(key, lo, hi)
	if cluster.CompareKeys(r.minV, r.maxV) >= 0 {
		return nil, mongoerr.New(mongoerr.BadValue, "min must be below max")
	}
	return r, nil
}

func appendSplitKeys(dst []byte, keys [][]byte) []byte {
	dst, am := value.BeginKey(dst, value.Array, "splitKeys")
	for i, k := range keys {
		dst = value.AppendIndex(dst, i, value.NewDocument(k))
	}
	return value.End(dst, am)
}

// runSplitVector finds keys to split a range at: its median with force, else one for every half of a chunk's size. A
// collection that is smaller than a chunk is not split.
func (p splitPoints) runSplitVector(op *command.Op, dst []byte) ([]byte, error) {
	ns := op.Req.Cmd.Str()
	rng, err := splitRange(op.Req.Doc("keyPattern"), msg.Range{Min: op.Req.Doc("min"), Max: op.Req.Doc("max")})
	if err != nil {
		return dst, err
	}
	c := p.engine.Catalog().Lookup(ns)
	if c == nil {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "ns %s not found", ns)
	}
	q := &splitRequest{ns: ns, rng: rng, limit: int(op.Req.Int("maxSplitPoints", 0))}
	if !op.Bool("force") {
		limit := op.Req.Int("maxChunkSizeBytes", op.Req.Int("maxChunkSize", 0)<<20)
		if limit <= 0 {
			return dst, mongoerr.New(mongoerr.InvalidOptions, "need to specify the desired max chunk size (maxChunkSize or maxChunkSizeBytes)")
		}
		if c.Counters.DataSize.Load() < limit {
			return appendSplitKeys(dst, nil), p.indexed(c, rng)
		}
		q.every = perChunk(c, limit) / 2
		if n := op.Req.Int("maxChunkObjects", 250_000); n > 0 {
			q.every = min(q.every, n)
		}
		q.every = max(1, q.every)
	} else {
		q.limit = 1
	}
	keys, _, err := p.splitKeys(op, q)
	if err != nil {
		return dst, err
	}
	return appendSplitKeys(dst, keys), nil
}

// indexed returns an error if a collection has no index by which the keys of a range could be found.
func (p splitPoints) indexed(c *catalog.Collection, r *KeyRange) error {
	s := p.engine.Snapshot()
	defer s.Release()
	w, err := walkKeys(s, c, r, false)
	if err == nil {
		w.Close()
	}
	return err
}

// runAutoSplitVector finds keys that cut a range into pieces of a chunk's size.
func (p splitPoints) runAutoSplitVector(op *command.Op, req *msg.AutoSplitVector, dst []byte) ([]byte, error) {
	rng, err := splitRange(req.Key, req.Range)
	if err != nil {
		return dst, err
	}
	size := req.MaxChunkSizeBytes
	if size < 1<<20 || size > 1<<30 {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "maxChunkSizeBytes must lie within the range [1MB, 1024MB]")
	}
	ns := req.DB + "." + req.Coll
	c := p.engine.Catalog().Lookup(ns)
	if c == nil {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "ns %s not found", ns)
	}
	if req.Limit < 0 {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "limit must not be negative")
	}
	keys, more, err := p.splitKeys(op, &splitRequest{ns: ns, rng: rng, every: perChunk(c, size), limit: int(req.Limit), adjust: req.Limit == 0})
	if err != nil {
		return dst, err
	}
	return msg.AppendFields(dst, &msg.AutoSplitVectorReply{Keys: keys, More: more}), nil
}

// RangeLimit ends the measuring of a range; 0 is no limit.
type RangeLimit struct{ Bytes, Docs int64 }

// Reached reports whether a range has more than the limit.
func (l RangeLimit) Reached(size, docs int64) bool {
	return l.Bytes > 0 && size > l.Bytes || l.Docs > 0 && docs > l.Docs
}

// SizeOfRange adds up the documents of a range, given as key pattern and bounds, by an index on the key: their sizes or, with estimate, their number
// times the average of the collection, for which no document is read. It ends where the limit is reached. ok is false if there is no such index.
func SizeOfRange(op *command.Op, s *storage.Snapshot, c *catalog.Collection, of [3][]byte, estimate bool, limit RangeLimit) (size, docs int64, reached, ok bool, err error) {
	key, err := cluster.ParseShardKey(of[0])
	if err != nil {
		return 0, 0, false, false, nil
	}
	lo, err := key.NormalizeBound(of[1])
	if err != nil {
		return 0, 0, false, false, nil
	}
	hi, err := key.NormalizeBound(of[2])
	if err != nil {
		return 0, 0, false, false, nil
	}
	scan := scanRange(s, c, NewKeyRange(key, lo, hi), false)
	defer scan.Close()
	if !scan.ordered {
		return 0, 0, false, false, nil
	}
	var average float64
	if n := c.Counters.Records.Load(); n > 0 {
		average = float64(c.Counters.DataSize.Load()) / float64(n)
	}
	next := scan.step()
	if !estimate {
		next = scan.Next
	}
	for next() {
		if err := op.Check(); err != nil {
			return 0, 0, false, true, err
		}
		if docs++; estimate {
			size = int64(average * float64(docs))
		} else {
			size += int64(len(scan.Doc()))
		}
		if limit.Reached(size, docs) {
			return size, docs, true, true, scan.Err()
		}
	}
	return size, docs, false, true, scan.Err()
}
