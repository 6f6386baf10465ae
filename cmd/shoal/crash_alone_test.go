package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A process is killed alone, or the config server steps down, while what the config server conducts is at one of its steps, beside clients' writes: a shard is
// added or removed, the config server becomes a shard or ceases to be one, a setting of all nodes changes, a collection is resharded, moved or unsharded.
// Done or undone, all nodes agree within 30 s, and the same command again does the rest. Here each of some steps is tried with one of the processes, in
// TestKilledAloneNemesis each step with all of them.
func TestKilledAlone(t *testing.T) {
	t.Parallel()
	k := newKilledAlone(t, clusterOptions{shards: []int{1, 1}, routers: 2})
	defer k.c.insertBeside()()
	turn := 0
	for _, row := range k.rows {
		victims := k.victims(&row)
		for _, h := range row.steps {
			if turn++; turn%5 == 1 {
				k.killedAt(&row, h, victims[turn/5%len(victims)])
			}
		}
	}
}

func TestKilledAloneNemesis(t *testing.T) {
	if nemesisTime(0) == 0 {
		t.Skip("make nemesis runs it")
	}
	k := newKilledAlone(t, clusterOptions{shards: []int{1, 1}, routers: 2})
	defer k.c.insertBeside()()
	for _, row := range k.rows {
		for _, h := range row.steps {
			for _, victim := range k.victims(&row) {
				k.killedAt(&row, h, victim)
			}
		}
	}
}

// killedAlone is a cluster of two shards, which a third joins and leaves.
type killedAlone struct {
	c     *shardedCluster
	third *replicaSet
	rows  []lostRouterDDL
}

func newKilledAlone(t *testing.T, o clusterOptions) *killedAlone {
	t.Helper()
	k := &killedAlone{c: launchCluster(t, o)}
	k.third = launchSet(t, setOptions{name: shardName(2), role: "--shardsvr", members: 1, args: []string{"--setParameter", cursorsEnd}, as: o.as})
	k.rows = lostRouterRows(k.third)
	return k
}

// victims are the processes that take part in a command.
func (k *killedAlone) victims(row *lostRouterDDL) []killedProcess {
	switch all := []killedProcess{killsConfig, stepsConfigDown, killsRouter}; row.command[0].Key {
	case "addShard", "removeShard":
		return append(all, killsNewShard)
	case "transitionFromDedicatedConfigServer", "transitionToDedicatedConfigServer":
		return all
	default:
		return append(all, killsOtherShard, killsCoordinator)
	}
}

// process returns the functions that stop a process's work, and begin it again.
func (k *killedAlone) process(victim killedProcess) (kill, restart func()) {
	switch victim {
	case killsNewShard:
		return func() { k.third.kill(0) }, func() {
			k.third.start(0)
			k.third.waitReady()
		}
	case stepsConfigDown:
		return func() {
			if err := k.c.config.members[0].admin(context.Background(), pairs("replSetStepDown", 1, "secondaryCatchUpPeriodSecs", 0, "force", true)); err != nil {
				k.c.t.Errorf("the config server does not step down: %v", err)
			}
		}, k.c.config.waitReady
	}
	return k.c.process(victim)
}

// killedAt sends a command through the first router, and kills a process while the command is held.
func (k *killedAlone) killedAt(row *lostRouterDDL, h holding, victim killedProcess) {
	c, t := k.c, k.c.t
	t.Helper()
	what := fmt.Sprintf("%s, with %s killed at %v", row.name, victim, h.data)
	t.Log(what)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	k.prepareFor(ctx, row)
	release, reached := h.set(t, ctx, c)
	sent := make(chan error, 1)
	go func() { sent <- c.routers[0].direct.Database(row.db).RunCommand(ctx, row.command).Err() }()
	if err := reached(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	holder := map[killedProcess]*replicaSet{killsConfig: c.config, killsOtherShard: c.shards[0], killsCoordinator: c.shards[1], killsNewShard: k.third}[victim]
	kill, restart := k.process(victim)
	kill()
	if holder == nil || holder.members[0] != h.node(c) {
		release()
	}
	restart()
	within, done := context.WithTimeout(ctx, endsWithin)
	defer done()
	select {
	case err := <-sent:
		t.Logf("the client is answered %v", err)
	case <-within.Done():
		t.Fatalf("%s, it does not end", what)
	}
	row.awaitEnd(within, c)
	if row.undone != nil { // without it, one entry in config.shards decides
		await.State(t, what+": all nodes agree", func() (string, bool) {
			done, undone := row.check(within, c), row.undone(within, c)
			return fmt.Sprint(done, "; ", undone), done == nil || undone == nil || within.Err() != nil
		})
	}
	err := c.survivor().Database(row.db).RunCommand(within, row.command).Err()
	var refused mongo.CommandError
	if err != nil && (row.again == 0 || !errors.As(err, &refused) || refused.Code != int32(row.again)) {
		t.Errorf("%s, again: %v", what, err)
	}
	if err := row.check(within, c); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	c.checkCatalog("crash")
	if t.Failed() {
		t.FailNow()
	}
}

// prepareFor undoes what the commands do, and makes the collections anew, on the first two shards.
func (k *killedAlone) prepareFor(ctx context.Context, row *lostRouterDDL) {
	c := k.c
	c.t.Helper()
	run := func(cmd bson.D) error { return c.survivor().Database("admin").RunCommand(ctx, cmd).Err() }
	if err := run(pairs("setUserWriteBlockMode", 1, "global", false)); err != nil {
		c.t.Fatal(err)
	}
	for _, remove := range []bson.D{pairs("removeShard", k.third.name), pairs("transitionToDedicatedConfigServer", 1)} {
		await.State(c.t, fmt.Sprint(remove, " is done"), func() (string, bool) {
			err := run(remove)
			return fmt.Sprint(err), codeOf(err) == int32(mongoerr.ShardNotFound)
		})
	}
	row.makeAnew(ctx, c)
	for _, cmd := range row.before {
		if err := run(cmd); err != nil {
			c.t.Fatalf("%v: %v", cmd, err)
		}
	}
}
