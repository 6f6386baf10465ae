package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Unknown fields are refused by commands that took them for nothing.
func TestUnknownFieldsOfSettings(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	c.run("db", `{"create": "c"}`)
	for _, x := range [][2]string{
		{"admin", `{"setClusterParameter": {"defaultMaxTimeMS": {"readOperations": 0}}, "odd": 1}`}, {"admin", `{"getClusterParameter": "defaultMaxTimeMS", "odd": 1}`},
		{"db", `{"convertToCapped": "c", "size": 4096, "odd": 1}`},
	} {
		if m := c.raw(x[0], x[1]); m["code"] != int32(mongoerr.IDLUnknownField) {
			t.Errorf("%s: %v", x[1], m)
		}
	}
	c.run("admin", `{"setClusterParameter": {"defaultMaxTimeMS": {"readOperations": 0}}, "comment": "known"}`)
	c.run("admin", `{"getClusterParameter": "defaultMaxTimeMS", "comment": "known"}`)
	c.run("db", `{"convertToCapped": "c", "size": 4096, "comment": "known"}`)
}
