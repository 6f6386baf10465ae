package configsvr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// balancer moves data off draining shards, into the zones it belongs to, and from the fullest shards to the emptiest.
type balancer struct {
	wake chan struct{}

	mu struct {
		sync.Mutex
		rounds  int64
		inRound bool
		unread  string          // why the settings cannot be read, "" if they can
		moving  map[string]bool // the shards (and aWholeCollection) that running moves use, including those of earlier rounds
		changed chan struct{}   // closed when a round or a migration ends; nil if there are no waiters
	}
}

// balancerPause is the time between rounds; after a round that moved something the next one follows sooner
// (balancerMigrationsThrottlingMs).
const balancerPause = 10 * time.Second

// roundTimeout limits the time that a round waits for its migrations. A migration that takes longer continues; its
// shards take part in no other until it ends, and the other shards are balanced in the meantime.
const roundTimeout = 30 * time.Second

// statsWait is the time limit for a shard to report its data sizes. A shard that does not report is left out of the
// round.
const statsWait = 10 * time.Second

// defaultChunkSize is the default of config.settings.chunksize: 128 MB.
const defaultChunkSize = 128 << 20

func newBalancer() *balancer {
	b := &balancer{wake: make(chan struct{}, 1)}
	b.mu.moving = make(map[string]bool)
	return b
}

// RunBalancer runs rounds until ctx ends. It runs on the config server's primary, and goes on at the pace of the one before, which may have been moving something.
func (m *Manager) RunBalancer(ctx context.Context) {
	throttle := func() time.Duration {
		return time.Duration(m.Params.Int("balancerMigrationsThrottlingMs")) * time.Millisecond
	}
	for pause := min(throttle(), balancerPause); ; {
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-m.balancer.wake:
			t.Stop()
		case <-ctx.Done():
			t.Stop()
			return
		}
		pause = balancerPause
		// Failed migrations are retried in the next round.
		if moved, _ := m.BalancerRound(ctx); moved > 0 {
			pause = throttle()
		}
	}
}

// balancerMode returns the mode in config.settings: full or off.
func (m *Manager) balancerMode(ctx context.Context) (string, error) {
	s, err := m.balancerSettings(ctx)
	if s.off {
		return "off", err
	}
	return "full", err
}

func (m *Manager) setBalancer(ctx context.Context, on bool) error {
	mode := "off"
	if on {
		mode = "full"
	}
	_, err := m.update(ctx, "settings", doc(fld("_id", str("balancer"))),
		doc(fld("$set", doc(fld("mode", str(mode)), fld("stopped", value.NewBool(!on))))), true)
	if err == nil && on {
		m.balancer.soon()
	}
	return err
}

// soon makes the next round begin at once: it is turned on, has other settings for a collection, or there is another shard, or one to be emptied. A change of zones does not wake it. The manual has
// clients stop the balancer while they set several, and those who do not would have chunks moved by the first of them.
func (b *balancer) soon() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *balancer) beginRound() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.inRound = true
	b.mu.rounds++
}

// notify wakes the waiters; b.mu must be held.
func (b *balancer) notify() {
	if b.mu.changed != nil {
		close(b.mu.changed)
		b.mu.changed = nil
	}
}

func (b *balancer) endRound() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.inRound = false
	b.notify()
}

// busy returns the shards that a round must not use.
func (b *balancer) busy() map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.mu.moving)
}

// takeFree and release record that a migration between two shards begins and ends. takeFree fails if one of them is in another migration.
func (b *balancer) takeFree(mv *move) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range mv.uses() {
		if b.mu.moving[name] {
			return false
		}
	}
	for _, name := range mv.uses() {
		b.mu.moving[name] = true
	}
	return true
}

func (b *balancer) release(mv *move) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range mv.uses() {
		delete(b.mu.moving, name)
	}
	b.notify()
}

// status returns what balancerStatus reports.
func (b *balancer) status() (inRound bool, rounds int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.inRound || len(b.mu.moving) > 0, b.mu.rounds
}

