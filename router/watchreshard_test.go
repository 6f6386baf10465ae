package router_test

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/shardnode"
)

// oneWriter inserts, updates and deletes documents of db.s, one operation after the other, and returns the events that they cause.
func (c *testCluster) oneWriter(stop <-chan struct{}, wrote *atomic.Int64) (want []string) {
	w := &txnClient{client: c.client}
	run := func(i int, kind, cmd string) {
		if m := c.runAs(w, "db", cmd); m["ok"] != 1.0 || m["writeErrors"] != nil || m["n"] != int32(1) {
			c.t.Errorf("%s: %v", cmd, m)
		}
		want = append(want, fmt.Sprint(kind, " ", i))
	}
	for i := 1000; ; i++ {
		select {
		case <-stop:
			return want
		default:
		}
		q := fmt.Sprintf(`{"_id": %d, "k": %d, "j": %d}`, i, i%100, (i*37)%100)
		run(i, "insert", fmt.Sprintf(`{"insert": "s", "documents": [%s]}`, q))
		run(i, "update", fmt.Sprintf(`{"update": "s", "updates": [{"q": %s, "u": {"$set": {"n": %d}}}]}`, q, i))
		if i%3 == 0 {
			run(i, "delete", fmt.Sprintf(`{"delete": "s", "deletes": [{"q": %s, "limit": 1}]}`, q))
		}
		wrote.Add(1)
		time.Sleep(time.Millisecond) // the resharding has to catch up with the writer
	}
}

// runReshardings runs the config server's resharding coordinators until the test ends.
func (c *testCluster) runReshardings() {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	if err := c.config.LoadReshardings(ctx, 1); err != nil {
		c.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.config.RunReshardings(ctx)
	}()
	c.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// Streams that share a merge continue while their collection gets another shard key, moves to a shard that has just joined, and is unsharded:
// every write is one event, in the order of the writes, and the copies and renames of resharding are none.
func TestSharedStreamsOverAResharding(t *testing.T) {
	c := newTestCluster(t, 2)
	c.runReshardings()
	c.twoShards()
	for i := range 200 {
		c.run("db", fmt.Sprintf(`{"insert": "s", "documents": [{"_id": %d, "k": %d, "j": %d}]}`, i, i%100, (i*37)%100))
	}
	c.run("db", `{"insert": "plain", "documents": [{"_id": 1}]}`)
	var streams []*streamOf
	for i, x := range []*testCluster{c, c, c.through()} {
		s, _ := x.watch("s", bson.D{}, bson.D{{Key: "$match", Value: bson.D{{Key: "to", Value: bson.D{{Key: "$ne", Value: i}}}}}})
		streams = append(streams, s)
	}
	db := &streamOf{c: c, coll: "$cmd.aggregate"}
	db.take(c.cmd("db", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: bson.D{{Key: "showExpandedEvents", Value: true}}}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D), "firstBatch")
	stop, written := make(chan struct{}), make(chan []string)
	var wrote atomic.Int64
	go func() { written <- c.oneWriter(stop, &wrote) }()
	c.run("admin", `{"reshardCollection": "db.s", "key": {"j": 1}, "numInitialChunks": 4}`)
	third := c.opened(shardnode.Config{SetName: "shard2", Host: "shard2:27018"})
	if err := third.Initiate(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.join("shard2", "shard2:27018", third)
	c.run("admin", `{"reshardCollection": "db.s", "key": {"k": "hashed"}, "numInitialChunks": 12}`)
	c.run("admin", `{"moveCollection": "db.plain", "toShard": "shard2"}`)
	c.run("admin", `{"unshardCollection": "db.s", "toShard": "shard2"}`)
	last := wrote.Load()
	c.until("the writer writes behind the last one", func() bool { return wrote.Load() > last+5 })
	close(stop)
	want := <-written
	c.run("db", `{"insert": "plain", "documents": [{"_id": 2}]}`)
	for i, s := range streams {
		got := eventsOf(t, s, len(want))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("stream %d: %s", i, firstDifference(got, want))
		}
	}
	want = append(want, "insert 2")
	got, told := []string(nil), []string(nil)
	for _, e := range eventsOf(t, db, len(want)+2) {
		if e == "reshardCollection <nil>" {
			told = append(told, e)
		} else {
			got = append(got, e)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the stream of the database: %s", firstDifference(got, want))
	}
	if len(told) != 2 {
		t.Errorf("it has %d events of a resharding, want 2", len(told))
	}
}

// A stream on the cluster has the events of a database that is created on a shard that has just joined, in order among the other events.
func TestStreamOfTheClusterHasANewShardsDatabase(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoShards()
	s := &streamOf{c: c, db: "admin", coll: "$cmd.aggregate"}
	s.take(c.cmd("admin", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: bson.D{{Key: "allChangesForCluster", Value: true}}}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D), "firstBatch")
	c.run("db", `{"insert": "s", "documents": [{"_id": 0, "k": 0}]}`)
	want := []string{"insert 0"}
	third := c.opened(shardnode.Config{SetName: "shard2", Host: "shard2:27018"})
	if err := third.Initiate(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.join("shard2", "shard2:27018", third)
	c.run("admin", `{"enableSharding": "new", "primaryShard": "shard2"}`)
	var got []string
	for i := 1; i < 60; i++ {
		c.run("new", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d}]}`, i))
		c.run("db", fmt.Sprintf(`{"insert": "s", "documents": [{"_id": %d, "k": %d}]}`, i, i))
		want = append(want, fmt.Sprint("insert ", i), fmt.Sprint("insert ", i))
		if i < 3 {
			got = append(got, eventsOf(t, s, 1)...)
		}
	}
	if got = append(got, eventsOf(t, s, len(want)-len(got))...); !reflect.DeepEqual(got, want) {
		t.Error(firstDifference(got, want))
	}
}

// eventsOf reads n events of a stream, and those that follow them immediately.
func eventsOf(t *testing.T, s *streamOf, n int) (got []string) {
	t.Helper()
	last := ""
	for tries := 0; tries < 40; tries++ {
		wait := 500
		if len(got) >= n {
			wait, tries = 20, 40
		}
		for _, e := range s.more(wait) {
			if token := tokenOf(e); token <= last {
				t.Errorf("the token %s comes after %s", token, last)
			} else {
				last = token
			}
			var id any
			if key := field(e, "documentKey"); key != nil {
				id = field(key, "_id")
			}
			got = append(got, fmt.Sprint(field(e, "operationType"), " ", id))
		}
	}
	return got
}

func firstDifference(got, want []string) string {
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			return fmt.Sprintf("event %d of %d and %d is %v, want %v", i, len(got), len(want), got[min(i, len(got)):min(i+4, len(got))], want[min(i, len(want)):min(i+4, len(want))])
		}
	}
	return ""
}
