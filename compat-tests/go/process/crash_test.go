package process

import (
	"context"
	"sync"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// acked holds the acknowledged writes.
type acked struct {
	mu     sync.Mutex
	values map[int]int
}

func (a *acked) set(id, v int) {
	a.mu.Lock()
	a.values[id] = v
	a.mu.Unlock()
}

func (a *acked) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.values)
}

// writer inserts documents of its own and updates each once, recording what was acknowledged, until a write fails.
func (a *acked) writer(coll *mongo.Collection, from int) {
	ctx := context.Background()
	for id := from; ; id++ {
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "v", Value: 1}}); err != nil {
			return
		}
		a.set(id, 1)
		if id%3 == 0 {
			if _, err := coll.UpdateByID(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 2}}}}); err != nil {
				return
			}
			a.set(id, 2)
		}
	}
}

// TestKilledServerLosesNothing kills a server during acknowledged writes, three times, and looks for each of them.
func TestKilledServerLosesNothing(t *testing.T) {
	each(t, func(t *testing.T, p *topology) {
		a := &acked{values: map[int]int{}}
		for round := range 3 {
			s, c := p.start(t)
			if round == 0 {
				p.shard(t, c, "crash.c", bson.D{{Key: "_id", Value: "hashed"}})
			}
			wc := writeconcern.Majority()
			if p.name == "standalone" {
				yes := true
				wc = &writeconcern.WriteConcern{W: 1, Journal: &yes}
			}
			writers := connect(t, p.uri()+"&serverSelectionTimeoutMS=500") // they end soon after the server
			coll := writers.Database("crash").Collection("c", options.Collection().SetWriteConcern(wc))
			var wg sync.WaitGroup
			for w := range 4 {
				wg.Go(func() { a.writer(coll, (round*4+w)*1_000_000) })
			}
			before := a.count()
			waitFor(t, "more writes are acknowledged", func() bool { return a.count() >= before+200 })
			s.end(t, syscall.SIGKILL)
			hangUp(c)
			wg.Wait()
		}
		_, c := p.start(t)
		a.check(t, c.Database("crash").Collection("c"))
	})
}

// check reads everything back. A write that was not acknowledged may be there or not.
func (a *acked) check(t *testing.T, coll *mongo.Collection) {
	t.Helper()
	cur, err := coll.Find(context.Background(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var docs []struct {
		ID int `bson:"_id"`
		V  int `bson:"v"`
	}
	if err := cur.All(context.Background(), &docs); err != nil {
		t.Fatal(err)
	}
	found := map[int]int{}
	for _, d := range docs {
		if _, twice := found[d.ID]; twice {
			t.Fatalf("document %d is there twice", d.ID)
		}
		found[d.ID] = d.V
	}
	if len(a.values) == 0 {
		t.Fatal("no write was acknowledged")
	}
	lost := 0
	for id, v := range a.values {
		if found[id] < v {
			lost++
		}
	}
	t.Logf("%d acknowledged documents, %d found", len(a.values), len(found))
	if lost > 0 {
		t.Fatalf("%d of %d acknowledged writes are lost", lost, len(a.values))
	}
}
