package configsvr

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// chunkWrites are atomic changes of one collection's chunks: a table read between two of them could have the versions of
// the table after both, and would never be found stale.
type chunkWrites struct {
	m      *Manager
	uuid   [16]byte
	writes msg.Changes
	placed []placing // the changes of placements that result
}

// entry reads a chunk's document by its lower bound.
func (w *chunkWrites) entry(ctx context.Context, min []byte) ([]byte, error) {
	docs, err := w.m.find(ctx, "chunks", doc(fld("uuid", value.NewBinary(4, w.uuid[:])), fld("min", value.NewDocument(min))))
	if err == nil && len(docs) != 1 {
		err = mongoerr.New(mongoerr.ConflictingOperationInProgress, "the chunk no longer exists")
	}
	if err != nil {
		return nil, err
	}
	return docs[0], nil
}

// remake sets fields of the document of a chunk whose bounds or owner have changed, and clears the jumbo mark.
func (w *chunkWrites) remake(ctx context.Context, c *cluster.Chunk, set ...value.Field) error {
	return w.change(ctx, c, append(set, fld("jumbo", value.Value{}))...)
}

// change sets fields of a chunk's document, or removes those whose value is Missing.
func (w *chunkWrites) change(ctx context.Context, c *cluster.Chunk, set ...value.Field) error {
	old, err := w.entry(ctx, c.Min)
	if err != nil {
		return err
	}
	out, mark := value.Begin(nil)
	for k, v := range value.Elements(old) {
		if !slices.ContainsFunc(set, func(f value.Field) bool { return f.Key == k }) {
			out = value.Append(out, k, v)
		}
	}
	for _, f := range set {
		if !f.Val.IsMissing() {
			out = value.Append(out, f.Key, f.Val)
		}
	}
	w.writes.Put = append(w.writes.Put, value.End(out, mark))
	return nil
}

func (w *chunkWrites) add(at placed, v cluster.ChunkVersion, h []cluster.Owner) {
	w.writes.Put = append(w.writes.Put, chunkDoc(cluster.NewObjectID(), w.uuid, at, v, w.m.recent(h)).Doc())
}

// owners returns the fields of a chunk's document for its current and previous owners.
func (m *Manager) owners(h []cluster.Owner) []value.Field {
	h = m.recent(h)
	return []value.Field{fld("shard", str(h[0].Shard)), fld("onCurrentShardSince", value.NewTimestampU64(h[0].ValidAfter)), fld("history", cluster.HistoryValue(h))}
}

// recent returns a history without the owners from before the history window.
func (m *Manager) recent(h []cluster.Owner) []cluster.Owner {
	if oldest := m.oldestRead(); oldest > 0 {
		return cluster.TrimHistory(h, oldest)
	}
	return h
}

// oldestRead is the earliest cluster time that a snapshot read or a transaction may still ask for, 0 for any.
func (m *Manager) oldestRead() uint64 {
	window := max(m.Params.Int("minSnapshotHistoryWindowInSeconds"), m.Params.Int("transactionLifetimeLimitSeconds"))
	now := m.clock.ClusterTime()
	if back := uint64(window) << 32; back < now {
		return now - back
	}
	return 0
}

func (w *chunkWrites) drop(ctx context.Context, c *cluster.Chunk) error {
	old, err := w.entry(ctx, c.Min)
	if err == nil {
		w.writes.Delete = append(w.writes.Delete, value.Lookup(old, "_id").Clone())
	}
	return err
}

func (w *chunkWrites) commit(ctx context.Context) error {
	for _, d := range w.writes.Put {
		if err := cluster.CheckBounds(value.LookupDoc(d, "min"), value.LookupDoc(d, "max")); err != nil {
			return err
		}
	}
	return w.m.writePlaced(ctx, &msg.WriteTogether{NS: "config.chunks", Changes: w.writes}, w.placed...)
}

func lastmod(v cluster.ChunkVersion) value.Field {
	return fld("lastmod", value.NewTimestampU64(v.Combined()))
}

