package configsvr

import (
	"bytes"
	"context"
	"slices"
	"sort"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// zoneRange is an entry of config.tags.
type zoneRange struct {
	min, max []byte
	zone     string
}

// zonesOf returns a collection's zone ranges in order of key.
func (m *Manager) zonesOf(ctx context.Context, ns string) ([]zoneRange, error) {
	docs, err := m.find(ctx, "tags", doc(fld("ns", str(ns))))
	if err != nil {
		return nil, err
	}
	var out []zoneRange
	for _, d := range docs {
		out = append(out, zoneRange{value.Lookup(d, "min").Doc(), value.Lookup(d, "max").Doc(), value.Lookup(d, "tag").Str()})
	}
	sort.Slice(out, func(i, j int) bool {
		return cluster.CompareKeys(value.Values(out[i].min), value.Values(out[j].min)) < 0
	})
	return out, nil
}

// normalizeZones completes the bounds of zones to full keys. Zones that were set before the collection was sharded may
// have bounds with a prefix of the key.
func normalizeZones(zones []zoneRange, key *cluster.ShardKeyPattern) error {
	for i := range zones {
		z := &zones[i]
		var err error
		if z.min, err = key.NormalizeBound(z.min); err == nil {
			z.max, err = key.NormalizeBound(z.max)
		}
		if err != nil {
			return mongoerr.Newf(mongoerr.InvalidOptions, "the range of zone %s does not match the shard key %s", z.zone, value.ShowDoc(key.Doc()))
		}
		if err := checkHashes(key, z.min, z.max); err != nil {
			return err
		}
	}
	return nil
}

// checkHashes returns an error for bounds that are no hashes: the manual asks for NumberLong in the hashed field of a key.
func checkHashes(key *cluster.ShardKeyPattern, bounds ...[]byte) error {
	if !key.IsHashed() {
		return nil
	}
	for _, b := range bounds {
		switch v := value.Values(b)[key.HashedIndex()]; v.T {
		case value.Int64, value.MinKey, value.MaxKey:
		default:
			return mongoerr.Newf(mongoerr.InvalidOptions, "the bound %s of a zone must have a NumberLong, MinKey or MaxKey in the hashed field of the shard key %s", value.ShowDoc(b), value.ShowDoc(key.Doc()))
		}
	}
	return nil
}

// checkFreeBounds returns an error for the bounds of a zone that no shard key can have. The key is not known yet.
func checkFreeBounds(min, max []byte) error {
	names := func(doc []byte) (list []string) {
		for name := range value.Elements(doc) {
			list = append(list, name)
		}
		return list
	}
	if of := names(min); len(of) == 0 || !slices.Equal(of, names(max)) {
		return mongoerr.Newf(mongoerr.BadValue, "the bounds of a zone must have the same fields: %s, %s", value.ShowDoc(min), value.ShowDoc(max))
	}
	return cluster.CheckKeyValues(append(value.Values(min), value.Values(max)...))
}

// shortZones returns a collection's entries of config.tags whose bounds are not those of its key, with the key's.
func (m *Manager) shortZones(ctx context.Context, ns string, key *cluster.ShardKeyPattern) (changed [][]byte, err error) {
	docs, err := m.find(ctx, "tags", doc(fld("ns", str(ns))))
	for _, d := range docs {
		z := []zoneRange{{value.LookupDoc(d, "min"), value.LookupDoc(d, "max"), value.Lookup(d, "tag").Str()}}
		if err := normalizeZones(z, key); err != nil {
			return nil, err
		}
		out := value.Doc(withField(d, "min", value.NewDocument(z[0].min))...)
		if out = value.Doc(withField(out, "max", value.NewDocument(z[0].max))...); !bytes.Equal(out, d) {
			changed = append(changed, out)
		}
	}
	return changed, err
}

// addShardToZone and removeShardFromZone change a shard's tags.
func (m *Manager) addShardToZone(ctx context.Context, shard, zone string) error {
	unlock, err := m.lockList(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	n, err := m.update(ctx, "shards", doc(fld("_id", str(shard))), doc(fld("$addToSet", doc(fld("tags", str(zone))))), false)
	if err == nil && n == 0 {
		return mongoerr.Newf(mongoerr.ShardNotFound, "shard %s does not exist", shard)
	}
	if err != nil {
		return err
	}
	return m.registry.Reload(ctx)
}

// removeShardFromZone holds the routing tables, too: whether the shard may leave depends on the zones of collections, and a range is assigned to a zone only if a shard is
// in it (checkZone). One of the two sees what the other has written.
func (m *Manager) removeShardFromZone(ctx context.Context, shard, zone string) error {
	free, err := m.lockTables(ctx)
	if err != nil {
		return err
	}
	defer free()
	all, unlock, err := m.lockedList(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if shardByID(all, shard) == nil {
		return mongoerr.Newf(mongoerr.ShardNotFound, "shard %s does not exist", shard)
	}
	others := false
	for _, s := range all {
		for _, t := range s.Tags {
			others = others || t == zone && s.ID != shard
		}
	}
	if !others {
		used, err := m.usesZone(ctx, zone)
		if err != nil {
			return err
		}
		if used {
			return mongoerr.Newf(mongoerr.ZoneStillInUse, "operation not allowed because it would remove the only shard associated with zone %s", zone)
		}
	}
	if _, err := m.update(ctx, "shards", doc(fld("_id", str(shard))), doc(fld("$pull", doc(fld("tags", str(zone))))), false); err != nil {
		return err
	}
	return m.registry.Reload(ctx)
}

// usesZone reports whether a zone has ranges, or will have some when a resharding commits. The lock of all tables must be held.
//
// Invariant: a resharding to which ranges of a zone are given finds a shard in it, and one stays in it: either its state document is found here, or what is decided here is stored before
// the resharding looks which shards are in the zone (reshardPlan.place). It stores the document first, and takes the lock of the collection's table (freeze) in between.
//
// Rejected: a second look at the commit. The copy is made by then, and its chunks are on shards of the zone: it would be undone after hours, for an administrator's mistake.
func (m *Manager) usesZone(ctx context.Context, zone string) (bool, error) {
	used, err := m.first(ctx, 1, "tags", doc(fld("tag", str(zone))))
	if err != nil || len(used) > 0 {
		return err == nil, err
	}
	running, err := m.find(ctx, reshardingOps, doc(fld("state", doc(fld("$nin", arr(str(reshardAborting), str(reshardQuiesced)))))))
	for _, raw := range running {
		d, err := readReshardState(raw)
		if err == nil && slices.ContainsFunc(d.want.Zones, func(z []byte) bool { return value.Lookup(z, "zone").Str() == zone }) {
			return true, nil
		}
	}
	return false, err
}

// updateZoneRange assigns a range to a zone or, without a zone, removes the assignment.
func (m *Manager) updateZoneRange(ctx context.Context, req *msg.UpdateZoneKeyRange) (err error) {
	ns, min, max, zone := req.NS, req.Min, req.Max, req.Zone
	unlock, err := m.lockTables(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.keepsZones(ctx, ns); err != nil {
		return err
	}
	if zone == "" {
		if removed, err := m.removeZone(ctx, ns, min, max); removed || err != nil {
			return err
		}
	}
	if info, _, err := m.table(ctx, ns); err == nil {
		if min, err = info.Map.Key.NormalizeBound(min); err != nil {
			return mongoerr.From(err)
		}
		if max, err = info.Map.Key.NormalizeBound(max); err != nil {
			return mongoerr.From(err)
		}
		// Earlier versions left the bounds of zones as they were before the collection was sharded.
		if short, err := m.shortZones(ctx, ns, info.Map.Key); err == nil && len(short) > 0 {
			if err := m.writePlaced(ctx, &msg.WriteTogether{NS: "config.tags", Changes: msg.Changes{Put: short}}); err != nil {
				return err
			}
		}
		if zone != "" {
			if err := checkHashes(info.Map.Key, min, max); err != nil {
				return err
			}
		}
	} else if err := checkFreeBounds(min, max); err != nil {
		return err
	}
	lo, hi := value.Values(min), value.Values(max)
	if cluster.CompareKeys(lo, hi) >= 0 {
		return mongoerr.New(mongoerr.FailedToParse, "min must be less than max")
	}
	if zone == "" {
		_, err := m.removeZone(ctx, ns, min, max)
		return err
	}
	if err := m.checkZone(ctx, ns, lo, hi, zone); err != nil {
		return err
	}
	entry := doc(fld("ns", str(ns)), fld("min", value.NewDocument(min)), fld("max", value.NewDocument(max)), fld("tag", str(zone)))
	_, err = m.update(ctx, "tags", doc(fld("ns", str(ns)), fld("min", value.NewDocument(min))), doc(fld("$set", entry)), true)
	return err
}

// keepsZones returns an error for a collection that is being resharded, moved or unsharded. The lock of all tables must be held.
//
// Hazard: the operation chooses the zones that the collection will have when it begins, and its commit replaces them. A range that is set meanwhile has bounds of the
// former key and would stay, or be lost.
//
// Invariant: a change of zones that has found no resharding is done before the resharding reads them. The state document of the resharding is stored by then, and it
// takes the lock of the collection's table (freeze) before it reads zones.
func (m *Manager) keepsZones(ctx context.Context, ns string) error {
	running, err := m.first(ctx, 1, reshardingOps, doc(fld("ns", doc(fld("$in", arr(str(ns), str(timeseries.BucketsOf(ns)))))), fld("state", doc(fld("$ne", str(reshardQuiesced))))))
	if err == nil && len(running) > 0 {
		err = mongoerr.Newf(mongoerr.ReshardCollectionInProgress, "the zones of %s cannot be changed while it is resharded, moved or unsharded", ns)
	}
	return err
}

// removeZone removes the assignment of a range, if there is one with these very bounds. They need not be bounds of the shard key: earlier versions left zones of
// a former one.
func (m *Manager) removeZone(ctx context.Context, ns string, min, max []byte) (removed bool, err error) {
	filter := doc(fld("ns", str(ns)), fld("min", value.NewDocument(min)), fld("max", value.NewDocument(max)))
	found, err := m.first(ctx, 1, "tags", filter)
	if err != nil || len(found) == 0 {
		return false, err
	}
	return true, m.remove(ctx, "tags", filter)
}

// checkZone checks a range that is to be assigned to a zone. The lock of all tables must be held.
func (m *Manager) checkZone(ctx context.Context, ns string, lo, hi []value.Value, zone string) error {
	all, err := m.listedShards(ctx)
	if err != nil {
		return err
	}
	known := false
	for _, s := range all {
		for _, t := range s.Tags {
			known = known || t == zone
		}
	}
	if !known {
		return mongoerr.Newf(mongoerr.ZoneNotFound, "zone %s does not exist", zone)
	}
	have, err := m.zonesOf(ctx, ns)
	if err != nil {
		return err
	}
	for _, z := range have {
		zl, zh := value.Values(z.min), value.Values(z.max)
		same := cluster.CompareKeys(zl, lo) == 0 && cluster.CompareKeys(zh, hi) == 0
		if !same && cluster.CompareKeys(zl, hi) < 0 && cluster.CompareKeys(lo, zh) < 0 {
			return mongoerr.Newf(mongoerr.RangeOverlapConflict, "Zone range overlaps existing one of zone %s", z.zone)
		}
	}
	return nil
}
