package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A setting that would have no effect is refused where it is written. A chunk size of 5,000 MB used to be stored, and the default stayed in effect.
func TestSettingsAreChecked(t *testing.T) {
	c := newTestCluster(t, 1)
	put := func(d string) bson.M {
		c.run("config", `{"delete": "settings", "deletes": [{"q": {"_id": {"$ne": "ReadWriteConcernDefaults"}}, "limit": 0}]}`)
		return c.raw("config", `{"insert": "settings", "documents": [`+d+`]}`)
	}
	for _, d := range []string{
		`{"_id": "chunksize", "value": 0}`, `{"_id": "chunksize", "value": -1}`, `{"_id": "chunksize", "value": 1025}`, `{"_id": "chunksize", "value": "1"}`,
		`{"_id": "chunksize", "value": 1, "more": 1}`, `{"_id": "balancer", "mode": "half"}`, `{"_id": "balancer", "stopped": "no"}`,
		`{"_id": "balancer", "activeWindow": "nights"}`, `{"_id": "balancer", "activeWindow": {"start": "23:00"}}`, `{"_id": "balancer", "_secondaryThrottle": 1}`,
		`{"_id": "autosplit", "enabled": 1}`, `{"_id": "automerge", "enabled": "yes"}`, `{"_id": "chunkSize", "value": 1}`,
	} {
		m := put(d)
		if errs, ok := m["writeErrors"].(bson.A); !ok || get(errs[0], "code") != int32(mongoerr.DocumentValidationFailure) {
			t.Errorf("%s: %v", d, m)
		}
	}
	for _, d := range []string{
		`{"_id": "chunksize", "value": 1}`, `{"_id": "chunksize", "value": 1024}`, `{"_id": "chunksize", "value": 2.5}`, `{"_id": "balancer", "_secondaryThrottle": {"w": 2}}`, `{"_id": "balancer", "mode": "autoSplitOnly", "stopped": true}`,
		`{"_id": "balancer", "mode": "full", "activeWindow": {"start": "1:00", "stop": "2:00"}, "_secondaryThrottle": true, "_waitForDelete": false}`, `{"_id": "autosplit", "enabled": true}`,
	} {
		if m := put(d); m["n"] != int32(1) {
			t.Errorf("%s: %v", d, m)
		}
	}
	c.run("admin", `{"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 1}}`)
	if m := c.raw("config", `{"collMod": "settings", "validator": {"x": 1}}`); m["ok"] == 1.0 {
		t.Errorf("a client's validator: %v", m)
	}
}

// Settings that the balancer cannot read stop it, visibly: balancerStatus fails with the reason, and config.actionlog has it once. Nothing used to report them.
func TestUnreadableWindowIsReported(t *testing.T) {
	c := newTestCluster(t, 1)
	set := func(start string) {
		c.run("config", fmt.Sprintf(`{"update": "settings", "updates": [{"q": {"_id": "balancer"}, "u": {"$set": {"activeWindow": {"start": %q, "stop": "6:00:00"}}}, "upsert": true}]}`, start))
	}
	set("25:00")
	for range 3 {
		if moved, err := c.config.BalancerRound(t.Context()); moved != 0 || mongoerr.CodeOf(err) != mongoerr.BadValue {
			t.Errorf("%d moves, %v", moved, err)
		}
	}
	if m := c.raw("admin", `{"balancerStatus": 1}`); m["code"] != int32(mongoerr.BadValue) {
		t.Errorf("balancerStatus: %v", m)
	}
	logged := c.all("config", `{"find": "actionlog", "filter": {"what": "balancer.round", "details.errorOccurred": true}}`)
	if len(logged) != 1 || !strings.Contains(fmt.Sprint(get(get(logged[0], "details"), "errmsg")), "balancing window") {
		t.Errorf("config.actionlog has %v", logged)
	}
	set("23:00:00")
	if _, err := c.config.BalancerRound(t.Context()); err != nil {
		t.Error(err)
	}
	c.expect(c.run("admin", `{"balancerStatus": 1}`)["mode"], `"full"`)
}
