package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
)

const (
	workloadDocs    = 100_000
	workloadClients = 16
)

// workload is one operation of a client, by its number. The figures are those of an operation or, if it has many, of a document.
type workload struct {
	name string
	docs int // documents of one operation, 0 if the operations are counted
	run  func(ctx context.Context, db *mongo.Database, i int64) error
}

// workloadDoc is a document of some 200 bytes.
func workloadDoc(id int64) bson.D {
	return bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id * 7919 % workloadDocs}, {Key: "g", Value: id % 100}, {Key: "n", Value: id}, {Key: "pad", Value: make([]byte, 140)}}
}

// exhaust reads a cursor to its end.
func exhaust(ctx context.Context, cur *mongo.Cursor, err error) error {
	if err != nil {
		return err
	}
	defer cur.Close(ctx)
	for cur.Next(ctx) {
	}
	return cur.Err()
}

var workloads = []workload{
	{"ping", 0, func(ctx context.Context, db *mongo.Database, _ int64) error {
		return db.RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err()
	}},
	{"find_id", 0, func(ctx context.Context, db *mongo.Database, _ int64) error {
		return db.Collection("c").FindOne(ctx, bson.D{{Key: "_id", Value: rand.Int63n(workloadDocs)}}).Err()
	}},
	{"find_index", 0, func(ctx context.Context, db *mongo.Database, _ int64) error {
		return db.Collection("c").FindOne(ctx, bson.D{{Key: "k", Value: rand.Int63n(workloadDocs)}}).Err()
	}},
	{"range_scan", 0, func(ctx context.Context, db *mongo.Database, _ int64) error {
		from := rand.Int63n(workloadDocs - 100)
		cur, err := db.Collection("c").Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: from}, {Key: "$lt", Value: from + 100}}}})
		return exhaust(ctx, cur, err)
	}},
	{"insert_one", 0, func(ctx context.Context, db *mongo.Database, i int64) error {
		_, err := db.Collection("one").InsertOne(ctx, workloadDoc(i))
		return err
	}},
	{"update_id", 0, func(ctx context.Context, db *mongo.Database, _ int64) error {
		_, err := db.Collection("c").UpdateByID(ctx, rand.Int63n(workloadDocs), bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		return err
	}},
	{"insert_many", 1000, func(ctx context.Context, db *mongo.Database, i int64) error {
		docs := make([]any, 1000)
		for j := range docs {
			docs[j] = workloadDoc(i*1000 + int64(j))
		}
		_, err := db.Collection("many").InsertMany(ctx, docs)
		return err
	}},
	{"agg_group", workloadDocs, func(ctx context.Context, db *mongo.Database, _ int64) error {
		cur, err := db.Collection("c").Aggregate(ctx, bson.A{bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$g"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: "$n"}}}}}}})
		return exhaust(ctx, cur, err)
	}},
	{"count_match", workloadDocs, func(ctx context.Context, db *mongo.Database, _ int64) error {
		_, err := db.Collection("c").CountDocuments(ctx, bson.D{{Key: "g", Value: rand.Int63n(100)}})
		return err
	}},
	{"sort_nonindexed", workloadDocs, func(ctx context.Context, db *mongo.Database, _ int64) error {
		cur, err := db.Collection("c").Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "g", Value: 1}, {Key: "n", Value: -1}}).SetLimit(10))
		return exhaust(ctx, cur, err)
	}},
	{"create_index", workloadDocs, func(ctx context.Context, db *mongo.Database, i int64) error {
		name, err := db.Collection("c").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "n", Value: 1}, {Key: fmt.Sprint("x", i), Value: 1}}})
		if err != nil {
			return err
		}
		return db.Collection("c").Indexes().DropOne(ctx, name)
	}},
	{"find_all", workloadDocs, func(ctx context.Context, db *mongo.Database, _ int64) error {
		cur, err := db.Collection("c").Find(ctx, bson.D{}, options.Find().SetBatchSize(10_000))
		return exhaust(ctx, cur, err)
	}},
}

// BenchmarkWorkloads measures the operations of the first table of docs/performance.md, from 16 clients, against a server in a process of its own:
// its processor time per operation or document. SHOAL_SERVER names the binary of another build, to compare with.
func BenchmarkWorkloads(b *testing.B) {
	for _, topology := range []string{"sharded", "standalone"} {
		b.Run(topology, func(b *testing.B) {
			s := unstarted(b, nil, "workloads")
			s.args = []string{"start", "--topology", topology, "--listen", s.listensAt(), "--data-dir", b.TempDir()}
			s.launch(func(name string, args []string) *exec.Cmd {
				return exec.Command(cmp.Or(os.Getenv("SHOAL_SERVER"), name), args...)
			})
			s.listens()
			await.True(b, "every port accepts connections", func() bool { return s.logHas(`"id":23016`, 1) })
			s.direct = connect(b, "mongodb://"+s.listensAt()+"/?directConnection=true")
			db := s.direct.Database("bench")
			loadWorkloads(b, db)
			var next atomic.Int64
			for _, w := range workloads {
				b.Run(w.name, func(b *testing.B) {
					ctx := context.Background()
					b.SetParallelism(max(1, workloadClients/runtime.GOMAXPROCS(0)))
					before := cpuTime(b, &process{server: s})
					b.ResetTimer()
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							if err := w.run(ctx, db, next.Add(1)); err != nil {
								b.Error(err)
								return
							}
						}
					})
					each := float64(b.N * max(1, w.docs))
					b.ReportMetric(float64((cpuTime(b, &process{server: s})-before)/time.Microsecond)/each, "cpu-µs/each")
					b.ReportMetric(each/b.Elapsed().Seconds(), "each/s")
				})
			}
		})
	}
}

// loadWorkloads inserts the documents that the operations read, and the index.
func loadWorkloads(b *testing.B, db *mongo.Database) {
	b.Helper()
	ctx := context.Background()
	for from := int64(0); from < workloadDocs; from += 10_000 {
		docs := make([]any, 10_000)
		for i := range docs {
			docs[i] = workloadDoc(from + int64(i))
		}
		if _, err := db.Collection("c").InsertMany(ctx, docs); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := db.Collection("c").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}}); err != nil {
		b.Fatal(err)
	}
}
