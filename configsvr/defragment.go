package configsvr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Phases of defragmenting a collection, as balancerCollectionStatus reports them. The phase is stored in the entry of the collection
// (defragmentationPhase); the next primary continues it. The sizes of chunks are not stored: they are measured again.
//
//	mergeAndMeasureChunks ──► moveAndMergeChunks ──► mergeChunks ──► the fields are removed
//
// (https://www.mongodb.com/docs/manual/core/defragment-sharded-collections/)
const (
	phaseMeasure = "mergeAndMeasureChunks"
	phaseMove    = "moveAndMergeChunks"
	phaseMerge   = "mergeChunks"
)

// smallChunk is the part of the chunk size, in percent, below which a chunk is moved to a neighbour.
const smallChunk = 25

// defragmenter has the progress of the collections that are being defragmented.
type defragmenter struct {
	wake chan struct{}

	mu   sync.Mutex
	left map[string]int64 // chunks that the current phase has still to process, by namespace
}

func newDefragmenter() *defragmenter {
	return &defragmenter{wake: make(chan struct{}, 1), left: make(map[string]int64)}
}

// soon makes the next round begin at once.
func (d *defragmenter) soon() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *defragmenter) note(ns string, left int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left[ns] = int64(left)
}

func (d *defragmenter) forget(ns string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.left, ns)
}

func (d *defragmenter) remaining(ns string) (int64, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok := d.left[ns]
	return n, ok
}

