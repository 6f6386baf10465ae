package cluster

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// The entries of the membership tell sets of one name apart, in whatever order they are read.
func TestMembership(t *testing.T) {
	entry := func(nss string, at uint64, shards ...string) []byte {
		var names []value.Value
		for _, s := range shards {
			names = append(names, value.NewString(s))
		}
		return value.Doc(value.F("nss", value.NewString(nss)), value.F("timestamp", value.NewTimestampU64(at)), value.F("shards", value.NewArray(value.ArrayOf(names...))))
	}
	m := ParseMembership([][]byte{
		entry(MembersNS, 40, "a", "b"), entry(MembersNS, 30, "a"), entry("db.c", 35), entry(MembersNS, 20, "a", "b"), entry(MembersNS, 10, "a"), entry(MembersNS, 50, "a"),
	})
	for _, x := range []struct {
		shard string
		at    uint64
		left  uint64
	}{{"a", 5, 0}, {"a", 60, 0}, {"b", 20, 30}, {"b", 29, 30}, {"b", 40, 50}} {
		if got := m.Left(x.shard, x.at); got != x.left {
			t.Errorf("%s left after %d at %d, want %d", x.shard, x.at, got, x.left)
		}
	}
	if a, b := m.Joined("a"), m.Joined("b"); a != 0 || b != 40 {
		t.Errorf("a joined at %d, b at %d, want 0 and 40", a, b)
	}
	for _, x := range []struct {
		shard string
		since uint64
		kept  bool
	}{{"a", 5, false}, {"a", 10, true}, {"a", 35, true}, {"a", 60, true}, {"b", 20, false}, {"b", 35, false}, {"b", 45, false}, {"b", 60, false}} {
		if got := m.Kept(x.shard, x.since); got != x.kept {
			t.Errorf("%s is the same since %d: %v, want %v", x.shard, x.since, got, x.kept)
		}
	}
	if earlier := m[:4]; !earlier.Kept("b", 45) || earlier.Kept("b", 35) || earlier.Kept("b", 25) {
		t.Error("b, which has joined again at 40, is the same since then, and not since earlier")
	}
	if a, b := m.Since("a"), m.Since("b"); a != 10 || b != 40 || Membership(nil).Since("a") != 0 {
		t.Errorf("a has its name since %d, b since %d, want 10 and 40", a, b)
	}
	if Membership(nil).Left("a", 1) != 0 || Membership(nil).Joined("a") != 0 {
		t.Error("a shard of an unknown membership has left, or joined")
	}
}
