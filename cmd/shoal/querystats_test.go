package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// queryStats is a client that reads the statistics of its queries.
type queryStats struct {
	t      *testing.T
	ctx    context.Context
	client *mongo.Client
}

func startQueryStats(t *testing.T, topology string) *queryStats {
	t.Helper()
	h := startHere(t, func(c *config) { c.Topology = topology })
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + h.Addrs[0].String() + "/?directConnection=true").SetAppName("statistics"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(func() {
		defer cancel()
		if err := client.Disconnect(ctx); err != nil {
			t.Error(err)
		}
	})
	return &queryStats{t, ctx, client}
}

func (q *queryStats) admin(cmd ...bson.E) (out bson.M) {
	q.t.Helper()
	if err := q.client.Database("admin").RunCommand(q.ctx, bson.D(cmd)).Decode(&out); err != nil {
		q.t.Fatal(cmd, err)
	}
	return out
}

func (q *queryStats) limit(n int) {
	q.admin(bson.E{Key: "setParameter", Value: 1}, bson.E{Key: "internalQueryStatsRateLimit", Value: n})
}

type queryStatsEntry struct {
	Key struct {
		QueryShape     bson.M
		CollectionType string
		Client         struct{ Application struct{ Name string } }
	}
	QueryShapeHash string
	Metrics        struct {
		ExecCount                                                 int64
		DocsReturned, DocsExamined, KeysExamined, TotalExecMicros struct{ Sum int64 }
		HasSortStage                                              struct {
			Yes int64 `bson:"true"`
		}
	}
}

// entries are those on the database of the test, by their command and collection.
func (q *queryStats) entries(stage bson.D) map[string]queryStatsEntry {
	q.t.Helper()
	cur, err := q.client.Database("admin").Aggregate(q.ctx, bson.A{bson.D{{Key: "$queryStats", Value: stage}}})
	if err != nil {
		q.t.Fatal(err)
	}
	var all []queryStatsEntry
	if err := cur.All(q.ctx, &all); err != nil {
		q.t.Fatal(err)
	}
	out := map[string]queryStatsEntry{}
	for _, e := range all {
		ns := e.Key.QueryShape["cmdNs"].(bson.D)
		name := fmt.Sprintf("%s %s", e.Key.QueryShape["command"], ns[1].Value)
		if ns[0].Value != "test" && len(stage) == 0 {
			continue
		}
		if _, twice := out[name]; twice {
			q.t.Errorf("two entries of %s", name)
		}
		out[name] = e
	}
	return out
}

// load creates the collections: one sharded over both shards if there are shards, unsharded ones, and a view.
func (q *queryStats) load(sharded bool) {
	q.t.Helper()
	db := q.client.Database("test")
	if sharded {
		q.admin(bson.E{Key: "shardCollection", Value: "test.wide"}, bson.E{Key: "key", Value: bson.D{{Key: "k", Value: 1}}})
		q.admin(bson.E{Key: "split", Value: "test.wide"}, bson.E{Key: "middle", Value: bson.D{{Key: "k", Value: 150}}})
		q.admin(bson.E{Key: "moveChunk", Value: "test.wide"}, bson.E{Key: "find", Value: bson.D{{Key: "k", Value: 200}}}, bson.E{Key: "to", Value: "shard01"})
	}
	for _, coll := range []string{"wide", "narrow"} {
		var docs []any
		for i := range 300 {
			docs = append(docs, bson.D{{Key: "k", Value: i}, {Key: "a", Value: i % 10}})
		}
		if _, err := db.Collection(coll).InsertMany(q.ctx, docs); err != nil {
			q.t.Fatal(err)
		}
	}
	if err := db.CreateView(q.ctx, "seen", "wide", bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "a", Value: 3}}}}}); err != nil {
		q.t.Fatal(err)
	}
}

