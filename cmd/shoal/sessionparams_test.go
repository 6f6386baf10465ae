package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Each test here shows that a parameter about clocks, sessions or transactions changes what the server does.

// startWithParams starts a deployment in this process, with server parameters, and connects to it.
func startWithParams(t *testing.T, topology string, params ...pair) *mongo.Client {
	t.Helper()
	g := startGuardedWith(t, topology, func(c *config) { c.Security.Auth, c.Parameters = false, params })
	return connect(t, g.uri)
}

// refusedBy is the code of the error that a command ended with.
func refusedBy(err error) mongoerr.Code {
	var e mongo.CommandError
	if errors.As(err, &e) {
		return mongoerr.Code(e.Code)
	}
	return mongoerr.OK
}

func TestMaxAcceptableLogicalClockDriftSecs(t *testing.T) {
	t.Parallel()
	for _, topology := range []string{"replset", "sharded"} {
		for secs, want := range map[string]mongoerr.Code{"10": mongoerr.ClusterTimeFailsRateLimiter, "10000": mongoerr.OK} {
			t.Run(topology+" "+secs, func(t *testing.T) {
				t.Parallel()
				g := startGuardedWith(t, topology, func(c *config) { c.Parameters = []pair{{"maxAcceptableLogicalClockDriftSecs", secs}} })
				root := g.root()
				advances := bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "cluster", Value: true}}}, {Key: "actions", Value: bson.A{"advanceClusterTime"}}}}
				g.must(root, "admin", "createRole", "advances", "privileges", advances, "roles", bson.A{})
				g.must(root, "admin", "createUser", "ann", "pwd", "a", "roles", bson.A{"advances"})
				ann := g.client("ann", "a", "")
				s, err := ann.StartSession()
				if err != nil {
					t.Fatal(err)
				}
				defer s.EndSession(context.Background())
				ahead, err := bson.Marshal(bson.D{{Key: "$clusterTime", Value: bson.D{{Key: "clusterTime", Value: bson.Timestamp{T: uint32(time.Now().Unix()) + 1000, I: 1}},
					{Key: "signature", Value: bson.D{{Key: "hash", Value: make([]byte, 20)}, {Key: "keyId", Value: int64(0)}}}}}})
				if err != nil {
					t.Fatal(err)
				}
				if err := s.AdvanceClusterTime(ahead); err != nil {
					t.Fatal(err)
				}
				err = ann.Database("admin").RunCommand(mongo.NewSessionContext(t.Context(), s), bson.D{{Key: "ping", Value: 1}}).Err()
				if code := refusedBy(err); code != want {
					t.Errorf("a time 1,000 s ahead: %v, want code %d", err, want)
				}
			})
		}
	}
}

// Without access control a cluster time of another deployment is adopted: a client that has it is not refused for good.
func TestClusterTimesOfOtherDeployments(t *testing.T) {
	t.Parallel()
	p := launch(t, t.TempDir(), "--memory")
	ahead := bson.Timestamp{T: uint32(time.Now().Unix()) + 1000, I: 1}
	other := bson.D{{Key: "clusterTime", Value: ahead}, {Key: "signature", Value: bson.D{{Key: "hash", Value: make([]byte, 20)}, {Key: "keyId", Value: int64(7)}}}}
	c := openRaw(t, p)
	reply, err := c.run(t.Context(), bson.D{{Key: "ping", Value: 1}, {Key: "$clusterTime", Value: other}, {Key: "$db", Value: "admin"}})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := reply.Lookup("$clusterTime", "clusterTime").Timestamp(); got < ahead.T {
		t.Errorf("the clock is at %d, want %v", got, ahead)
	}
}