// idle returns once no round and no migration of the balancer is running.
func (b *balancer) idle(ctx context.Context) error {
	for {
		b.mu.Lock()
		if !b.mu.inRound && len(b.mu.moving) == 0 {
			b.mu.Unlock()
			return nil
		}
		if b.mu.changed == nil {
			b.mu.changed = make(chan struct{})
		}
		changed := b.mu.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// BalancerRound plans and executes at most one migration per shard, and returns how many succeeded. A failure of one collection
// or shard does not stop the others; the errors are joined.
func (m *Manager) BalancerRound(ctx context.Context) (moved int, err error) {
	began := m.now()
	s, err := m.balancerSettings(ctx)
	if m.balancer.unreadable(err) {
		m.logRound(ctx, began, 0, 0, err)
	}
	if err != nil || s.off || !s.window.open(m.now()) {
		return 0, err
	}
	m.balancer.beginRound()
	defer m.balancer.endRound()
	moves, err := m.planRound(ctx, s)
	moved, failed := m.makeMoves(ctx, moves, s)
	err = errors.Join(err, failed)
	if len(moves) > 0 || err != nil {
		m.logRound(ctx, began, len(moves), moved, err)
	}
	return moved, err
}

// unreadable reports whether err says that the settings cannot be read, and has not been reported before.
func (b *balancer) unreadable(err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.mu.unread
	b.mu.unread = ""
	if mongoerr.CodeOf(err) == mongoerr.BadValue {
		b.mu.unread = err.Error()
	}
	return b.mu.unread != "" && b.mu.unread != before
}

// logRound logs a round in config.actionlog.
func (m *Manager) logRound(ctx context.Context, began time.Time, planned, moved int, err error) {
	f := []value.Field{
		fld("executionTimeMillis", value.NewInt64(m.now().Sub(began).Milliseconds())), fld("errorOccurred", value.NewBool(err != nil)),
	}
	if err != nil {
		f = append(f, fld("errmsg", str(err.Error())))
	} else {
		f = append(f, fld("candidateChunks", value.NewInt32(int32(planned))), fld("chunksMoved", value.NewInt32(int32(moved))))
	}
	m.logIn(ctx, "actionlog", cluster.ConfigShardID, "balancer.round", "", doc(f...))
}

// balanced returns the collections that the balancer may touch now.
func (m *Manager) balanced(ctx context.Context) (colls []*cluster.CollectionEntry, err error) {
	docs, err := m.find(ctx, "collections", doc())
	if err != nil {
		return nil, err
	}
	for _, d := range docs {
		e, err := cluster.ParseCollectionEntry(d)
		if err == nil && !e.NoBalance && !e.Defragment && !e.Frozen && !m.pauses.paused(e.NS, m.now()) {
			colls = append(colls, e)
		}
	}
	return colls, nil
}

// planRound examines all collections and chooses the migrations of a round.
func (m *Manager) planRound(ctx context.Context, s balancerSettings) (moves []move, err error) {
	colls, err := m.balanced(ctx)
	if err != nil || len(colls) == 0 {
		return nil, err
	}
	if err := m.registry.Reload(ctx); err != nil {
		return nil, err
	}
	// The first collection has the choice of all shards, so the collections take turns at being first.
	if n := len(colls); n > 1 {
		_, rounds := m.balancer.status()
		first := int(rounds % int64(n))
		colls = slices.Concat(colls[first:], colls[:first])
	}
	stats, err := m.dataSizes(ctx, colls)
	if err != nil {
		return nil, err
	}
	busy := m.balancer.busy()
	var errs []error
	for _, e := range colls {
		mv, err := m.planFor(ctx, e, s, stats, busy)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.NS, err))
		}
		moves = append(moves, mv...)
	}
	if mv, err := m.planWhole(ctx, colls, busy); err != nil {
		errs = append(errs, err)
	} else if mv != nil {
		moves = append(moves, *mv)
	}
	return moves, errors.Join(errs...)
}

