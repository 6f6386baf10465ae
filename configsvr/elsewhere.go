package configsvr

import (
	"context"
	"errors"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
)

// moveElsewhere moves a chunk, at the request of its shard, to the shard with the least data of the collection. The chunk is the first or last one,
// into which clients insert. It does nothing if the balancer may not act, or if one of the two shards is in another migration.
func (m *Manager) moveElsewhere(ctx context.Context, info *cluster.CollectionInfo, e *cluster.CollectionEntry, req *msg.MoveRange) error {
	s, err := m.balancerSettings(ctx)
	if err != nil || s.off || !s.window.open(m.now()) || e.NoBalance || e.Defragment {
		return err
	}
	c, err := chunkBetween(info, req.Min, req.Max)
	if err != nil {
		return err
	}
	stats, err := m.dataSizes(ctx, []*cluster.CollectionEntry{e})
	if err != nil {
		return err
	}
	d, err := m.distribution(ctx, e, stats)
	if err != nil || d == nil {
		return err
	}
	mv := move{ns: e.NS, min: c.Min, max: c.Max, from: c.Shard, to: d.elsewhere(c), why: forBalance}
	if mv.to == "" || !m.balancer.takeFree(&mv) {
		return nil
	}
	defer m.balancer.release(&mv)
	if err := m.makeMove(ctx, &mv, s); !errors.Is(err, errNotMoved) {
		return err
	}
	return nil
}

// elsewhere chooses the recipient for moveElsewhere: of the shards in the chunk's zone the one with the least data, "" if none has less than the chunk's own.
func (d *distribution) elsewhere(c *cluster.Chunk) (to string) {
	lo, _ := c.Bounds()
	if d.table.ShardOf(lo) != c.Shard {
		return "" // the chunk's shard no longer exists
	}
	walk := zoneWalk{zones: d.zones}
	zone, whole := walk.of(c)
	if !whole || c.Jumbo && !d.jumbo {
		return ""
	}
	least := d.size[c.Shard]
	for _, s := range d.shards {
		size, known := d.size[s.ID]
		if known && s.ID != c.Shard && !s.Draining && inZone(s, zone) && size < least {
			to, least = s.ID, size
		}
	}
	return to
}
