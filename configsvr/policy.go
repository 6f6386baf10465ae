package configsvr

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// imbalance is the difference between two shards, in chunk sizes, from which data of a collection moves between them.
const imbalance = 3

// The reasons for moving a range.
const (
	forDraining = "draining"
	forZone     = "zone"
	forBalance  = "size"
	forTest     = "random"
)

// move is a range that should be on another shard. Without max it extends from min to as much of the chunk as a chunk may hold.
type move struct {
	ns       string
	min, max []byte
	from, to string
	why      string
	db       *cluster.DatabaseInfo // of a collection that is not sharded, which is moved as a whole; nil for a range
}

// aWholeCollection, among the names of shards, stands for the one collection that may be moved as a whole at a time.
const aWholeCollection = "\x00"

// uses returns the resources that no other move may use meanwhile. A move of a whole collection takes long, so it does not
// prevent moves of ranges.
func (mv *move) uses() []string {
	if mv.db != nil {
		return []string{aWholeCollection}
	}
	return []string{mv.from, mv.to}
}

// distribution has the distribution of one collection over the shards, and the constraints on its placement: the input of a
// plan.
type distribution struct {
	ns     string
	table  *cluster.ChunkMap
	shards []*cluster.Shard
	zones  []zoneRange
	size   map[string]int64 // bytes by shard, without orphans; a missing shard did not report
	unit   int64            // the most that one move takes from a shard: the chunk size
	whole  bool             // chunks are moved as a whole, whatever their size
	jumbo  bool             // chunks that are marked as jumbo may be moved
	random bool             // chunks move at random instead of being balanced, for tests
}

// candidates are the chunks of one shard that may have to move: the first of each kind, in order of key.
type candidates struct {
	shard    *cluster.Shard
	draining *cluster.Chunk
	zone     *cluster.Chunk
	offTo    string // the zone of the chunk draining, or else of the chunk zone
	byZone   map[string]*cluster.Chunk
	count    int64
}

// note records a chunk in a zone as candidate, if it is the first of its kind.
func (l *candidates) note(chunk func() *cluster.Chunk, zone string) {
	switch {
	case l.shard.Draining:
		if l.draining == nil {
			l.draining, l.offTo = chunk(), zone
		}
	case !inZone(l.shard, zone):
		if l.zone == nil {
			l.zone, l.offTo = chunk(), zone
		}
	case l.byZone[zone] == nil:
		l.byZone[zone] = chunk()
	}
}

func inZone(s *cluster.Shard, zone string) bool { return zone == "" || slices.Contains(s.Tags, zone) }

// zoneWalk finds the zones of chunks that are passed in order of key.
type zoneWalk struct {
	zones  []zoneRange
	lo, hi []value.Value
}

// of returns the zone that a chunk is in, "" for none; whole is false if a zone's bound is within the chunk.
func (w *zoneWalk) of(c *cluster.Chunk) (zone string, whole bool) {
	lo, hi := c.Bounds()
	for ; len(w.zones) > 0; w.zones, w.lo = w.zones[1:], nil {
		if w.lo == nil {
			w.lo, w.hi = value.Values(w.zones[0].min), value.Values(w.zones[0].max)
		}
		if cluster.CompareKeys(w.hi, lo) > 0 {
			break
		}
	}
	if len(w.zones) == 0 || cluster.CompareKeys(hi, w.lo) <= 0 {
		return "", true
	}
	if cluster.CompareKeys(w.lo, lo) > 0 || cluster.CompareKeys(hi, w.hi) > 0 {
		return "", false
	}
	return w.zones[0].zone, true
}

// zoneSplits finds the chunks that contain a zone's bound, and the keys to split them at.
func (d *distribution) zoneSplits() (out []zoneSplit) {
	for _, z := range d.zones {
		for _, bound := range [][]byte{z.min, z.max} {
			at := value.Values(bound)
			c := d.table.Find(at)
			lo, hi := c.Bounds()
			if cluster.CompareKeys(lo, at) >= 0 || cluster.CompareKeys(at, hi) >= 0 {
				continue
			}
			if n := len(out); n == 0 || string(out[n-1].chunk.Min) != string(c.Min) {
				out = append(out, zoneSplit{chunk: c})
			} else if have := out[n-1].points; cluster.CompareKeys(value.Values(have[len(have)-1]), at) >= 0 {
				continue // two adjacent zones
			}
			out[len(out)-1].points = append(out[len(out)-1].points, bound)
		}
	}
	return out
}

// zoneSplit is a chunk that crosses the bounds of zones.
type zoneSplit struct {
	chunk  *cluster.Chunk
	points [][]byte
}

