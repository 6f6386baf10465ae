package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// code returns a reply's error code, 0 if there is none.
func (s stranger) code(db string, cmd ...bson.E) int64 {
	s.t.Helper()
	reply := s.send(append(cmd, bson.E{Key: "$db", Value: db}))
	if fine(reply) {
		return 0
	}
	return reply.Lookup("code").AsInt64()
}

// Without the action inprog a user sees its own operations on a node, and none of the shards' through a router, where they would be those of
// everybody (manual: $currentOp, Access Control).
func TestOperationsOfOthersAreNotShown(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			g.must(root, "admin", "createUser", "ann", "pwd", "pw", "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}})
			ann := g.stranger()
			ann.logIn("ann", "pw")
			stage := func(spec bson.D) []bson.E {
				return bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$currentOp", Value: spec}}}}, {Key: "cursor", Value: bson.D{}}}
			}
			shards := int64(0)
			if topology == "sharded" {
				shards = int64(mongoerr.Unauthorized)
			}
			for _, tc := range []struct {
				cmd  []bson.E
				want int64
			}{
				{bson.D{{Key: "currentOp", Value: 1}}, int64(mongoerr.Unauthorized)},
				{bson.D{{Key: "currentOp", Value: 1}, {Key: "$ownOps", Value: true}}, shards},
				{stage(bson.D{}), shards},
				{stage(bson.D{{Key: "allUsers", Value: false}, {Key: "localOps", Value: false}}), shards},
				{stage(bson.D{{Key: "localOps", Value: true}}), 0},
				{stage(bson.D{{Key: "localOps", Value: true}, {Key: "allUsers", Value: true}}), int64(mongoerr.Unauthorized)},
			} {
				if got := ann.code("admin", tc.cmd...); got != tc.want {
					t.Errorf("%v: %d, want %d", tc.cmd, got, tc.want)
				}
			}
			// The administrator's own operations: on a shard they are the router's, on behalf of the user.
			boss := g.stranger()
			boss.logIn("root", "secret")
			reply := boss.send(append(stage(bson.D{}), bson.E{Key: "$db", Value: "admin"}))
			list, err := reply.Lookup("cursor", "firstBatch").Array().Values()
			if err != nil || len(list) == 0 {
				t.Fatalf("no operation of one's own: %v", reply)
			}
			for _, v := range list {
				users, runBy := fmt.Sprint(v.Document().Lookup("effectiveUsers")), v.Document().Lookup("runBy").String()
				if users != `[{"user": "root","db": "admin"}]` || (topology == "sharded") != strings.Contains(runBy, `"__system"`) {
					t.Errorf("effectiveUsers %s, runBy %s", users, runBy)
				}
			}
		})
	}
}