// chunkBetween finds the chunk with exactly these bounds.
func chunkBetween(info *cluster.CollectionInfo, min, max []byte) (*cluster.Chunk, error) {
	c := info.Map.Find(value.Values(min))
	if !bytes.Equal(c.Min, min) || !bytes.Equal(c.Max, max) {
		lo, hi := c.Bounds()
		if cluster.CompareKeys(lo, value.Values(min)) != 0 || cluster.CompareKeys(hi, value.Values(max)) != 0 {
			return nil, mongoerr.Newf(mongoerr.BadValue, "no chunk of %s has these bounds", info.NS)
		}
	}
	return c, nil
}

// splitChunk splits a chunk into n pieces. According to the version protocol they get the minor versions
// after the collection's: ⟨M, m+1⟩ … ⟨M, m+n⟩.
func (m *Manager) splitChunk(ctx context.Context, req *msg.CommitChunkSplit) (cluster.ChunkVersion, error) {
	ns, points := req.NS, req.Points
	unlock, err := m.lockTable(ctx, req.NS)
	if err != nil {
		return cluster.ChunkVersion{}, err
	}
	defer unlock()
	var none cluster.ChunkVersion
	info, e, err := m.table(ctx, ns)
	if err != nil {
		return none, err
	}
	c, err := chunkBetween(info, req.Min, req.Max)
	if err != nil {
		return none, err
	}
	if !info.Map.Key.HasBounds(points...) {
		return none, errOtherKey(ns)
	}
	if err := checkSplitPoints(c, points); err != nil {
		return none, err
	}
	first := info.Map.Version().IncMinor()
	v := first
	w := &chunkWrites{m: m, uuid: e.UUID}
	if err := w.remake(ctx, c, fld("max", value.NewDocument(points[0])), lastmod(first)); err != nil {
		return none, err
	}
	for i, p := range points {
		hi := c.Max
		if i+1 < len(points) {
			hi = points[i+1]
		}
		v = v.IncMinor()
		w.add(placed{p, hi, c.Shard}, v, c.History())
	}
	if err := w.commit(ctx); err != nil {
		return none, err
	}
	unlock() // a shard may be frozen
	m.refreshShards(ctx, ns, []string{c.Shard})
	m.logSplit(ctx, ns, c, points, first)
	return v, nil
}

// errOtherKey returns the error of a change of chunks whose bounds are those of another shard key.
func errOtherKey(ns string) error {
	return mongoerr.Newf(mongoerr.StaleEpoch, "the shard key of %s has changed", ns)
}

// logSplit logs a split: one entry with both parts or, for more of them, one for each part. The parts have the minor versions from the first on.
func (m *Manager) logSplit(ctx context.Context, ns string, c *cluster.Chunk, points [][]byte, first cluster.ChunkVersion) {
	chunk := func(min, max []byte, v cluster.ChunkVersion) value.Value {
		return doc(fld("min", value.NewDocument(min)), fld("max", value.NewDocument(max)), lastmod(v), fld("lastmodEpoch", value.NewObjectID(v.Epoch)))
	}
	bounds := append(append([][]byte{c.Min}, points...), c.Max)
	parts := make([]value.Value, len(points)+1)
	for i, v := 0, first; i < len(parts); i, v = i+1, v.IncMinor() {
		parts[i] = chunk(bounds[i], bounds[i+1], v)
	}
	before, owner := chunk(c.Min, c.Max, c.Version), fld("owningShard", str(c.Shard))
	if len(parts) == 2 {
		m.logAs(ctx, c.Shard, "split", ns, doc(fld("before", before), fld("left", parts[0]), fld("right", parts[1]), owner))
		return
	}
	details := make([]value.Value, len(parts))
	for i, part := range parts {
		details[i] = doc(fld("before", before), fld("number", value.NewInt32(int32(i+1))), fld("of", value.NewInt32(int32(len(parts)))), fld("chunk", part), owner)
	}
	m.logIn(ctx, "changelog", c.Shard, "multi-split", ns, details...)
}

