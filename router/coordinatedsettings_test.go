package router_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// coordinatedSetting is a command for the whole cluster, and one of the same kind that does something else.
type coordinatedSetting struct {
	name, command, other string
	steps                []string
	has                  func(c *testCluster, p cluster.Peer) string // what a node has stored
	want                 string                                      // in that after the command
}

func coordinatedSettings() []coordinatedSetting {
	stored := func(db, coll, id string) func(*testCluster, cluster.Peer) string {
		return func(c *testCluster, p cluster.Peer) string {
			m := c.admin(p, bson.D{{Key: "find", Value: coll}, {Key: "filter", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "$db", Value: db}})
			return show(get(m["cursor"], "firstBatch"))
		}
	}
	steps := []string{"storeOnConfigServer", "storeOnShards"}
	return []coordinatedSetting{
		{
			"setUserWriteBlockMode", `{"setUserWriteBlockMode": 1, "global": true}`, `{"setUserWriteBlockMode": 1, "global": false}`, append([]string{"prepareOnConfigServer", "prepareOnShards"}, steps...),
			stored("config", "user_writes_critical_sections", ""), `"blockUserWrites":true`,
		},
		{
			"setClusterParameter", `{"setClusterParameter": {"defaultMaxTimeMS": {"readOperations": 60000}}}`, `{"setClusterParameter": {"defaultMaxTimeMS": {"readOperations": 70000}}}`, steps,
			stored("config", "clusterParameters", "defaultMaxTimeMS"), `60000`,
		},
		{
			"setFeatureCompatibilityVersion", `{"setFeatureCompatibilityVersion": "8.0", "confirm": true}`, `{"setFeatureCompatibilityVersion": "8.2", "confirm": true}`, steps,
			stored("admin", "system.version", "featureCompatibilityVersion"), `8.0`,
		},
	}
}

// coordinators lists the state documents of the config server.
func (c *testCluster) coordinators() string {
	m := c.admin(c.confP, bson.D{{Key: "find", Value: "sharding_configsvr_coordinators"}, {Key: "$db", Value: "config"}})
	return show(get(m["cursor"], "firstBatch"))
}

// settled waits until no operation is under way, and checks that all nodes have the setting.
func (c *testCluster) settled(s *coordinatedSetting, when string) {
	c.t.Helper()
	await.State(c.t, when+": no state document is left", func() (string, bool) { return c.coordinators(), c.coordinators() == "[]" })
	on := s.has(c, c.confP)
	if !strings.Contains(on, s.want) {
		c.t.Errorf("%s: the config server has %s, not %s", when, on, s.want)
	}
	for id, p := range c.shards {
		if has := s.has(c, p); has != on {
			c.t.Errorf("%s: %s has %s, the config server %s", when, id, has, on)
		}
	}
}

// The config server loses its primary at each step of a command for the whole cluster: the next one completes the command. The state document says what is done, before it is; meanwhile the same
// command through another router joins it, and another one of the kind is refused.
func TestSettingsGoOnWithTheNextConfigPrimary(t *testing.T) {
	t.Parallel()
	for _, s := range coordinatedSettings() {
		for _, step := range s.steps {
			t.Run(s.name+"/"+step, func(t *testing.T) {
				c := newTestCluster(t, 2)
				reached, release := c.hangOn("config", hangBeforePhase, "phase", step)
				first := c.later("admin", s.command)
				reached()
				if docs := c.coordinators(); !strings.Contains(docs, s.name) || !strings.Contains(docs, step) {
					t.Errorf("before %s the state documents are %s", step, docs)
				}
				if m := c.raw("admin", s.other); m["code"] != int32(mongoerr.ConflictingOperationInProgress) {
					t.Errorf("another command is answered %v", m)
				}
				c.depose()
				if m := <-first; m["code"] != int32(mongoerr.HostUnreachable) { // as routers report a lost primary
					t.Errorf("the client of the former primary is answered %v", m)
				}
				c.reshardings()
				joined := c.later("admin", s.command)
				release()
				if m := <-joined; m["ok"] != 1.0 {
					t.Errorf("the same command is answered %v", m)
				}
				c.settled(&s, s.name+" continued at "+step)
			})
		}
	}
}

// A shard is down during a command for the whole cluster: it is answered when the shard has the setting, too. A client
// is answered at the end of its time limit or, without one, with the error after some time; the command goes on without it.
func TestSettingsReachAShardThatWasDown(t *testing.T) {
	t.Parallel()
	for _, s := range coordinatedSettings() {
		t.Run(s.name, func(t *testing.T) {
			var down atomic.Bool
			var tries atomic.Int64
			c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
				if name := string(m.CommandName()); shard == "shard1" && strings.Contains(strings.ToLower(name), strings.ToLower(s.name)) && down.Load() {
					tries.Add(1)
					return mongoerr.New(mongoerr.HostUnreachable, "the shard is down")
				}
				return nil
			})
			down.Store(true)
			c.config.SetPatience(time.Millisecond)
			if m := c.raw("admin", s.command); m["code"] != int32(mongoerr.HostUnreachable) || !strings.Contains(show(m), "shard1") {
				t.Errorf("without a time limit it is answered %v", m)
			}
			c.config.SetPatience(time.Hour)
			limited := strings.TrimSuffix(s.command, "}") + `, "maxTimeMS": 50}`
			if m := c.raw("admin", limited); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
				t.Errorf("with a time limit it is answered %v", m)
			}
			reply := c.later("admin", s.command)
			before := tries.Load()
			await.True(t, "the shard is tried again", func() bool { return tries.Load() > before+2 })
			select {
			case m := <-reply:
				t.Errorf("answered %v before the shard has it", m)
			default:
			}
			if docs := c.coordinators(); !strings.Contains(docs, s.name) {
				t.Errorf("the state documents are %s", docs)
			}
			down.Store(false)
			if m := <-reply; m["ok"] != 1.0 {
				t.Errorf("answered %v", m)
			}
			c.settled(&s, fmt.Sprint(s.name, " when the shard is back"))
		})
	}
}

