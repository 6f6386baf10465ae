package router_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// commitReshardCollection has writes blocked although a recipient has no estimate of what remains to be applied; it is answered when the resharding has ended. currentOp shows the
// estimate of each recipient: -1 until there is one (manual: Reshard a Collection).
func TestReshardingIsCommittedEarly(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.config.Points = c.points["config"]
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	if m := c.raw("admin", `{"commitReshardCollection": "db.c"}`); m["code"] != int32(mongoerr.NoSuchReshardCollection) {
		t.Errorf("without a resharding: %v", m)
	}
	state := func() any {
		for _, d := range c.all("config", `{"find": "reshardingOperations"}`) {
			return get(d, "state")
		}
		return nil
	}
	recipients := func() (out []string) {
		for id, p := range c.shards {
			ops := c.admin(p, bson.D{{Key: "currentOp", Value: 1}, {Key: "desc", Value: bson.D{{Key: "$regex", Value: "^ReshardingRecipientService"}}}, {Key: "$db", Value: "admin"}})
			for _, o := range ops["inprog"].(bson.A) {
				out = append(out, fmt.Sprint(id, " ", get(o, "recipientState"), " ", get(o, "documentsCopied"), " of ", get(o, "approxDocumentsToCopy"), ", ", get(o, "remainingOperationTimeEstimatedSecs")))
			}
		}
		slices.Sort(out)
		return out
	}
	reached, release := c.hangOn("shard1", "reshardingPauseRecipientAtState", "state", "applying")
	resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "numInitialChunks": 4}`)
	reached()
	c.until("the coordinator waits for the recipients", func() bool { return state() == "applying" })
	if all := recipients(); len(all) != 2 || !strings.HasPrefix(all[1], "shard1 applying ") || !strings.HasSuffix(all[1], " of 5, -1") {
		t.Errorf("the recipients are shown as %q", all)
	}
	for _, o := range c.all("admin", `{"aggregate": 1, "pipeline": [{"$currentOp": {}}, {"$match": {"desc": {"$regex": "^Resharding(Donor|Recipient|Coordinator)Service"}}}], "cursor": {}}`) {
		if get(o, "opStatus") != "running" {
			t.Errorf("%v has no opStatus", get(o, "desc"))
		}
	}
	committed := c.later("admin", `{"commitReshardCollection": "db.c"}`)
	c.until("writes are blocked", func() bool { return state() == "blocking-writes" })
	release()
	for _, answer := range []<-chan bson.M{resharded, committed} {
		if m := <-answer; m["ok"] != 1.0 {
			t.Error(m)
		}
	}
	c.expect(c.counted("c", 1), `10`)
	c.expect(get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "key"), `{"k":1}`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// cleanupReshardCollection removes the table of the temporary collection of a resharding that has no state document. It leaves a collection alone that is not being resharded, and refuses one
// that is.
func TestRemainsOfAReshardingAreCleanedUp(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	c.run("admin", `{"cleanupReshardCollection": "db.c"}`)
	c.run("admin", `{"cleanupReshardCollection": "db.none"}`)
	temporary := func() bson.A {
		return c.all("config", `{"find": "collections", "filter": {"_id": {"$regex": "resharding"}}}`)
	}
	reached, release := c.hangOn("shard1", "reshardingPauseRecipientAtState", "state", "applying")
	resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "numInitialChunks": 4}`)
	reached()
	if m := c.raw("admin", `{"cleanupReshardCollection": "db.c"}`); m["code"] != int32(mongoerr.ReshardCollectionInProgress) {
		t.Errorf("beside the resharding: %v", m)
	}
	left := temporary()
	chunks := c.all("config", fmt.Sprintf(`{"find": "chunks", "filter": {"uuid": %s}}`, show(get(left[0], "uuid"))))
	c.run("admin", `{"abortReshardCollection": "db.c"}`)
	if m := <-resharded; m["code"] != int32(mongoerr.ReshardCollectionAborted) {
		t.Error(m)
	}
	release()
	c.expect(temporary(), `[]`)
	c.onCatalog(bson.D{{Key: "insert", Value: "collections"}, {Key: "documents", Value: left}})
	c.onCatalog(bson.D{{Key: "insert", Value: "chunks"}, {Key: "documents", Value: chunks}})
	c.run("admin", `{"cleanupReshardCollection": "db.c"}`)
	c.expect(temporary(), `[]`)
	c.expect(len(c.all("config", fmt.Sprintf(`{"find": "chunks", "filter": {"uuid": %s}}`, show(get(left[0], "uuid"))))), `0`)
	c.expect(c.counted("c", 1), `10`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// A cleanupReshardCollection that has found no resharding, and is held up, does not remove the table of one that has begun meanwhile: the resharding begins behind it. It used to lose its
// chunks, and with its commit the collection.
func TestCleanupDoesNotMeetAResharding(t *testing.T) {
	t.Parallel()
	var looked atomic.Int32 // how often the config server has looked for the collection's entry since the test has begun, from 1 on
	held, planned, free := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c := newHookedCluster(t, 2, clusterHooks{own: func(to cluster.Peer) cluster.Peer {
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			if value.Lookup(m.Body, "find").Str() == "collections" && value.Lookup(value.LookupDoc(m.Body, "filter"), "_id").Str() == "db.c" && looked.Load() > 0 {
				switch looked.Add(1) {
				case 2:
					close(held)
					<-free
				case 3:
					close(planned)
				}
			}
			return to.Call(ctx, m, dst)
		})
	}})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	reached, release := c.hangOn("shard1", "reshardingPauseRecipientAtState", "state", "applying")
	looked.Store(1)
	cleaned := c.later("admin", `{"cleanupReshardCollection": "db.c"}`)
	<-held
	resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "numInitialChunks": 4}`)
	<-planned
	for range 1000 { // a resharding that does not wait has its table by then
		if len(c.all("config", `{"find": "collections", "filter": {"_id": {"$regex": "resharding"}}}`)) > 0 {
			break
		}
	}
	close(free)
	if m := <-cleaned; m["ok"] != 1.0 {
		t.Errorf("the cleanup: %v", m)
	}
	reached()
	release()
	if m := <-resharded; m["ok"] != 1.0 {
		t.Errorf("the resharding: %v", m)
	}
	c.expect(c.counted("c", 1), `10`)
	c.expect(get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "key"), `{"k":1}`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// A resharding whose critical section lasts longer than its limit is undone: writes that waited go on, to the collection as it was.
func TestReshardingIsUndoneAtTheLimitOfItsSection(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	c.param("config", "reshardingCriticalSectionTimeoutMillis", 5000) // the default
	reached, release := c.hangOn("shard1", "reshardingPauseRecipientAtState", "state", "strict-consistency")
	resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "numInitialChunks": 4}`)
	reached() // writes are blocked, and this recipient has everything but does not say so
	written := c.later("db", `{"update": "c", "updates": [{"q": {}, "u": {"$set": {"late": true}}, "multi": true}]}`)
	if m := <-resharded; m["code"] != int32(mongoerr.ReshardingCriticalSectionTimeout) {
		t.Errorf("the resharding: %v", m)
	}
	if m := <-written; m["ok"] != 1.0 || m["n"] != int32(10) {
		t.Errorf("the write: %v", m)
	}
	release()
	c.leftOver()
	c.expect(get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "key"), `{"k":"hashed"}`)
	c.expect(c.counted("c", 1), `10`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	c.param("config", "reshardingCriticalSectionTimeoutMillis", 300_000)
	c.run("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "numInitialChunks": 4}`)
	c.expect(len(c.all("db", `{"find": "c", "filter": {"late": true}}`)), `10`)
}

// abortMoveCollection and abortUnshardCollection end operations of their kind alone. What is aborted is undone.
func TestEachKindOfReshardingIsAborted(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	c.insertKeys("plain", 1, 10)
	entries := show(c.all("config", `{"find": "collections", "projection": {"key": 1, "uuid": 1, "unsplittable": 1}}`))
	for _, x := range []struct{ cmd, abort, others string }{
		{`{"reshardCollection": "db.c", "key": {"k": 1}, "numInitialChunks": 4}`, "abortReshardCollection", "abortMoveCollection abortUnshardCollection"},
		{`{"moveCollection": "db.plain", "toShard": "shard1"}`, "abortMoveCollection", "abortUnshardCollection"},
		{`{"unshardCollection": "db.c", "toShard": "shard1"}`, "abortUnshardCollection", "abortMoveCollection"},
	} {
		ns := "db.c"
		if strings.Contains(x.cmd, "plain") {
			ns = "db.plain"
		}
		if m := c.raw("admin", fmt.Sprintf(`{%q: %q}`, x.abort, ns)); m["code"] != int32(mongoerr.NoSuchReshardCollection) {
			t.Errorf("%s of nothing: %v", x.abort, m)
		}
		reached, release := c.hangOn("shard1", "reshardingPauseRecipientAtState", "state", "applying")
		answer := c.later("admin", x.cmd)
		reached()
		for _, other := range strings.Fields(x.others) {
			if m := c.raw("admin", fmt.Sprintf(`{%q: %q}`, other, ns)); m["code"] != int32(mongoerr.IllegalOperation) {
				t.Errorf("%s of %s: %v", other, x.cmd, m)
			}
		}
		c.run("admin", fmt.Sprintf(`{%q: %q}`, x.abort, ns))
		if m := <-answer; m["code"] != int32(mongoerr.ReshardCollectionAborted) {
			t.Errorf("%s: %v", x.cmd, m)
		}
		release()
		c.leftOver()
		c.expect(c.all("config", `{"find": "collections", "projection": {"key": 1, "uuid": 1, "unsplittable": 1}}`), entries)
		c.expect(c.counted("c", 1)+c.counted("plain", 1), `20`)
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}