func checkSplitPoints(c *cluster.Chunk, points [][]byte) error {
	if len(points) == 0 {
		return mongoerr.New(mongoerr.InvalidOptions, "need to provide at least one split point")
	}
	lo, hi := c.Bounds()
	prev := lo
	for _, p := range points {
		vals := value.Values(p)
		if len(vals) != len(lo) {
			return mongoerr.New(mongoerr.InvalidOptions, "a split point must have all fields of the shard key")
		}
		if err := cluster.CheckKeyValues(vals); err != nil {
			return err
		}
		if cluster.CompareKeys(prev, vals) >= 0 || cluster.CompareKeys(vals, hi) >= 0 {
			return mongoerr.New(mongoerr.InvalidOptions, "split points must lie within the chunk, in ascending order")
		}
		prev = vals
	}
	return nil
}

// mergeRange merges the chunks of one shard between two bounds into one with the next minor version.
func (m *Manager) mergeRange(ctx context.Context, ns string, from, to []byte) (cluster.ChunkVersion, error) {
	unlock, err := m.lockTable(ctx, ns)
	if err != nil {
		return cluster.ChunkVersion{}, err
	}
	defer unlock()
	var none cluster.ChunkVersion
	info, e, err := m.table(ctx, ns)
	if err != nil {
		return none, err
	}
	if !info.Map.Key.HasBounds(from, to) {
		return none, errOtherKey(ns)
	}
	lo, hi := value.Values(from), value.Values(to)
	set := info.Map.Overlapping(lo, hi)
	if len(set) == 0 {
		return none, mongoerr.New(mongoerr.IllegalOperation, "could not merge chunks, the range is empty")
	}
	first, last := set[0], set[len(set)-1]
	fmin, _ := first.Bounds()
	_, lmax := last.Bounds()
	if cluster.CompareKeys(fmin, lo) != 0 || cluster.CompareKeys(lmax, hi) != 0 {
		return none, mongoerr.New(mongoerr.IllegalOperation, "could not merge chunks, the bounds are not those of chunks")
	}
	for _, c := range set {
		if c.Shard != first.Shard {
			return none, mongoerr.New(mongoerr.IllegalOperation, "could not merge chunks, they are not all on one shard")
		}
	}
	if len(set) == 1 {
		return first.Version, nil
	}
	v := info.Map.Version().IncMinor()
	w := &chunkWrites{m: m, uuid: e.UUID}
	if err := w.merge(ctx, set, v); err != nil {
		return none, err
	}
	if err := w.commit(ctx); err != nil {
		return none, err
	}
	unlock() // a shard may be frozen
	m.refreshShards(ctx, ns, []string{first.Shard})
	m.log(ctx, "merge", ns, doc(fld("min", value.NewDocument(from)), fld("max", value.NewDocument(to))))
	return v, nil
}

// commitMigration records a migration. According to the version protocol the moved range gets ⟨M+1, 0⟩ and one
// chunk that remains on the donor, the control chunk, gets ⟨M+1, 1⟩, so that both shards' versions reflect the
// move.
//
// Invariant: a migration commits only if its chunk still has the version that it had when the migration began. Hazard: the commit may arrive
// late, after the donor has resolved the outcome in another way and a later migration of the same range has begun. The node that resolves an
// outcome therefore first raises the version (outdateChunk). Rejected: comparing only the owner. A range that was moved away and back
// belongs to the donor again, but the recipient of the late commit has none of the writes in between.
func (m *Manager) commitMigration(ctx context.Context, g *msg.CommitChunkMigration) error {
	unlock, err := m.lockTable(ctx, g.NS)
	if err != nil {
		return err
	}
	defer unlock()
	info, e, err := m.table(ctx, g.NS)
	if err != nil {
		return err
	}
	if e.Generation.Epoch != g.Epoch {
		return mongoerr.Newf(mongoerr.StaleEpoch, "the collection %s changed during the migration", g.NS)
	}
	if err := cluster.CheckRange(g.Min, g.Max); err != nil {
		return err
	}
	if !info.Map.Key.HasBounds(g.Min, g.Max) {
		return errOtherKey(g.NS)
	}
	lo, hi := value.Values(g.Min), value.Values(g.Max)
	c := info.Map.Find(lo)
	_, cmax := c.Bounds()
	if cluster.CompareKeys(hi, cmax) > 0 {
		return mongoerr.New(mongoerr.ConflictingOperationInProgress, "the range to be moved is not within one chunk")
	}
	if c.Shard == g.To {
		return nil // a repeated commit
	}
	if c.Shard != g.From {
		return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "range no longer belongs to shard %s", g.From)
	}
	if g.Version != 0 && c.Version.Combined() != g.Version {
		return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the chunk changed while it was migrated: its version is %s", c.Version)
	}
	if m.pauses.paused(g.NS, m.now()) {
		return errPaused(g.NS)
	}
	if e.Frozen {
		return errFrozen(g.NS)
	}
	err = m.place(ctx, []string{g.To}, func(to []*cluster.Shard) error {
		if err := m.sameSet(ctx, to[0], g.Topology); err != nil {
			return err
		}
		return m.writeMove(ctx, info, e, c, g)
	})
	if err != nil {
		return err
	}
	m.log(ctx, "moveChunk.commit", g.NS, doc(fld("min", value.NewDocument(g.Min)), fld("max", value.NewDocument(g.Max)), fld("from", str(g.From)), fld("to", str(g.To))))
	return nil
}

