package migration

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A chunk that has grown is split when it is moved (by default; splitOrMarkJumbo on the config server) or, with {_id: "autosplit", enabled: true} in
// config.settings, soon after it has grown:
//
//	NoteWritten ── add: bytes of the chunk ──► over a fifth of the chunk size
//	                                             │ split
//	                                             ├ points ─ splitKeys: a key after each half chunk, by the index
//	                                             ├ _configsvrCommitChunkSplit, and the new table
//	                                             └ _configsvrMoveRange without a shard, for the first or last chunk

// splitTest is the share (1/n) of the chunk size that is written to a chunk before it is measured: the shard does not know the chunk's
// size when counting began.
const splitTest = 5

// splitsAtOnce is the number of chunks that are split at a time.
const splitsAtOnce = 4

// maxTracked bounds the number of chunks whose written bytes are counted; beyond it counting begins anew.
const maxTracked = 100_000

// maxSplitPoints is the maximum number of keys at which one task splits a chunk. What remains is split by the next.
const maxSplitPoints = 8192

// settingsRead is the time between two reads of config.settings.
const settingsRead = 5 * time.Second

// defaultChunkBytes is the chunk size where neither the cluster nor the collection has one.
const defaultChunkBytes = 128 << 20

// chunkID identifies a chunk by its lower bound.
type chunkID struct {
	uuid catalog.UUID
	min  string
}

// written is the number of bytes that were written to a chunk since it was looked at, or since its split began.
type written struct {
	bytes     int64
	limit     int64 // the chunk size
	splitting bool
}

// splitter splits the chunks of this shard that have grown, while the node is primary.
type splitter struct {
	m     *Manager
	on    atomic.Bool
	slots chan struct{}
	wg    sync.WaitGroup

	mu struct {
		sync.Mutex
		ctx    context.Context // of this term; nil while the node is no primary
		size   int64           // the cluster's chunk size
		chunks map[chunkID]*written
	}
}

func newSplitter(m *Manager) *splitter {
	return &splitter{m: m, slots: make(chan struct{}, splitsAtOnce)}
}

// service returns the splitter as a primary-only service.
func (x *splitter) service() replication.Service {
	return replication.Service{Name: "ChunkSplitter", Run: func(ctx context.Context, _ int64) {
		x.begin(ctx)
		for ctx.Err() == nil {
			if on, size, err := x.settings(ctx); err == nil {
				x.set(on, size)
			}
			_ = cluster.Sleep(ctx, settingsRead)
		}
		x.end()
	}}
}

// begin begins a term.
func (x *splitter) begin(ctx context.Context) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.ctx, x.mu.chunks = ctx, make(map[chunkID]*written)
}

// end ends a term: no further split begins, and those under way have ended.
func (x *splitter) end() {
	x.mu.Lock()
	x.on.Store(false)
	x.mu.ctx, x.mu.chunks = nil, nil
	x.mu.Unlock()
	x.wg.Wait()
}

// set applies config.settings. If the chunk size has changed, counting begins anew.
func (x *splitter) set(on bool, size int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !on || size != x.mu.size {
		x.mu.chunks = make(map[chunkID]*written)
	}
	x.mu.size = size
	x.on.Store(on && x.mu.ctx != nil)
}

// settings reads config.settings.
func (x *splitter) settings(ctx context.Context) (on bool, size int64, err error) {
	docs, err := cluster.Find{NS: "config.settings"}.All(ctx, x.m.state.Registry.Config())
	size = defaultChunkBytes
	for _, d := range docs {
		switch value.Lookup(d, "_id").Str() {
		case "autosplit":
			on = value.Lookup(d, "enabled").Truthy()
		case "chunksize":
			if mb, ok := value.Lookup(d, "value").AsInt64(); ok && mb > 0 && mb <= 1024 {
				size = mb << 20
			}
		}
	}
	return on, size, err
}

// NoteWritten implements Sharding.
func (s *ShardState) NoteWritten(ns string, doc []byte) {
	x := s.splitter
	if x == nil || !x.on.Load() {
		return
	}
	info, _ := s.Catalog.Cached(ns)
	if info == nil || !info.Sharded() {
		return
	}
	vals, err := info.Map.Key.FromDocument(doc, nil)
	if err != nil {
		return
	}
	if c := info.Map.Find(vals); c.Shard == s.ID {
		x.add(info, c, int64(len(doc)))
	}
}

