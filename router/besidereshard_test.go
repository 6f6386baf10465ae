package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Beside a resharding a createIndexes is refused at once, under both names of a time series, where it waited for five minutes; and nobody drops, renames or alters the collection that
// the resharding fills.
func TestIndexesAndTemporaryCollectionBesideAResharding(t *testing.T) {
	c := newTestCluster(t, 2)
	c.config.Points = c.points["config"]
	c.fill(20)
	c.run("db", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	c.run("admin", `{"shardCollection": "db.ts", "key": {"m.a": 1}}`)
	c.run("db", `{"insert": "ts", "documents": [{"t": {"$date": "2024-01-01T00:00:00Z"}, "m": {"a": 1, "b": 1}}]}`)
	const point = "reshardingPauseCoordinatorAtState"
	for _, of := range []struct{ reshard, coll, stored, index string }{
		{`{"reshardCollection": "db.c", "key": {"g": 1, "_id": 1}, "numInitialChunks": 1}`, "c", "c", `{"k": -1}`},
		{`{"reshardCollection": "db.ts", "key": {"m.b": 1}, "numInitialChunks": 1}`, "ts", "system.buckets.ts", `{"m": -1}`},
	} {
		entered, _ := c.points["config"].Configure(point, value.NewString("alwaysOn"), value.Doc(value.F("state", value.NewString("cloning"))))
		done := make(chan bson.M, 1)
		go func() { done <- c.raw("admin", of.reshard) }()
		if err := c.points["config"].Register(point).WaitEntered(t.Context(), entered+1); err != nil {
			t.Fatal(err)
		}
		for _, coll := range []string{of.coll, of.stored} {
			if m := c.inTime("db", fmt.Sprintf(`{"createIndexes": %q, "indexes": [{"key": %s, "name": "x"}]}`, coll, of.index)); m["code"] != int32(mongoerr.ReshardCollectionInProgress) {
				t.Errorf("createIndexes on %s: %v", coll, m)
			}
		}
		entry := c.all("config", `{"find": "collections", "filter": {"_id": {"$regex": "resharding"}}}`)
		if len(entry) != 1 {
			t.Fatalf("%d temporary collections", len(entry))
		}
		temp := get(entry[0], "_id").(string)[len("db."):]
		for _, cmd := range []string{`{"drop": %q}`, `{"collMod": %q, "validator": {}}`, `{"dropIndexes": %q, "index": "*"}`, `{"convertToCapped": %q, "size": 1000}`} {
			if m := c.inTime("db", fmt.Sprintf(cmd, temp)); m["code"] != int32(mongoerr.IllegalOperation) {
				t.Errorf(cmd+": %v", temp, m)
			}
		}
		for _, names := range [][2]string{{temp, "new"}, {of.coll, temp}} {
			if m := c.inTime("admin", fmt.Sprintf(`{"renameCollection": "db.%s", "to": "db.%s", "dropTarget": true}`, names[0], names[1])); m["code"] != int32(mongoerr.IllegalOperation) {
				t.Errorf("rename of %s to %s: %v", names[0], names[1], m)
			}
		}
		_, _ = c.points["config"].Configure(point, value.NewString("off"), nil)
		if m := <-done; m["ok"] != 1.0 {
			t.Errorf("%s: %v", of.reshard, m)
		}
		c.run("db", fmt.Sprintf(`{"createIndexes": %q, "indexes": [{"key": %s, "name": "x"}]}`, of.coll, of.index))
	}
}
