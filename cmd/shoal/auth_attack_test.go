package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// stranger is a connection that speaks SCRAM by hand.
type stranger struct{ *rawConn }

func (g *guarded) stranger() stranger {
	g.t.Helper()
	u, err := url.Parse(strings.Split(g.uri, ",")[0])
	if err != nil {
		g.t.Fatal(err)
	}
	return stranger{dialRaw(g.t, u.Host)}
}

// send sends a command as it is and gives its reply.
func (s stranger) send(cmd bson.D) bson.Raw {
	s.t.Helper()
	if _, err := s.Write(opMsg(0, body(cmd))); err != nil {
		s.t.Fatal(err)
	}
	doc, err := s.reply()
	if err != nil {
		s.t.Fatal(err)
	}
	return doc
}

func (s stranger) start(payload string) bson.Raw { return s.startOn("admin", payload) }

func (s stranger) startOn(db, payload string) bson.Raw {
	return s.send(bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: auth.SHA256}, {Key: "payload", Value: []byte(payload)}, {Key: "$db", Value: db}})
}

func (s stranger) next(id int32, payload string) bson.Raw { return s.nextOn("admin", id, payload) }

func (s stranger) nextOn(db string, id int32, payload string) bson.Raw {
	return s.send(bson.D{{Key: "saslContinue", Value: 1}, {Key: "conversationId", Value: id}, {Key: "payload", Value: []byte(payload)}, {Key: "$db", Value: db}})
}

// in reports whether the connection is authenticated.
func (s stranger) in() bool {
	return fine(s.send(bson.D{{Key: "find", Value: "c"}, {Key: "$db", Value: "shop"}}))
}

func fine(doc bson.Raw) bool {
	v, _ := doc.Lookup("ok").AsInt64OK()
	return v == 1
}

func payload(doc bson.Raw) string {
	_, b, _ := doc.Lookup("payload").BinaryOK()
	return string(b)
}

func conversation(t *testing.T, user, password string) *scram.ClientConversation {
	t.Helper()
	c, err := scram.SHA256.NewClientUnprepped(user, password, "")
	if err != nil {
		t.Fatal(err)
	}
	return c.NewConversation()
}

// A password that is changed between two messages of an authentication is not proved by the second one; other changes of the user do not matter.
func TestPasswordChangedInMidConversation(t *testing.T) {
	g := startGuarded(t, "standalone")
	root := g.root()
	g.must(root, "admin", "createUser", "ann", "pwd", "old", "roles", bson.A{})
	for what, tc := range map[string]struct {
		change []any
		in     bool
	}{
		"another password":            {[]any{"updateUser", "ann", "pwd", "new"}, false},
		"the same password once more": {[]any{"updateUser", "ann", "pwd", "old"}, false}, // with another salt
		"roles":                       {[]any{"grantRolesToUser", "ann", "roles", bson.A{"readAnyDatabase"}}, true},
		"nothing":                     {[]any{"ping", 1}, true},
	} {
		g.must(root, "admin", "updateUser", "ann", "pwd", "old", "roles", bson.A{"readAnyDatabase"})
		s, conv := g.stranger(), conversation(t, "ann", "old")
		first, _ := conv.Step("")
		proof, err := conv.Step(payload(s.start(first)))
		if err != nil {
			t.Fatal(err)
		}
		g.must(root, "admin", tc.change...)
		s.next(1, proof)
		s.next(1, "")
		if s.in() != tc.in {
			t.Errorf("%s changed: let in: %v", what, !tc.in)
		}
	}
}