// add counts bytes written to a chunk, and begins its split if they are many.
func (x *splitter) add(info *cluster.CollectionInfo, c *cluster.Chunk, n int64) {
	id := chunkID{info.Map.UUID, string(c.Min)}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.ctx == nil || !x.on.Load() {
		return
	}
	w := x.mu.chunks[id]
	if w == nil {
		w = x.track(id, x.sizeFor(info))
	}
	if w.bytes += n; w.splitting || w.bytes < w.limit/splitTest {
		return
	}
	w.splitting, w.bytes = true, 0
	ctx := x.mu.ctx
	x.wg.Go(func() {
		select {
		case x.slots <- struct{}{}:
			defer func() { <-x.slots }()
		case <-ctx.Done():
			return
		}
		if err := x.split(ctx, info.NS, id, w); err != nil && ctx.Err() == nil {
			x.m.node.Warn("A chunk of "+info.NS+" could not be split", err)
		}
	})
}

// track begins to count for a chunk; x.mu must be held.
func (x *splitter) track(id chunkID, limit int64) *written {
	if len(x.mu.chunks) >= maxTracked {
		x.mu.chunks = make(map[chunkID]*written)
	}
	w := &written{limit: limit}
	x.mu.chunks[id] = w
	return w
}

// sizeFor returns the chunk size of a collection; x.mu must be held.
func (x *splitter) sizeFor(info *cluster.CollectionInfo) int64 {
	if e, err := cluster.ParseCollectionEntry(info.Entry); err == nil && e.ChunkBytes > 0 {
		return e.ChunkBytes
	}
	return x.mu.size
}

// split splits a chunk if it is larger than allowed. What is written meanwhile counts for each of the new chunks.
func (x *splitter) split(ctx context.Context, ns string, id chunkID, w *written) error {
	var made []string
	defer func() { x.splitDone(id, w, made) }()
	op := x.m.Service.Background(ctx, command.OwnClient())
	info, err := x.m.state.Catalog.Collection(op, ns)
	if gone(err) || err == nil && (!info.Sharded() || catalog.UUID(info.Map.UUID) != id.uuid) {
		return nil
	}
	if err != nil {
		return err
	}
	c := info.Map.Find(value.Values([]byte(id.min)))
	if string(c.Min) != id.min || c.Shard != x.m.state.ID || c.Jumbo {
		return nil // it was moved, split, merged or marked meanwhile
	}
	points, top, err := x.points(op, ns, info.Map.Key, c, w.limit)
	if err != nil || len(points) == 0 {
		return err
	}
	config := x.m.state.Registry.Config()
	if top != nil {
		release := x.hold(chunkID{id.uuid, string(top.Min)}, w)
		defer release() // before splitDone, which tracks it from then on
	}
	if _, err := cluster.RunWrite(op, config, msg.Doc(&msg.CommitChunkSplit{NS: ns, Range: msg.Range{Min: c.Min, Max: c.Max}, Points: points})); err != nil {
		return x.unlessObsolete(op, ns, id, c, err)
	}
	x.m.state.Catalog.InvalidateCollection(ns)
	if _, err := x.m.state.Catalog.Collection(op, ns); err != nil {
		return err
	}
	for _, at := range points {
		made = append(made, string(at))
	}
	if top == nil {
		return nil
	}
	_, err = cluster.RunWrite(op, config, msg.Doc(&msg.MoveRange{Move: msg.Move{NS: ns, Min: top.Min, Max: top.Max}}))
	if err != nil && mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress && ctx.Err() == nil {
		// The split has succeeded. That a shard is busy with another migration is not worth a warning: the balancer moves the excess.
		x.m.node.Warn("The chunk of "+ns+" that clients insert into stays on its shard after its split", err)
	}
	return nil
}

// unlessObsolete returns the error of a split, or nil if the chunk no longer exists here: the split was based on a routing table from before a move, a merge
// or another split of the chunk, and the chunks that are here now are counted for themselves.
func (x *splitter) unlessObsolete(op *command.Op, ns string, id chunkID, c *cluster.Chunk, failed error) error {
	x.m.state.Catalog.InvalidateCollection(ns)
	info, err := x.m.state.Catalog.Collection(op, ns)
	switch {
	case gone(err):
		return nil
	case err != nil:
		return failed
	case !info.Sharded() || catalog.UUID(info.Map.UUID) != id.uuid:
		return nil
	}
	now := info.Map.Find(value.Values(c.Min))
	if bytes.Equal(now.Min, c.Min) && bytes.Equal(now.Max, c.Max) && now.Shard == x.m.state.ID {
		return failed
	}
	return nil
}

