package main

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// $indexStats and $planCacheStats on a view describe the collection behind it if no stage of a pipeline comes before them. Rights on the view suffice.
func TestStatsOfViews(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			g.must(root, "shop", "create", "c")
			if topology == "sharded" {
				g.must(root, "admin", "shardCollection", "shop.spread", "key", bson.D{{Key: "_id", Value: "hashed"}})
			} else {
				g.must(root, "shop", "create", "spread")
			}
			match := bson.A{bson.D{{Key: "$match", Value: bson.D{}}}}
			g.must(root, "shop", "create", "series", "timeseries", bson.D{{Key: "timeField", Value: "t"}})
			g.must(root, "shop", "aggregate", "series", "pipeline", bson.A{bson.D{{Key: "$indexStats", Value: bson.D{}}}}, "cursor", bson.D{})
			views := map[string][]any{"plain": {"c", bson.A{}}, "chosen": {"c", match}, "over": {"chosen", bson.A{}}, "spreadPlain": {"spread", bson.A{}}, "spreadChosen": {"spread", match}}
			for _, name := range []string{"plain", "chosen", "over", "spreadPlain", "spreadChosen"} {
				g.must(root, "shop", "create", name, "viewOn", views[name][0], "pipeline", views[name][1])
			}
			privileges := bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "shop"}, {Key: "collection", Value: "plain"}}}, {Key: "actions", Value: bson.A{"indexStats", "planCacheRead"}}}}
			g.must(root, "shop", "createRole", "onView", "privileges", privileges, "roles", bson.A{})
			g.must(root, "admin", "createUser", "low", "pwd", "pw", "roles", bson.A{bson.D{{Key: "role", Value: "onView"}, {Key: "db", Value: "shop"}}})
			low := g.client("low", "pw", "")
			for _, stage := range []string{"$indexStats", "$planCacheStats"} {
				cmd := func(ns string) []any {
					return []any{"aggregate", ns, "pipeline", bson.A{bson.D{{Key: stage, Value: bson.D{}}}}, "cursor", bson.D{}}
				}
				for ns, want := range map[string]mongoerr.Code{"c": 0, "plain": 0, "spreadPlain": 0, "chosen": 40602, "over": 40602, "spreadChosen": 40602} {
					if _, code, text := run1(root, "shop", cmd(ns)...); code != int(want) {
						t.Errorf("%s on %s: %d %s", stage, ns, code, text)
					}
				}
				g.must(low, "shop", cmd("plain")...)
				if _, code, _ := run1(low, "shop", cmd("c")...); code != int(mongoerr.Unauthorized) {
					t.Errorf("%s on the collection: %d", stage, code)
				}
			}
		})
	}
}
