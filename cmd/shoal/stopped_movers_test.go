package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/internal/await"
)

// A process that takes part in a migration is frozen (SIGSTOP) at one of its steps, and continues later: its connections stay open, nothing is refused, and what it was about
// to send arrives late. In sets of three another member takes over meanwhile, and clients write to the range again before the frozen one is back. The migration ends,
// done or undone; each document that was acknowledged is there once, and no document of the protocol remains.
func TestStoppedMover(t *testing.T) {
	t.Parallel()
	m := newStoppedMove(t, 1)
	for step := 1; step <= 7; step++ {
		m.stoppedAt(step, killedProcess(step%4))
	}
}

func TestStoppedMoverNemesis(t *testing.T) {
	if nemesisTime(0) == 0 {
		t.Skip("make nemesis runs it")
	}
	for _, members := range []int{1, 3} {
		m := newStoppedMove(t, members)
		for step := 1; step <= 7; step++ {
			for victim := killsOtherShard; victim <= killsCoordinator; victim++ {
				m.stoppedAt(step, victim)
			}
		}
	}
}

// stoppedMove is a cluster of two shards, whose second one is the donor of documents from 0 on.
type stoppedMove struct {
	c       *shardedCluster
	coll    *mongo.Collection
	members int
	acked   map[int]bool // the documents whose insertion was acknowledged
	tried   int          // the number of the next one
}

func newStoppedMove(t *testing.T, members int) *stoppedMove {
	t.Helper()
	m := &stoppedMove{c: launchCluster(t, clusterOptions{configs: members, shards: []int{members, members}}), members: members, acked: make(map[int]bool)}
	m.coll = m.c.halved("stopped", "moved", m.c.shards[1])
	for range 100 {
		if err := m.insert(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// write inserts a document into the range that is moved, unless that takes long.
func (m *stoppedMove) write(ctx context.Context) error { return m.insert(ctx, 2*time.Second) }

func (m *stoppedMove) insert(ctx context.Context, limit time.Duration) error {
	id := m.tried
	m.tried++
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := m.coll.InsertOne(bounded, bson.D{{Key: "_id", Value: id}, {Key: "n", Value: 0}})
	if err == nil {
		m.acked[id] = true
	}
	return err
}

// set returns the set that a victim is a member of; nil for the router.
func (m *stoppedMove) set(victim killedProcess) *replicaSet {
	return map[killedProcess]*replicaSet{killsOtherShard: m.c.shards[0], killsConfig: m.c.config, killsCoordinator: m.c.shards[1]}[victim]
}

// stop freezes a victim, the primary of its set, until resume is called. It returns once clients have noticed: with another primary, or with a write to the frozen one.
func (m *stoppedMove) stop(ctx context.Context, victim killedProcess) (frozen *server) {
	rs := m.set(victim)
	if rs == nil {
		frozen = m.c.routers[0]
		frozen.pause()
		_ = m.write(ctx)
		return frozen
	}
	old := rs.elected()
	frozen = rs.members[old]
	frozen.pause()
	if m.members > 1 {
		rs.awaitPrimaryBut(old)
	} else {
		_ = m.write(ctx)
	}
	return frozen
}

// stoppedAt begins a migration from the second shard, at one of whose steps a process is frozen.
func (m *stoppedMove) stoppedAt(step int, victim killedProcess) {
	c, t := m.c, m.c.t
	t.Helper()
	t.Logf("%s is frozen at step %d, in sets of %d", moverNames[victim], step, m.members)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	move := func(to *replicaSet) error {
		return c.moveUpper(ctx, m.coll, to, bson.E{Key: "_waitForDelete", Value: true})
	}
	await.State(t, "the range is on the donor", func() (string, bool) {
		err := move(c.shards[1])
		return fmt.Sprint(err), err == nil
	})
	held := holdMove(ctx, t, c.shards[1].awaitPrimary(), step, func() error { return move(c.shards[0]) })
	frozen := m.stop(ctx, victim)
	defer frozen.resume()
	if victim != killsCoordinator {
		held.release(ctx)
	}
	if m.members > 1 && victim != killsRouter {
		await.State(t, "a write while it is frozen", func() (string, bool) {
			err := m.write(ctx)
			return fmt.Sprint(err), err == nil
		})
	}
	frozen.resume()
	if victim == killsCoordinator {
		held.release(ctx)
	}
	held.answered(90 * time.Second)
	m.check(ctx, step)
}

// check compares the documents with those that were acknowledged.
func (m *stoppedMove) check(ctx context.Context, step int) {
	c, t := m.c, m.c.t
	t.Helper()
	await.State(t, "a write afterwards", func() (string, bool) {
		err := m.write(ctx)
		return fmt.Sprint(err), err == nil
	})
	c.awaitNoMigration(ctx, step)
	var docs []struct {
		ID int `bson:"_id"`
	}
	cur, err := m.coll.Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[int]bool)
	for _, d := range docs {
		if seen[d.ID] {
			t.Errorf("%d is there twice", d.ID)
		}
		seen[d.ID] = true
	}
	for id := range m.acked {
		if !seen[id] {
			t.Errorf("%d was acknowledged and is lost", id)
		}
	}
	done, err := m.coll.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	if err != nil || int(done.ModifiedCount) < len(seen) { // more if one that was given up arrives only now
		t.Errorf("%+v are updated of %d: %v", done, len(seen), err)
	}
	c.checkCatalog("stopped", "moved")
	if t.Failed() {
		t.FailNow()
	}
}
