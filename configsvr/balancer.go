package configsvr

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// balancer moves chunks off draining shards, into their zones, and from the fullest shard to the emptiest.
type balancer struct {
	rounds  atomic.Int64
	inRound atomic.Bool
	wake    chan struct{}
	once    sync.Once
}

// balancerPause is the time between rounds; after a round that moved something the next one follows sooner
// (balancerMigrationsThrottlingMs).
const balancerPause = 10 * time.Second

// defaultChunkSize is config.settings.chunksize where nothing is set: 128 MB.
const defaultChunkSize = 128 << 20

// imbalance is how many chunk sizes two shards must differ by before data moves between them.
const imbalance = 3

func (b *balancer) init(*Manager) { b.once.Do(func() { b.wake = make(chan struct{}, 1) }) }

// RunBalancer does rounds until ctx ends. One config server, the primary, runs it.
func (m *Manager) RunBalancer(ctx context.Context) {
	m.balancer.init(m)
	pause := balancerPause
	for {
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
		// A round that fails is tried again with the next; what it moved stays moved.
		if moved, err := m.BalancerRound(ctx); err == nil && moved > 0 {
			pause = time.Duration(m.Params.Int("balancerMigrationsThrottlingMs")) * time.Millisecond
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
		m.balancer.init(m)
		select {
		case m.balancer.wake <- struct{}{}:
		default:
		}
	}
	return err
}

// BalancerRound makes at most one move per collection and returns how many it made.
func (m *Manager) BalancerRound(ctx context.Context) (moved int, err error) {
	s, err := m.balancerSettings(ctx)
	if err != nil || s.off || !s.window.open(m.now()) {
		return 0, err
	}
	m.balancer.inRound.Store(true)
	defer m.balancer.inRound.Store(false)
	m.balancer.rounds.Add(1)
	colls, err := m.find(ctx, "collections", doc())
	if err != nil || len(colls) == 0 {
		return 0, err
	}
	if err := m.registry.Reload(ctx); err != nil {
		return 0, err
	}
	for _, d := range colls {
		e, err := cluster.ParseCollectionEntry(d)
		if err != nil || e.NoBalance || m.pauses.paused(e.NS, m.now()) {
			continue
		}
		mv, err := m.nextMove(ctx, e.NS, s.jumbo)
		if err != nil {
			return moved, err
		}
		if mv == nil {
			continue
		}
		if err := m.makeMove(ctx, e.NS, mv, s); err != nil {
			return moved, err
		}
		moved++
	}
	return moved, nil
}

// move is a chunk (or the part of one within a zone) and where it should be.
type move struct {
	min, max []byte
	to       string
	why      string
}

func (m *Manager) makeMove(ctx context.Context, ns string, mv *move, s balancerSettings) error {
	err := m.moveRange(ctx, &msg.MoveRange{
		Move: msg.Move{NS: ns, To: mv.to, Min: mv.min, Max: mv.max, WaitForDelete: s.waitForDelete,
			Transfer: msg.Transfer{Throttle: s.throttle, Concern: s.concern}},
		ForceJumbo: s.jumbo,
	})
	switch mongoerr.CodeOf(err) {
	case mongoerr.ChunkTooBig:
		return nil
	case mongoerr.Interrupted: // by what pauses migrations of this collection; those of others go on
		return ctx.Err()
	}
	return err
}

// nextMove chooses a collection's next migration, nil for none: draining shards first, then zones, then size. jumbo has it
// try chunks that are marked as jumbo too.
func (m *Manager) nextMove(ctx context.Context, ns string, jumbo bool) (*move, error) {
	info, _, err := m.table(ctx, ns)
	if err != nil {
		if mongoerr.CodeOf(err) == mongoerr.NamespaceNotSharded {
			return nil, nil
		}
		return nil, err
	}
	all, err := m.registry.All(ctx)
	if err != nil {
		return nil, err
	}
	zones, err := m.zonesOf(ctx, ns)
	if err != nil {
		return nil, err
	}
	p := newPlacement(info, all, zones)
	p.jumbo = jumbo
	if mv := p.misplaced(); mv != nil || len(all) < 2 {
		return mv, nil
	}
	if ns == cluster.SessionsNS { // whose chunks are of a size
		counts := make(map[string]int64)
		for id, n := range p.count {
			counts[id] = int64(n)
		}
		return p.bySize(counts, 1), nil
	}
	sizes, err := m.collectionSizes(ctx, info, all)
	if err != nil {
		return nil, err
	}
	return p.bySize(sizes, m.chunkSize(ctx)), nil
}

func (m *Manager) chunkSize(ctx context.Context) int64 {
	docs, err := m.find(ctx, "settings", doc(fld("_id", str("chunksize"))))
	if err != nil || len(docs) == 0 {
		return defaultChunkSize
	}
	if mb, ok := value.Lookup(docs[0], "value").AsInt64(); ok && mb > 0 {
		return mb << 20
	}
	return defaultChunkSize
}

// collectionSizes asks the shards how much of a collection they hold.
func (m *Manager) collectionSizes(ctx context.Context, info *cluster.CollectionInfo, all []*cluster.Shard) (map[string]int64, error) {
	db, coll := cluster.SplitNS(info.NS)
	out := map[string]int64{}
	for _, s := range all {
		if info.Map.ShardVersion(s.ID).Major == 0 {
			out[s.ID] = 0
			continue
		}
		reply, err := cluster.Run(ctx, s.Peer, value.Doc(fld("collStats", str(coll)), fld("$db", str(db))))
		if err != nil {
			return nil, err
		}
		n, _ := value.Lookup(reply, "size").AsInt64()
		orphans, _ := value.Lookup(reply, "numOrphanDocs").AsInt64() // which are about to go
		each, _ := value.Lookup(reply, "avgObjSize").AsInt64()
		out[s.ID] = n - orphans*each
	}
	return out, nil
}

// placement is one collection's chunks against the shards and zones.
type placement struct {
	info   *cluster.CollectionInfo
	shards []*cluster.Shard
	zones  []zoneRange
	count  map[string]int
	jumbo  bool // chunks that are marked as jumbo may be moved
}

func newPlacement(info *cluster.CollectionInfo, shards []*cluster.Shard, zones []zoneRange) *placement {
	p := &placement{info: info, shards: shards, zones: zones, count: map[string]int{}}
	for i := 0; i < info.Map.Len(); i++ {
		p.count[info.Map.Chunk(i).Shard]++
	}
	return p
}

func (p *placement) shard(id string) *cluster.Shard {
	for _, s := range p.shards {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// zoneOf returns the zone that a chunk lies in, "" for none, and the part of the chunk within it.
func (p *placement) zoneOf(c *cluster.Chunk) (zone string, min, max []byte) {
	lo, hi := c.Bounds()
	for _, z := range p.zones {
		zl, zh := value.Values(z.min), value.Values(z.max)
		if cluster.CompareKeys(zl, hi) >= 0 || cluster.CompareKeys(lo, zh) >= 0 {
			continue
		}
		min, max = c.Min, c.Max
		if cluster.CompareKeys(zl, lo) > 0 {
			min = z.min
		}
		if cluster.CompareKeys(zh, hi) < 0 {
			max = z.max
		}
		return z.zone, min, max
	}
	return "", c.Min, c.Max
}

func inZone(s *cluster.Shard, zone string) bool {
	if zone == "" {
		return true
	}
	for _, t := range s.Tags {
		if t == zone {
			return true
		}
	}
	return false
}

// emptiest returns the shard of a zone with the fewest chunks that may take one more, "" if there is none.
func (p *placement) emptiest(zone, not string) string {
	best := ""
	for _, s := range p.shards {
		if s.Draining || s.ID == not || !inZone(s, zone) {
			continue
		}
		if best == "" || p.count[s.ID] < p.count[best] {
			best = s.ID
		}
	}
	return best
}

// misplaced finds a chunk on a draining shard, or one outside its zone.
func (p *placement) misplaced() *move {
	var other *move
	for i := 0; i < p.info.Map.Len(); i++ {
		c := p.info.Map.Chunk(i)
		if c.Jumbo && !p.jumbo {
			continue
		}
		zone, min, max := p.zoneOf(c)
		s := p.shard(c.Shard)
		draining := s != nil && s.Draining
		if !draining && (s == nil || inZone(s, zone)) {
			continue
		}
		to := p.emptiest(zone, c.Shard)
		if to == "" {
			continue
		}
		if draining {
			return &move{min, max, to, "draining"}
		}
		if other == nil {
			other = &move{min, max, to, "zone"}
		}
	}
	return other
}

// bySize moves a chunk from the shard with the most data to the one with the least, if the difference justifies
// it.
func (p *placement) bySize(sizes map[string]int64, chunkSize int64) *move {
	full, empty := "", ""
	for _, s := range p.shards {
		if full == "" || sizes[s.ID] > sizes[full] {
			full = s.ID
		}
		if !s.Draining && (empty == "" || sizes[s.ID] < sizes[empty]) {
			empty = s.ID
		}
	}
	if empty == "" || full == empty || sizes[full]-sizes[empty] < imbalance*chunkSize {
		return nil
	}
	for _, c := range p.info.Map.ChunksOf(full) {
		zone, min, max := p.zoneOf(c)
		// Moving the only chunk of a shard would only swap full and empty.
		if (!c.Jumbo || p.jumbo) && p.count[full] > 1 && inZone(p.shard(empty), zone) {
			return &move{min, max, empty, "size"}
		}
	}
	return nil
}