// A shard refuses a setting for good, after others have stored it: no node has it when the command is answered, with that error, also if the config server has lost its primary while it was taken back.
func TestSettingThatAShardRefusesIsTakenBack(t *testing.T) {
	t.Parallel()
	for _, s := range coordinatedSettings()[1:] {
		for _, lost := range []string{"", "restoreOnConfigServer", "restoreOnShards"} {
			t.Run(s.name+"/"+lost, func(t *testing.T) {
				var refuses atomic.Bool
				c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
					name := strings.ToLower(string(m.CommandName()))
					if shard == "shard1" && strings.HasSuffix(name, strings.ToLower(s.name)) && refuses.Load() {
						return mongoerr.New(mongoerr.CannotDowngrade, "never")
					}
					return nil
				})
				c.run("admin", strings.ReplaceAll(s.other, "8.0", "8.2"))
				refuses.Store(true)
				if lost == "" {
					if m := c.raw("admin", s.command); m["code"] != int32(mongoerr.CannotDowngrade) || !strings.Contains(show(m), "shard1") {
						t.Errorf("answered %v", m)
					}
				} else {
					reached, release := c.hangOn("config", hangBeforePhase, "phase", lost)
					first := c.later("admin", s.command)
					reached()
					c.depose()
					<-first
					c.reshardings()
					joined := c.later("admin", s.command)
					release()
					if m := <-joined; m["code"] != int32(mongoerr.CannotDowngrade) {
						t.Errorf("the same command is answered %v", m)
					}
				}
				refuses.Store(false)
				if docs := c.coordinators(); docs != "[]" {
					t.Errorf("the state documents are %s", docs)
				}
				want := map[string]string{"setClusterParameter": "70000", "setFeatureCompatibilityVersion": "8.2"}[s.name]
				for id, p := range map[string]cluster.Peer{"config": c.confP, "shard0": c.shards["shard0"], "shard1": c.shards["shard1"]} {
					if has := s.has(c, p); !strings.Contains(has, want) {
						t.Errorf("%s has %s", id, has)
					}
				}
				c.run("admin", s.command)
				c.settled(&s, "repeated")
			})
		}
	}
}

// A shard refuses a setting for good, and the former one, too. The others have the former one again, and that the shard differs is logged: once for the shard and the setting, however often it is sent, as
// long as the shard refuses it. It used to be kept to the config server.
func TestShardThatRefusesTheFormerSettingIsLogged(t *testing.T) {
	t.Parallel()
	for _, s := range coordinatedSettings() {
		t.Run(s.name, func(t *testing.T) {
			var refuses, down atomic.Bool
			var down0 atomic.Int64
			c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
				name := strings.ToLower(string(m.CommandName()))
				switch {
				case !strings.HasSuffix(name, strings.ToLower(s.name)):
				case shard == "shard1" && refuses.Load():
					return mongoerr.New(mongoerr.CannotDowngrade, "never")
				case shard == "shard0" && down.Load():
					down0.Add(1)
					return mongoerr.New(mongoerr.HostUnreachable, "the shard is down")
				}
				return nil
			})
			var mu sync.Mutex
			var logged []string
			c.config.OnRefusal(func(shard, setting string, err error) {
				mu.Lock()
				defer mu.Unlock()
				logged = append(logged, fmt.Sprint(shard, " ", setting, " ", mongoerr.CodeOf(err).Name()))
			})
			lines := func() []string {
				mu.Lock()
				defer mu.Unlock()
				return slices.Clone(logged)
			}
			c.run("admin", strings.ReplaceAll(s.other, "8.0", "8.2"))
			for n := 1; n <= 2; n++ {
				refuses.Store(true)
				reached, release := c.hangOn("config", hangBeforePhase, "phase", "restoreOnShards")
				reply := c.later("admin", s.command)
				reached()
				down.Store(true)
				before := down0.Load()
				release()
				c.until("the setting is sent again, since another shard is down", func() bool { return down0.Load() > before+2 })
				down.Store(false)
				if m := <-reply; m["code"] != int32(mongoerr.CannotDowngrade) {
					t.Errorf("answered %v", m)
				}
				if have := lines(); len(have) != n || !strings.HasPrefix(have[0], "shard1 ") || !strings.HasSuffix(have[0], " CannotDowngrade") {
					t.Errorf("logged %q", have)
				}
				refuses.Store(false)
				c.run("admin", s.command)
				c.run("admin", strings.ReplaceAll(s.other, "8.0", "8.2"))
			}
		})
	}
}
