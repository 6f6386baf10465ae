package main

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// killAllSessionsByPattern with roles was accepted and killed nothing.
func TestKillSessionsOfARole(t *testing.T) {
	t.Parallel()
	for _, topology := range []string{"replset", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}})
			g.must(root, "shop", "createRole", "clerk", "privileges", bson.A{}, "roles", bson.A{"read"})
			for name, role := range map[string]string{"ann": "clerk", "eve": "read", "tom": "readWrite"} {
				g.must(root, "admin", "createUser", name, "pwd", "pw", "roles", bson.A{bson.D{{Key: "role", Value: role}, {Key: "db", Value: "shop"}}})
			}
			g.must(root, "admin", "createRole", "killer", "roles", bson.A{}, "privileges", bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "cluster", Value: true}}},
				{Key: "actions", Value: bson.A{"killAnySession", "impersonate"}}}})
			g.must(root, "admin", "createUser", "op", "pwd", "pw", "roles", bson.A{"killer"})
			op := g.client("op", "pw", "")
			type reader struct {
				stranger
				id     bson.Raw
				cursor int64
			}
			readers := map[string]*reader{}
			for _, name := range []string{"ann", "eve", "tom"} {
				r := &reader{stranger: g.stranger()}
				r.logIn(name, "pw")
				r.id = r.send(bson.D{{Key: "startSession", Value: 1}, {Key: "$db", Value: "admin"}}).Lookup("id").Document()
				readers[name] = r
			}
			kill := func(roles ...string) (killed string) {
				t.Helper()
				for _, r := range readers {
					r.cursor = r.send(bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: 1}, {Key: "lsid", Value: r.id}, {Key: "$db", Value: "shop"}}).Lookup("cursor", "id").Int64()
				}
				list := bson.A{}
				for _, role := range roles {
					list = append(list, bson.D{{Key: "role", Value: role}, {Key: "db", Value: "shop"}})
				}
				g.must(op, "admin", "killAllSessionsByPattern", bson.A{bson.D{{Key: "roles", Value: list}}})
				for _, name := range []string{"ann", "eve", "tom"} {
					r := readers[name]
					if !fine(r.send(bson.D{{Key: "getMore", Value: r.cursor}, {Key: "collection", Value: "c"}, {Key: "lsid", Value: r.id}, {Key: "$db", Value: "shop"}})) {
						killed += name + " "
					}
				}
				return killed
			}
			for want, roles := range map[string][]string{"": {"nobody"}, "ann ": {"clerk"}, "ann eve ": {"read"}, "ann tom ": {"clerk", "readWrite"}} {
				if got := kill(roles...); got != want {
					t.Errorf("%v: killed the sessions of %q, want %q", roles, got, want)
				}
			}
			for _, odd := range []bson.D{{{Key: "roles", Value: "clerk"}}, {{Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "clerk"}}}}}, {{Key: "users", Value: bson.A{5}}}} {
				if _, code, text := run1(op, "admin", "killAllSessionsByPattern", bson.A{odd}); code <= 0 || code == int(mongoerr.Unauthorized) {
					t.Errorf("%v: %d %s", odd, code, text)
				}
			}
		})
	}
}
