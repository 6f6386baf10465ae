package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A measurement has at most 4 MB, as the manual says. Ten of that size used to be put into one bucket, which was too large a document for clients to read.
func TestLargeMeasurements(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "m", "timeseries": {"timeField": "t", "metaField": "k"}}`)
	insert := func(id int, fields string) any {
		m := c.raw("db", fmt.Sprintf(`{"insert": "m", "documents": [{"_id": %d, "t": {"$date": "2026-01-01T00:00:00Z"}, "k": 1, %s}]}`, id, fields))
		if e := m["writeErrors"]; e != nil {
			return get(e.(bson.A)[0], "code")
		}
		return m["n"]
	}
	long := func(n int) string { return fmt.Sprintf(`"x": %q`, strings.Repeat("x", n)) }
	for i := range 5 {
		c.expect(insert(i, long(4<<20-100)), `1`)
	}
	if code := insert(5, long(4<<20)); code != int32(mongoerr.BSONObjectTooLarge) {
		t.Errorf("a measurement of more than 4 MB: %v", code)
	}
	var many []string
	for i := range 590_000 {
		many = append(many, fmt.Sprintf(`"%x": null`, i))
	}
	insert(6, strings.Join(many, ", ")) // it may have no bucket
	if n, _ := c.run("db", `{"count": "m", "query": {}}`)["n"].(int32); n < 5 || n > 6 {
		t.Errorf("%d measurements", n)
	}
	for _, d := range c.all("db", `{"aggregate": "system.buckets.m", "pipeline": [{"$project": {"size": {"$bsonSize": "$$ROOT"}}}], "cursor": {}}`) {
		if n, _ := get(d, "size").(int32); n == 0 || n > 16<<20 {
			t.Errorf("a bucket of %d bytes", n)
		}
	}
}
