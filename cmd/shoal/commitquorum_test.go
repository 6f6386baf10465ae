package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shoaldb/shoal/internal/await"
)

// quorumTest is a set of three processes, and a collection on which indexes are built.
type quorumTest struct {
	*replicaSet
	ctx  context.Context
	coll *mongo.Collection
}

// other returns a member that is not the primary.
func (q *quorumTest) other() int {
	p := q.elected()
	return (p + 1) % len(q.members)
}

// build starts a createIndexes; its error arrives on the channel.
func (q *quorumTest) build(name string) <-chan error {
	done := make(chan error, 1)
	go func() {
		done <- q.coll.Database().RunCommand(q.ctx, bson.D{{Key: "createIndexes", Value: "c"},
			{Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: name, Value: 1}}}, {Key: "name", Value: name}}}}}).Err()
	}()
	return done
}

// votes waits until the build of an index has a number of votes.
func (q *quorumTest) votes(name string, n int) {
	q.t.Helper()
	await.True(q.t, fmt.Sprintf("%d votes for %s", n, name), func() bool {
		var e struct {
			CommitReadyMembers []string `bson:"commitReadyMembers"`
		}
		ctx, cancel := context.WithTimeout(q.ctx, 2*electionTimeout)
		defer cancel()
		err := q.coll.Database().Client().Database("config").Collection("system.indexBuilds").FindOne(ctx, bson.D{{Key: "indexNames", Value: name}}).Decode(&e)
		return err == nil && len(e.CommitReadyMembers) == n
	})
}

// hasIndex waits until a member has an index that is ready.
func (q *quorumTest) hasIndex(i int, name string) {
	q.t.Helper()
	coll := q.members[i].direct.Database("d").Collection("c", options.Collection().SetReadPreference(readpref.Nearest()))
	await.True(q.t, fmt.Sprintf("%s on member %d", name, i), func() bool {
		ctx, cancel := context.WithTimeout(q.ctx, electionTimeout)
		defer cancel()
		n, err := coll.CountDocuments(ctx, bson.D{{Key: name, Value: bson.D{{Key: "$gte", Value: 0}}}}, options.Count().SetHint(name))
		return err == nil && n == 100
	})
}

// Builds wait for a member that is killed, or frozen, over the death of the primary and the loss of a member's files, and end when every member has all of the
// index.
func TestCommitQuorumOutlastsProcesses(t *testing.T) {
	t.Parallel()
	rs := launchSet(t, setOptions{members: 3, net: newNetwork(t)})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	q := &quorumTest{replicaSet: rs, ctx: ctx, coll: connect(t, rs.uri()).Database("d").Collection("c")}
	for i := range 100 {
		if _, err := q.coll.InsertOne(ctx, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: i}, {Key: "b", Value: i}, {Key: "e", Value: bson.A{i, i}}}); err != nil {
			t.Fatal(err)
		}
	}
	q.frozen()
	q.primaryDies()
	q.resynced()
	rs.sameEverywhere("d")
}

func (q *quorumTest) frozen() {
	m := q.other()
	q.members[m].pause()
	done := q.build("a")
	q.votes("a", 2)
	p := q.members[q.elected()]
	q.await("the primary's log shows that a build waits", func() bool { return p.logHas(`"id":3856203`, 1) })
	q.members[m].resume()
	if err := <-done; err != nil {
		q.t.Errorf("with the frozen member back: %v", err)
	}
	q.hasIndex(m, "a")
}

// primaryDies kills the primary while a member is down. When that member is back, the build is completed although the primary is gone: it had voted.
func (q *quorumTest) primaryDies() {
	m, p := q.other(), q.elected()
	q.kill(m)
	done := q.build("b")
	q.votes("b", 2)
	q.kill(p)
	if err := <-done; err == nil {
		q.t.Error("createIndexes is acknowledged by a primary that was killed")
	}
	q.start(m) // a majority; the vote of the member that is gone is stored
	for i := range q.members {
		if i != p {
			q.hasIndex(i, "b")
		}
	}
	q.start(p)
	q.hasIndex(p, "b")
	q.waitReady()
}

// resynced has a member lose its files while a build waits for it.
func (q *quorumTest) resynced() {
	m := q.other()
	q.kill(m)
	done := q.build("e")
	q.votes("e", 2)
	if err := os.RemoveAll(q.dbpath(m)); err != nil {
		q.t.Fatal(err)
	}
	q.start(m)
	if err := <-done; err != nil {
		q.t.Errorf("with the member copied anew: %v", err)
	}
	q.hasIndex(m, "e")
	q.waitReady()
}

// A config server whose primary dies while its indexes are missing, as at its first start, has a next primary that builds them before it takes writes: it waits for no
// other member, of which one is down. The collections have documents, so that there is something to build.
func TestConfigServerBuildsItsIndexesAtStepUp(t *testing.T) {
	t.Parallel()
	rs := launchSet(t, setOptions{name: "config", role: "--configsvr", members: 3, net: newNetwork(t)})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	documents := map[string]bson.D{
		"chunks":           {{Key: "_id", Value: 1}, {Key: "uuid", Value: 1}, {Key: "min", Value: 1}},
		"tags":             {{Key: "_id", Value: 1}, {Key: "ns", Value: "d.c"}, {Key: "tag", Value: "x"}, {Key: "min", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "max", Value: bson.D{{Key: "a", Value: 2}}}},
		"placementHistory": {{Key: "_id", Value: 1}, {Key: "nss", Value: "d.c"}, {Key: "timestamp", Value: bson.Timestamp{T: 1}}, {Key: "shards", Value: bson.A{}}},
	}
	indexes := func(i int) string {
		ctx, cancel := context.WithTimeout(ctx, electionTimeout)
		defer cancel()
		var all []string
		for _, coll := range []string{"chunks", "placementHistory", "shards", "tags"} {
			reply, err := rs.members[i].direct.Database("config", options.Database().SetReadPreference(readpref.Nearest())).
				RunCommandCursor(ctx, bson.D{{Key: "listIndexes", Value: coll}, {Key: "includeIndexBuildInfo", Value: true}})
			var list []struct {
				Spec           struct{ Name string }
				IndexBuildInfo bson.Raw `bson:"indexBuildInfo"`
			}
			if err == nil {
				err = reply.All(ctx, &list)
			}
			if err != nil {
				return fmt.Sprint(err)
			}
			for _, x := range list {
				all = append(all, fmt.Sprint(coll, ".", x.Spec.Name, string(x.IndexBuildInfo)))
			}
		}
		slices.Sort(all)
		return fmt.Sprint(all)
	}
	first := rs.elected()
	want := indexes(first)
	config := rs.members[first].direct.Database("config")
	for coll, doc := range documents {
		if _, err := config.Collection(coll).InsertOne(ctx, doc); err != nil {
			t.Fatal(err)
		}
		if err := config.RunCommand(ctx, bson.D{{Key: "dropIndexes", Value: coll}, {Key: "index", Value: "*"}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	rs.kill(first)
	for i := range rs.members {
		if i != first {
			await.State(t, fmt.Sprintf("the indexes of member %d", i), func() (string, bool) { got := indexes(i); return got, got == want })
		}
	}
	next := rs.elected()
	if _, err := rs.members[next].direct.Database("config").Collection("own").InsertOne(ctx, bson.D{{Key: "_id", Value: "written"}}); err != nil {
		t.Errorf("the next primary: %v", err)
	}
	rs.start(first)
	rs.waitReady()
	await.State(t, "the indexes of the member that died", func() (string, bool) { got := indexes(first); return got, got == want })
}
