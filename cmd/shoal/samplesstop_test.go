package main

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
)

// What is sampled, and which fields sampled updates have changed, is stored when the process stops, before its interval has passed.
func TestSamplesAreStoredAtShutdown(t *testing.T) {
	for _, topology := range []string{"sharded", "replset"} {
		t.Run(topology, func(t *testing.T) {
			dir := t.TempDir()
			start := func() *here {
				return startHere(t, func(c *config) {
					c.Topology, c.DBPath, c.Memory = topology, dir, false
					c.Parameters = append(c.Parameters, pair{"queryAnalysisSamplerConfigurationRefreshSecs", "1"})
				})
			}
			h := start()
			client := connect(t, h.URI)
			admin, coll := client.Database("admin"), client.Database("db").Collection("c")
			if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
				t.Fatal(err)
			}
			if err := admin.RunCommand(t.Context(), bson.D{{Key: "configureQueryAnalyzer", Value: "db.c"}, {Key: "mode", Value: "full"}, {Key: "samplesPerSecond", Value: 50}}).Err(); err != nil {
				t.Fatal(err)
			}
			await.True(t, "something is sampled", func() bool {
				var s struct {
					QueryAnalyzers struct{ TotalSampledWritesCount int64 }
				}
				if _, err := coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
					t.Fatal(err)
				}
				if err := admin.RunCommand(t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Decode(&s); err != nil {
					t.Fatal(err)
				}
				return s.QueryAnalyzers.TotalSampledWritesCount > 0
			})
			h.stop()
			h = start()
			again := connect(t, h.URI)
			cur, err := again.Database("admin").Aggregate(t.Context(), bson.A{bson.D{{Key: "$listSampledQueries", Value: bson.D{}}}})
			if err != nil {
				t.Fatal(err)
			}
			var docs []bson.D
			if err := cur.All(t.Context(), &docs); err != nil || len(docs) == 0 {
				t.Errorf("%d samples were stored (%v)", len(docs), err)
			}
			if topology == "replset" { // a cluster's are on a shard
				if n, err := again.Database("config").Collection("sampledQueriesDiff").CountDocuments(t.Context(), bson.D{}); err != nil || n == 0 {
					t.Errorf("%d diffs were stored (%v)", n, err)
				}
			}
		})
	}
}