// Recorded messages of one authentication do not authenticate another connection, messages of two do not mix, and each has its place.
func TestOverheardConversations(t *testing.T) {
	g := startGuarded(t, "standalone")
	g.root()
	g.must(g.client("root", "secret", ""), "admin", "createUser", "eve", "pwd", "evil", "roles", bson.A{})

	victim, conv := g.stranger(), conversation(t, "root", "secret")
	first, _ := conv.Step("")
	proof, err := conv.Step(payload(victim.start(first)))
	if err != nil {
		t.Fatal(err)
	}
	done := victim.next(1, proof)
	if !fine(done) || !fine(victim.next(1, "")) || !victim.in() {
		t.Fatalf("the user does not get in: %v", done)
	}
	if fine(victim.next(1, proof)) || !victim.in() {
		t.Error("a conversation continues after its end, or its rest logs the user out")
	}

	for name, tried := range map[string]func(s stranger){
		"replayed":               func(s stranger) { s.start(first); s.next(1, proof); s.next(1, "") },
		"the proof alone":        func(s stranger) { s.next(1, proof) },
		"the proof first":        func(s stranger) { s.start(proof); s.next(1, first) },
		"the end alone":          func(s stranger) { s.start(first); s.next(1, "") },
		"another conversation's": func(s stranger) { s.start(first); s.next(2, proof) },
		"begun as another": func(s stranger) {
			mine := conversation(t, "eve", "evil")
			begin, _ := mine.Step("")
			answer := payload(s.start(begin))
			s.start(first) // takes the place of the first
			if p, err := mine.Step(answer); err == nil {
				s.next(1, p)
			}
		},
		"begun on another connection": func(s stranger) {
			mine, other := conversation(t, "root", "secret"), g.stranger()
			begin, _ := mine.Step("")
			if p, err := mine.Step(payload(other.start(begin))); err == nil {
				s.next(1, p)
			}
		},
		"in a hello": func(s stranger) {
			s.send(bson.D{{Key: "hello", Value: 1}, {Key: "speculativeAuthenticate", Value: bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: auth.SHA256},
				{Key: "payload", Value: []byte(first)}, {Key: "db", Value: "admin"}}}, {Key: "$db", Value: "admin"}})
			s.next(1, proof)
		},
	} {
		if s := g.stranger(); s.in() {
			t.Fatal("a stranger is let in")
		} else if tried(s); s.in() {
			t.Errorf("%s: let in", name)
		}
	}
}

// unproved has what an unauthenticated client learns of a user: the salt, the iterations, the error of the attempt, the mechanisms.
type unproved struct{ salt, iterations, end, mechs string }

func (g *guarded) unproved(t *testing.T, user string) (u unproved) {
	t.Helper()
	s, conv := g.stranger(), conversation(t, user, "guess")
	first, _ := conv.Step("")
	server := payload(s.start(first))
	proof, err := conv.Step(server)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(server, ",s=")
	u.salt, u.iterations, _ = strings.Cut(rest, ",i=")
	end := s.next(1, proof)
	u.end = fmt.Sprint(end.Lookup("errmsg"), end.Lookup("code"), end.Lookup("codeName"))
	u.mechs = g.stranger().send(bson.D{{Key: "hello", Value: 1}, {Key: "saslSupportedMechs", Value: "admin." + user}, {Key: "$db", Value: "admin"}}).Lookup("saslSupportedMechs").String()
	return u
}

