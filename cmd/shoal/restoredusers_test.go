package main

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// stored reads a document of users or roles, which mongodump would write.
func (g *guarded) stored(c *mongo.Client, coll, id string) (doc bson.D) {
	g.t.Helper()
	if err := c.Database("admin").Collection(coll).FindOne(g.t.Context(), bson.D{{Key: "_id", Value: id}}).Decode(&doc); err != nil {
		g.t.Fatal(err)
	}
	return doc
}

// replaced returns a document with another value of a field.
func replaced(doc bson.D, field string, v any) (out bson.D) {
	for _, e := range doc {
		if e.Key == field {
			e.Value = v
		}
		out = append(out, e)
	}
	return out
}

// unordered shows a document whatever the order of its fields.
func unordered(doc bson.D) string {
	fields := map[string]any{}
	for _, e := range doc {
		fields[e.Key] = e.Value
	}
	return fmt.Sprint(fields)
}

// merge does what mongorestore does with the users and roles of a dump.
func (g *guarded) merge(c *mongo.Client, drop bool, users, roles bson.A) {
	g.t.Helper()
	g.must(c, "admin", "insert", "tempusers", "documents", users)
	g.must(c, "admin", "insert", "temproles", "documents", roles)
	g.must(c, "admin", "_mergeAuthzCollections", 1, "tempUsersCollection", "admin.tempusers", "tempRolesCollection", "admin.temproles", "db", "", "drop", drop)
	g.must(c, "admin", "drop", "tempusers")
	g.must(c, "admin", "drop", "temproles")
}

// mongorestore restores users before it creates indexes. With --drop the user by whom it is logged in is replaced by the one of the dump, which
// another server has made: it continues with the rights of the restored user, as do all open connections of users who are in the dump. Other users
// lose all rights.
func TestRestoredUsersStayLoggedIn(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			privileges := bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "shop"}, {Key: "collection", Value: "c"}}}, {Key: "actions", Value: bson.A{"find"}}}}
			g.must(root, "shop", "createRole", "reader", "privileges", privileges, "roles", bson.A{})
			g.must(root, "admin", "createUser", "restorer", "pwd", "pw", "roles", bson.A{"restore"})
			for _, name := range []string{"ann", "old", "late"} {
				g.must(root, "shop", "createUser", name, "pwd", "pw", "roles", bson.A{"reader"})
			}
			restorer, ann, old, late := g.client("restorer", "pw", ""), g.clientOf("shop", "ann", "pw"), g.clientOf("shop", "old", "pw"), g.clientOf("shop", "late", "pw")
			for _, c := range []*mongo.Client{ann, old, late} {
				g.must(c, "shop", "find", "c")
			}
			elsewhere := bson.Binary{Subtype: 4, Data: []byte("sixteen bytes id")}
			both := bson.A{bson.D{{Key: "role", Value: "reader"}, {Key: "db", Value: "shop"}}, bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: "shop"}}}
			before := g.stored(root, "system.users", "shop.old")
			var noID bson.D // as before 3.6
			for _, e := range before {
				if e.Key != "userId" {
					noID = append(noID, e)
				}
			}
			g.merge(restorer, true, bson.A{
				replaced(g.stored(root, "system.users", "admin.root"), "userId", elsewhere), replaced(g.stored(root, "system.users", "admin.restorer"), "userId", elsewhere),
				replaced(replaced(g.stored(root, "system.users", "shop.ann"), "userId", elsewhere), "roles", both), noID,
			}, bson.A{g.stored(root, "system.roles", "shop.reader")})

			g.must(restorer, "shop", "createIndexes", "c", "indexes", bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "v", Value: 1}}}, {Key: "name", Value: "v_1"}}})
			g.must(ann, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
			g.must(old, "shop", "find", "c")
			if _, code, text := run1(late, "shop", "find", "c"); code != int(mongoerr.Unauthorized) {
				t.Errorf("a user who is not in the dump: %d %s", code, text)
			}
			if after := g.stored(root, "system.users", "shop.old"); unordered(after) != unordered(before) {
				t.Errorf("restored as %v, was %v", after, before)
			}
			g.must(g.clientOf("shop", "ann", "pw"), "shop", "find", "c")
		})
	}
}

// Without --drop mongorestore inserts only: users and roles that exist are kept.
func TestRestoreKeepsUsers(t *testing.T) {
	t.Parallel()
	g := startGuarded(t, "standalone")
	root := g.root()
	g.must(root, "shop", "createRole", "reader", "privileges", bson.A{}, "roles", bson.A{"read"})
	g.must(root, "shop", "createUser", "ann", "pwd", "pw", "roles", bson.A{"reader"})
	user, role := g.stored(root, "system.users", "shop.ann"), g.stored(root, "system.roles", "shop.reader")
	more := bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: "shop"}}}
	fresh := func(doc bson.D, field string) bson.D { return replaced(replaced(doc, "_id", "shop.new"), field, "new") }
	g.merge(root, false, bson.A{replaced(user, "roles", more), fresh(user, "user")}, bson.A{replaced(role, "roles", more), fresh(role, "role")})
	if got := g.stored(root, "system.users", "shop.ann"); fmt.Sprint(got) != fmt.Sprint(user) {
		t.Errorf("the user is %v", got)
	}
	if got := g.stored(root, "system.roles", "shop.reader"); fmt.Sprint(got) != fmt.Sprint(role) {
		t.Errorf("the role is %v", got)
	}
	g.must(g.clientOf("shop", "new", "pw"), "shop", "find", "c")
	g.stored(root, "system.roles", "shop.new")

	g.must(root, "admin", "insert", "tempusers", "documents", bson.A{replaced(user, "_id", "shop.other"), replaced(user, "_id", 7)})
	for _, db := range []string{"shop", ""} {
		_, code, text := run1(root, "admin", "_mergeAuthzCollections", 1, "tempUsersCollection", "admin.tempusers", "db", db, "drop", true)
		if code != int(mongoerr.BadValue) || !strings.Contains(text, "shop.ann") {
			t.Errorf("%d %s", code, text)
		}
	}
}