func drain(t *testing.T, ctx context.Context, cur *mongo.Cursor, err error) {
	t.Helper()
	if err == nil {
		err = cur.All(ctx, &[]bson.D{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// queries runs each kind of query, twice where its literals may differ.
func (q *queryStats) queries() {
	q.t.Helper()
	db := q.client.Database("test")
	for _, a := range []int{3, 4} {
		cur, err := db.Collection("wide").Find(q.ctx, bson.D{{Key: "a", Value: a}}, options.Find().SetSort(bson.D{{Key: "z", Value: -1}}).SetBatchSize(7))
		drain(q.t, q.ctx, cur, err)
		cur, err = db.Collection("narrow").Find(q.ctx, bson.D{{Key: "k", Value: bson.D{{Key: "$gte", Value: a}}}}, options.Find().SetBatchSize(50))
		drain(q.t, q.ctx, cur, err)
		cur, err = db.Collection("wide").Aggregate(q.ctx, bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "a", Value: a}}}},
			bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$k"}}}}}, options.Aggregate().SetBatchSize(4))
		drain(q.t, q.ctx, cur, err)
		cur, err = db.Collection("seen").Find(q.ctx, bson.D{{Key: "k", Value: bson.D{{Key: "$gt", Value: -a}}}})
		drain(q.t, q.ctx, cur, err)
		if err := db.Collection("narrow").Distinct(q.ctx, "a", bson.D{{Key: "k", Value: bson.D{{Key: "$lt", Value: 100 * a}}}}).Err(); err != nil {
			q.t.Fatal(err)
		}
	}
	if err := db.Collection("none").FindOne(q.ctx, bson.D{}).Err(); err != mongo.ErrNoDocuments {
		q.t.Fatal(err)
	}
	cur, err := db.Collection("narrow").Aggregate(q.ctx, bson.A{}, options.Aggregate().SetBatchSize(5))
	if err != nil || !cur.Next(q.ctx) {
		q.t.Fatal(err)
	}
	if err := cur.Close(q.ctx); err != nil { // a killed cursor counts as an execution, too
		q.t.Fatal(err)
	}
	if _, err := db.Collection("broken").Find(q.ctx, bson.D{{Key: "$bad", Value: 1}}); err == nil {
		q.t.Fatal("no error")
	}
}

// Statistics are gathered over a query's getMores, on a member by itself and on a router from what its shards examined.
func TestQueryStats(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			q := startQueryStats(t, topology)
			q.load(topology == "sharded")
			q.queries()
			if got := q.entries(bson.D{}); len(got) != 0 {
				t.Fatalf("kept without being asked for: %v", got)
			}
			q.limit(-1)
			q.queries()
			got := q.entries(bson.D{})
			for _, want := range []struct {
				name, kind                        string
				count, returned, examined, sorted int64
			}{
				{"find wide", "collection", 2, 60, 600, 2},
				{"find narrow", "collection", 2, 593, 600, 0},
				{"aggregate wide", "collection", 2, 60, 600, 0},
				{"find seen", "view", 2, 60, 600, 0},
				{"distinct narrow", "collection", 2, 20, 600, 0},
				{"find none", "nonExistent", 1, 0, 0, 0},
				{"aggregate narrow", "collection", 1, 5, 5, 0},
			} {
				e, ok := got[want.name]
				m := e.Metrics
				if !ok || e.Key.CollectionType != want.kind || m.ExecCount != want.count || m.DocsReturned.Sum != want.returned ||
					m.DocsExamined.Sum != want.examined || m.HasSortStage.Yes != want.sorted || m.TotalExecMicros.Sum == 0 {
					t.Errorf("%s: %+v", want.name, e)
				}
				if e.Key.Client.Application.Name != "statistics" {
					t.Errorf("%s: client %+v", want.name, e.Key.Client)
				}
				delete(got, want.name)
			}
			if len(got) != 0 {
				t.Errorf("more: %v", got)
			}
			q.checkHashes()
		})
	}
}

// checkHashes compares the identifiers of entries: explain's queryShapeHash, and the names hashed by an HMAC.
func (q *queryStats) checkHashes() {
	q.t.Helper()
	var plan struct{ QueryShapeHash string }
	find := bson.D{{Key: "find", Value: "narrow"}, {Key: "filter", Value: bson.D{{Key: "k", Value: bson.D{{Key: "$gte", Value: 77}}}}}}
	if err := q.client.Database("test").RunCommand(q.ctx, bson.D{{Key: "explain", Value: find}}).Decode(&plan); err != nil {
		q.t.Fatal(err)
	}
	if e := q.entries(bson.D{})["find narrow"]; e.QueryShapeHash != plan.QueryShapeHash {
		q.t.Errorf("explain has the shape %s, the statistics %s", plan.QueryShapeHash, e.QueryShapeHash)
	}
	hidden := q.entries(bson.D{{Key: "transformIdentifiers", Value: bson.D{{Key: "algorithm", Value: "hmac-sha-256"}, {Key: "hmacKey", Value: bson.Binary{Subtype: 8, Data: []byte("key")}}}}})
	found := false
	for _, e := range hidden {
		found = found || e.QueryShapeHash == plan.QueryShapeHash
		if s := fmt.Sprint(e.Key.QueryShape); slices.ContainsFunc([]string{"narrow", "wide", "{k "}, func(n string) bool { return strings.Contains(s, n) }) {
			q.t.Errorf("names: %s", s)
		}
	}
	if !found {
		q.t.Error("no entry after the HMAC")
	}
	status := q.admin(bson.E{Key: "serverStatus", Value: 1})["metrics"].(bson.D)
	for _, e := range status {
		if e.Key == "queryStats" {
			return
		}
	}
	q.t.Error("serverStatus does not report them")
}
