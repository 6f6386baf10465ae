package router_test

import (
	"bytes"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/configsvr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A recipient of a resharding that has finished does not look at its donors again. If another one could not be reached to finish, and
// writes cannot be blocked at once when that is repeated, no writer is let through meanwhile.
func TestReshardKeepsWritesBlocked(t *testing.T) {
	var finished, refused, committing, unblocked atomic.Bool
	c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
		switch string(m.CommandName()) {
		case "_shardsvrReshardingRecipientFinish":
			if shard == "shard1" && finished.CompareAndSwap(false, true) {
				return mongoerr.New(mongoerr.HostUnreachable, "not now")
			}
		case "_shardsvrRenameCollectionParticipant":
			committing.Store(true)
		case "_shardsvrParticipantBlock":
			switch kind := value.Lookup(m.Body, "blockType").Str(); {
			case kind == msg.BlockWrites && shard == "shard1" && finished.Load() && refused.CompareAndSwap(false, true):
				return mongoerr.New(mongoerr.LockTimeout, "not now, either")
			case kind == msg.Unblock && finished.Load() && !committing.Load():
				unblocked.Store(true)
			}
		}
		return nil
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	c.run("admin", `{"reshardCollection": "db.c", "key": {"k": "hashed"}, "numInitialChunks": 4, "forceRedistribution": true}`)
	if !finished.Load() || !refused.Load() || unblocked.Load() {
		t.Errorf("finish was refused: %v, the block: %v, and writers were let through: %v", finished.Load(), refused.Load(), unblocked.Load())
	}
	c.expect(c.counted("c", 1), `10`)
}

// Of two messages of a run about a section, the one of the later term counts, of one term the later decision, whichever arrives first. Messages without a term are
// those of earlier versions.
func TestLateMessagesOfASection(t *testing.T) {
	c := newTestCluster(t, 1)
	c.run("admin", `{"enableSharding": "db"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	id := cluster.NewUUID()
	for i, x := range []struct {
		kind string
		term int64
		at   uint64
		code mongoerr.Code
		held string
	}{
		{msg.BlockWrites, 0, 20, mongoerr.OK, "writes"},
		{msg.Unblock, 0, 10, mongoerr.OK, "writes"},
		{msg.BlockWrites, 0, 10, mongoerr.ConflictingOperationInProgress, "writes"},
		{msg.BlockReadsAndWrites, 0, 20, mongoerr.OK, "reads"},
		{msg.Unblock, 0, 30, mongoerr.OK, ""},
		{msg.BlockReadsAndWrites, 2, 20, mongoerr.OK, "reads"},
		{msg.Unblock, 1, 90, mongoerr.OK, "reads"},
		{msg.BlockWrites, 1, 90, mongoerr.ConflictingOperationInProgress, "reads"},
		{msg.BlockReadsAndWrites, 2, 10, mongoerr.ConflictingOperationInProgress, "reads"},
		{msg.BlockReadsAndWrites, 3, 10, mongoerr.OK, "reads"},
		{msg.Unblock, 2, 90, mongoerr.OK, "reads"},
		{msg.Unblock, 3, 11, mongoerr.OK, ""},
		{msg.BlockReadsAndWrites, 3, 12, mongoerr.OK, "reads"},
		{msg.Unblock, 0, 13, mongoerr.OK, ""},
	} {
		_, err := cluster.Run(t.Context(), c.shards["shard0"], msg.Doc(&msg.ParticipantBlock{
			NS: "db.c", Type: x.kind, Command: "reshardCollection", Owner: cluster.ConfigShardID, ID: id, Term: x.term, At: x.at}))
		if mongoerr.CodeOf(err) != x.code {
			t.Errorf("step %d: %v", i, err)
		}
		if held := c.heldOn("shard0", "db.c"); held != x.held {
			t.Errorf("step %d: the section blocks %q, want %q", i, held, x.held)
		}
	}
}

// heldOn returns what the critical section of a name on a shard blocks: "reads" and writes, "writes", or "" if there is none.
func (c *testCluster) heldOn(shard, ns string) string {
	c.t.Helper()
	count := func(q bson.D) bool {
		return c.admin(c.shards[shard], bson.D{{Key: "count", Value: "collection_critical_sections"}, {Key: "query", Value: q}, {Key: "$db", Value: "config"}})["n"] != int32(0)
	}
	switch of := (bson.E{Key: "_id", Value: ns}); {
	case count(bson.D{of, {Key: "blockReads", Value: true}}):
		return "reads"
	case count(bson.D{of}):
		return "writes"
	}
	return ""
}

// drives has a config server's primary of a term drive the reshardings, until the returned function is called or the test ends.
func (c *testCluster) drives(m *configsvr.Manager, term int64) (depose func()) {
	c.t.Helper()
	ctx, end := context.WithCancel(context.Background())
	if err := m.LoadReshardings(ctx, term); err != nil {
		c.t.Fatal(err)
	}
	if err := m.LoadCoordinators(ctx, term); err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var both sync.WaitGroup
		both.Go(func() { m.RunCoordinators(ctx) })
		m.RunReshardings(ctx)
		both.Wait()
	}()
	c.t.Cleanup(func() {
		end()
		<-ended
	})
	return end
}

// isClosed reports whether a channel is closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// The config server's primary waits for a transaction before the critical section, and is paused. Its successor has entered the section, and recipients are about
// to have all writes, when it continues and reads that its attempt has failed: it lets writers through until the next one. They would be lost.
func TestDeposedConfigPrimaryEndsNoSection(t *testing.T) {
	var first, resumed atomic.Bool
	var again, finishing sync.Once
	paused, resume, retried, deposed, holding, finish := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
		switch name := string(m.CommandName()); {
		case name == "_shardsvrReshardingRecipientFinish":
			finishing.Do(func() { close(holding) })
			<-finish
		case name != "_shardsvrParticipantBlock" || value.Lookup(m.Body, "blockType").Str() != msg.BlockWrites:
		case shard == "shard1" && first.CompareAndSwap(false, true):
			close(paused)
			<-resume
			return mongoerr.New(mongoerr.LockTimeout, "a transaction has written")
		case resumed.Load():
			again.Do(func() { close(retried) })
			<-deposed
			return mongoerr.New(mongoerr.HostUnreachable, "it is deposed")
		}
		return nil
	})
	free := sync.OnceFunc(func() { close(finish) })
	goOn := sync.OnceFunc(func() { resumed.Store(true); close(resume) })
	stop := sync.OnceFunc(func() { close(deposed) })
	t.Cleanup(func() { goOn(); stop(); free() })
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	depose := c.drives(c.config, 1)
	resharded := make(chan bson.M, 1)
	go func() {
		resharded <- c.raw("admin", `{"reshardCollection": "db.c", "key": {"k": "hashed"}, "numInitialChunks": 4, "forceRedistribution": true}`)
	}()
	c.until("the first primary is paused", func() bool { return isClosed(paused) })
	next := configsvr.New(c.conf.OwnPeer(), c.registry("config"), c.clock, func() string { return "config:27020" })
	next.Params = c.params["config"]
	c.drives(next, 2)
	c.until("the next one holds the section", func() bool { return isClosed(holding) })
	goOn()
	c.until("the first one has let writers through", func() bool { return isClosed(retried) })
	held := []string{c.heldOn("shard0", "db.c"), c.heldOn("shard1", "db.c")}
	depose()
	stop()
	free()
	if slices.Contains(held, "") {
		t.Fatalf("a section of the next one has ended: the shards' block %q", held)
	}
	c.until("the operation has ended", func() bool {
		return get(c.all("config", `{"find": "reshardingOperations"}`)[0], "state") == "quiesced"
	})
	c.drives(c.config, 3)
	if m := <-resharded; m["ok"] != 1.0 {
		t.Error(m)
	}
	c.expect(c.counted("c", 1), `10`)
	c.expect(c.all("db", `{"checkMetadataConsistency": 1}`), `[]`)
}

// The config server's primary changes while a resharding tries to block writes, which a transaction delays, or when recipients have been told to finish. In the one case the next primary waits for
// the transaction, and lets writers through between two attempts, as the first one does; it used to have the time limit of the critical section for all, and then to end the operation. In the other
// no writer is let through.
func TestNextConfigPrimaryBlocksWrites(t *testing.T) {
	t.Parallel()
	for _, finishing := range []bool{false, true} {
		var attempts, unblocked, refused atomic.Int64
		var holds, committing atomic.Bool
		holds.Store(true)
		deposed := make(chan struct{})
		c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
			switch name, kind := string(m.CommandName()), value.Lookup(m.Body, "blockType").Str(); {
			case name == "_shardsvrRenameCollectionParticipant":
				committing.Store(true)
			case name == "_shardsvrReshardingRecipientFinish" && finishing && shard == "shard1" && holds.Load():
				attempts.Add(1)
				<-deposed
				return mongoerr.New(mongoerr.HostUnreachable, "it is deposed")
			case name == "_shardsvrParticipantBlock" && kind == msg.Unblock && !committing.Load():
				unblocked.Add(1)
			case name == "_shardsvrParticipantBlock" && kind == msg.BlockWrites && shard == "shard1" && (!finishing && holds.Load() || finishing && isClosed(deposed) && refused.Add(1) == 1):
				attempts.Add(1)
				return mongoerr.New(mongoerr.LockTimeout, "a transaction has written")
			}
			return nil
		})
		limit := func(ms int32) {
			if _, err := c.params["config"].SetRuntime([]value.Field{value.F("reshardingCriticalSectionTimeoutMillis", value.NewInt32(ms))}); err != nil {
				t.Fatal(err)
			}
		}
		c.config.Params = c.params["config"]
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.shardedAs("c", 1, 10)
		depose := c.drives(c.config, 1)
		resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"k": "hashed"}, "numInitialChunks": 4, "forceRedistribution": true}`)
		c.until("the first primary is at it", func() bool { return attempts.Load() > 0 })
		depose()
		close(deposed)
		next := configsvr.New(c.conf.OwnPeer(), c.registry("config"), c.clock, func() string { return "config:27020" })
		next.Params = c.params["config"]
		if !finishing {
			limit(1)
		}
		before := unblocked.Load()
		c.drives(next, 2)
		if !finishing {
			ended := func() bool {
				return get(c.all("config", `{"find": "reshardingOperations"}`)[0], "state") == "quiesced"
			}
			c.until("the next one has let writers through three times", func() bool { return unblocked.Load() >= before+6 || ended() })
			if ended() {
				t.Error("it has ended the operation")
			}
			limit(300_000)
		}
		holds.Store(false)
		c.until("the operation has ended", func() bool {
			return get(c.all("config", `{"find": "reshardingOperations"}`)[0], "state") == "quiesced"
		})
		c.drives(c.config, 3)
		if m := <-resharded; m["ok"] != 1.0 {
			t.Error(m)
		}
		if finishing && (unblocked.Load() > before || refused.Load() < 2) {
			t.Errorf("writers are let through %d times, and the section was entered %d times", unblocked.Load()-before, refused.Load())
		}
		c.expect(c.counted("c", 1), `10`)
		c.expect(c.all("db", `{"checkMetadataConsistency": 1}`), `[]`)
	}
}

