package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A time series cannot be made capped, wherever its buckets are: of a sharded one, or one that moveCollection has placed, the client got StaleConfig once the router
// had used up its tries.
func TestTimeSeriesIsNotMadeCapped(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	for _, name := range []string{"here", "moved"} {
		c.run("db", `{"create": "`+name+`", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	}
	c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
	for _, name := range []string{"ts", "here", "moved"} {
		if m := c.raw("db", `{"convertToCapped": "`+name+`", "size": 4096}`); m["code"] != int32(mongoerr.CommandNotSupportedOnView) {
			t.Errorf("%s: %v", name, m)
		}
	}
}