// Beside its running operations a user sees its own idle connections, cursors and transactions, and nobody else's (manual: $currentOp,
// allUsers); on a shard they are those of the user whom the router serves.
func TestOwnIdleOnesAreShown(t *testing.T) {
	for _, topology := range []string{"replset", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}})
			g.must(root, "admin", "createUser", "ann", "pwd", "pw", "roles", bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: "shop"}}})
			id := bson.Binary{Subtype: 4, Data: make([]byte, 16)} // of a session; sessions of two users are two
			enter := func(user, password string) stranger {
				s := g.stranger()
				_ = s.SetDeadline(time.Time{})
				s.logIn(user, password)
				if got := s.code("shop", bson.E{Key: "find", Value: "c"}, bson.E{Key: "batchSize", Value: 1}, bson.E{Key: "comment", Value: user}); got != 0 {
					t.Fatalf("the cursor of %s: %d", user, got)
				}
				if got := s.code("shop", bson.E{Key: "find", Value: "c"}, bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: id}}}, bson.E{Key: "txnNumber", Value: int64(1)},
					bson.E{Key: "startTransaction", Value: true}, bson.E{Key: "autocommit", Value: false}); got != 0 {
					t.Fatalf("the transaction of %s: %d", user, got)
				}
				g.stranger().logIn(user, password) // an idle connection
				return s
			}
			shown := func(s stranger, options ...bson.E) map[string]int {
				reply := s.send(bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$currentOp", Value: bson.D(options)}},
					bson.D{{Key: "$match", Value: bson.D{{Key: "active", Value: bson.D{{Key: "$ne", Value: true}}}}}}}}, {Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 1000}}}, {Key: "$db", Value: "admin"}})
				list, err := reply.Lookup("cursor", "firstBatch").Array().Values()
				if err != nil {
					t.Fatalf("%v: %v", options, reply)
				}
				seen := map[string]int{}
				for _, v := range list {
					d := v.Document()
					whose := d.Lookup("cursor", "originatingCommand", "comment").String()
					if kind := d.Lookup("type").StringValue(); kind == "op" {
						whose = "nobody's"
						if users, err := d.Lookup("effectiveUsers").Array().Values(); err == nil && len(users) > 0 {
							whose = users[0].Document().Lookup("user").String()
						}
					} else if kind == "idleSession" {
						whose = "another's"
						for _, user := range []string{"ann", "root"} {
							if digest := sha256.Sum256([]byte(user + "@admin")); bytes.Contains(d.Lookup("lsid", "uid").Value, digest[:]) {
								whose = strconv.Quote(user)
							}
						}
					}
					seen[d.Lookup("type").StringValue()+" "+whose]++
				}
				return seen
			}
			ann, boss := enter("ann", "pw"), enter("root", "secret")
			all := []bson.E{{Key: "idleConnections", Value: true}, {Key: "idleCursors", Value: true}, {Key: "idleSessions", Value: true}}
			here := append(all, bson.E{Key: "localOps", Value: true})
			for _, tc := range []struct {
				who   stranger
				name  string
				other string
			}{{ann, `"ann"`, `"root"`}, {boss, `"root"`, `"ann"`}} {
				got := shown(tc.who, here...)
				if got["idleCursor "+tc.name] != 1 || got["idleSession "+tc.name] != 1 || got["op "+tc.name] < 1 {
					t.Errorf("%s does not see its own: %v", tc.name, got)
				}
				for kind := range got {
					if !strings.HasSuffix(kind, tc.name) {
						t.Errorf("%s sees %s", tc.name, kind)
					}
				}
				if got := shown(tc.who, bson.E{Key: "localOps", Value: true}, bson.E{Key: "idleSessions", Value: false}); len(got) != 0 {
					t.Errorf("%s sees what it has not asked for: %v", tc.name, got)
				}
			}
			if got := shown(boss, append(here, bson.E{Key: "allUsers", Value: true})...); got[`idleCursor "ann"`] != 1 || got[`idleSession "ann"`] != 1 || got[`op "ann"`] < 1 {
				t.Errorf("an administrator who asks for all users: %v", got)
			}
			// The shards' cursors and sessions belong to the users whom the router serves.
			if got := shown(boss, all...); got[`idleCursor "root"`] != 1 || got[`idleSession "root"`] != 1 || got[`idleCursor "ann"`]+got[`idleSession "ann"`] != 0 {
				t.Errorf("an administrator's own: %v", got)
			}
		})
	}
}

