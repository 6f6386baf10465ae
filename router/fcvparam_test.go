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
