package router_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// held makes the n-th call of a command to a shard wait, before or after its execution, until release is called; reached waits for the call.
func (w *interposedPeer) held(c *testCluster, command string, n int, after bool) (reached, release func()) {
	came, free := make(chan struct{}), make(chan struct{})
	var count atomic.Int64
	w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name != command || count.Add(1) != int64(n) {
			return call()
		}
		if !after {
			close(came)
			<-free
			return call()
		}
		reply, err := call()
		close(came)
		<-free
		return reply, err
	})
	reached = func() {
		c.t.Helper()
		c.until(command+" has come", func() bool {
			select {
			case <-came:
				return true
			default:
				return false
			}
		})
	}
	return reached, func() { close(free) }
}

// A migration that has read the definition of a collection creates it on its recipient after the collection was dropped or renamed, which would bring it back
// under its old name. The creation is refused.
func TestLateCreationForAMigration(t *testing.T) {
	for _, by := range []struct{ db, cmd, now string }{{"db", `{"drop": "c"}`, ""}, {"admin", `{"renameCollection": "db.c", "to": "db.d"}`, "d"}, {"db", `{"dropDatabase": 1}`, ""}} {
		for _, late := range []struct {
			shard, command string
			n              int
			after          bool
		}{{"shard2", "_shardsvrCreateCollectionParticipant", 1, false}, {"shard1", "listIndexes", 2, true}} {
			c := newTestCluster(t, 3)
			w := c.interposed(late.shard)
			c.configThrough(func(_ string, to cluster.Peer) cluster.Peer { return to }) // its connections are those of before
			c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
			c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
			c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1", "_waitForDelete": true}`)
			c.insertKeys("c", 1, 10)
			reached, release := w.held(c, late.command, late.n, late.after)
			other, moved := c.through(), make(chan bson.M, 1)
			go func() { moved <- other.raw("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard2"}`) }()
			reached()
			c.run(by.db, by.cmd)
			release()
			if m := <-moved; m["ok"] == 1.0 {
				t.Errorf("%s, %s: the chunk is moved: %v", by.cmd, late.command, m)
			}
			c.leftOver()
			for _, ns := range []string{"db.c", "db.d"} {
				if l := c.server["shard2"].Node.Engine.Catalog().Lookup(ns); l != nil && ns != "db."+by.now {
					t.Errorf("%s, %s: %s is on the recipient", by.cmd, late.command, ns)
				}
			}
			c.run("admin", `{"enableSharding": "db"}`)
			c.expect(c.all("db", `{"checkMetadataConsistency": 1}`), `[]`)
			if by.now != "" {
				c.run("admin", `{"moveChunk": "db.d", "find": {"k": 0}, "to": "shard2", "_waitForDelete": true}`)
				c.expect(c.counted("d", 1), `10`)
			}
		}
	}
}

// The same if the recipient is the primary shard of the database, and has another collection of that name by then: it used to be dropped with its documents.
func TestLateCreationSparesASuccessor(t *testing.T) {
	c := newTestCluster(t, 2)
	w := c.interposed("shard0")
	c.configThrough(func(_ string, to cluster.Peer) cluster.Peer { return to })
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1", "_waitForDelete": true}`)
	reached, release := w.held(c, "_shardsvrCreateCollectionParticipant", 1, false)
	other, moved := c.through(), make(chan bson.M, 1)
	go func() { moved <- other.raw("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard0"}`) }()
	reached()
	c.run("db", `{"drop": "c"}`)
	c.insertKeys("c", 2, 10)
	release()
	if m := <-moved; m["ok"] == 1.0 {
		t.Errorf("it is moved: %v", m)
	}
	c.expect(c.counted("c", 2), `10`)
}

// A primary that was paused while it coordinated a DDL continues after another one has finished the operation, and before it learns of that: the config server no longer
// does what it requests, although the collection has its old UUID and may have its old name.
func TestLateMessagesOfCoordinators(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	var uuid [16]byte
	copy(uuid[:], get(c.all("config", `{"find": "collections"}`)[0], "uuid").(bson.Binary).Data)
	ended := &msg.RunOf{Coordinator: "shard0", ID: cluster.NewUUID()}
	for _, m := range []msg.Message{
		&msg.RenameMetadata{NS: "db.c", To: "db.d", UUID: uuid, Sharded: true, Run: ended},
		&msg.RemoveCollection{NS: "db.c", UUID: uuid, Untrack: true, Run: ended},
		&msg.RemoveCollection{NS: "db.c", UUID: uuid, Untrack: true, Run: ended, Undo: true},
		&msg.CommitMovePrimary{DB: "db", To: "shard1", Version: bsonDoc(t, get(c.all("config", `{"find": "databases"}`)[0], "version").(bson.D)), Run: ended},
		&msg.SetAllowMigrations{NS: "db.c", UUID: uuid, Allow: false, Run: *ended},
		&msg.ConfigReshard{NS: "db.c", ID: ended.ID, Reshard: msg.Reshard{Provenance: msg.ReshardCollection, Key: []byte(bsonDoc(t, bson.D{{Key: "from", Value: 1}}))}},
	} {
		if _, err := cluster.Run(t.Context(), c.confP, msg.Doc(m)); mongoerr.CodeOf(err) != mongoerr.StaleEpoch {
			t.Errorf("%T: %v", m, err)
		}
	}
	c.expect(c.counted("c", 1), `10`)
	c.expect(get(c.all("config", `{"find": "collections"}`)[0], "key"), `{"k":"hashed"}`)
	c.expect(c.all("db", `{"checkMetadataConsistency": 1}`), `[]`)

	// A late message does not allow migrations that another operation has forbidden.
	if _, err := cluster.Run(t.Context(), c.confP, bsonDoc(t, bson.D{
		{Key: "update", Value: "collections"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "permitMigrations", Value: false}}}}}}}}, {Key: "$db", Value: "config"},
	})); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Run(t.Context(), c.confP, msg.Doc(&msg.SetAllowMigrations{NS: "db.c", UUID: uuid, Allow: true, Run: *ended})); err != nil {
		t.Error(err)
	}
	c.expect(get(c.all("config", `{"find": "collections"}`)[0], "permitMigrations"), `false`)
}

// bsonDoc encodes a document.
func bsonDoc(t *testing.T, d bson.D) []byte {
	t.Helper()
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// latePeer delays the first call of a command to a shard, on which its caller gives up, until release.
type latePeer struct {
	cluster.Peer
	command string
	once    sync.Once
	came    chan struct{}
	free    chan struct{}
	done    chan error
}

// late lets a test delay the first call of a command to a shard.
func (c *testCluster) late(shard, command string) *latePeer {
	w := &latePeer{command: command, came: make(chan struct{}), free: make(chan struct{}), done: make(chan error, 1)}
	c.between(shard, func(to cluster.Peer) cluster.Peer {
		w.Peer = to
		return w
	})
	return w
}

func (w *latePeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	first := false
	if string(m.CommandName()) == w.command {
		w.once.Do(func() { first = true })
	}
	if !first {
		return w.Peer.Call(ctx, m, dst)
	}
	later := &wire.Message{Body: bytes.Clone(m.Body)}
	go func() {
		<-w.free
		_, err := cluster.Run(context.WithoutCancel(ctx), w.Peer, later.Body)
		w.done <- err
	}()
	close(w.came)
	<-ctx.Done()
	return nil, ctx.Err()
}

// release lets the call arrive, and returns its outcome.
func (w *latePeer) release() error {
	close(w.free)
	return <-w.done
}

// The command of a paused coordinator arrives at another shard after another primary has finished the run, and another operation has followed: it does nothing.
func TestLateCommandsOfCoordinators(t *testing.T) {
	t.Parallel()
	const create, drop = `{"createIndexes": "c", "indexes": [{"key": {"from": 1}, "name": "from"}]}`, `{"dropIndexes": "c", "index": "from"}`
	for _, x := range []struct {
		name, before, cmd, since string
		index                    int // on how many shards it is in the end
	}{
		{"collMod", create, `{"collMod": "c", "validator": {"old": {"$exists": false}}}`, `{"collMod": "c", "validator": {"new": {"$exists": false}}}`, 2},
		{"dropIndexes", create, drop, create, 2},
		{"createIndexes", `{"count": "c"}`, create, drop, 0},
	} {
		c := newTestCluster(t, 2)
		w := c.late("shard0", x.name)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
		c.shardedAs("c", 1, 10)
		c.run("db", x.before)
		answer := make(chan bson.M, 1)
		go func() { answer <- c.raw("db", x.cmd) }()
		c.until(x.name+" has come", func() bool { return closed(w.came) })
		c.restart("shard1") // its new primary sends the command again
		if m := <-answer; m["ok"] != 1.0 {
			t.Errorf("%s: %v", x.name, m)
		}
		c.run("db", x.since)
		if err := w.release(); mongoerr.CodeOf(err) != mongoerr.StaleEpoch {
			t.Errorf("%s that arrives late: %v", x.name, err)
		}
		if on := c.hasIndex("db.c", "from"); len(on) != x.index {
			t.Errorf("%s: the index is on %v", x.name, on)
		}
		if has := show(bson.Raw(c.server["shard0"].Node.Engine.Catalog().Lookup("db.c").Options)); strings.Contains(has, "old") {
			t.Errorf("%s: the options are %s", x.name, has)
		}
		c.expect(c.all("db", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A message of a primary that was deposed, which forbids migrations of a collection for the time of a refineCollectionShardKey, arrives when its successor has done that, gone on,
// and allowed them again: the run goes on, but is past that phase. Nothing would allow migrations later.
func TestLateProhibitionOfMigrations(t *testing.T) {
	late := &latePeer{command: "_configsvrSetAllowMigrations", came: make(chan struct{}), free: make(chan struct{}), done: make(chan error, 1)}
	var armed atomic.Bool
	c := newHookedCluster(t, 2, clusterHooks{out: func(from string) func(cluster.Peer) cluster.Peer {
		return func(to cluster.Peer) cluster.Peer {
			return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
				if from == "shard0" && string(m.CommandName()) == late.command && armed.CompareAndSwap(true, false) {
					late.Peer = to
					return late.Call(ctx, m, dst)
				}
				return to.Call(ctx, m, dst)
			})
		}
	}})
	c.fill(20)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "g": 1}, "name": "kg"}]}`)
	armed.Store(true)
	refined := c.later("admin", `{"refineCollectionShardKey": "db.c", "key": {"k": 1, "g": 1}}`)
	c.until("the first primary forbids migrations", func() bool { return closed(late.came) })
	_, goOn := c.hangAt("shard0", "done")
	c.restart("shard0")
	c.until("its successor has allowed them again", func() bool {
		ops := c.admin(c.shards["shard0"], bson.D{{Key: "currentOp", Value: 1}, {Key: "currentPhase", Value: "resumeMigrations"}, {Key: "$db", Value: "admin"}})
		return len(ops["inprog"].(bson.A)) > 0 && !c.frozen()
	})
	if err := late.release(); mongoerr.CodeOf(err) != mongoerr.StaleEpoch {
		t.Error(err)
	}
	if c.frozen() {
		t.Error("migrations are forbidden")
	}
	goOn()
	if m := <-refined; m["ok"] != 1.0 {
		t.Errorf("refineCollectionShardKey: %v", m)
	}
	if c.frozen() {
		t.Error("migrations are forbidden in the end")
	}
}