// planFor splits the chunks of a collection that cross the bound of a zone, and chooses its migrations.
func (m *Manager) planFor(ctx context.Context, e *cluster.CollectionEntry, s balancerSettings, stats dataStats, busy map[string]bool) ([]move, error) {
	d, err := m.distribution(ctx, e, stats)
	if err != nil || d == nil {
		return nil, err
	}
	d.jumbo = s.jumbo
	split := false
	for _, z := range d.zoneSplits() {
		c := z.chunk
		if c.Jumbo && !s.jumbo {
			continue
		}
		if _, err := m.splitChunk(ctx, &msg.CommitChunkSplit{NS: e.NS, Range: msg.Range{Min: c.Min, Max: c.Max}, Points: z.points}); err != nil {
			return nil, err
		}
		split = true
	}
	if split {
		if d, err = m.distribution(ctx, e, stats); err != nil || d == nil {
			return nil, err
		}
		d.jumbo = s.jumbo
	}
	return d.plan(busy), nil
}

// distribution returns a collection's current distribution; nil if it is no longer sharded.
func (m *Manager) distribution(ctx context.Context, e *cluster.CollectionEntry, stats dataStats) (*distribution, error) {
	info, err := m.placement(ctx, e.NS)
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound || err == nil && !info.Sharded() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := m.registry.All(ctx)
	if err != nil {
		return nil, err
	}
	zones, err := m.zonesOf(ctx, e.NS)
	if err != nil {
		return nil, err
	}
	d := &distribution{ns: e.NS, random: m.Points != nil && m.Points.On("balancerShouldReturnRandomMigrations"), table: info.Map, shards: all, zones: zones, size: stats[e.NS], unit: m.chunkSizeOf(ctx, e)}
	if d.whole = e.NS == cluster.SessionsNS; d.whole { // its chunks all have the same size
		d.unit = 1
	}
	return d, nil
}

// makeMoves runs migrations concurrently. It waits for them at most for roundTimeout.
func (m *Manager) makeMoves(ctx context.Context, moves []move, s balancerSettings) (moved int, err error) {
	ended := make(chan error, len(moves))
	for i := range moves {
		mv := &moves[i]
		if !m.balancer.takeFree(mv) { // the defragmenter has begun to use them since the plan was made
			ended <- errNotMoved
			continue
		}
		go func() {
			err := m.makeMove(ctx, mv, s)
			m.balancer.release(mv) // before the round can end: otherwise the next round would find the shards in use
			ended <- err
		}()
	}
	timeout := time.NewTimer(roundTimeout)
	defer timeout.Stop()
	var errs []error
	for range moves {
		select {
		case err := <-ended:
			switch {
			case err == nil:
				moved++
			case !errors.Is(err, errNotMoved):
				errs = append(errs, err)
			}
		case <-timeout.C:
			return moved, errors.Join(errs...)
		}
	}
	return moved, errors.Join(errs...)
}

// errNotMoved ends a migration that did not fail: it has to wait, or its chunk was split or marked so that a later one can succeed.
var errNotMoved = errors.New("the range was not moved")

func (m *Manager) makeMove(ctx context.Context, mv *move, s balancerSettings) error {
	if mv.db != nil {
		return m.moveWhole(ctx, mv)
	}
	err := m.moveRange(ctx, &msg.MoveRange{
		Move: msg.Move{NS: mv.ns, To: mv.to, Min: mv.min, Max: mv.max, WaitForDelete: s.waitForDelete,
			Transfer: msg.Transfer{Throttle: s.throttle, Concern: s.concern}, ForceJumbo: s.jumbo},
	})
	switch mongoerr.CodeOf(err) {
	case mongoerr.ChunkTooBig:
		if err := m.splitOrMarkJumbo(ctx, mv.ns, mv.min); err != nil {
			return fmt.Errorf("%s: %w", mv.ns, err)
		}
		return errNotMoved
	case mongoerr.BSONObjectTooLarge: // of the range that the donor has chosen: its two bounds do not fit into one document
		if err := m.markJumbo(ctx, mv.ns, mv.min); err != nil {
			return fmt.Errorf("%s: %w", mv.ns, err)
		}
		return errNotMoved
	case mongoerr.ConflictingOperationInProgress: // migrations of this collection are paused, or not allowed during a DDL; or the chunk has changed
		return errNotMoved
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", mv.ns, err)
	}
	return err
}