// RunDefragmenter defragments the collections that are marked for it until ctx ends. It runs on the config server's primary.
func (m *Manager) RunDefragmenter(ctx context.Context) {
	t := time.NewTicker(balancerPause)
	defer t.Stop()
	for {
		_ = m.Defragment(ctx) // failures are retried in the next round
		select {
		case <-m.defragmenter.wake:
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// Defragment continues every collection marked for defragmentation until it is complete, stopped, or the balancer is disabled.
func (m *Manager) Defragment(ctx context.Context) error {
	docs, err := m.find(ctx, "collections", doc(fld("defragmentCollection", value.NewBool(true))))
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range docs {
		e, err := cluster.ParseCollectionEntry(d)
		if err != nil {
			continue
		}
		if err := m.defragment(ctx, e.NS); err != nil && !errors.Is(err, errDefragmentLater) {
			errs = append(errs, fmt.Errorf("%s: %w", e.NS, err))
		}
	}
	return errors.Join(errs...)
}

// errDefragmentLater ends a round for a collection without a failure: the settings do not allow it now, it was stopped, or
// the rest has to wait for another operation.
var errDefragmentLater = errors.New("defragmentation continues later")

func (m *Manager) defragment(ctx context.Context, ns string) error {
	for {
		e, err := m.mayDefragment(ctx, ns)
		if err != nil {
			return err
		}
		var next string
		switch e.DefragmentPhase {
		case phaseMove:
			next, err = phaseMerge, m.moveSmallChunks(ctx, ns)
		case phaseMerge:
			next, err = "", m.mergeNeighbours(ctx, ns)
		default:
			next, err = phaseMove, m.mergeNeighbours(ctx, ns)
		}
		if err != nil {
			return err
		}
		m.defragmenter.forget(ns)
		if done, err := m.enterPhase(ctx, e, next); done || err != nil {
			return err
		}
	}
}

// mayDefragment reads a collection's entry. It returns errDefragmentLater if there is nothing to do now.
func (m *Manager) mayDefragment(ctx context.Context, ns string) (*cluster.CollectionEntry, error) {
	s, err := m.balancerSettings(ctx)
	if err != nil {
		return nil, err
	}
	_, e, err := m.table(ctx, ns)
	if code := mongoerr.CodeOf(err); code == mongoerr.NamespaceNotSharded || code == mongoerr.NamespaceNotFound {
		err = errDefragmentLater
	}
	if err == nil && (s.off || !s.window.open(m.now()) || !e.Defragment || e.NoBalance || e.Frozen || m.pauses.paused(ns, m.now())) {
		err = errDefragmentLater
	}
	if err != nil {
		if e == nil || !e.Defragment {
			m.defragmenter.forget(ns)
		}
		return nil, err
	}
	return e, nil
}

// enterPhase stores the next phase; "" is the end.
func (m *Manager) enterPhase(ctx context.Context, e *cluster.CollectionEntry, next string) (done bool, err error) {
	change := doc(fld("$set", doc(fld("defragmentationPhase", str(next)))))
	if next == "" {
		change = doc(fld("$unset", doc(fld("defragmentCollection", str("")), fld("defragmentationPhase", str("")))))
	}
	unlock, err := m.lockTables(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	n, err := m.update(ctx, "collections", doc(fld("_id", str(e.NS)), fld("uuid", value.NewBinary(4, e.UUID[:])), fld("defragmentCollection", value.NewBool(true))), change, false)
	return next == "" || n == 0, err
}

// pace waits between two changes of a table (chunkDefragmentationThrottlingMS).
func (m *Manager) pace(ctx context.Context) error {
	return cluster.Sleep(ctx, time.Duration(m.Params.Int("chunkDefragmentationThrottlingMS"))*time.Millisecond)
}

// mergeNeighbours merges all neighbours on the same shard and in the same zone. It ignores the history that reads of the past need: according to the manual
// they may fail while a collection is defragmented.
func (m *Manager) mergeNeighbours(ctx context.Context, ns string) error {
	for {
		if _, err := m.mayDefragment(ctx, ns); err != nil {
			return err
		}
		rule, _, err := m.mergeRule(ctx, ns)
		if err != nil {
			return err
		}
		rule.before = 0
		left, shard := 0, ""
		for set := range rule.runs() {
			left, shard = left+len(set), cmp.Or(shard, set[0].Shard)
		}
		m.defragmenter.note(ns, left)
		if left == 0 {
			return nil
		}
		if _, err := m.mergeRuns(ctx, &merging{ns: ns, shard: shard, limit: mergeBatch, forget: true}); err != nil {
			return err
		}
		if err := m.pace(ctx); err != nil {
			return err
		}
	}
}

// smallChunks are chunks that are small enough to be moved, by lower bound.
type smallChunks map[string]int64

// next returns the smallest one.
func (s smallChunks) next() (min string) {
	first := true
	for at, size := range s {
		if first || size < s[min] || size == s[min] && at < min {
			min, first = at, false
		}
	}
	return min
}

// moveSmallChunks moves each small chunk to the shard of a neighbour and merges the two. Of several small ones the smallest comes first,
// so that as little as possible is moved.
func (m *Manager) moveSmallChunks(ctx context.Context, ns string) error {
	small, err := m.measure(ctx, ns)
	if err != nil {
		return err
	}
	var busy error
	for {
		m.defragmenter.note(ns, len(small))
		if len(small) == 0 {
			return busy
		}
		e, err := m.mayDefragment(ctx, ns)
		if err != nil {
			return err
		}
		at := small.next()
		err = m.joinNeighbour(ctx, e, at, small)
		switch mongoerr.CodeOf(err) {
		case mongoerr.OK:
		case mongoerr.ConflictingOperationInProgress: // its shards are in another migration, or the chunk has changed
			busy = errDefragmentLater
			delete(small, at)
		case mongoerr.ChunkTooBig:
			delete(small, at)
		default:
			return err
		}
		if err := m.pace(ctx); err != nil {
			return err
		}
	}
}

// measure returns the small chunks of a collection. Each shard counts the keys of its chunks' ranges, up to the size of a small chunk.
func (m *Manager) measure(ctx context.Context, ns string) (smallChunks, error) {
	info, e, err := m.table(ctx, ns)
	if err != nil {
		return nil, err
	}
	limit := m.chunkSizeOf(ctx, e) * smallChunk / 100
	small := make(smallChunks)
	if info.Map.Len() == 1 {
		return small, nil
	}
	m.defragmenter.note(ns, info.Map.Len())
	for c := range info.Map.All() {
		if c.Jumbo {
			continue
		}
		reply, err := m.runOn(ctx, c.Shard, msg.Doc(&msg.DataSize{NS: ns, Key: info.Map.Key.Doc(), Range: msg.Range{Min: c.Min, Max: c.Max}, Estimate: true, MaxSize: limit}))
		var held msg.DataSizeReply
		if err == nil {
			err = msg.Parse(reply, &held)
		}
		if err != nil {
			return nil, err
		}
		if held.Size < limit {
			small[string(c.Min)] = held.Size
		}
	}
	return small, nil
}

// neighbour is a chunk that a small one may be merged with.
type neighbour struct {
	chunk  *cluster.Chunk
	bounds msg.Range // of both
}

// neighbours returns the chunks before and after one that are in the same zone and may be merged with it.
func neighbours(table *cluster.ChunkMap, zones []zoneRange, shards []*cluster.Shard, c *cluster.Chunk) (out []neighbour) {
	zoneOf := func(c *cluster.Chunk) (string, bool) { return (&zoneWalk{zones: zones}).of(c) }
	zone, whole := zoneOf(c)
	if !whole {
		return nil
	}
	lo, hi := c.Bounds()
	consider := func(n *cluster.Chunk, both msg.Range) {
		i := slices.IndexFunc(shards, func(s *cluster.Shard) bool { return s.ID == n.Shard })
		if z, whole := zoneOf(n); n.Jumbo || !whole || z != zone || i < 0 || shards[i].Draining || !inZone(shards[i], zone) {
			return
		}
		out = append(out, neighbour{n, both})
	}
	if cluster.CompareKeys(lo, value.Values(table.Key.GlobalMin())) > 0 {
		n := table.FindBelow(lo)
		consider(n, msg.Range{Min: n.Min, Max: c.Max})
	}
	if cluster.CompareKeys(hi, value.Values(table.Key.GlobalMax())) < 0 {
		n := table.Find(hi)
		consider(n, msg.Range{Min: c.Min, Max: n.Max})
	}
	return out
}

// joinNeighbour moves a small chunk to a neighbour's shard, unless that is its own, and merges the two. Of two neighbours it takes the one on
// its own shard, else the one on the shard with less of the collection.
func (m *Manager) joinNeighbour(ctx context.Context, e *cluster.CollectionEntry, at string, small smallChunks) error {
	info, _, err := m.table(ctx, e.NS)
	if err != nil {
		return err
	}
	c := info.Map.Find(value.Values([]byte(at)))
	if string(c.Min) != at {
		delete(small, at) // it has been merged by another operation
		return nil
	}
	zones, err := m.zonesOf(ctx, e.NS)
	if err != nil {
		return err
	}
	all, err := m.registry.All(ctx)
	if err != nil {
		return err
	}
	with := neighbours(info.Map, zones, all, c)
	if len(with) == 0 {
		delete(small, at)
		return nil
	}
	sizes, err := m.dataSizes(ctx, []*cluster.CollectionEntry{e})
	if err != nil {
		return err
	}
	to := slices.MinFunc(with, func(a, b neighbour) int {
		if here := a.chunk.Shard == c.Shard; here != (b.chunk.Shard == c.Shard) {
			if here { // nothing has to be moved
				return -1
			}
			return 1
		}
		return cmp.Compare(sizes[e.NS][a.chunk.Shard], sizes[e.NS][b.chunk.Shard])
	})
	if err := m.moveToNeighbour(ctx, e.NS, c, to.chunk.Shard); err != nil {
		return err
	}
	if _, err := m.mergeRange(ctx, e.NS, to.bounds.Min, to.bounds.Max); err != nil {
		return err
	}
	size, other := small[at], string(to.chunk.Min)
	rest, bothSmall := small[other]
	delete(small, at)
	delete(small, other)
	if size += rest; bothSmall && size < m.chunkSizeOf(ctx, e)*smallChunk/100 {
		small[string(to.bounds.Min)] = size
	}
	return nil
}

// moveToNeighbour moves a chunk as a whole. The balancer leaves its shards alone meanwhile, and balancerStop waits for it.
func (m *Manager) moveToNeighbour(ctx context.Context, ns string, c *cluster.Chunk, to string) error {
	if c.Shard == to {
		return nil
	}
	mv := &move{ns: ns, min: c.Min, max: c.Max, from: c.Shard, to: to}
	if !m.balancer.takeFree(mv) {
		return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "shard %s or %s is in another migration", c.Shard, to)
	}
	defer m.balancer.release(mv)
	s, err := m.balancerSettings(ctx)
	if err != nil {
		return err
	}
	return m.moveRange(ctx, &msg.MoveRange{Move: msg.Move{
		NS: ns, To: to, Min: c.Min, Max: c.Max, WaitForDelete: s.waitForDelete, Transfer: msg.Transfer{Throttle: s.throttle, Concern: s.concern},
	}})
}

// defragmentStatus returns what balancerCollectionStatus reports of a collection that is being defragmented.
func (m *Manager) defragmentStatus(info *cluster.CollectionInfo, e *cluster.CollectionEntry) value.Value {
	left, known := m.defragmenter.remaining(e.NS)
	if !known {
		left = int64(info.Map.Len())
	}
	return doc(fld("currentPhase", str(cmp.Or(e.DefragmentPhase, phaseMeasure))), fld("progress", doc(fld("remainingChunksToProcess", value.NewInt64(left)))))
}
