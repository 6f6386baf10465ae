package configsvr

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// mergeBatch is the number of chunks that one unit of work merges into others.
const mergeBatch = 1000

// mergeRule determines which chunks may be merged: neighbours on the same shard and in the same zone, none of them jumbo or being
// moved, all of them there for so long that no read of the past needs to know their previous owners.
// (https://www.mongodb.com/docs/manual/core/automerger-concept/)
type mergeRule struct {
	table  *cluster.ChunkMap
	zones  []zoneRange
	before uint64                      // chunks that arrived later are left alone; 0 for any
	moving func(c *cluster.Chunk) bool // nil for none
}

// runs returns the runs of two or more chunks that may be merged, in key order.
func (r mergeRule) runs() iter.Seq[[]*cluster.Chunk] {
	return func(yield func([]*cluster.Chunk) bool) {
		walk := zoneWalk{zones: r.zones}
		var run []cluster.Place
		var zone string
		flush := func() bool {
			set := r.still(run)
			run = run[:0]
			for _, chunks := range set {
				if !yield(chunks) {
					return false
				}
			}
			return true
		}
		for at := range r.table.Places() {
			fits, in := !at.Jumbo() && (r.before == 0 || at.Since() <= r.before), ""
			if fits && len(r.zones) > 0 {
				in, fits = walk.of(at.Chunk())
			}
			if len(run) > 0 && (!fits || in != zone || at.Shard() != run[0].Shard()) && !flush() {
				return
			}
			if fits {
				run, zone = append(run, at), in
			}
		}
		flush()
	}
}

// still returns the chunks of a run, divided where one is being moved; pieces of a single chunk are omitted.
func (r mergeRule) still(run []cluster.Place) (out [][]*cluster.Chunk) {
	if len(run) < 2 {
		return nil
	}
	var set []*cluster.Chunk
	for _, at := range run {
		c := at.Chunk()
		if r.moving == nil || !r.moving(c) {
			set = append(set, c)
			continue
		}
		if len(set) > 1 {
			out = append(out, set)
		}
		set = nil
	}
	if len(set) > 1 {
		out = append(out, set)
	}
	return out
}

