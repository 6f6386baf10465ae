package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Routers have no parameter featureCompatibilityVersion (manual: setFeatureCompatibilityVersion, "The operation is undefined on the mongos instances"): what one showed
// was not the cluster's.
func TestRoutersHaveNoFeatureCompatibilityVersion(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	if m := c.raw("admin", `{"getParameter": 1, "featureCompatibilityVersion": 1}`); m["code"] != int32(mongoerr.InvalidOptions) {
		t.Error(m)
	}
	if m := c.run("admin", `{"getParameter": "*"}`); m["featureCompatibilityVersion"] != nil || m["quiet"] == nil {
		t.Error(m)
	}
}

// setFeatureCompatibilityVersion takes the arguments of its manual page, and refuses others, which would have no effect.
func TestArgumentsOfTheFeatureCompatibilityVersion(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	for _, arg := range []string{`"downgradeOnDiskChanges": true`, `"fromConfigServer": true`, `"phase": "start"`, `"timestamp": {"$timestamp": {"t": 1, "i": 1}}`, `"changeTimestamp": {"$timestamp": {"t": 1, "i": 1}}`} {
		if m := c.raw("admin", `{"setFeatureCompatibilityVersion": "8.0", "confirm": true, `+arg+`}`); m["code"] != int32(mongoerr.IDLUnknownField) {
			t.Errorf("%s: %v", arg, m)
		}
	}
	c.run("admin", `{"setFeatureCompatibilityVersion": "8.0", "confirm": true, "comment": "known", "writeConcern": {"w": "majority", "wtimeout": 60000}}`)
}
