package main

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// rawData requires performRawDataOperations on the collection that the command names, whatever kind of collection it is, and with it what the
// command requires there; it requires nothing on the buckets, which the role readWrite excludes. The check covers the commands that an explain
// or a bulkWrite contains, and the cursor's getMores.
func TestRawDataPrivileges(t *testing.T) {
	for _, topology := range []string{"replset", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			g := startGuarded(t, topology)
			root := g.root()
			series := bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}
			g.must(root, "shop", "create", "ts", "timeseries", series)
			for i := range 3 {
				g.must(root, "shop", "insert", "ts", "documents", bson.A{bson.M{"t": bson.DateTime(0), "m": bson.M{"s": i}}})
			}
			g.must(root, "shop", "insert", "plain", "documents", bson.A{bson.M{"_id": 1}})
			for user, role := range map[string]string{"reader": "read", "writer": "readWrite"} {
				g.must(root, "admin", "createUser", user, "pwd", "secret", "roles", bson.A{bson.M{"role": role, "db": "shop"}})
			}
			g.must(root, "admin", "createUser", "saver", "pwd", "secret", "roles", bson.A{"backup"})
			ops, nsInfo := bson.A{bson.D{{Key: "update", Value: 0}, {Key: "filter", Value: bson.D{}}, {Key: "updateMods", Value: bson.M{"$set": bson.M{"meta.x": 1}}}}}, bson.A{bson.M{"ns": "shop.ts"}}
			commands := [][]any{
				{"find", "ts", "rawData", true}, {"find", "plain", "rawData", true}, {"count", "ts", "rawData", true},
				{"explain", bson.D{{Key: "find", Value: "ts"}, {Key: "rawData", Value: true}}},
				{"explain", bson.D{{Key: "find", Value: "ts"}}, "rawData", true}, {"listIndexes", "ts", "rawData", true},
			}
			reader, writer, saver := g.client("reader", "secret", ""), g.client("writer", "secret", ""), g.client("saver", "secret", "")
			for _, cmd := range commands {
				g.refused(reader, "shop", cmd...)
				g.must(writer, "shop", cmd...)
			}
			opened := g.must(writer, "shop", "find", "ts", "rawData", true, "batchSize", 1)
			_, kept, _ := strings.Cut(fmt.Sprint(field(opened, "cursor", "ns")), ".")
			killed := g.must(writer, "shop", "killCursors", kept, "cursors", bson.A{field(opened, "cursor", "id")})["cursorsKilled"]
			if list, ok := killed.(bson.A); !ok || len(list) != 1 {
				t.Errorf("killed: %v", killed)
			}
			g.must(saver, "shop", "find", "ts", "rawData", true)
			bulk := []any{"bulkWrite", 1, "ops", ops, "nsInfo", nsInfo, "rawData", true}
			g.refused(reader, "admin", bulk...)
			g.must(writer, "admin", bulk...)
			g.must(root, "admin", "createRole", "updates", "roles", bson.A{}, "privileges", bson.A{
				bson.M{"resource": bson.M{"db": "shop", "collection": "ts"}, "actions": bson.A{"update", "find"}}})
			g.must(root, "admin", "createUser", "updater", "pwd", "secret", "roles", bson.A{"updates"})
			updater := g.client("updater", "secret", "")
			g.refused(updater, "admin", bulk...)
			g.must(root, "admin", "grantPrivilegesToRole", "updates", "privileges", bson.A{
				bson.M{"resource": bson.M{"db": "shop", "collection": "ts"}, "actions": bson.A{"performRawDataOperations"}}})
			g.must(updater, "admin", bulk...)

			cursor := g.must(updater, "shop", "find", "ts", "rawData", true, "batchSize", 1)["cursor"].(bson.D)
			g.must(root, "admin", "createUser", "other", "pwd", "secret", "roles", bson.A{}) // privileges are checked again
			_, coll, _ := strings.Cut(fmt.Sprint(field(cursor, "ns")), ".")
			more := []any{"getMore", field(cursor, "id"), "collection", coll, "batchSize", 1}
			g.must(updater, "shop", more...)
			g.must(root, "admin", "revokePrivilegesFromRole", "updates", "privileges", bson.A{
				bson.M{"resource": bson.M{"db": "shop", "collection": "ts"}, "actions": bson.A{"performRawDataOperations"}}})
			g.refused(updater, "shop", more...)
		})
	}
}