// Two users whose names and databases read the same when they are joined by an @ are two users.
func TestNamesakesAreTwoUsers(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			g.must(root, "bank", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}})
			g.must(root, "c", "createUser", "a@b", "pwd", "pw", "roles", bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: "bank"}}})
			g.must(root, "b@c", "createUser", "a", "pwd", "pw", "roles", bson.A{})
			owner, namesake := g.stranger(), g.stranger()
			owner.logInOn("c", "a@b", "pw")
			namesake.logInOn("b@c", "a", "pw")
			reply := owner.send(bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: 1}, {Key: "$db", Value: "bank"}})
			cursor := reply.Lookup("cursor", "id")
			more := bson.D{{Key: "getMore", Value: cursor}, {Key: "collection", Value: "c"}}
			if got := namesake.code("bank", more...); got != int64(mongoerr.Unauthorized) {
				t.Errorf("the namesake's getMore: %d", got)
			}
			if got := namesake.code("bank", bson.E{Key: "killCursors", Value: "c"}, bson.E{Key: "cursors", Value: bson.A{cursor}}); got != int64(mongoerr.Unauthorized) {
				t.Errorf("the namesake's killCursors: %d", got)
			}
			session := owner.send(bson.D{{Key: "startSession", Value: 1}, {Key: "$db", Value: "admin"}}).Lookup("id")
			reply = owner.send(bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: 1}, {Key: "lsid", Value: session}, {Key: "$db", Value: "bank"}})
			more = bson.D{{Key: "getMore", Value: reply.Lookup("cursor", "id")}, {Key: "collection", Value: "c"}, {Key: "lsid", Value: session}}
			namesake.code("admin", bson.E{Key: "killSessions", Value: bson.A{session}})
			if got := owner.code("bank", more...); got != 0 {
				t.Errorf("the session that the namesake would kill: %d", got)
			}
			// A user who may kill sessions may kill those of either name.
			g.must(root, "admin", "killAllSessions", bson.A{bson.D{{Key: "user", Value: "a"}, {Key: "db", Value: "b@c"}}})
			if got := owner.code("bank", more...); got != 0 && got != int64(mongoerr.CursorNotFound) {
				t.Errorf("the session of the other name: %d", got)
			}
		})
	}
}

// Open connections lose their user when it, or one of its roles, is restricted to other addresses.
func TestRestrictionsReachOpenConnections(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			g.must(root, "shop", "createRole", "cook", "privileges", bson.A{}, "roles", bson.A{"read"})
			for _, name := range []string{"ann", "eve"} {
				g.must(root, "admin", "createUser", name, "pwd", "pw", "roles", bson.A{bson.D{{Key: "role", Value: "cook"}, {Key: "db", Value: "shop"}}})
			}
			ann, eve := g.stranger(), g.stranger()
			ann.logIn("ann", "pw")
			eve.logIn("eve", "pw")
			limit := func(addr string) bson.A { return bson.A{bson.D{{Key: "clientSource", Value: bson.A{addr}}}} }
			g.must(root, "admin", "updateUser", "eve", "authenticationRestrictions", limit("10.0.0.0/8"))
			if !ann.in() || eve.in() {
				t.Errorf("a restricted user: the other is in: %v, it is: %v", ann.in(), eve.in())
			}
			// A connection that has lost its user is a stranger's, whose messages are limited.
			if _, err := eve.Write(opMsg(0, body(bson.D{{Key: "ping", Value: 1}, {Key: "comment", Value: strings.Repeat("x", 20000)}, {Key: "$db", Value: "admin"}}))); err == nil {
				if reply, err := eve.reply(); err == nil {
					t.Errorf("a long message of a restricted user: %v", reply)
				}
			}
			g.must(root, "shop", "updateRole", "cook", "authenticationRestrictions", limit("127.0.0.0/8"))
			if !ann.in() {
				t.Error("a role that is restricted to this machine ends a connection from it")
			}
			g.must(root, "shop", "updateRole", "cook", "authenticationRestrictions", limit("10.0.0.0/8"))
			if ann.in() {
				t.Error("a restricted role keeps its user in")
			}
			g.must(root, "shop", "updateRole", "cook", "authenticationRestrictions", bson.A{})
			if ann.in() {
				t.Error("a connection that has lost its user has it again, without authenticating")
			}
		})
	}
}

// A conversation stays on the database where it began.
func TestConversationsStayOnTheirDatabase(t *testing.T) {
	g := startGuarded(t, "standalone")
	g.root()
	s := g.stranger()
	conv := conversation(t, "root", "secret")
	first, _ := conv.Step("")
	proof, err := conv.Step(payload(s.start(first)))
	if err != nil {
		t.Fatal(err)
	}
	if reply := s.nextOn("shop", 1, proof); fine(reply) || reply.Lookup("code").AsInt64() != int64(mongoerr.ProtocolError) || s.in() {
		t.Errorf("continued on another database: %v", reply)
	}
	if reply := s.next(1, proof); fine(reply) || s.in() {
		t.Errorf("continued again on its own: %v", reply)
	}
}