// A resharding that has been decided is completed even if a shard has lost its section.
func TestReshardCommitsWithoutASection(t *testing.T) {
	var c *testCluster
	var once sync.Once
	c = newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
		if string(m.CommandName()) == "_shardsvrRenameCollectionParticipant" && shard == "shard1" {
			once.Do(func() {
				end := &msg.ParticipantBlock{NS: "db.c", Type: msg.Unblock, Command: "reshardCollection", Owner: cluster.ConfigShardID, Term: math.MaxInt64, At: math.MaxInt64}
				copy(end.ID[:], value.Lookup(m.Body, "section").Bytes())
				if _, err := cluster.Run(t.Context(), c.shards[shard], msg.Doc(end)); err != nil {
					t.Error(err)
				}
				if held := c.heldOn(shard, "db.c"); held != "" {
					t.Errorf("the section blocks %s", held)
				}
			})
		}
		return nil
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	resharded := make(chan bson.M, 1)
	go func() {
		resharded <- c.raw("admin", `{"reshardCollection": "db.c", "key": {"k": "hashed"}, "numInitialChunks": 4, "forceRedistribution": true}`)
	}()
	var m bson.M
	c.until("the operation has ended", func() bool {
		select {
		case m = <-resharded:
			return true
		default:
			return false
		}
	})
	if m["ok"] != 1.0 {
		t.Error(m)
	}
	c.expect(c.counted("c", 1), `10`)
	c.leftOver()
}