// A name that does not exist is answered as a wrong password is: step by step, in text and code, with the mechanisms and iterations that
// users have, although the parameter has changed since they were made.
func TestUserNamesAreNotRevealed(t *testing.T) {
	t.Parallel()
	for _, topology := range topologies {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			g.must(g.client("", "", ""), "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"}, "mechanisms", bson.A{"SCRAM-SHA-256"})
			g.must(g.client("root", "secret", ""), "admin", "setParameter", 1, "scramSHA256IterationCount", 16000)
			known, unknown, other := g.unproved(t, "root"), g.unproved(t, "nobody"), g.unproved(t, "someone")
			if again := g.unproved(t, "nobody"); again != unknown || other.salt == unknown.salt || unknown.salt == known.salt || len(unknown.salt) != len(known.salt) {
				t.Errorf("salts: %v of a known name, %v and %v of an unknown one, %v of another", known, unknown, again, other)
			}
			if known.iterations != "15000" {
				t.Errorf("%s iterations of a user who is older than the parameter", known.iterations)
			}
			for _, u := range []unproved{unknown, other} {
				if u.salt = known.salt; u != known {
					t.Errorf("%v of a known name, %v of an unknown one", known, u)
				}
			}
			mechs := func(user string) string {
				return g.stranger().send(bson.D{{Key: "hello", Value: 1}, {Key: "saslSupportedMechs", Value: "$external." + user}, {Key: "$db", Value: "admin"}}).Lookup("saslSupportedMechs").String()
			}
			g.must(g.client("root", "secret", ""), "$external", "createUser", "CN=ann", "roles", bson.A{})
			if mechs("CN=ann") != mechs("CN=bob") {
				t.Errorf("mechanisms of $external: %s, %s", mechs("CN=ann"), mechs("CN=bob"))
			}
			// A user without rights learns nothing of roles.
			root := g.client("root", "secret", "")
			g.must(root, "shop", "createRole", "clerk", "privileges", bson.A{}, "roles", bson.A{})
			g.must(root, "admin", "createUser", "none", "pwd", "secret", "roles", bson.A{})
			for _, cmd := range []string{"grantPrivilegesToRole", "revokePrivilegesFromRole"} {
				var answers []string
				for _, role := range []string{"clerk", "nosuch", "read"} {
					err := g.client("none", "secret", "").Database("shop").RunCommand(t.Context(), bson.D{{Key: cmd, Value: role}, {Key: "privileges", Value: bson.A{}}}).Err()
					answers = append(answers, fmt.Sprint(err))
				}
				if answers[0] != answers[1] || answers[0] != answers[2] || answers[0] == "<nil>" {
					t.Errorf("%s of roles that exist and that do not: %q", cmd, answers)
				}
			}
		})
	}
}

// Two routers give the same answers for an unknown name, from the first one on and right after the users have changed.
func TestRoutersSimulateAlike(t *testing.T) {
	t.Parallel()
	g := startGuardedWith(t, "sharded", func(c *config) { c.Routers = 2 })
	ends := strings.Split(strings.TrimSuffix(strings.TrimPrefix(g.uri, "mongodb://"), "/"), ",")
	if len(ends) != 2 {
		t.Fatalf("not two routers: %s", g.uri)
	}
	var routers []*guarded
	for _, at := range ends {
		routers = append(routers, &guarded{t: t, uri: "mongodb://" + at + "/"})
	}
	alike := func(when string) {
		t.Helper()
		for i := range 20 {
			name := fmt.Sprint("nobody", i)
			first, second := routers[0].unproved(t, name), routers[1].unproved(t, name)
			if first != second {
				t.Errorf("%s, of %s: one router answers %v, the other %v", when, name, first, second)
				return
			}
		}
	}
	alike("without users")
	routers[0].must(routers[0].client("", "", ""), "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"}, "mechanisms", bson.A{"SCRAM-SHA-256"})
	alike("with one")
	root := routers[0].client("root", "secret", "")
	routers[0].must(root, "admin", "setParameter", 1, "scramSHA256IterationCount", 5000)
	for i := range 5 {
		routers[0].must(root, "admin", "createUser", fmt.Sprint("user", i), "pwd", "secret", "roles", bson.A{})
		alike(fmt.Sprint("with ", i+2))
	}
	routers[0].must(root, "admin", "dropAllUsersFromDatabase", 1)
	alike("with none again")
}

// Names that look alike, or have what SCRAM, namespaces and logs give a meaning, are users of their own.
func TestOddUserNames(t *testing.T) {
	a := startAudited(t, "standalone", "")
	root := a.root()
	names := []string{"ann", "Ann", "ａｎｎ", "ann\u200d", "\u200eann", "an\u0303n", "a\u00f1n", "аnn", "ann ", " ann", "a=2Cb", "a,b", "a=b", "n=ann,r=x", "admin.ann", "ann@shop",
		"\u202enna", "a\u0000"[:1] + "\uffff", "eve\n{ \"atype\" : \"dropDatabase\" }", "$external", "%s%n", strings.Repeat("ü", 500)}
	for i, n := range names {
		a.must(root, "admin", "createUser", n, "pwd", "password"+itoa(i), "roles", bson.A{})
	}
	for i, n := range names {
		c := a.client(n, "password"+itoa(i), "SCRAM-SHA-256")
		reply, code, text := run1(c, "admin", "connectionStatus", 1)
		if code != 0 {
			t.Errorf("%q: %d %s", n, code, text)
			continue
		}
		if who := field(reply, "authInfo", "authenticatedUsers").(bson.A); len(who) != 1 || field(who[0], "user") != n {
			t.Errorf("%q is %v", n, who)
		}
		if _, code, _ := run1(a.client(n, "password"+itoa(i+1), "SCRAM-SHA-256"), "admin", "connectionStatus", 1); code == 0 {
			t.Errorf("%q gets in by the next one's password", n)
		}
	}
	if _, code, _ := run1(root, "admin", "createUser", "a\x00b", "pwd", "x", "roles", bson.A{}); code != int(mongoerr.BadValue) {
		t.Errorf("a name with a zero: %d", code)
	}
	if l := a.events("dropDatabase"); len(l) != 0 { // events() also parses each line of the log
		t.Errorf("a name has forged %+v", l)
	}
}