// outdateChunk raises the version of the chunk at a bound above the given one, unless it is higher already: a
// migration that began at that version, and whose commit is still in flight, can then no longer commit.
func (m *Manager) outdateChunk(ctx context.Context, ns string, min []byte, old cluster.ChunkVersion) error {
	unlock, err := m.lockTable(ctx, ns)
	if err != nil {
		return err
	}
	defer unlock()
	info, e, err := m.table(ctx, ns)
	if err != nil {
		return err
	}
	if e.Generation.Epoch != old.Epoch {
		return nil
	}
	c := info.Map.Find(value.Values(min))
	if c.Version.Combined() > old.Combined() {
		return nil
	}
	w := &chunkWrites{m: m, uuid: e.UUID}
	if err := w.change(ctx, c, lastmod(info.Map.Version().IncMajor())); err != nil {
		return err
	}
	return w.commit(ctx)
}

// writeMove writes the pieces of a move: what remains after the range, a control chunk, and the range itself.
func (m *Manager) writeMove(ctx context.Context, info *cluster.CollectionInfo, e *cluster.CollectionEntry, c *cluster.Chunk, g *msg.CommitChunkMigration) error {
	w := &chunkWrites{m: m, uuid: e.UUID}
	moved := info.Map.Version().IncMajor()
	next := moved.IncMinor() // the control chunk's
	cmin, cmax := c.Bounds()
	left := cluster.CompareKeys(cmin, value.Values(g.Min)) < 0
	right := cluster.CompareKeys(value.Values(g.Max), cmax) < 0
	if !left && !right {
		if o := info.Map.FirstOf(g.From, cmin, cmax); o != nil {
			if err := w.change(ctx, o, lastmod(next)); err != nil {
				return err
			}
		}
	}
	if right {
		w.add(placed{g.Max, c.Max, c.Shard}, next, c.History())
		next = next.IncMinor()
	}
	since := m.tick()
	if shards, changed := ownersAfter(info, g.From, g.To, !left && !right); changed {
		w.placed = []placing{{nss: g.NS, uuid: e.UUID, shards: shards, at: since}} // a reset of the history waits for m.chunks
	}
	history := append([]cluster.Owner{{ValidAfter: since, Shard: g.To}}, c.History()...)
	if left {
		w.add(placed{g.Min, g.Max, g.To}, moved, history)
		if err := w.remake(ctx, c, fld("max", value.NewDocument(g.Min)), lastmod(next)); err != nil {
			return err
		}
	} else {
		if err := w.remake(ctx, c, append([]value.Field{fld("max", value.NewDocument(g.Max)), lastmod(moved)}, m.owners(history)...)...); err != nil {
			return err
		}
	}
	return w.commit(ctx)
}

// maxDerivations bounds how often a missing bound is derived from a chunk that is then split or merged.
const maxDerivations = 10

// moveRange makes a donor move a range to another shard. A missing bound means that of the chunk, or a nearer one if the chunk is large. It is derived again, from the
// chunk that there is by then, if the chunk has been split or merged before the range was moved: the request did not name it.
func (m *Manager) moveRange(ctx context.Context, req *msg.MoveRange) error {
	for try := 0; ; try++ {
		from, err := m.moveOnce(ctx, req)
		if from == nil || mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress || req.Min != nil && req.Max != nil || try >= maxDerivations {
			return err
		}
		info, _, terr := m.table(ctx, req.NS)
		if terr != nil {
			return err
		}
		r := msg.Range{Min: req.Min, Max: req.Max}
		if now, rerr := chunkFor(info, &r); rerr != nil || bytes.Equal(now.Min, from.Min) && bytes.Equal(now.Max, from.Max) {
			return err
		}
	}
}

