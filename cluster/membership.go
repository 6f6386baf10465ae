package cluster

import (
	"cmp"
	"slices"

	"github.com/shoaldb/shoal/query/value"
)

// MembersNS is the nss of the entries of config.placementHistory that list the shards of the cluster.
const MembersNS = "config.shards"

// Membership tells which shards the cluster has had since when, in ascending order of time. Before its first entry that is not known.
//
// A shard's name does not identify its set: a set that was removed may be followed by another under its name. It does together with a topology time at which
// the set had it: two sets with one name have a time without it between them. The times are topology times, that is those of decisions, each of which is committed
// before the next one is made.
type Membership []Members

// Members are the shards of the cluster from a time on.
type Members struct {
	Since  uint64
	Shards []string
}

// ParseMembership reads entries of config.placementHistory; those of other namespaces are skipped.
func ParseMembership(entries [][]byte) (m Membership) {
	for _, d := range entries {
		if value.Lookup(d, "nss").Str() != MembersNS {
			continue
		}
		of := Members{Since: value.Lookup(d, "timestamp").TimestampU64()}
		for _, s := range value.Values(value.Lookup(d, "shards").Doc()) {
			of.Shards = append(of.Shards, s.Str())
		}
		m = append(m, of)
	}
	slices.SortFunc(m, func(a, b Members) int { return cmp.Compare(a.Since, b.Since) })
	return m
}

// Left returns the time at which the set that had a shard's name at a time was removed; 0 if it has it still.
func (m Membership) Left(shard string, at uint64) uint64 {
	for _, of := range m {
		if of.Since > at && !slices.Contains(of.Shards, shard) {
			return of.Since
		}
	}
	return 0
}

// Joined returns the time at which the last set that had a shard's name got it; 0 if it had it from the beginning.
func (m Membership) Joined(shard string) (at uint64) {
	has := len(m) > 0 && slices.Contains(m[0].Shards, shard)
	for _, of := range m {
		had := has
		if has = slices.Contains(of.Shards, shard); has && !had {
			at = of.Since
		}
	}
	return at
}
