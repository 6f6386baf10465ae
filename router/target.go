package router

import (
	"slices"
	"sort"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/targeting"
	"github.com/shoaldb/shoal/query/value"
)

// target returns the shards that may hold a filter's matches. collated is set for a collation other than simple,
// for which strings do not determine the shard. A filter that can match nothing still goes to one shard, which
// then checks it.
func target(info *cluster.CollectionInfo, filter []byte, collated bool) ([]string, error) {
	if !info.Sharded() {
		return []string{info.Home()}, nil
	}
	if v, ok := targeting.PointOf(info.Map.Key, filter, collated); ok {
		shard, err := info.Map.OwnerAt([]value.Value{v})
		if err == nil {
			err = current(info, shard)
		}
		return []string{shard}, err
	}
	if info.Map.Newest() && targeting.Unbounded(info.Map.Key, filter) {
		return allCurrent(info)
	}
	set := make(map[string]struct{}, 4)
	for _, r := range targeting.Ranges(info.Map.Key, filter, collated) {
		if err := info.Map.ShardsFor(r, set); err != nil {
			return nil, err
		}
	}
	if len(set) == 0 {
		return info.Map.Shards()[:1], nil
	}
	out := make([]string, 0, len(set))
	for s := range set {
		if err := current(info, s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	sort.Strings(out)
	return out, nil
}

// allCurrent returns the shards that own a chunk.
func allCurrent(info *cluster.CollectionInfo) ([]string, error) {
	out := slices.Clone(info.Map.Shards())
	for _, s := range out {
		if err := current(info, s); err != nil {
			return nil, err
		}
	}
	return out, nil
}

var defaultCollation = value.NewFieldName("defaultCollation")

// collatedBy reports whether a command with the given collation (nil for none) compares strings with one other
// than simple.
func collatedBy(info *cluster.CollectionInfo, given []byte) bool {
	if given == nil && info.Entry != nil {
		v := defaultCollation.Lookup(info.Entry)
		given = v.Doc()
	}
	return given != nil && value.Count(given) > 0 && value.Lookup(given, "locale").Str() != "simple"
}
