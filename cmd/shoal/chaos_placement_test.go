package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
)

// ledger is an application that appends entries to documents and knows which of them the server acknowledged.
type ledger struct {
	coll *mongo.Collection

	mu     sync.Mutex
	sure   map[string]bool // entries by "document/entry": true for acknowledged ones, false for those whose outcome is unknown
	failed map[string]int  // errors that the driver gave up on
}

const ledgerDocs = 8

// push appends one entry.
func (l *ledger) push(ctx context.Context, doc int, entry string) error {
	_, err := l.coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: doc}}, bson.D{{Key: "$push", Value: bson.D{{Key: "entries", Value: entry}}}}, options.UpdateOne().SetUpsert(true))
	return err
}

// wrote records the outcome of an entry.
func (l *ledger) wrote(doc int, entry string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sure[fmt.Sprintf("%d/%s", doc, entry)] = err == nil
	if err != nil {
		l.failed[err.Error()]++
	}
}

// write appends entries until ctx ends.
func (l *ledger) write(ctx context.Context, writer int) {
	for n := 0; ctx.Err() == nil; n++ {
		doc, entry := n%ledgerDocs, fmt.Sprintf("%d-%d", writer, n)
		// A command that has begun is finished: the end of the run is no reason for an unknown outcome.
		opCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		l.wrote(doc, entry, l.push(opCtx, doc, entry))
		cancel()
	}
}

// writeBoth appends the same entries to two ledgers, each in one transaction, until ctx ends.
func writeBoth(ctx context.Context, client *mongo.Client, a, b *ledger) {
	for n := 0; ctx.Err() == nil; n++ {
		entry := fmt.Sprintf("both-%d", n)
		opCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		err := client.UseSession(opCtx, func(ctx context.Context) error {
			_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
				if err := a.push(ctx, ledgerDocs, entry); err != nil {
					return nil, err
				}
				return nil, b.push(ctx, ledgerDocs, entry)
			})
			return err
		})
		cancel()
		a.wrote(ledgerDocs, entry, err)
		b.wrote(ledgerDocs, entry, err)
	}
}

// check compares what is stored with what was acknowledged.
func (l *ledger) check(t *testing.T, ctx context.Context) {
	t.Helper()
	cur, err := l.coll.Find(ctx, bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var docs []struct {
		ID      int `bson:"_id"`
		Entries []string
	}
	if err := cur.All(ctx, &docs); err != nil {
		t.Fatal(err)
	}
	stored := make(map[string]int)
	for _, d := range docs {
		for _, e := range d.Entries {
			stored[fmt.Sprintf("%d/%s", d.ID, e)]++
		}
	}
	ns := l.coll.Database().Name() + "." + l.coll.Name()
	lost, doubled := 0, 0
	for e, sure := range l.sure {
		if n := stored[e]; n == 0 && sure {
			lost++
		} else if n > 1 {
			doubled++
		}
		delete(stored, e)
	}
	if lost > 0 || doubled > 0 || len(stored) > 0 {
		t.Errorf("%s: of %d entries %d were lost, %d are there more than once, %d were never written", ns, len(l.sure), lost, doubled, len(stored))
	}
	for e, n := range l.failed {
		t.Errorf("%s: %d writes failed: %s", ns, n, e)
	}
	if len(l.sure) == 0 {
		t.Errorf("%s: nothing was written", ns)
	}
}

// Collections and databases that chaos moves between three shards lose and double nothing of what an application writes meanwhile,
// and no write of one that relies on its driver fails. Both kinds of steps are carried out.
func TestChaosMovesWhatIsNotSharded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	_, client := startChaos(t, func(c *config) { c.Shards = 3 })
	admin := client.Database("admin")
	var ledgers []*ledger
	for _, db := range []string{"books", "plain"} {
		for _, coll := range []string{"a", "b"} {
			ledgers = append(ledgers, &ledger{coll: client.Database(db).Collection(coll), sure: map[string]bool{}, failed: map[string]int{}})
		}
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "shardCollection", Value: "books.ranges"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}}).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Database("books").Collection("ranges").InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	plain := client.Database("plain")
	for _, cmd := range []bson.D{
		{{Key: "create", Value: "log"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}},
		{{Key: "insert", Value: "log"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}},
		{{Key: "create", Value: "seen"}, {Key: "viewOn", Value: "log"}, {Key: "pipeline", Value: bson.A{}}},
	} {
		if err := plain.RunCommand(ctx, cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range ledgers { // a transaction over two shards cannot create them
		if err := l.coll.Database().CreateCollection(ctx, l.coll.Name()); err != nil {
			t.Fatal(err)
		}
	}
	writing, stop := context.WithCancel(ctx)
	defer stop()
	var writers sync.WaitGroup
	for _, l := range ledgers {
		for w := range 2 {
			writers.Go(func() { l.write(writing, w) })
		}
	}
	writers.Go(func() { writeBoth(writing, client, ledgers[0], ledgers[2]) })
	if err := admin.RunCommand(ctx, bson.D{{Key: "shoalChaos", Value: "start"}, {Key: "profile", Value: "placement"}, {Key: "seed", Value: 5}, {Key: "paceMS", Value: 50}}).Err(); err != nil {
		t.Fatal(err)
	}
	done := await.State(t, "collections and databases are moved", func() (map[any]int, bool) {
		done := chaosSteps(t, ctx, admin, nil)
		return done, done["moveCollection"] >= 6 && done["movePrimary"] >= 4
	})
	var status bson.M
	if err := admin.RunCommand(ctx, bson.D{{Key: "shoalChaos", Value: "stop"}}).Decode(&status); err != nil {
		t.Fatal(err)
	}
	stop()
	writers.Wait()
	t.Logf("%v steps, %v of them failed: %v", status["steps"], status["failed"], done)
	chaosSteps(t, ctx, admin, func(kind any, step bson.M) {
		if step["error"] != "chaos was stopped during the step" {
			t.Logf("%v %v: %v; all steps: %v", kind, step["do"], step["error"], status["last"]) // the application does not notice
		}
	})
	for _, l := range ledgers {
		l.check(t, ctx)
	}
	for _, c := range []*mongo.Collection{client.Database("books").Collection("ranges"), plain.Collection("log"), plain.Collection("seen")} {
		if n, err := c.CountDocuments(ctx, bson.D{}); n != 1 || err != nil {
			t.Errorf("%s has %d documents, want 1 (%v)", c.Name(), n, err)
		}
	}
}

// chaosSteps counts the steps that were carried out, by kind, and calls failed with the others.
func chaosSteps(t *testing.T, ctx context.Context, admin *mongo.Database, failed func(kind any, step bson.M)) map[any]int {
	t.Helper()
	var status bson.M
	if err := admin.RunCommand(ctx, bson.D{{Key: "shoalChaos", Value: "status"}}).Decode(&status); err != nil {
		t.Fatal(err)
	}
	done := make(map[any]int)
	steps, _ := status["last"].(bson.A)
	for _, s := range steps {
		if step := asMap(s); step["error"] == nil {
			done[step["kind"]]++
		} else if failed != nil {
			failed(step["kind"], step)
		}
	}
	return done
}
