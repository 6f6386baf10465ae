package cluster

import (
	"cmp"
	"context"
	"slices"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
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

// Kept reports whether a shard's name has been that of one set since a time; false also if what is known of the shards begins later.
func (m Membership) Kept(shard string, since uint64) bool {
	had := false
	for _, of := range m {
		if of.Since <= since {
			had = slices.Contains(of.Shards, shard)
		}
	}
	return had && m.Left(shard, since) == 0
}

// SameSet reports whether a shard, by its entry of now, is still the set that the list of shards had under its name at a topology time; false also if that can no longer be told. A time of 0 stands
// for no comparison.
//
// The entry alone does not tell: its topologyTime is that of its addition or, later, of the removal of any other shard.
func SameSet(ctx context.Context, config Peer, now *Shard, at uint64) (bool, error) {
	if at == 0 || now.Topology <= at {
		return true, nil
	}
	m, err := ReadMembership(ctx, config)
	return err == nil && m.Kept(now.ID, at), err
}

// ReadMembership reads the membership from the config server.
func ReadMembership(ctx context.Context, config Peer) (Membership, error) {
	entries, err := FindConfig(ctx, config, Find{NS: "config.placementHistory", Filter: value.Doc(value.F("nss", value.NewString(MembersNS)))}.Doc())
	return ParseMembership(entries), err
}

// ErrOtherSet returns the error of an operation that may have sent its data to another set than the one that has the shard's name now (SameSet).
func ErrOtherSet(shard string) error {
	return mongoerr.Newf(mongoerr.IllegalOperation, "the list of shards has changed, and shard %s may be another set than the one that the data was sent to", shard)
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

// Since returns a time from which on the set that has a shard's name now has had it for certain.
func (m Membership) Since(shard string) uint64 {
	if len(m) == 0 {
		return 0
	}
	return max(m.Joined(shard), m[0].Since)
}
