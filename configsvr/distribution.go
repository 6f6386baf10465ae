package configsvr

import (
	"context"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// shardRange is the part of a resharded collection that a shard takes, by the request's shardDistribution. Without a range it takes a share like the others.
type shardRange struct {
	shard    string
	min, max []byte
}

// checkDistribution reads the request's shardDistribution: shards that share the collection, or ranges that cover the whole key space, in order.
func (p *reshardPlan) checkDistribution(ctx context.Context) error {
	if p.want.Distribution == nil {
		return nil
	}
	if len(p.zones) > 0 {
		return mongoerr.New(mongoerr.InvalidOptions, "shardDistribution cannot be given for a collection with zones")
	}
	if len(p.want.Distribution) == 0 {
		return mongoerr.New(mongoerr.InvalidOptions, "shardDistribution names no shard")
	}
	ranges := 0
	for _, d := range p.want.Distribution {
		r := shardRange{shard: value.Lookup(d, "shard").Str(), min: value.LookupDoc(d, "min"), max: value.LookupDoc(d, "max")}
		s, err := p.m.registry.Listed(ctx, r.shard)
		if err != nil {
			return err
		}
		if s.Draining {
			return mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s is currently draining", s.ID)
		}
		if r.min != nil || r.max != nil {
			ranges++
			if r.min == nil || r.max == nil {
				return mongoerr.Newf(mongoerr.InvalidOptions, "a range of shardDistribution has both min and max: %s", value.ShowDoc(d))
			}
			if r.min, err = p.key.NormalizeBound(r.min); err == nil {
				r.max, err = p.key.NormalizeBound(r.max)
			}
			if err != nil {
				return err
			}
		} else if slices.ContainsFunc(p.distribution, func(o shardRange) bool { return o.shard == r.shard }) {
			return mongoerr.Newf(mongoerr.InvalidOptions, "shardDistribution names the shard %s twice", r.shard)
		}
		p.distribution = append(p.distribution, r)
	}
	switch ranges {
	case 0:
		return nil
	case len(p.distribution):
		return p.checkRanges()
	}
	return mongoerr.New(mongoerr.InvalidOptions, "either all shards of shardDistribution have a range, or none has")
}

// checkRanges sorts the ranges of shardDistribution, and returns an error if they leave a gap or overlap.
func (p *reshardPlan) checkRanges() error {
	slices.SortFunc(p.distribution, func(a, b shardRange) int { return cluster.CompareKeys(value.Values(a.min), value.Values(b.min)) })
	at := p.key.GlobalMin()
	for _, r := range p.distribution {
		if cluster.CompareKeys(value.Values(at), value.Values(r.min)) != 0 || cluster.CompareKeys(value.Values(r.min), value.Values(r.max)) >= 0 {
			return mongoerr.Newf(mongoerr.InvalidOptions, "the ranges of shardDistribution leave a gap or overlap at %s", value.ShowDoc(r.min))
		}
		at = r.max
	}
	if cluster.CompareKeys(value.Values(at), value.Values(p.key.GlobalMax())) != 0 {
		return mongoerr.Newf(mongoerr.InvalidOptions, "the ranges of shardDistribution end at %s", value.ShowDoc(at))
	}
	return nil
}

// ranged reports whether the request says which range each shard takes.
func (p *reshardPlan) ranged() bool { return len(p.distribution) > 0 && p.distribution[0].min != nil }

// named returns the shards of a shardDistribution without ranges.
func (p *reshardPlan) named() (ids []string) {
	if !p.ranged() {
		for _, r := range p.distribution {
			ids = append(ids, r.shard)
		}
	}
	return ids
}

// cutRanges divides the ranges of shardDistribution at the points that lie within them.
func (p *reshardPlan) cutRanges(points [][]byte) (out []placed) {
	slices.SortFunc(points, func(a, b []byte) int { return cluster.CompareKeys(value.Values(a), value.Values(b)) })
	for _, r := range p.distribution {
		lo := r.min
		for _, point := range points {
			if v := value.Values(point); cluster.CompareKeys(v, value.Values(lo)) > 0 && cluster.CompareKeys(v, value.Values(r.max)) < 0 {
				out = append(out, placed{lo, point, r.shard})
				lo = point
			}
		}
		out = append(out, placed{lo, r.max, r.shard})
	}
	return out
}