// keepsBlock makes a cluster that keeps the first message by which a DDL blocks writes on shard0.
func keepsBlock(t *testing.T) (*testCluster, *atomic.Pointer[[]byte]) {
	t.Helper()
	late := new(atomic.Pointer[[]byte])
	return newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
		if string(m.CommandName()) == "_shardsvrParticipantBlock" && shard == "shard0" && value.Lookup(m.Body, "blockType").Str() == msg.BlockWrites {
			body := bytes.Clone(m.Body)
			late.CompareAndSwap(nil, &body)
		}
		return nil
	}), late
}

// A shard's primary that was paused while it coordinated a DDL blocks writes once more, when its successor blocks reads, too, since shards are being changed.
func TestDeposedCoordinatorLetsNoReadsIn(t *testing.T) {
	c, late := keepsBlock(t)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	reached, _ := c.hangAt("shard0", "createCollection")
	sharded := make(chan bson.M, 1)
	go func() { sharded <- c.raw("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`) }()
	reached()
	c.restart("shard0")
	reached, release := c.hangAt("shard0", "commit")
	reached()
	_, err := cluster.Run(t.Context(), c.shards["shard0"], *late.Load())
	if held := c.heldOn("shard0", "db.c"); held != "reads" || mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
		t.Errorf("the section blocks %q, and the late message is answered by %v", held, err)
	}
	release()
	if m := <-sharded; m["ok"] != 1.0 {
		t.Error(m)
	}
	c.leftOver()
}

// A message by which a coordinator has blocked writes arrives once more when it blocks reads, too, since shards are being changed.
func TestLateMessageOfTheSamePrimaryLetsNoReadsIn(t *testing.T) {
	c, late := keepsBlock(t)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	reached, release := c.hangAt("shard0", "commit")
	sharded := make(chan bson.M, 1)
	go func() { sharded <- c.raw("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`) }()
	reached()
	_, err := cluster.Run(t.Context(), c.shards["shard0"], *late.Load())
	if held := c.heldOn("shard0", "db.c"); held != "reads" {
		t.Errorf("the section blocks %q, and the late message is answered by %v", held, err)
	}
	release()
	if m := <-sharded; m["ok"] != 1.0 {
		t.Error(m)
	}
	c.leftOver()
}

// A shard is frozen when a resharding is about to block writes. Those to other shards wait no longer than for one attempt; they used to wait until the shard went on.
func TestFrozenShardBlocksNoWritersOfOthers(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool
	var once sync.Once
	frozen, free := make(chan struct{}), make(chan struct{})
	c := newHookedCluster(t, 2, clusterHooks{peer: func(id string, s *shardnode.Server) cluster.Peer {
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			if id == "shard1" && string(m.CommandName()) == "_shardsvrParticipantBlock" && armed.Load() {
				once.Do(func() { close(frozen) })
				select {
				case <-free:
				case <-ctx.Done():
					return dst, ctx.Err()
				}
			}
			return s.Peer().Call(ctx, m, dst)
		})
	}})
	goOn := sync.OnceFunc(func() { close(free) })
	t.Cleanup(goOn)
	c.halved("c")
	armed.Store(true)
	resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"_id": 1}, "numInitialChunks": 1}`)
	<-frozen
	c.until("the other shard blocks writes", func() bool { return c.heldOn("shard0", "db.c") != "" })
	inserted := c.later("db", `{"insert": "c", "documents": [{"k": -2}]}`)
	c.until("the write is let through", func() bool { return len(inserted) > 0 })
	goOn()
	for _, reply := range []<-chan bson.M{inserted, resharded} {
		if m := <-reply; m["ok"] != 1.0 || m["writeErrors"] != nil {
			t.Error(m)
		}
	}
	c.expect(c.run("db", `{"count": "c"}`)["n"], `3`)
	c.leftOver()
}