// survey makes one pass over the chunks.
func (d *distribution) survey() map[string]*candidates {
	out := make(map[string]*candidates, len(d.shards))
	for _, s := range d.shards {
		out[s.ID] = &candidates{shard: s, byZone: make(map[string]*cluster.Chunk)}
	}
	walk := zoneWalk{zones: d.zones}
	var last *candidates
	for at := range d.table.Places() {
		if id := at.Shard(); last == nil || last.shard.ID != id {
			if last = out[id]; last == nil {
				continue // a removed shard
			}
		}
		last.count++
		if at.Jumbo() && !d.jumbo {
			continue
		}
		if len(d.zones) == 0 { // only a chunk's owner matters
			last.note(at.Chunk, "")
			continue
		}
		c := at.Chunk()
		if zone, whole := walk.of(c); whole {
			last.note(func() *cluster.Chunk { return c }, zone)
		}
	}
	return out
}

// plan chooses the moves of one round for a collection: off draining shards first, then into zones, then for balance. A shard
// takes part in at most one of them, and in none if it is in busy; the chosen shards are added to busy.
func (d *distribution) plan(busy map[string]bool) []move {
	found := d.survey()
	if d.whole { // balanced by number instead of size
		d.size = make(map[string]int64, len(found))
		for id, c := range found {
			d.size[id] = c.count
		}
	}
	p := &planner{d: d, busy: busy}
	for _, s := range d.shards {
		if size, ok := d.size[s.ID]; ok {
			p.shards = append(p.shards, load{found[s.ID], size})
		}
	}
	// Fullest first; equal ones in a fixed order, independent of that of maps.
	slices.SortFunc(p.shards, func(a, b load) int {
		return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.shard.ID, b.shard.ID))
	})
	for _, l := range p.shards {
		p.off(l, l.draining, forDraining)
	}
	for _, l := range p.shards {
		p.off(l, l.zone, forZone)
	}
	if d.random {
		p.shuffle()
		return p.moves
	}
	for _, zone := range d.zoneNames() {
		p.balance(zone)
	}
	return p.moves
}

// zoneNames lists the zones of the collection, and "" for what is in none.
func (d *distribution) zoneNames() []string {
	names := []string{""}
	for _, z := range d.zones {
		if !slices.Contains(names, z.zone) {
			names = append(names, z.zone)
		}
	}
	return names
}

type load struct {
	*candidates
	size int64
}

type planner struct {
	d      *distribution
	shards []load
	busy   map[string]bool
	moves  []move
}

func (p *planner) add(c *cluster.Chunk, from, to, why string) {
	mv := move{ns: p.d.ns, min: c.Min, from: from, to: to, why: why}
	if p.d.whole || c.Jumbo { // which cannot be moved in parts
		mv.max = c.Max
	}
	p.moves = append(p.moves, mv)
	p.busy[from], p.busy[to] = true, true
}

// shuffle moves a random chunk of each shard to another random shard of its zone.
func (p *planner) shuffle() {
	for _, i := range rand.Perm(len(p.shards)) {
		l := p.shards[i]
		chunks := p.d.table.ChunksOf(l.shard.ID)
		if len(chunks) == 0 || p.busy[l.shard.ID] {
			continue
		}
		c := chunks[rand.IntN(len(chunks))]
		walk := zoneWalk{zones: p.d.zones}
		zone, whole := walk.of(c)
		if !whole || c.Jumbo && !p.d.jumbo {
			continue
		}
		for _, j := range rand.Perm(len(p.shards)) {
			if to := p.shards[j].shard; j != i && !to.Draining && !p.busy[to.ID] && inZone(to, zone) {
				p.add(c, l.shard.ID, to.ID, forTest)
				break
			}
		}
	}
}

// off moves a chunk from a shard where it must not remain to the emptiest shard of its zone.
func (p *planner) off(l load, c *cluster.Chunk, why string) {
	if c == nil || p.busy[l.shard.ID] {
		return
	}
	for _, to := range slices.Backward(p.shards) {
		if to.shard.ID != l.shard.ID && !to.shard.Draining && !p.busy[to.shard.ID] && inZone(to.shard, l.offTo) {
			p.add(c, l.shard.ID, to.shard.ID, why)
			return
		}
	}
}

// balance pairs the fullest shards of a zone with its emptiest ones, as long as they are far enough apart. What moves is less
// than the difference, so that it never moves back.
func (p *planner) balance(zone string) {
	var in []load
	var total int64
	for _, l := range p.shards {
		if !l.shard.Draining && inZone(l.shard, zone) {
			in = append(in, l)
			total += l.size
		}
	}
	if len(in) < 2 {
		return
	}
	ideal := total / int64(len(in))
	for i, j := 0, len(in)-1; i < j; {
		from, to := in[i], in[j]
		switch {
		case from.size-to.size < imbalance*p.d.unit || from.size <= ideal || to.size >= ideal:
			return
		case p.busy[from.shard.ID] || from.byZone[zone] == nil:
			i++
		case p.busy[to.shard.ID]:
			j--
		default:
			p.add(from.byZone[zone], from.shard.ID, to.shard.ID, forBalance)
			i, j = i+1, j-1
		}
	}
}