func TestKeysRotationIntervalSec(t *testing.T) {
	t.Parallel()
	for _, topology := range []string{"replset", "sharded"} {
		for _, secs := range []uint32{2, 1000} {
			t.Run(fmt.Sprint(topology, " ", secs), func(t *testing.T) {
				t.Parallel()
				keys := startWithParams(t, topology, pair{"KeysRotationIntervalSec", fmt.Sprint(secs)}).Database("admin").Collection("system.keys")
				type key struct {
					ExpiresAt bson.Timestamp `bson:"expiresAt"`
				}
				read := func() (out []key) {
					cur, err := keys.Find(t.Context(), bson.D{{Key: "purpose", Value: "HMAC"}}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
					if err != nil {
						t.Fatal(err)
					}
					if err := cur.All(t.Context(), &out); err != nil {
						t.Fatal(err)
					}
					return out
				}
				await.True(t, "two keys are made ahead", func() bool { return len(read()) >= 2 })
				list := read()
				if lives := list[1].ExpiresAt.T - list[0].ExpiresAt.T; lives != secs {
					t.Errorf("the second key lives %d s longer than the first, want %d", lives, secs)
				}
				if secs > 10 {
					return
				}
				await.True(t, "a key follows when the first expires", func() bool { return len(read()) > len(list) })
			})
		}
	}
}

// Once a server with a window of a second refuses reads of the past, one with a window of minutes answers reads that are older.
func TestMinSnapshotHistoryWindowInSeconds(t *testing.T) {
	t.Parallel()
	// past returns a read of the time at which past was called.
	past := func(db *mongo.Database) func() mongoerr.Code {
		var r struct {
			At bson.Timestamp `bson:"operationTime"`
		}
		if err := db.RunCommand(t.Context(), bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{}}}}).Decode(&r); err != nil {
			t.Fatal(err)
		}
		find := bson.D{{Key: "find", Value: "c"}, {Key: "readConcern", Value: bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: r.At}}}}
		if err := db.RunCommand(t.Context(), find).Err(); err != nil {
			t.Fatal(err)
		}
		return func() mongoerr.Code {
			if _, err := db.Collection("other").InsertOne(t.Context(), bson.D{}); err != nil { // what is written moves the window
				t.Fatal(err)
			}
			return refusedBy(db.RunCommand(t.Context(), find).Err())
		}
	}
	window := func(secs string) *mongo.Database {
		return startWithParams(t, "replset", pair{"minSnapshotHistoryWindowInSeconds", secs}, pair{"transactionLifetimeLimitSeconds", "1"}).Database("d")
	}
	short, long := window("1"), window("300")
	older := past(long)
	read := past(short)
	await.True(t, "a read of the past is refused", func() bool {
		if code := older(); code != mongoerr.OK {
			t.Fatalf("a window of minutes: code %d", code)
		}
		code := read()
		if code != mongoerr.OK && code != mongoerr.SnapshotTooOld {
			t.Fatalf("a window of a second: code %d", code)
		}
		return code == mongoerr.SnapshotTooOld
	})
}

func TestMaxSessions(t *testing.T) {
	t.Parallel()
	for _, topology := range topologies {
		for most, want := range map[string]mongoerr.Code{"3": mongoerr.TooManyLogicalSessions, "1000": mongoerr.OK} {
			t.Run(topology+" "+most, func(t *testing.T) {
				t.Parallel()
				client := startWithParams(t, topology, pair{"maxSessions", most})
				code := mongoerr.OK
				for range 10 {
					if err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "startSession", Value: 1}}).Err(); err != nil {
						code = refusedBy(err)
					}
				}
				if code != want {
					t.Errorf("ten sessions: code %d, want %d", code, want)
				}
			})
		}
	}
}

// While one server writes its sessions to their collection, another, whose refresh is disabled, writes none, until a command has it do so.
func TestDisableLogicalSessionCacheRefresh(t *testing.T) {
	t.Parallel()
	// session starts a session, and returns whether it is in the collection.
	session := func(t *testing.T, client *mongo.Client) (stored func() bool) {
		var r struct {
			ID struct {
				ID bson.Binary
			}
		}
		if err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "startSession", Value: 1}}).Decode(&r); err != nil {
			t.Fatal(err)
		}
		return func() bool {
			n, err := client.Database("config").Collection("system.sessions").CountDocuments(t.Context(), bson.D{{Key: "_id.id", Value: r.ID.ID}})
			if err != nil {
				t.Fatal(err)
			}
			return n == 1
		}
	}
	for _, topology := range []string{"replset", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			server := func(off bool) *mongo.Client {
				return startWithParams(t, topology, pair{"logicalSessionRefreshMillis", "200"}, pair{"disableLogicalSessionCacheRefresh", fmt.Sprint(off)})
			}
			off := server(true)
			kept := session(t, off)
			await.True(t, "the session is written to its collection", session(t, server(false)))
			if kept() {
				t.Error("the session was written to its collection")
			}
			if err := off.Database("admin").RunCommand(t.Context(), bson.D{{Key: "refreshLogicalSessionCacheNow", Value: 1}}).Err(); err != nil {
				t.Fatal(err)
			}
			if !kept() {
				t.Error("the command did not write it")
			}
		})
	}
}