// moveOnce is moveRange for one choice of the bounds; it returns the chunk that the range is in, nil if there was nothing to move.
func (m *Manager) moveOnce(ctx context.Context, req *msg.MoveRange) (*cluster.Chunk, error) {
	ns, to := req.NS, req.To
	if err := m.awaitUnpaused(ctx, ns); err != nil {
		return nil, err
	}
	info, e, err := m.table(ctx, ns)
	if err != nil {
		return nil, err
	}
	if e.Frozen {
		return nil, errFrozen(ns)
	}
	if to == "" {
		return nil, m.moveElsewhere(ctx, info, e, req)
	}
	if _, err := m.registry.Listed(ctx, to); err != nil {
		return nil, err
	}
	r := msg.Range{Min: req.Min, Max: req.Max}
	c, err := chunkFor(info, &r)
	if err != nil {
		return nil, err
	}
	min, max := r.Min, r.Max
	if c.Shard == to {
		return nil, nil
	}
	if !req.ForceJumbo {
		jumbo, err := m.markedJumbo(ctx, e, c)
		if err == nil && jumbo {
			err = mongoerr.New(mongoerr.ChunkTooBig, "the chunk is marked as jumbo")
		}
		if err != nil {
			return nil, err
		}
	}
	defer m.moves.begin(ns, c.Min)()
	if err := m.prepareRecipient(ctx, e, c.Shard, to); err != nil {
		return nil, err
	}
	mv := req.Move
	mv.Min, mv.Max = min, max
	if mv.MaxBytes == 0 {
		mv.MaxBytes = m.chunkSizeOf(ctx, e)
	}
	move := func(min, max []byte) []value.Field {
		var f []value.Field
		if min != nil {
			f = append(f, fld("min", value.NewDocument(min)))
		}
		if max != nil {
			f = append(f, fld("max", value.NewDocument(max)))
		}
		return append(f, fld("from", str(c.Shard)), fld("to", str(to)))
	}
	m.logAs(ctx, c.Shard, "moveChunk.start", ns, doc(move(min, max)...))
	reply, err := m.onShard(ctx, c.Shard, &msg.ShardMoveRange{Move: mv, Epoch: e.Generation.Epoch})
	var moved msg.ShardMoveRangeReply
	if err == nil && msg.Parse(reply, &moved) == nil && moved.Min != nil {
		min, max = moved.Min, moved.Max
	}
	m.logMoved(context.WithoutCancel(ctx), ns, c.Shard, to, move(min, max), &moved, err)
	if err == nil {
		m.refreshShards(ctx, ns, []string{c.Shard, to})
	}
	return c, err
}

// logMoved logs the outcome of a migration, for both shards: sh.status() counts the donors' entries.
func (m *Manager) logMoved(ctx context.Context, ns, from, to string, move []value.Field, moved *msg.ShardMoveRangeReply, err error) {
	if err == nil {
		steps := value.Values(moved.Steps)
		for i, ms := range steps {
			move = append(move, fld(fmt.Sprintf("step %d of %d", i+1, len(steps)), ms))
		}
		move = append(move, fld("counts", doc(fld("cloned", value.NewInt64(moved.Docs)), fld("clonedBytes", value.NewInt64(moved.Bytes)))))
		move = append(move, fld("note", str("success")))
	} else {
		m.logAs(ctx, from, "moveChunk.error", ns, doc(move...))
		move = append(move, fld("errmsg", str(err.Error())), fld("note", str("aborted")))
	}
	m.logAs(ctx, from, "moveChunk.from", ns, doc(move...))
	m.logAs(ctx, to, "moveChunk.to", ns, doc(move...))
}