// A command that names its database twice, or a database that it does not have, reads nothing that its user may not.
func TestGamesWithDB(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		g := startGuarded(t, topology)
		root := g.root()
		for _, db := range []string{"shop", "bank"} {
			g.must(root, db, "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: db}}})
		}
		g.must(root, "admin", "createUser", "ann", "pwd", "pw", "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}})
		s, conv := g.stranger(), conversation(t, "ann", "pw")
		first, _ := conv.Step("")
		proof, err := conv.Step(payload(s.start(first)))
		if err != nil || !fine(s.next(1, proof)) || !fine(s.next(1, "")) {
			t.Fatal("ann does not get in", err)
		}
		find := func(rest ...bson.E) bson.D { return append(bson.D{{Key: "find", Value: "c"}}, rest...) }
		db := func(v any) bson.E { return bson.E{Key: "$db", Value: v} }
		for i, cmd := range []bson.D{
			find(db("bank")), find(db("shop"), db("bank")), find(db("bank"), db("shop")), find(db("shop\x00bank")), find(db("shop.c"), db("bank")), find(db(bson.A{"bank"})),
			find(db(bson.D{{Key: "", Value: "bank"}})), find(db("")), find(db("$external")), find(db("BANK")), {{Key: "find", Value: "c\x00"}, db("shop")}, {{Key: "find", Value: "../bank.c"}, db("shop")},
			{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$lookup", Value: bson.D{{Key: "from", Value: bson.D{{Key: "db", Value: "bank"}, {Key: "coll", Value: "c"}}},
				{Key: "pipeline", Value: bson.A{}}, {Key: "as", Value: "x"}}}}}}, {Key: "cursor", Value: bson.D{}}, db("shop")},
			{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$merge", Value: bson.D{{Key: "into", Value: bson.D{{Key: "db", Value: "bank"}, {Key: "coll", Value: "c"}}}}}}}}, {Key: "cursor", Value: bson.D{}}, db("shop")},
			{{Key: "mapReduce", Value: "c"}, {Key: "map", Value: "function(){emit(1,1)}"}, {Key: "reduce", Value: "function(){return 1}"}, {Key: "out", Value: bson.D{{Key: "replace", Value: "x"}, {Key: "db", Value: "bank"}}}, db("shop")},
			find(db("shop"), bson.E{Key: "shardVersion", Value: bson.D{{Key: "e", Value: bson.NewObjectID()}, {Key: "t", Value: bson.Timestamp{}}, {Key: "v", Value: bson.Timestamp{}}}}),
			find(db("shop"), bson.E{Key: "databaseVersion", Value: bson.D{{Key: "lastMod", Value: 1}}}),
			find(db("shop"), bson.E{Key: "$audit", Value: bson.D{{Key: "$impersonatedUser", Value: bson.D{{Key: "user", Value: "root"}, {Key: "db", Value: "admin"}}}}}),
		} {
			reply := s.send(cmd)
			if strings.Contains(reply.String(), `"_id": "bank"`) || strings.Contains(reply.String(), `"_id":"bank"`) {
				t.Errorf("%s, %d: %s reads %s", topology, i, cmd, reply)
			}
			if i > 12 && fine(reply) { // from $merge on, refused whatever it would find
				t.Errorf("%s, %d: %s is done: %s", topology, i, cmd, reply)
			}
		}
		if n, err := root.Database("bank").Collection("c").CountDocuments(context.Background(), bson.D{}); err != nil || n != 1 {
			t.Errorf("%s: bank has %d documents, %v", topology, n, err)
		}
		if reply := s.send(find(db("shop"))); !strings.Contains(reply.String(), "shop") {
			t.Errorf("%s: ann reads no more: %s", topology, reply)
		}
	}
}

