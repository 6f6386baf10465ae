package router_test

import "testing"

// shardCollection accepted the options of a time series and created a plain collection; presplitHashedZones without
// zones, and the profiler's levels on a router, were accepted and had no effect.
func TestOptionsThatARouterCannotHonour(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d"}`)
	for _, tc := range []struct {
		cmd  string
		want int32
	}{
		{`{"shardCollection": "d.ts", "key": {"a": 1}, "timeseries": {"timeField": "t"}}`, 72},
		{`{"shardCollection": "d.h", "key": {"a": 1}, "presplitHashedZones": true}`, 72},
		{`{"shardCollection": "d.h", "key": {"a": "hashed"}, "presplitHashedZones": true}`, 72},
		{`{"profile": 1}`, 2}, {`{"profile": 2}`, 2}, {`{"profile": 0}`, 0}, {`{"profile": -1}`, 0},
	} {
		if got, _ := c.raw("admin", tc.cmd)["code"].(int32); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.cmd, got, tc.want)
		}
	}
	c.expect(c.all("d", `{"listCollections": 1, "nameOnly": true}`), `[]`)
	c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
	c.run("admin", `{"updateZoneKeyRange": "d.h", "min": {"x": {"$minKey": 1}, "a": {"$minKey": 1}}, "max": {"x": {"$maxKey": 1}, "a": {"$maxKey": 1}}, "zone": "z"}`)
	c.run("admin", `{"shardCollection": "d.h", "key": {"x": 1, "a": "hashed"}, "presplitHashedZones": true}`)
}