// chunkFor finds the chunk that contains a range with one or both bounds, and completes bounds that are prefixes.
func chunkFor(info *cluster.CollectionInfo, r *msg.Range) (c *cluster.Chunk, err error) {
	for _, bound := range []*[]byte{&r.Max, &r.Min} {
		if *bound == nil {
			continue
		}
		if *bound, err = info.Map.Key.NormalizeBound(*bound); err != nil {
			return nil, err
		}
	}
	if r.Min != nil {
		c = info.Map.Find(value.Values(r.Min))
	} else {
		c = info.Map.FindBelow(value.Values(r.Max))
	}
	lo, hi := c.Bounds()
	if r.Min != nil {
		lo = value.Values(r.Min)
	}
	if r.Max != nil {
		hi = value.Values(r.Max)
	}
	return c, cluster.CheckRange(info.Map.Key.KeyDoc(lo), info.Map.Key.KeyDoc(hi))
}

// prepareRecipient creates the collection on a shard that does not have it yet, like the donor's. (The
// database's primary shard need not have it: for the sessions collection that is the config server.)
func (m *Manager) prepareRecipient(ctx context.Context, e *cluster.CollectionEntry, from, to string) error {
	m.clock.AdvanceTopology(m.registry.Topology()) // whose time every later reply tells: a drop or rename looks for copies on shards that have joined
	db, _ := cluster.SplitNS(e.NS)
	j := &shardJob{m: m, req: &msg.ShardCollection{NS: e.NS}, db: &cluster.DatabaseInfo{Name: db, Primary: from}, uuid: e.UUID}
	found, err := j.listed(ctx)
	if err != nil {
		return err
	}
	if found != nil {
		j.options = value.Lookup(found, "options").Doc()
	}
	if j.indexes, err = j.listIndexes(ctx); err != nil {
		return err
	}
	return j.makeOnOthers(ctx, map[string]bool{to: true})
}

// clearJumbo clears the jumbo mark of the chunk that has a key, or of the one with exact bounds. The chunk gets a new major version, so that all caches
// of the table are refreshed.
func (m *Manager) clearJumbo(ctx context.Context, ns string, key []value.Value, exact *msg.Range) error {
	return m.setJumbo(ctx, ns, false, func(info *cluster.CollectionInfo) (*cluster.Chunk, error) {
		if exact != nil {
			return chunkBetween(info, exact.Min, exact.Max)
		}
		return info.Map.Find(key), nil
	})
}

// markedJumbo reports whether a chunk is currently marked as jumbo, according to its document. The mark may be set and
// removed by hand, without a new version.
func (m *Manager) markedJumbo(ctx context.Context, e *cluster.CollectionEntry, c *cluster.Chunk) (bool, error) {
	entry, err := (&chunkWrites{m: m, uuid: e.UUID}).entry(ctx, c.Min)
	return err == nil && value.Lookup(entry, "jumbo").Truthy(), err
}

// markJumbo marks a chunk as too large to be moved.
func (m *Manager) markJumbo(ctx context.Context, ns string, min []byte) error {
	return m.setJumbo(ctx, ns, true, func(info *cluster.CollectionInfo) (*cluster.Chunk, error) {
		return info.Map.Find(value.Values(min)), nil
	})
}

func (m *Manager) setJumbo(ctx context.Context, ns string, jumbo bool, which func(*cluster.CollectionInfo) (*cluster.Chunk, error)) error {
	unlock, err := m.lockTable(ctx, ns)
	if err != nil {
		return err
	}
	defer unlock()
	info, e, err := m.table(ctx, ns)
	if err != nil {
		return err
	}
	c, err := which(info)
	if err != nil {
		return err
	}
	if marked, err := m.markedJumbo(ctx, e, c); err != nil || marked == jumbo && c.Jumbo == jumbo {
		return err
	}
	set := []value.Field{lastmod(info.Map.Version().IncMajor()), fld("jumbo", value.Value{})}
	if jumbo {
		set = []value.Field{lastmod(info.Map.Version().IncMinor()), fld("jumbo", value.NewBool(true))}
	}
	w := &chunkWrites{m: m, uuid: e.UUID}
	if err := w.change(ctx, c, set...); err != nil {
		return err
	}
	if err := w.commit(ctx); err != nil {
		return err
	}
	unlock() // a shard may be frozen
	m.refreshShards(ctx, ns, []string{c.Shard})
	return nil
}