// A member that is shut down lets its operations continue for the time of the parameter.
func TestShutdownTimeoutMillisForSignaledShutdown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		millis    string
		completes bool
	}{{"15000", true}, {"0", false}} {
		t.Run(c.millis, func(t *testing.T) {
			t.Parallel()
			set := launchSet(t, setOptions{members: 2, role: "--shardsvr", args: []string{"--setParameter", "shutdownTimeoutMillisForSignaledShutdown=" + c.millis}})
			primary, o := set.ready(), set.members[0]
			if o == primary {
				o = set.members[1]
			}
			ctx := context.Background()
			admin := o.direct.Database("admin")
			data := bson.D{{Key: "failCommands", Value: bson.A{"find"}}, {Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: 2000}}
			var before struct{ Count int }
			if err := admin.RunCommand(ctx, bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: bson.D{{Key: "times", Value: 1}}}, {Key: "data", Value: data}}).Decode(&before); err != nil {
				t.Fatal(err)
			}
			found := make(chan error, 1)
			go func() {
				found <- o.direct.Database("d").RunCommand(ctx, bson.D{{Key: "find", Value: "c"}}, options.RunCmd().SetReadPreference(readpref.SecondaryPreferred())).Err()
			}()
			if err := admin.RunCommand(ctx, bson.D{{Key: "waitForFailPoint", Value: "failCommand"}, {Key: "timesEntered", Value: before.Count + 1}, {Key: "maxTimeMS", Value: 30000}}).Err(); err != nil {
				t.Fatal(err)
			}
			o.signal(syscall.SIGTERM)
			select {
			case err := <-found:
				if (err == nil) != c.completes {
					t.Errorf("the find that was under way: %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("the find has not ended")
			}
			if code := o.endedWith(t); code != 0 {
				t.Errorf("ended with %d", code)
			}
		})
	}
}

// The document that a findAndModify returned is kept in config.image_collection, on every member and wherever its chunk goes: a retry
// after an election, and after a migration, returns it. There is no other place since 8.0, which has removed the parameter
// storeFindAndModifyImagesInSideCollection.
func TestImagesOfFindAndModifyAreKept(t *testing.T) {
	t.Parallel()
	client := startWithParams(t, "replset")
	err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "setParameter", Value: 1}, {Key: "storeFindAndModifyImagesInSideCollection", Value: true}}).Err()
	if refusedBy(err) != mongoerr.InvalidOptions {
		t.Errorf("the parameter that 8.0 has removed: %v", err)
	}
	if testing.Short() {
		return
	}
	c := launchCluster(t, clusterOptions{shards: []int{3, 1}, net: newNetwork(t)})
	c.shard("d.c", 100)
	coll := c.client.Database("d").Collection("c")
	for _, id := range []int{1, 200} {
		if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "n", Value: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	conn := dialPlain(t, c.routers[0].at())
	modify := func(session, id int, returnNew bool) string {
		t.Helper()
		r := conn.run("d", fmt.Sprintf(`{"findAndModify": "c", "query": {"_id": %d}, "update": {"$inc": {"n": 1}}, "new": %t, "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAA%02dAA==", "subType": "04"}}},
			"txnNumber": {"$numberLong": "1"}}`, id, returnNew, session))
		if r["ok"] != 1.0 {
			t.Fatal(r)
		}
		return fmt.Sprint(r["value"])
	}
	var first []string
	all := func() (out []string) {
		for i, id := range []int{1, 200, 1, 200} {
			out = append(out, modify(10+i, id, i >= 2))
		}
		return out
	}
	first = all()
	same := func(when string) {
		t.Helper()
		if again := all(); fmt.Sprint(again) != fmt.Sprint(first) {
			t.Errorf("%s: %v, want %v", when, again, first)
		}
	}
	same("at once")
	rs := c.shards[0]
	old := rs.elected()
	rs.kill(old)
	await.True(t, "another member is primary", func() bool { p := rs.primary(); return p >= 0 && p != old })
	same("after an election")
	rs.start(old)
	rs.waitReady()
	for i, id := range []int{1, 200} {
		c.admin(bson.D{{Key: "moveChunk", Value: "d.c"}, {Key: "find", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "to", Value: shardName(i)}, {Key: "_waitForDelete", Value: true}})
		c.admin(bson.D{{Key: "moveChunk", Value: "d.c"}, {Key: "find", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "to", Value: shardName(1 - i)}, {Key: "_waitForDelete", Value: true}})
	}
	same("after migrations")
}