// A transaction belongs to the user who began it: another user who knows its session, on a connection of its own or on the one that the owner has left,
// reads, commits, aborts and ends nothing of it; and the owner does in it only what it may at that moment.
func TestTransactionsOfOthers(t *testing.T) {
	for _, topology := range []string{"replset", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 0}}})
			write := bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: "shop"}}}
			g.must(root, "admin", "createUser", "ann", "pwd", "pw", "roles", write)
			g.must(root, "admin", "createUser", "bob", "pwd", "pw", "roles", write)
			ann, left, bob := g.stranger(), g.stranger(), g.stranger()
			for c, user := range map[stranger]string{ann: "ann", left: "ann", bob: "bob"} {
				c.logInOn("admin", user, "pw")
			}
			session := ann.send(bson.D{{Key: "startSession", Value: 1}, {Key: "$db", Value: "admin"}}).Lookup("id")
			step := func(c stranger, db string, number int64, cmd ...bson.E) int64 {
				return c.code(db, append(cmd, bson.E{Key: "lsid", Value: session}, bson.E{Key: "txnNumber", Value: number}, bson.E{Key: "autocommit", Value: false})...)
			}
			insert := func(id int) []bson.E {
				return []bson.E{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}}}
			}
			begin := bson.E{Key: "startTransaction", Value: true}
			commit, abort := bson.E{Key: "commitTransaction", Value: 1}, bson.E{Key: "abortTransaction", Value: 1}
			expect := func(what string, got, want int64) {
				t.Helper()
				if got != want {
					t.Errorf("%s: %d, want %d", what, got, want)
				}
			}
			const unknown, refused = int64(mongoerr.NoSuchTransaction), int64(mongoerr.Unauthorized)
			expect("begun", step(ann, "shop", 1, append(insert(1), begin)...), 0)
			expect("bob continues", step(bob, "shop", 1, insert(2)...), unknown)
			expect("bob commits", step(bob, "admin", 1, commit), unknown)
			expect("bob aborts", step(bob, "admin", 1, abort), unknown)
			expect("bob kills the session", bob.code("admin", bson.E{Key: "killSessions", Value: bson.A{session}}), 0)
			expect("bob ends the session", bob.code("admin", bson.E{Key: "endSessions", Value: bson.A{session}}), 0)
			expect("the owner continues elsewhere", step(left, "shop", 1, insert(3)...), 0)

			expect("logout", left.code("admin", bson.E{Key: "logout", Value: 1}), 0)
			expect("nobody continues", step(left, "shop", 1, insert(4)...), refused)
			expect("nobody commits", step(left, "admin", 1, commit), refused)
			left.logInOn("admin", "bob", "pw")
			expect("bob commits on the connection that the owner has left", step(left, "admin", 1, commit), unknown)
			expect("bob aborts there", step(left, "admin", 1, abort), unknown)

			g.must(root, "admin", "revokeRolesFromUser", "ann", "roles", write)
			expect("the owner without the role", step(ann, "shop", 1, insert(5)...), refused)
			g.must(root, "admin", "grantRolesToUser", "ann", "roles", write)
			expect("the owner with it", step(ann, "shop", 1, insert(6)...), 0)
			expect("committed", step(ann, "admin", 1, commit), 0)

			expect("begun again", step(ann, "shop", 2, append(insert(7), begin)...), 0)
			g.must(root, "admin", "dropUser", "ann")
			expect("a dropped user commits", step(ann, "admin", 2, commit), refused)

			cur, err := root.Database("shop").Collection("c").Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
			if err != nil {
				t.Fatal(err)
			}
			var docs []struct {
				ID int `bson:"_id"`
			}
			if err := cur.All(t.Context(), &docs); err != nil || fmt.Sprint(docs) != "[{0} {1} {3} {6}]" {
				t.Errorf("stored are %v, %v", docs, err)
			}
		})
	}
}
