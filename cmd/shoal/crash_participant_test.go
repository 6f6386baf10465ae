package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// killedProcess is one of a cluster's processes, alone, that is killed while a DDL is at a phase.
type killedProcess int

const (
	killsOtherShard killedProcess = iota
	killsConfig
	killsRouter
	killsCoordinator
	killsNewShard   // of TestKilledAlone alone
	stepsConfigDown // likewise: the process lives on
	lastKilled      = stepsConfigDown
)

func (k killedProcess) String() string {
	return [...]string{"the other shard", "the config server", "the router", "the coordinator's shard", "the new shard", "the config server (a step-down)"}[k]
}

// A process that takes part in a DDL is killed alone at a phase, while clients write: another shard, the config server, the router, or the
// coordinator's shard. The DDL ends when it is back, done or undone; the catalog agrees with the shards, and no write is lost. Each phase
// has one of them in turn here, and all of them in TestKilledParticipantNemesis.
func TestKilledParticipant(t *testing.T) {
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{1, 1}, net: newNetwork(t)})
	defer c.insertBeside()()
	turn := 0
	for _, k := range killedOperations {
		for _, phase := range k.phases[:len(k.phases)-1] { // not "done"
			if turn++; turn%4 == 1 {
				k.killedBeside(c, killedProcess(turn/4%4), phase)
			}
		}
	}
}

func TestKilledParticipantNemesis(t *testing.T) {
	if nemesisTime(0) == 0 {
		t.Skip("make nemesis runs it")
	}
	c := launchCluster(t, clusterOptions{shards: []int{1, 1}, net: newNetwork(t)})
	defer c.insertBeside()()
	for _, k := range killedOperations {
		for _, phase := range k.phases[:len(k.phases)-1] {
			for victim := killsOtherShard; victim <= killsCoordinator; victim++ {
				k.killedBeside(c, victim, phase)
			}
		}
	}
}

// process returns the functions that kill a process, and start it again.
func (c *shardedCluster) process(k killedProcess) (kill, restart func()) {
	rs := map[killedProcess]*replicaSet{killsOtherShard: c.shards[0], killsConfig: c.config, killsCoordinator: c.shards[1]}[k]
	if rs == nil {
		return c.routers[0].kill, c.routers[0].start
	}
	return func() { rs.kill(0) }, func() {
		rs.start(0)
		rs.waitReady()
	}
}

// killedBeside runs the operation; at a phase of its coordinator, the second shard, a process is killed.
func (k *killedDDL) killedBeside(c *shardedCluster, victim killedProcess, phase string) {
	t := c.t
	t.Helper()
	t.Logf("%s: %s is killed at %s", k.name, victim, phase)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	coordinator, db := c.shards[1].members[0], c.client.Database("crash")
	k.prepareFor(ctx, c)
	point := func(mode string) error {
		return coordinator.admin(ctx, bson.D{{Key: "configureFailPoint", Value: "hangBeforeRunningShardingDDLPhase"}, {Key: "mode", Value: mode},
			{Key: "data", Value: bson.D{{Key: "operationType", Value: k.name}, {Key: "phase", Value: phase}}}})
	}
	if err := point("alwaysOn"); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- c.client.Database(k.db).RunCommand(ctx, k.command).Err() }()
	for at := ""; at != phase; {
		var r struct {
			Inprog []struct{ CurrentPhase string }
		}
		err := coordinator.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "currentOp", Value: 1}, {Key: "desc", Value: "ShardingDDLCoordinator"}}).Decode(&r)
		if err != nil {
			t.Fatalf("%s: %v", phase, err)
		}
		if len(r.Inprog) > 0 {
			at = r.Inprog[0].CurrentPhase
		}
		select {
		case err := <-sent:
			t.Fatalf("%s ended before %s: %v", k.name, phase, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	kill, restart := c.process(victim)
	kill()
	if victim != killsCoordinator {
		if err := point("off"); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(100 * time.Millisecond) // others may find it gone
	restart()
	back := time.Now()
	select {
	case err := <-sent:
		if err != nil {
			t.Logf("the client is answered %v", err) // it was undone, or its outcome is not known
		}
	case <-time.After(endsWithin):
		t.Fatalf("%s, with %s killed at %s, does not end", k.name, victim, phase)
	}
	shards := []*mongo.Client{c.shards[0].members[0].direct, coordinator.direct}
	for _, s := range shards {
		for _, coll := range []string{"system.sharding_ddl_coordinators", "collection_critical_sections"} {
			awaitNone(t, ctx, coll+" after "+phase, s.Database("config").Collection(coll))
		}
	}
	if took := time.Since(back); took > endsWithin {
		t.Errorf("%s, with %s killed at %s, took %v", k.name, victim, phase, took)
	}
	c.checkCatalog("crash")
	// Done or undone: the same command, again, leaves what the operation is to leave.
	if err := c.client.Database(k.db).RunCommand(ctx, k.command).Err(); err != nil {
		var refused mongo.CommandError
		if !errors.As(err, &refused) || k.again == 0 || refused.Code != k.again {
			t.Errorf("%s, with %s killed at %s, again: %v", k.name, victim, phase, err)
		}
	}
	k.check(t, ctx, db, shards)
	if t.Failed() {
		t.FailNow()
	}
}

// prepareFor makes what the operation is done to.
func (k *killedDDL) prepareFor(ctx context.Context, c *shardedCluster) {
	c.t.Helper()
	db := c.client.Database("crash")
	for _, name := range []string{"c", "d", "plain"} {
		if err := db.Collection(name).Drop(ctx); err != nil {
			c.t.Fatalf("drop of %s: %v", name, err)
		}
	}
	c.admin(bson.D{{Key: "enableSharding", Value: "crash"}, {Key: "primaryShard", Value: c.shards[1].name}})
	c.admin(bson.D{{Key: "shardCollection", Value: "crash.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}})
	all := make([]any, 100)
	for i := range all {
		all[i] = bson.D{{Key: "_id", Value: i}}
	}
	for _, name := range []string{"c", "plain"} {
		if _, err := db.Collection(name).InsertMany(ctx, all); err != nil {
			c.t.Fatal(err)
		}
	}
	if k.prepare != nil {
		if err := db.RunCommand(ctx, k.prepare).Err(); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, cmd := range k.admin {
		c.admin(cmd)
	}
}

// insertBeside inserts documents on both shards until stop, which checks that those that were acknowledged are there.
func (c *shardedCluster) insertBeside() (stop func()) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	acked := make([][]int, len(c.shards))
	of := func(i int) *mongo.Collection { return c.client.Database("beside" + c.shards[i].name).Collection("w") }
	for i, rs := range c.shards {
		c.admin(bson.D{{Key: "enableSharding", Value: "beside" + rs.name}, {Key: "primaryShard", Value: rs.name}})
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				one, end := context.WithTimeout(ctx, 5*time.Second)
				if _, err := of(i).InsertOne(one, bson.D{{Key: "_id", Value: n}}); err == nil {
					acked[i] = append(acked[i], n)
				}
				end()
				pause(5 * time.Millisecond)
			}
		})
	}
	return func() {
		c.t.Helper()
		cancel()
		wg.Wait()
		for i := range c.shards {
			n, err := of(i).CountDocuments(context.Background(), bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: acked[i]}}}})
			if err != nil || int(n) != len(acked[i]) || n == 0 {
				c.t.Errorf("of %d documents that were inserted, %d are there, %v", len(acked[i]), n, err)
			}
		}
	}
}