// A cursor ends when its user loses the privilege for it or is dropped, also between two batches; it survives any other change of the
// user.
func TestRightsChangedInMidCursor(t *testing.T) {
	t.Parallel()
	for _, topology := range []string{"standalone", "sharded"} {
		g := startGuarded(t, topology)
		root := g.root()
		if topology == "sharded" {
			g.must(root, "admin", "shardCollection", "shop.spread", "key", bson.D{{Key: "_id", Value: "hashed"}})
		}
		var docs bson.A
		for i := range 100 {
			docs = append(docs, bson.D{{Key: "_id", Value: i}})
		}
		g.must(root, "shop", "insert", "c", "documents", docs)
		g.must(root, "shop", "insert", "spread", "documents", docs)
		g.must(root, "shop", "create", "v", "viewOn", "c", "pipeline", bson.A{bson.D{{Key: "$match", Value: bson.D{}}}})
		g.must(root, "shop", "create", "w", "viewOn", "spread", "pipeline", bson.A{bson.D{{Key: "$match", Value: bson.D{}}}})
		for _, coll := range []string{"c", "v", "spread", "w"} {
			g.must(root, "admin", "createRole", "reader", "privileges", bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "shop"}, {Key: "collection", Value: coll}}},
				{Key: "actions", Value: bson.A{"find"}}}}, "roles", bson.A{})
			for what, change := range map[string][]any{
				"revoked": {"revokeRolesFromUser", "ann", "roles", bson.A{"reader"}}, "dropped": {"dropUser", "ann"}, "role changed": {"updateRole", "reader", "privileges", bson.A{}},
				"password": {"updateUser", "ann", "pwd", "other"}, "one more role": {"grantRolesToUser", "ann", "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "bank"}}}},
			} {
				g.must(root, "admin", "updateRole", "reader", "privileges", bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "shop"}, {Key: "collection", Value: coll}}}, {Key: "actions", Value: bson.A{"find"}}}})
				g.must(root, "admin", "createUser", "ann", "pwd", "pw", "roles", bson.A{"reader"})
				n, code, text := readAcross(t, g.client("ann", "pw", ""), coll, func() { g.must(root, "admin", change...) })
				ends := what == "revoked" || what == "dropped" || what == "role changed"
				switch {
				case ends && (n > 5 || code != int32(mongoerr.Unauthorized)), !ends && (n != 100 || code != 0),
					what == "revoked" && !strings.HasPrefix(text, "not authorized for getMore with cursor id "):
					t.Errorf("%s, %s, %s: %d documents, then %d %s", topology, coll, what, n, code, text)
				}
				_, _, _ = run1(root, "admin", "dropUser", "ann")
			}
			g.must(root, "admin", "dropRole", "reader")
		}
	}
}