// merge merges several chunks.
func (w *chunkWrites) merge(ctx context.Context, set []*cluster.Chunk, v cluster.ChunkVersion) error {
	merged := append([]value.Field{fld("max", value.NewDocument(set[len(set)-1].Max)), lastmod(v)}, w.m.owners(cluster.MergeHistories(set))...)
	if err := w.remake(ctx, set[0], merged...); err != nil {
		return err
	}
	for _, c := range set[1:] {
		if err := w.drop(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// merging has the arguments of mergeRuns.
type merging struct {
	ns, shard string
	limit     int       // the maximum number of chunks that are merged into others
	until     time.Time // no chunks are read after this time; zero for no limit
	forget    bool      // merge even chunks whose history reads of the past may need
}

// mergeRuns merges what a rule allows on one shard, in one unit of work, up to a limit of chunks that are merged into others.
// It returns their number.
func (m *Manager) mergeRuns(ctx context.Context, g *merging) (taken int, err error) {
	ns, shard := g.ns, g.shard
	unlock, err := m.lockTable(ctx, ns)
	if err != nil {
		return 0, err
	}
	defer unlock()
	rule, e, err := m.mergeRule(ctx, ns)
	if err != nil {
		return 0, err
	}
	if g.forget {
		rule.before = 0
	}
	if e.Frozen {
		return 0, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "Collection %s is undergoing changes and chunks cannot be merged", ns)
	}
	w := &chunkWrites{m: m, uuid: e.UUID}
	v := rule.table.Version()
	var merged []msg.Range
	for set := range rule.runs() {
		if set[0].Shard != shard {
			continue
		}
		set = set[:min(len(set), g.limit-taken)]
		if len(set) < 2 || !g.until.IsZero() && m.now().After(g.until) {
			break
		}
		v = v.IncMinor()
		if err := w.merge(ctx, set, v); err != nil {
			return 0, err
		}
		taken += len(set)
		merged = append(merged, msg.Range{Min: set[0].Min, Max: set[len(set)-1].Max})
	}
	if taken == 0 {
		return 0, nil
	}
	if err := w.commit(ctx); err != nil {
		return 0, err
	}
	unlock() // a shard may be frozen
	m.refreshShards(ctx, ns, []string{shard})
	for _, r := range merged {
		m.logAs(ctx, shard, "merge", ns, doc(fld("min", value.NewDocument(r.Min)), fld("max", value.NewDocument(r.Max)), fld("owningShard", str(shard))))
	}
	return taken, nil
}

// mergeRule returns the rule for a collection in its current state. It excludes chunks whose history current reads of
// the past may need.
func (m *Manager) mergeRule(ctx context.Context, ns string) (mergeRule, *cluster.CollectionEntry, error) {
	info, e, err := m.table(ctx, ns)
	if err != nil {
		return mergeRule{}, nil, err
	}
	zones, err := m.zonesOf(ctx, ns)
	if err != nil {
		return mergeRule{}, nil, err
	}
	return mergeRule{
		table: info.Map, zones: zones, before: max(m.oldestRead(), 1),
		moving: func(c *cluster.Chunk) bool { return m.moves.underWay(ns, c.Min) },
	}, e, nil
}

// runMergeAllOnShard merges all that can be merged of a collection on one shard.
func (m *Manager) runMergeAllOnShard(op *command.Op, req *msg.MergeAllChunksOnShard, dst []byte) ([]byte, error) {
	if _, err := m.registry.Shard(op, req.Shard); err != nil {
		return dst, err
	}
	left := int64(1 << 31)
	if req.MaxChunks != nil {
		if left = *req.MaxChunks; left < 2 {
			return dst, mongoerr.New(mongoerr.InvalidOptions, "maxNumberOfChunksToMerge must be at least 2")
		}
	}
	var until time.Time
	if req.MaxTimeMS != nil {
		until = m.now().Add(time.Duration(*req.MaxTimeMS) * time.Millisecond)
	}
	for left > 1 {
		n, err := m.mergeRuns(op, &merging{ns: req.NS, shard: req.Shard, limit: int(min(left, mergeBatch)), until: until})
		if n == 0 || err != nil {
			return dst, err
		}
		left -= int64(n)
	}
	return dst, nil
}

// activeMoves are the chunks being migrated on behalf of this config server: merges skip
// them, since a migration whose chunk has changed cannot commit. After an election none is known, and the comparison of versions at
// the commit decides, as it does in any case.
type activeMoves struct {
	mu   sync.Mutex
	held map[moveKey]int
}

type moveKey struct{ ns, min string }

func (a *activeMoves) begin(ns string, min []byte) (end func()) {
	k := moveKey{ns, string(min)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held == nil {
		a.held = make(map[moveKey]int)
	}
	a.held[k]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.held[k]--; a.held[k] == 0 {
			delete(a.held, k)
		}
	}
}

func (a *activeMoves) underWay(ns string, min []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[moveKey{ns, string(min)}] > 0
}

// autoMergerCheck is the interval at which the auto-merger checks whether its parameters and settings let it run.
const autoMergerCheck = 10 * time.Second

// RunAutoMerger merges chunks every autoMergerIntervalSecs until ctx ends. It begins at once.
func (m *Manager) RunAutoMerger(ctx context.Context) {
	var last time.Time
	for {
		interval := time.Duration(m.Params.Int("autoMergerIntervalSecs")) * time.Second
		if wait := interval - m.now().Sub(last); last.IsZero() || wait <= 0 {
			// Failures are retried in the next round; completed merges remain.
			ran, _ := m.AutoMerge(ctx)
			if ran {
				last = m.now()
			}
		}
		if !m.pause(ctx, min(interval, autoMergerCheck)) {
			return
		}
	}
}

// pause waits, and reports whether ctx is still alive after that.
func (m *Manager) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// AutoMerge merges chunks of all collections that allow it until there is nothing left to merge. It returns false if the
// settings do not let it begin.
func (m *Manager) AutoMerge(ctx context.Context) (ran bool, err error) {
	next := make(map[string]time.Time) // when a collection may be merged again
	var errs []error
	for {
		may, err := m.mayAutoMerge(ctx)
		if err != nil || !may {
			return ran, errors.Join(append(errs, err)...)
		}
		ran = true
		merged, failed := m.autoMergeOnce(ctx, next)
		if failed != nil {
			errs = append(errs, failed)
		}
		if merged == 0 && len(next) == 0 || failed != nil {
			return ran, errors.Join(errs...)
		}
		if !m.pause(ctx, m.untilFirst(next)) {
			return ran, ctx.Err()
		}
	}
}

func (m *Manager) untilFirst(next map[string]time.Time) time.Duration {
	var first time.Time
	for _, t := range next {
		if first.IsZero() || t.Before(first) {
			first = t
		}
	}
	return max(0, first.Sub(m.now()))
}

// mayAutoMerge reports whether the cluster's settings let the auto-merger run now: those of the balancer come first.
func (m *Manager) mayAutoMerge(ctx context.Context) (bool, error) {
	s, err := m.balancerSettings(ctx)
	if err != nil || s.off || !s.window.open(m.now()) {
		return false, err
	}
	docs, err := m.find(ctx, "settings", doc(fld("_id", str("automerge"))))
	if err != nil || len(docs) == 0 {
		return err == nil, err
	}
	on := value.Lookup(docs[0], "enabled")
	return on.IsMissing() || on.Truthy(), nil
}

// autoMergeOnce merges one batch of each collection that is due, and records in next when the collections that had
// something to merge are due again. A collection without anything to merge is removed from next.
func (m *Manager) autoMergeOnce(ctx context.Context, next map[string]time.Time) (merged int, err error) {
	colls, err := m.balanced(ctx)
	if err != nil {
		return 0, err
	}
	throttle := time.Duration(m.Params.Int("autoMergerThrottlingMS")) * time.Millisecond
	seen := make(map[string]bool, len(colls))
	var errs []error
	for _, e := range colls {
		seen[e.NS] = true
		if due, ok := next[e.NS]; e.NoMerge || ok && m.now().Before(due) {
			continue
		}
		n, err := m.mergeSome(ctx, e.NS)
		if err != nil {
			errs = append(errs, err)
		}
		if merged += n; n > 0 {
			next[e.NS] = m.now().Add(throttle)
		} else {
			delete(next, e.NS)
		}
	}
	for ns := range next {
		if !seen[ns] {
			delete(next, ns)
		}
	}
	return merged, errors.Join(errs...)
}

// mergeSome merges a batch on the first shard that has something to merge.
func (m *Manager) mergeSome(ctx context.Context, ns string) (int, error) {
	rule, _, err := m.mergeRule(ctx, ns)
	if code := mongoerr.CodeOf(err); code == mongoerr.NamespaceNotSharded || code == mongoerr.NamespaceNotFound {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for set := range rule.runs() {
		return m.mergeRuns(ctx, &merging{ns: ns, shard: set[0].Shard, limit: mergeBatch})
	}
	return 0, nil
}
