package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// attempts are requests of a user who owns the database mine, may run applyOps, and may do a little in the databases half and admin, at what is not
// the user's: hr.pay, half.secret and the users. Every value in them is replaced by odd ones in turn. Database, then request.
var attempts = [][2]string{
	{"admin", `{"bulkWrite": 1, "ops": [{"insert": 1, "document": {"_id": "new"}}], "nsInfo": [{"ns": "mine.c"}, {"ns": "hr.pay"}]}`},
	{"admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": "new"}}], "nsInfo": [{"ns": "admin.system.users"}]}`},
	{"admin", `{"bulkWrite": 1, "ops": [{"update": 0, "filter": {}, "updateMods": {"$set": {"x": 1}}, "upsert": true}], "nsInfo": [{"ns": "hr.pay"}]}`},
	{"admin", `{"bulkWrite": 1, "ops": [{"delete": 0, "filter": {}, "multi": true}], "nsInfo": [{"ns": "hr.pay", "collectionUUID": null, "isTimeseriesNamespace": false}]}`},
	{"admin", `{"applyOps": [{"op": "i", "ns": "hr.pay", "o": {"_id": "new"}}], "allowAtomic": true}`},
	{"admin", `{"applyOps": [{"op": "i", "ns": "admin.system.users", "o": {"_id": "new"}}]}`},
	{"admin", `{"applyOps": [{"op": "u", "ns": "hr.pay", "o2": {"_id": 1}, "o": {"_id": 1, "x": 2}}]}`},
	{"admin", `{"applyOps": [{"op": "d", "ns": "hr.pay", "o": {"_id": 1}}]}`},
	{"admin", `{"applyOps": [{"op": "c", "ns": "hr.$cmd", "o": {"drop": "pay"}}]}`},
	{"admin", `{"applyOps": [{"op": "c", "ns": "mine.$cmd", "o": {"applyOps": [{"op": "d", "ns": "hr.pay", "o": {"_id": 1}}]}}]}`},
	{"admin", `{"renameCollection": "hr.pay", "to": "mine.stolen", "dropTarget": true}`},
	{"admin", `{"_mergeAuthzCollections": 1, "tempUsersCollection": "mine.evil", "tempRolesCollection": "", "db": "mine", "drop": false}`},
	{"mine", `{"mapReduce": "c", "map": "function() { emit(1, 1) }", "reduce": "function(k, v) { return 1 }", "out": {"merge": "pay", "db": "hr"}}`},
	{"mine", `{"create": "v2", "viewOn": "system.profile", "pipeline": [{"$unionWith": {"db": "hr", "coll": "pay", "pipeline": []}}]}`},
	{"mine", `{"collMod": "v", "viewOn": "c", "pipeline": [{"$lookup": {"from": {"db": "hr", "coll": "pay"}, "as": "x", "pipeline": []}}]}`},
	{"mine", `{"aggregate": "c", "pipeline": [{"$lookup": {"from": {"db": "hr", "coll": "pay"}, "as": "x", "pipeline": []}}], "cursor": {}}`},
	{"mine", `{"aggregate": "c", "pipeline": [{"$facet": {"a": [{"$unionWith": {"db": "hr", "coll": "pay"}}]}}], "cursor": {}}`},
	{"mine", `{"aggregate": "c", "pipeline": [{"$graphLookup": {"from": {"db": "hr", "coll": "pay"}, "startWith": "$_id", "connectFromField": "_id", "connectToField": "_id", "as": "x"}}], "cursor": {}}`},
	{"mine", `{"aggregate": "c", "pipeline": [{"$out": {"db": "hr", "coll": "pay"}}], "cursor": {}}`},
	{"mine", `{"aggregate": "c", "pipeline": [{"$merge": {"into": {"db": "hr", "coll": "pay"}, "whenMatched": "replace"}}], "cursor": {}}`},
	{"mine", `{"explain": {"aggregate": "c", "pipeline": [{"$unionWith": {"db": "hr", "coll": "pay"}}], "cursor": {}}, "verbosity": "executionStats"}`},
	{"mine", `{"createUser": "evil", "pwd": "pw", "roles": [{"role": "root", "db": "admin"}]}`},
	{"mine", `{"createRole": "evil", "roles": [{"role": "root", "db": "admin"}], "privileges": [{"resource": {"db": "hr", "collection": "pay"}, "actions": ["find"]}]}`},
	{"mine", `{"grantRolesToUser": "eve", "roles": [{"role": "root", "db": "admin"}]}`},
	{"mine", `{"grantPrivilegesToRole": "hers", "privileges": [{"resource": {"anyResource": true}, "actions": ["anyAction"]}]}`},
	{"hr", `{"listCollections": 1, "nameOnly": true, "authorizedCollections": true, "filter": {}}`},
	{"admin", `{"listDatabases": 1, "nameOnly": true, "authorizedDatabases": true, "filter": {}}`},
	{"mine", `{"usersInfo": {"user": "root", "db": "admin"}, "showCredentials": true}`},
	{"admin", `{"_mergeAuthzCollections": 1, "tempUsersCollection": "admin.evil", "tempRolesCollection": "", "db": "mine", "drop": false}`},
	{"half", `{"collMod": "hv", "viewOn": "secret", "pipeline": []}`},
	{"half", `{"collMod": "hv", "viewOn": "open", "pipeline": [{"$unionWith": {"coll": "secret", "pipeline": []}}]}`},
	{"half", `{"create": "made", "viewOn": "secret", "pipeline": []}`},
	{"half", `{"create": "made", "viewOn": "open", "pipeline": [{"$lookup": {"from": "secret", "as": "x", "pipeline": []}}]}`},
	{"admin", `{"applyOps": [{"op": "c", "ns": "half.$cmd", "o": {"collMod": "hv", "viewOn": "secret", "pipeline": []}}]}`},
	{"admin", `{"applyOps": [{"op": "c", "ns": "half.$cmd", "o": {"create": "made", "viewOn": "secret", "pipeline": []}}]}`},
	{"admin", `{"applyOps": [{"op": "i", "ns": "mine.c", "ui": "UUID OF PAY", "o": {"_id": "new"}}]}`},
	{"admin", `{"applyOps": [{"op": "d", "ns": "mine.c", "ui": "UUID OF PAY", "o": {"_id": 1}}]}`},
	{"admin", `{"validateDBMetadata": 1, "apiParameters": {"version": "1"}, "db": "hr", "collection": "pay"}`},
}

// oddities returns what a value is replaced by.
func oddities(v any) []any {
	half, _ := bson.ParseDecimal128("0.5")
	return []any{0.5, -0.4, half, nil, "x", true, bson.A{v}, bson.D{{Key: "0", Value: v}}, bson.D{{Key: "a", Value: v}}, bson.A{}, bson.D{},
		bson.Undefined{}, bson.Symbol(fmt.Sprint(v)), bson.JavaScript("x"), int64(1) << 62, bson.Binary{Subtype: 4, Data: make([]byte, 16)}}
}

// variants calls f with a document for each way to make one of its values odd, to leave it out, or to state it twice.
func variants(d bson.D, f func(bson.D)) {
	for i, e := range d {
		with := func(v any) {
			next := append(bson.D{}, d...)
			next[i].Value = v
			f(next)
		}
		for _, v := range oddities(e.Value) {
			with(v)
		}
		f(append(append(bson.D{}, d[:i]...), d[i+1:]...))
		if i > 0 {
			f(append(append(bson.D{}, d...), bson.E{Key: e.Key, Value: e.Value}))
			f(append(append(append(bson.D{}, d[:i]...), bson.E{Key: e.Key, Value: "mine.c"}), d[i:]...))
		}
		nestedOddities(e.Value, with)
	}
}

func nestedOddities(v any, with func(any)) {
	switch v := v.(type) {
	case bson.D:
		variants(v, func(d bson.D) { with(d) })
	case bson.A:
		for i, e := range v {
			put := func(x any) {
				next := append(bson.A{}, v...)
				next[i] = x
				with(next)
			}
			for _, x := range oddities(e) {
				put(x)
			}
			nestedOddities(e, put)
		}
	}
}

// A request whose arguments are of odd types, fractions, missing or stated twice reaches nothing that its user may not reach: what the check of
// its privileges cannot read, the command does not read otherwise.
func TestOddArgumentsReachNothing(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			g.must(root, "hr", "insert", "pay", "documents", bson.A{bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: "topsecret"}}})
			g.must(root, "mine", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
			evil := bson.A{bson.D{{Key: "_id", Value: "mine.evil"}, {Key: "user", Value: "evil"}, {Key: "db", Value: "mine"},
				{Key: "credentials", Value: bson.D{{Key: "external", Value: true}}}, {Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "root"}, {Key: "db", Value: "admin"}}}}}}
			g.must(root, "mine", "insert", "evil", "documents", evil)
			g.must(root, "admin", "insert", "evil", "documents", evil)
			g.must(root, "mine", "create", "v", "viewOn", "c", "pipeline", bson.A{})
			g.must(root, "mine", "createRole", "hers", "roles", bson.A{}, "privileges", bson.A{})
			g.must(root, "half", "insert", "secret", "documents", bson.A{bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: "topsecret"}}})
			g.must(root, "half", "insert", "open", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
			g.must(root, "half", "create", "hv", "viewOn", "open", "pipeline", bson.A{})
			may := func(resource bson.D, actions ...any) bson.D {
				return bson.D{{Key: "resource", Value: resource}, {Key: "actions", Value: bson.A(actions)}}
			}
			in := func(db, coll string) bson.D { return bson.D{{Key: "db", Value: db}, {Key: "collection", Value: coll}} }
			g.must(root, "admin", "createRole", "applies", "roles", bson.A{}, "privileges", bson.A{
				may(bson.D{{Key: "cluster", Value: true}}, "applyOps", "useUUID", "forceUUID"), may(in("admin", "evil"), "find", "insert"),
				may(in("half", "open"), "find"), may(in("half", "hv"), "find", "collMod"), may(in("half", "made"), "find", "createCollection", "collMod")})
			g.must(root, "mine", "createUser", "eve", "pwd", "evil", "roles", bson.A{"dbOwner", bson.D{{Key: "role", Value: "applies"}, {Key: "db", Value: "admin"}}})
			eve := g.clientOf("mine", "eve", "evil")
			before := whole(t, root)
			for _, a := range attempts {
				var d bson.D
				if err := bson.UnmarshalExtJSON([]byte(strings.ReplaceAll(a[1], `"UUID OF PAY"`, uuidOf(t, root, "hr", "pay"))), false, &d); err != nil {
					t.Fatal(err)
				}
				n, accepted := 0, 0
				attempt := func(d bson.D) {
					if len(d) == 0 {
						return
					}
					n++
					raw, err := eve.Database(a[0]).RunCommand(context.Background(), d).Raw()
					if err == nil {
						accepted++
					}
					if bytes.Contains(raw, []byte("topsecret")) || strings.Contains(fmt.Sprint(err), "topsecret") || a[0] == "hr" && err == nil && bytes.Contains(raw, []byte("pay")) {
						t.Errorf("%s shows what it must not: %v", shown(d), raw)
					}
				}
				attempt(d)
				variants(d, attempt)
				for _, view := range [][2]string{{"mine", "v"}, {"half", "hv"}, {"half", "made"}} {
					if docs, err := eve.Database(view[0]).RunCommand(context.Background(), bson.D{{Key: "find", Value: view[1]}}).Raw(); err == nil && bytes.Contains(docs, []byte("topsecret")) {
						t.Fatalf("%s: the view %s shows what it must not", a[1], view[1])
					}
				}
				if now := whole(t, root); now != before {
					t.Fatalf("%s or a variant of it changed what it must not:\n%s\n%s", a[1], before, now)
				}
				t.Logf("%d variants, %d accepted: %s", n, accepted, a[1])
			}
		})
	}
}

// uuidOf returns the UUID of a collection as extended JSON.
func uuidOf(t *testing.T, c *mongo.Client, db, coll string) string {
	t.Helper()
	specs, err := c.Database(db).ListCollectionSpecifications(context.Background(), bson.D{{Key: "name", Value: coll}})
	if err != nil || len(specs) != 1 || specs[0].UUID == nil {
		t.Fatal(specs, err)
	}
	return fmt.Sprintf(`{"$binary": {"base64": %q, "subType": "04"}}`, base64.StdEncoding.EncodeToString(specs[0].UUID.Data))
}

func shown(d bson.D) string {
	text, err := bson.MarshalExtJSON(d, false, false)
	if err != nil {
		return fmt.Sprint(d)
	}
	return string(text)
}

// whole shows what the attempts must not change: the collection of the other database, who has roles of others than mine, and what
// roles of mine allow elsewhere.
func whole(t *testing.T, root *mongo.Client) string {
	t.Helper()
	var out strings.Builder
	for _, q := range []struct {
		db, coll string
		filter   bson.D
	}{
		{"hr", "pay", bson.D{}},
		{"mine", "stolen", bson.D{}},
		{"admin", "system.users", bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: "roles.db", Value: bson.D{{Key: "$ne", Value: "mine"}}}}, bson.D{{Key: "_id", Value: "new"}},
			bson.D{{Key: "roles.role", Value: "root"}}}}, {Key: "roles", Value: bson.D{{Key: "$ne", Value: bson.A{}}}}}},
		{"admin", "system.roles", bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: "roles.db", Value: "admin"}}, bson.D{{Key: "privileges.resource.db", Value: "hr"}},
			bson.D{{Key: "privileges.resource.anyResource", Value: true}}}}}},
	} {
		cur, err := root.Database(q.db).Collection(q.coll).Find(context.Background(), q.filter)
		if err != nil {
			t.Fatal(err)
		}
		var docs []bson.M
		if err := cur.All(context.Background(), &docs); err != nil {
			t.Fatal(err)
		}
		for _, d := range docs {
			fmt.Fprintf(&out, "%s.%s: %v %v %v; ", q.db, q.coll, d["_id"], d["x"], d["roles"])
		}
	}
	return out.String()
}

func userDigest(name string) []byte {
	sum := sha256.Sum256([]byte(name))
	return sum[:]
}

// logIn authenticates by SCRAM-SHA-256 as a user of admin.
func (s stranger) logIn(user, password string) {
	s.t.Helper()
	s.logInOn("admin", user, password)
}

func (s stranger) logInOn(db, user, password string) {
	s.t.Helper()
	conv := conversation(s.t, user, password)
	first, _ := conv.Step("")
	proof, err := conv.Step(payload(s.startOn(db, first)))
	if err != nil || !fine(s.nextOn(db, 1, proof)) || !fine(s.nextOn(db, 1, "")) {
		s.t.Fatal(user, " does not get in: ", err)
	}
}

// sendSeq sends a command with a document sequence.
func (s stranger) sendSeq(cmd bson.D, name string, docs ...bson.D) bson.Raw {
	s.t.Helper()
	var raw [][]byte
	for _, d := range docs {
		raw = append(raw, body(d)[1:])
	}
	if _, err := s.Write(opMsg(0, body(cmd), sequence(name, raw...))); err != nil {
		s.t.Fatal(err)
	}
	doc, err := s.reply()
	if err != nil {
		s.t.Fatal(err)
	}
	return doc
}

// Lists that arrive as document sequences count as if they were in the body; one that is in both places is refused.
func TestSequencesAreRead(t *testing.T) {
	g := startGuarded(t, "standalone")
	root := g.root()
	s := g.stranger()
	s.logIn("root", "secret")
	role := bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}
	cmd := bson.D{{Key: "createUser", Value: "ann"}, {Key: "pwd", Value: "pw"}, {Key: "$db", Value: "shop"}}
	if r := s.sendSeq(cmd, "roles", role); !fine(r) {
		t.Fatal(r)
	}
	var info struct{ Users []struct{ Roles []bson.M } }
	if err := root.Database("shop").RunCommand(context.Background(), bson.D{{Key: "usersInfo", Value: "ann"}}).Decode(&info); err != nil {
		t.Fatal(err)
	}
	if len(info.Users) != 1 || len(info.Users[0].Roles) != 1 || info.Users[0].Roles[0]["role"] != "read" {
		t.Error(info)
	}
	both := bson.D{{Key: "createUser", Value: "bob"}, {Key: "pwd", Value: "pw"}, {Key: "roles", Value: bson.A{}}, {Key: "$db", Value: "shop"}}
	if r := s.sendSeq(both, "roles", role); fine(r) {
		t.Error("roles in two places were accepted")
	}
	write := bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}, {Key: "$db", Value: "shop"}}
	if r := s.sendSeq(write, "documents", bson.D{{Key: "_id", Value: 2}}); fine(r) {
		t.Error("documents in two places were accepted")
	}
}

// Sessions of one user are not another's to kill, end or refresh, on a member or through a router.
func TestSessionsBelongToTheirUsers(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}})
			for _, name := range []string{"ann", "eve"} {
				g.must(root, "admin", "createUser", name, "pwd", "pw", "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}})
			}
			ann, eve := g.stranger(), g.stranger()
			ann.logIn("ann", "pw")
			eve.logIn("eve", "pw")
			must := func(s stranger, name string, v any, more ...bson.E) bson.Raw {
				t.Helper()
				r := s.send(append(append(bson.D{{Key: name, Value: v}}, more...), bson.E{Key: "$db", Value: "admin"}))
				if !fine(r) {
					t.Fatalf("%s: %v", name, r)
				}
				return r
			}
			id := must(ann, "startSession", 1).Lookup("id").Document()
			cursor := func() int64 {
				t.Helper()
				r := ann.send(bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: 1}, {Key: "lsid", Value: id}, {Key: "$db", Value: "shop"}})
				if !fine(r) {
					t.Fatal(r)
				}
				return r.Lookup("cursor", "id").Int64()
			}
			more := func(c int64) bson.Raw {
				return ann.send(bson.D{{Key: "getMore", Value: c}, {Key: "collection", Value: "c"}, {Key: "lsid", Value: id}, {Key: "$db", Value: "shop"}})
			}
			c, uid := cursor(), bson.Binary{Data: userDigest("ann@admin")}
			must(eve, "killSessions", bson.A{})
			must(eve, "killSessions", bson.A{id})
			foreign := bson.D{{Key: "id", Value: id.Lookup("id")}, {Key: "uid", Value: uid}}
			for _, name := range []string{"killSessions", "endSessions", "refreshSessions"} {
				if r := eve.send(bson.D{{Key: name, Value: bson.A{foreign}}, {Key: "$db", Value: "admin"}}); fine(r) {
					t.Errorf("%s of another's session: %v", name, r)
				}
			}
			if r := more(c); !fine(r) {
				t.Errorf("the cursor of a session that somebody else tried to kill: %v", r)
			}
			c = cursor()
			must(ann, "killSessions", bson.A{})
			if r := more(c); fine(r) {
				t.Errorf("the cursor of a killed session: %v", r)
			}
			must(ann, "refreshSessions", bson.A{id})
			r := must(eve, "aggregate", 1, bson.E{Key: "cursor", Value: bson.D{}}, bson.E{Key: "pipeline", Value: bson.A{
				bson.D{{Key: "$listLocalSessions", Value: bson.D{{Key: "users", Value: bson.A{}}}}}, bson.D{{Key: "$match", Value: bson.D{{Key: "_id.uid", Value: uid}}}}}})
			if strings.Contains(r.String(), "lastUse") {
				t.Error("another's session is listed: ", r)
			}
		})
	}
}