// A getMore that waits for documents ends as soon as its user may not read them any more, without one more of them.
func TestRightsRevokedWhileWaiting(t *testing.T) {
	t.Parallel()
	for _, topology := range []string{"replset", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			g.must(root, "shop", "create", "capped", "capped", true, "size", 100000)
			g.must(root, "shop", "insert", "capped", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
			read := bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}
			for what, open := range map[string][]any{
				"change stream": {"aggregate", "c", "pipeline", bson.A{bson.D{{Key: "$changeStream", Value: bson.D{}}}}, "cursor", bson.D{}},
				"tailable":      {"find", "capped", "tailable", true, "awaitData", true},
			} {
				g.must(root, "admin", "createUser", "ann", "pwd", "pw", "roles", bson.A{read})
				ann := g.client("ann", "pw", "")
				cursor := g.must(ann, "shop", open...)["cursor"].(bson.D)
				var id int64
				for _, e := range cursor {
					if e.Key == "id" {
						id = e.Value.(int64)
					}
				}
				coll := open[1]
				ended := make(chan string, 1)
				go func() {
					reply, code, text := run1(ann, "shop", "getMore", id, "collection", coll, "maxTimeMS", 60000)
					ended <- fmt.Sprint(code, " ", text, reply)
				}()
				select {
				case got := <-ended:
					t.Fatalf("%s: ended before: %s", what, got)
				case <-time.After(300 * time.Millisecond): // a change of rights that keeps these ends nothing
					g.must(root, "admin", "grantRolesToUser", "ann", "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "bank"}}})
				}
				select {
				case got := <-ended:
					t.Fatalf("%s: ended by one more role: %s", what, got)
				case <-time.After(200 * time.Millisecond):
				}
				g.must(root, "admin", "revokeRolesFromUser", "ann", "roles", bson.A{read})
				g.must(root, "shop", "insert", coll, "documents", bson.A{bson.D{}})
				select {
				case got := <-ended:
					if !strings.HasPrefix(got, "13 not authorized for getMore with cursor id ") {
						t.Errorf("%s: %s", what, got)
					}
				case <-time.After(20 * time.Second):
					t.Errorf("%s: still waits", what)
				}
				g.must(root, "admin", "dropUser", "ann")
			}
		})
	}
}

// readAcross reads a collection by a cursor of small batches, and makes a change after the first document. It returns the number of documents
// read, and the error that ended it.
func readAcross(t *testing.T, c *mongo.Client, coll string, change func()) (n int, code int32, text string) {
	t.Helper()
	cur, err := c.Database("shop").Collection(coll).Find(context.Background(), bson.D{}, options.Find().SetBatchSize(5))
	if err != nil || !cur.Next(context.Background()) {
		t.Fatal(coll, err)
	}
	change()
	for n = 1; cur.Next(context.Background()); {
		n++
	}
	var ce mongo.CommandError
	if err := cur.Err(); err != nil && !errors.As(err, &ce) {
		t.Fatal(err)
	}
	return n, ce.Code, ce.Message
}

// JavaScript that users send sees the values that it is given, and nothing of the server.
func TestScriptsSeeNothing(t *testing.T) {
	g := startGuarded(t, "standalone")
	root := g.root()
	g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
	for _, name := range []string{"db", "require", "process", "load", "cat", "run", "runProgram", "Mongo", "connect", "fetch", "XMLHttpRequest", "java", "Deno", "Go", "module", "_startMongoProgram"} {
		body := "function(){ try { return typeof " + name + " } catch (e) { return 'undefined' } }"
		reply := g.must(root, "shop", "aggregate", "c", "pipeline", bson.A{bson.D{{Key: "$project", Value: bson.D{{Key: "t", Value: bson.D{{Key: "$function", Value: bson.D{{Key: "body", Value: body}, {Key: "args", Value: bson.A{}}, {Key: "lang", Value: "js"}}}}}}}}}, "cursor", bson.D{})
		if got := field(field(reply, "cursor", "firstBatch").(bson.A)[0], "t"); got != "undefined" {
			t.Errorf("%s is a %v", name, got)
		}
	}
	// Globals that one script sets are not visible to the script of another user.
	set := "function(){ Object.prototype.stolen = 'left'; globalThis.left = 1; return 1 }"
	look := "function(){ return typeof left + ({}).stolen }"
	for _, body := range []string{set, look} {
		reply := g.must(root, "shop", "aggregate", "c", "pipeline", bson.A{bson.D{{Key: "$project", Value: bson.D{{Key: "t", Value: bson.D{{Key: "$function", Value: bson.D{{Key: "body", Value: body}, {Key: "args", Value: bson.A{}}, {Key: "lang", Value: "js"}}}}}}}}}, "cursor", bson.D{})
		if got := field(field(reply, "cursor", "firstBatch").(bson.A)[0], "t"); body == look && got != "undefinedundefined" {
			t.Errorf("a script finds %v", got)
		}
	}
}
