package router_test

import (
	"fmt"
	"testing"
)

// A findAndModify that removes a measurement is sent again after its bucket has moved to another shard: it gets the reply of the first time. It used to be
// refused, since only the memory of the first shard's primary had the document.
func TestRemovalOfAMeasurementIsRetriedAfterItsBucketMoved(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(2, 10)
	c.run("db", `{"insert": "ts", "documents": [{"_id": "alone", "t": {"$date": "2027-01-01T00:00:00Z"}, "m": {"s": 1}, "v": 7}]}`)
	for i, id := range []string{`1003`, `"alone"`} { // the bucket has other measurements, and is removed
		cmd := fmt.Sprintf(`{"findAndModify": "ts", "query": {"m.s": 1, "_id": %s}, "remove": true, "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAA%c==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}}`, id, "Qg"[i])
		first := c.run("db", cmd)["value"]
		if first == nil {
			t.Fatalf("%s does not exist", id)
		}
		c.run("admin", fmt.Sprintf(`{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 1}, "to": "shard%d", "_waitForDelete": true}`, 1-i))
		again := c.run("db", cmd)
		c.expect(again["value"], show(first))
		c.expect(again["retriedStmtId"], `0`)
		c.expect(c.run("db", `{"count": "ts", "query": {"m.s": 1}}`)["n"], fmt.Sprint(10-i))
	}
}

// Measurements whose metas are equal numbers of different types are in separate buckets: each is read as it was written.
func TestMetasOfDifferentTypes(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	metas := map[string]string{`1`: "int 1", `1.5`: "double 1.5", `{"$numberLong": "1"}`: "long 1", `{"$numberDouble": "1.0"}`: "double 1", `{"$numberDecimal": "1"}`: "decimal 1", `{"$numberDecimal": "1.0"}`: "decimal 1.0"}
	for n := range 2 { // the second measurement goes into the bucket of the first
		for m, as := range metas {
			c.run("db", fmt.Sprintf(`{"insert": "ts", "documents": [{"as": %q, "t": {"$date": %d}, "m": {"s": %s}}]}`, as, n, m))
		}
	}
	c.expect(len(c.all("db", `{"find": "system.buckets.ts"}`)), fmt.Sprint(len(metas)))
	for _, as := range metas {
		got := c.all("db", fmt.Sprintf(`{"find": "ts", "filter": {"as": %q}, "projection": {"_id": 0, "m": {"$concat": [{"$type": "$m.s"}, " ", {"$toString": "$m.s"}]}}}`, as))
		c.expect(got, fmt.Sprintf(`[{"m":%q},{"m":%[1]q}]`, as))
	}
	c.expect(c.run("db", `{"count": "ts", "query": {"m.s": 1}}`)["n"], `10`)
}
