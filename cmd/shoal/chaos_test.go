package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/internal/await"
)

// startChaos starts a cluster of two shards as `shoal start` would, changed by set.
func startChaos(t *testing.T, set func(*config)) (*roles, *mongo.Client) {
	t.Helper()
	dir := t.TempDir()
	h := startHere(t, func(c *config) {
		c.DBPath, c.Memory, c.Parameters = dir, false, []pair{{"enableTestCommands", "1"}}
		set(c)
	})
	return h.roles, connect(t, "mongodb://"+h.Addrs[0].String()+"/")
}

// An application that retries as drivers do loses nothing and doubles nothing under faults of all kinds, and the log of the steps
// can be replayed.
func TestChaosHarmsNoRetryableWrite(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	log := filepath.Join(dir, "steps.log")
	_, client := startChaos(t, func(c *config) { c.Chaos.Log = log })
	admin := client.Database("admin")
	run := func(cmd bson.D) (out bson.M) {
		t.Helper()
		if err := admin.RunCommand(ctx, cmd).Decode(&out); err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
		return out
	}
	run(bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	run(bson.D{{Key: "shoalChaos", Value: "start"}, {Key: "seed", Value: 3}, {Key: "paceMS", Value: 40}})
	if err := admin.RunCommand(ctx, bson.D{{Key: "shoalChaos", Value: "start"}}).Err(); err == nil {
		t.Error("a second run began beside the first")
	}
	coll := client.Database("shop").Collection("orders")
	n := int32(0)
	for moved := false; !moved || n < 50; n++ {
		if err := again(ctx, func() error {
			_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: n}, {Key: "v", Value: int32(0)}})
			if mongo.IsDuplicateKeyError(err) {
				return nil // of an attempt whose answer was lost twice: a driver tries a second time and no more
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if n%20 == 0 {
			for _, s := range run(bson.D{{Key: "shoalChaos", Value: "status"}})["last"].(bson.A) {
				d := asMap(s)
				moved = moved || d["kind"] == "move" && d["error"] == nil
			}
		}
	}
	status := run(bson.D{{Key: "shoalChaos", Value: "stop"}})
	if status["running"] != false || status["seed"] != int64(3) || status["steps"].(int64) == 0 {
		t.Errorf("%v", status)
	}
	t.Logf("%v steps, %v of them failed, %v found nothing to do; %d documents", status["steps"], status["failed"], status["nothingToDo"], n)
	if got, err := coll.CountDocuments(ctx, bson.D{}); err != nil || got != int64(n) {
		t.Errorf("%d documents, want %d (%v)", got, n, err)
	}

	steps, err := readChaosLog(log)
	if err != nil || int64(len(steps)) != status["steps"].(int64) {
		t.Fatalf("%d steps in the log, %v: %v", len(steps), status["steps"], err)
	}
	// Once more, in a cluster of its own: the first steps, at their times.
	few := strings.SplitAfter(strings.TrimSpace(readFile(t, log)), "\n")
	few = few[:min(len(few), 20)]
	few[len(few)-1] = strings.TrimSpace(few[len(few)-1]) + "\n"
	again := filepath.Join(dir, "again.log")
	if err := os.WriteFile(again, []byte(strings.Join(few, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	_, client2 := startChaos(t, func(c *config) { c.Chaos.Replay = again })
	await.State(t, "the steps are replayed", func() (bson.M, bool) {
		var out bson.M
		if err := client2.Database("admin").RunCommand(ctx, bson.D{{Key: "shoalChaos", Value: "status"}}).Decode(&out); err != nil {
			t.Fatal(err)
		}
		if out["running"] == false {
			if out["steps"] != int64(len(few)) || out["seed"] != nil {
				t.Errorf("%v", out)
			}
		}
		return out, out["running"] == false
	})
}

// again does something until it succeeds, as an application does whose driver has given up.
func again(ctx context.Context, f func() error) (err error) {
	for ctx.Err() == nil {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

func asMap(d any) bson.M {
	m := bson.M{}
	for _, e := range d.(bson.D) {
		m[e.Key] = e.Value
	}
	return m
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A seed makes the same choices each time: without other clients, two clusters get the same steps.
func TestChaosOfOneSeed(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	run := func() (out []string) {
		_, client := startChaos(t, func(*config) {})
		admin := client.Database("admin")
		for _, cmd := range []bson.D{
			{{Key: "shardCollection", Value: "d.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}},
			{{Key: "shoalChaos", Value: "start"}, {Key: "profile", Value: "ranges"}, {Key: "seed", Value: 11}, {Key: "paceMS", Value: 5}},
		} {
			if err := admin.RunCommand(ctx, cmd).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for len(out) < 10 {
			out = nil
			var status bson.M
			if err := admin.RunCommand(ctx, bson.D{{Key: "shoalChaos", Value: "status"}}).Decode(&status); err != nil {
				t.Fatal(err)
			}
			for _, s := range status["last"].(bson.A) {
				d := asMap(s)
				out = append(out, fmt.Sprint(d["kind"], asMap(d["do"])["min"], asMap(d["do"])["bounds"], asMap(d["do"])["toShard"]))
			}
		}
		return out[:10]
	}
	if a, b := run(), run(); strings.Join(a, "\n") != strings.Join(b, "\n") {
		t.Errorf("%s\n\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
}

// Chaos is for tests: it refuses to begin where test commands are off, where there is nothing to route, and by options that do not
// go together.
func TestChaosIsRefused(t *testing.T) {
	for want, set := range map[string]func(*config){
		"enableTestCommands":           func(c *config) { c.Chaos.Profile, c.Parameters = "all", nil },
		"for tests":                    func(c *config) { c.Chaos.Log, c.Parameters = "x", nil },
		"--topology replset":           func(c *config) { c.Chaos.Profile, c.Topology = "all", "replset" },
		"ranges, placement, elections": func(c *config) { c.Chaos.Profile = "earthquakes" },
		"one of them":                  func(c *config) { c.Chaos.Profile, c.Chaos.Replay = "all", "x" },
		"belongs to":                   func(c *config) { c.Chaos.Seed = 4 },
		"no such file":                 func(c *config) { c.Chaos.Replay = "/nowhere/steps.log" },
	} {
		c := newConfig(isStart)
		c.Listen, c.Memory = []string{"127.0.0.1:0"}, true
		c.Parameters = []pair{{"enableTestCommands", "1"}}
		set(c)
		r, err := startCluster(c, newHost(isStart))
		if err == nil {
			_ = r.Stop(context.Background())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	_, client := startChaos(t, func(c *config) { c.Parameters = nil })
	if err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "shoalChaos", Value: "status"}}).Err(); err == nil || !strings.Contains(err.Error(), "no such command") {
		t.Errorf("without test commands: %v", err)
	}
}