// splitOrMarkJumbo handles a chunk that is too large to be moved: it splits it or, if the chunk has a single key or keys that are too large for a
// chunk's bounds, marks it as jumbo, so that it is not tried again in vain.
func (m *Manager) splitOrMarkJumbo(ctx context.Context, ns string, min []byte) error {
	info, e, err := m.table(ctx, ns)
	if err != nil {
		return err
	}
	c := info.Map.Find(value.Values(min))
	jumbo, err := m.markedJumbo(ctx, e, c)
	if err != nil {
		return err
	}
	if jumbo {
		return m.markJumbo(ctx, ns, c.Min) // set by hand: marked again with a new version, so that later rounds see it
	}
	split, err := m.autoSplit(ctx, e, c)
	if mongoerr.CodeOf(err) == mongoerr.BSONObjectTooLarge {
		err = nil
	}
	if err == nil && !split {
		err = m.markJumbo(ctx, ns, c.Min)
	}
	return err
}

// autoSplit splits a chunk at the keys that its shard proposes, if there are any.
func (m *Manager) autoSplit(ctx context.Context, e *cluster.CollectionEntry, c *cluster.Chunk) (split bool, err error) {
	db, coll := cluster.SplitNS(e.NS)
	chunk := msg.Range{Min: c.Min, Max: c.Max}
	body, err := m.runOn(ctx, c.Shard, msg.Doc(&msg.AutoSplitVector{DB: db, Coll: coll, Key: e.Key.Doc(), Range: chunk, MaxChunkSizeBytes: m.chunkSizeOf(ctx, e)}))
	if err != nil {
		return false, err
	}
	var reply msg.AutoSplitVectorReply
	if err := msg.Parse(body, &reply); err != nil || len(reply.Keys) == 0 {
		return false, err
	}
	_, err = m.splitChunk(ctx, &msg.CommitChunkSplit{NS: e.NS, Range: chunk, Points: reply.Keys})
	return err == nil, err
}

// chunkSize returns the cluster's chunk size: config.settings.chunksize, 1 to 1024 MB.
func (m *Manager) chunkSize(ctx context.Context) int64 {
	docs, err := m.find(ctx, "settings", doc(fld("_id", str("chunksize"))))
	if err != nil || len(docs) == 0 {
		return defaultChunkSize
	}
	if mb, ok := value.Lookup(docs[0], "value").AsInt64(); ok && mb > 0 && mb <= 1024 {
		return mb << 20
	}
	return defaultChunkSize
}

// dataStats has the bytes by collection and shard, without orphans.
type dataStats map[string]map[string]int64

// dataSizes requests the sizes of the collections from the shards, with one request for each shard. A shard that does not
// reply is missing in the result.
func (m *Manager) dataSizes(ctx context.Context, colls []*cluster.CollectionEntry) (dataStats, error) {
	all, err := m.registry.All(ctx)
	if err != nil {
		return nil, err
	}
	ask := &msg.BalancingStats{}
	out := make(dataStats, len(colls))
	for _, e := range colls {
		ask.Collections = append(ask.Collections, msg.CollectionID{NS: e.NS, UUID: e.UUID})
		out[e.NS] = make(map[string]int64, len(all))
	}
	bounded, cancel := context.WithTimeout(ctx, statsWait)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() {
			reply, err := cluster.Run(bounded, s.Peer, msg.Doc(ask))
			var stats msg.BalancingStatsReply
			if err == nil {
				err = msg.Parse(reply, &stats)
			}
			if err != nil || len(stats.Bytes) != len(colls) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i, e := range colls {
				out[e.NS][s.ID] = stats.Bytes[i].Bytes
			}
		})
	}
	wg.Wait()
	return out, ctx.Err()
}