// hold keeps the top chunk that a split makes from being split itself until it has moved: otherwise its move would find no chunk with these bounds.
func (x *splitter) hold(id chunkID, parent *written) (release func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.chunks == nil {
		return func() {}
	}
	w := x.mu.chunks[id]
	if w == parent {
		return func() {} // the chunk keeps its lower bound, and with it the mark of its split
	}
	if w == nil {
		w = x.track(id, parent.limit)
	}
	w.splitting = true
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		w.splitting = false
	}
}

// splitDone ends a split, and tracks the chunks that it has made.
func (x *splitter) splitDone(id chunkID, w *written, made []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	w.splitting = false
	if x.mu.chunks == nil {
		return
	}
	for _, min := range made {
		x.track(chunkID{id.uuid, min}, w.limit).bytes = w.bytes
	}
}

// points finds the keys to split a chunk at: one after each half chunk size, none if the chunk is no larger than the chunk size. In the first or last
// chunk of the collection clients probably insert in the order of the key: there the first or last key is a split point, and top is the range beyond it,
// which should move to another shard.
func (x *splitter) points(op *command.Op, ns string, key *cluster.ShardKeyPattern, chunk *cluster.Chunk, size int64) (points [][]byte, top *msg.Range, err error) {
	c := x.m.Engine.Catalog().Lookup(ns)
	if c == nil || c.Counters.DataSize.Load() < size {
		return nil, nil, nil
	}
	rng := NewKeyRange(key, chunk.Min, chunk.Max)
	points, _, err = splitPoints{x.m.Engine}.splitKeys(op, &splitRequest{ns: ns, rng: rng, every: max(1, perChunk(c, size)/2), limit: maxSplitPoints})
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		return nil, nil, nil
	}
	if err != nil || len(points) < 2 { // with one key, the chunk has between half of the chunk size and all of it
		return nil, nil, err
	}
	if len(points) == maxSplitPoints || slices.ContainsFunc(key.Parts, func(p cluster.KeyPart) bool { return p.Hashed }) {
		return points, nil, nil // documents are not inserted in the order of hashes
	}
	first, last := reachesStart(rng.minV), reachesEnd(rng.maxV)
	if !first && !last {
		return points, nil, nil
	}
	at, err := x.m.endKey(op, ns, rng, last)
	if err != nil || at == nil {
		return points, nil, err
	}
	points, top = cutTop(points, at, chunk, last)
	return points, top, nil
}

// cutTop replaces the last split point by the last key of a chunk or, without last, the first by the first.
func cutTop(points [][]byte, at []byte, chunk *cluster.Chunk, last bool) ([][]byte, *msg.Range) {
	vals := value.Values(at)
	if last {
		points = points[:len(points)-1]
		for len(points) > 0 && cluster.CompareKeys(value.Values(points[len(points)-1]), vals) >= 0 {
			points = points[:len(points)-1]
		}
		return append(points, at), &msg.Range{Min: at, Max: chunk.Max}
	}
	points = points[1:]
	for len(points) > 0 && cluster.CompareKeys(value.Values(points[0]), vals) <= 0 {
		points = points[1:]
	}
	return slices.Insert(points, 0, at), &msg.Range{Min: chunk.Min, Max: at}
}

// endKey returns the first or last key of a range; nil if there is none.
func (m *Manager) endKey(op *command.Op, ns string, r *KeyRange, last bool) ([]byte, error) {
	s := m.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	if c == nil {
		return nil, nil
	}
	w, err := walkKeys(s, c, r, last)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if _, ok := w.nextKey(); !ok {
		return nil, w.Err()
	}
	if err := op.Check(); err != nil {
		return nil, err
	}
	vals, ok := w.values()
	if !ok || cluster.CompareKeys(vals, r.minV) <= 0 {
		return nil, nil
	}
	return r.key.KeyDoc(vals), nil
}

func reachesStart(min []value.Value) bool {
	for _, v := range min {
		if v.T != value.MinKey {
			return false
		}
	}
	return true
}
