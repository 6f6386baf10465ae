package sdam

import "github.com/shoaldb/shoal/wire"

// Matching is the rule by which the minimum number of connections to the members of a set follows that of another member, so that there
// are enough if they take over that member's calls (ShardingTaskExecutorPoolReplicaSetMatching).
type Matching string

// The rules.
const (
	MatchNothing Matching = "disabled"
	MatchPrimary Matching = "matchPrimaryNode" // secondaries that may become primary have as many as the primary
	MatchBusiest Matching = "matchBusiestNode" // all have as many as are in use with the busiest member
)

// Match sets the function that returns the rule to use.
func (ms *Monitors) Match(how func() Matching) { ms.matching.Store(&how) }

// Matching returns the current rule.
func (ms *Monitors) Matching() Matching {
	if how := ms.matching.Load(); how != nil {
		return (*how)()
	}
	return MatchNothing
}

// Follow returns the minimum number of connections to each member of the monitored sets, given the current numbers (wire.PoolOptions).
func (ms *Monitors) Follow(load map[string]wire.HostLoad) map[string]int {
	how := ms.Matching()
	if how == MatchNothing {
		return nil
	}
	out := make(map[string]int)
	for _, set := range ms.Sets() {
		t, most := set.Topology(), 0
		if p := t.Primary(); how == MatchPrimary && p != nil {
			most = load[p.Host].Open
		}
		for _, m := range t.Servers {
			if how == MatchBusiest {
				most = max(most, load[m.Host].InUse)
			}
		}
		for _, m := range t.Servers {
			if (m.Kind == Secondary && (how == MatchBusiest || !m.Passive) || m.Kind == Primary && how == MatchBusiest) && !ms.net.Local(m.Host) {
				out[m.Host] = max(out[m.Host], most)
			}
		}
	}
	return out
}
