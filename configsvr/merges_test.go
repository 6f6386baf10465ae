package configsvr

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/cluster"
)

// Chunks that may be merged: neighbours on one shard and in one zone, none of them jumbo, moving or recently arrived.
func TestMergeableRuns(t *testing.T) {
	zone := func(lo, hi int, name string) zoneRange { return zoneRange{keyOf(lo), keyOf(hi), name} }
	for _, x := range []struct {
		name, owners string
		jumbo        []int
		zones        []zoneRange
		late, moving []int
		want         string
	}{
		{name: "the manual's example", owners: "aaaabbaab", want: "a0-3 b4-5 a6-7"},
		{name: "one chunk", owners: "a"},
		{name: "nobody beside its own", owners: "abab"},
		{name: "everything", owners: "aaa", want: "a0-2"},
		{name: "jumbo in the middle", owners: "aaaaa", jumbo: []int{2}, want: "a0-1 a3-4"},
		{name: "jumbo at the ends", owners: "aaaa", jumbo: []int{0, 3}, want: "a1-2"},
		{name: "zones", owners: "aaaaaa", zones: []zoneRange{zone(2, 4, "z")}, want: "a0-1 a2-3 a4-5"},
		{name: "two zones that meet", owners: "aaaaaa", zones: []zoneRange{zone(1, 3, "y"), zone(3, 5, "z")}, want: "a1-2 a3-4"},
		{name: "arrived of late", owners: "aaaaa", late: []int{1, 4}, want: "a2-3"},
		{name: "moving", owners: "aaaaaa", moving: []int{2}, want: "a0-1 a3-5"},
		{name: "two that move", owners: "aaaa", moving: []int{1, 2}},
	} {
		t.Run(x.name, func(t *testing.T) {
			table := spread(t, strings.Split(x.owners, ""), x.jumbo...)
			if len(x.late) > 0 {
				var changed []*cluster.Chunk
				for _, i := range x.late {
					c := *table.Chunk(i)
					c.Version = table.Version().IncMajor()
					c.OnSince = 100
					changed = append(changed, &c)
				}
				var err error
				if table, err = table.Update(changed); err != nil {
					t.Fatal(err)
				}
			}
			place := make(map[string]int)
			for i := range table.Len() {
				place[string(table.Chunk(i).Min)] = i
			}
			moving := make(map[int]bool)
			for _, i := range x.moving {
				moving[i] = true
			}
			r := mergeRule{table: table, zones: x.zones, before: 50, moving: func(c *cluster.Chunk) bool { return moving[place[string(c.Min)]] }}
			var got []string
			for set := range r.runs() {
				got = append(got, fmt.Sprintf("%s%d-%d", set[0].Shard, place[string(set[0].Min)], place[string(set[len(set)-1].Min)]))
			}
			if s := strings.Join(got, " "); s != x.want {
				t.Errorf("%q, want %q", s, x.want)
			}
		})
	}
}
