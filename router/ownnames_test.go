package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Collections that the cluster creates itself, with the indexes and the placement that it needs, are not created by a client's create or createIndexes. Other names
// that begin with "system." are reserved (manual: Naming Restrictions).
func TestClientsDoNotCreateTheClustersCollections(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	for _, x := range []struct {
		db, coll string
		code     mongoerr.Code
	}{
		{"admin", "system.users", mongoerr.IllegalOperation}, {"admin", "system.roles", mongoerr.IllegalOperation}, {"config", "system.sessions", mongoerr.IllegalOperation},
		{"admin", "system.foo", mongoerr.InvalidNamespace}, {"db", "system.foo", mongoerr.InvalidNamespace},
	} {
		for _, cmd := range []string{`{"create": "` + x.coll + `"}`, `{"createIndexes": "` + x.coll + `", "indexes": [{"key": {"x": 1}, "name": "x"}]}`} {
			if m := c.raw(x.db, cmd); m["code"] != int32(x.code) {
				t.Errorf("%s on %s: %v", cmd, x.db, m)
			}
		}
		c.expect(c.all(x.db, `{"listCollections": 1, "filter": {"name": "`+x.coll+`"}}`), `[]`)
	}
	c.run("admin", `{"create": "system.new_users"}`) // as tools that restore a dump do
}
