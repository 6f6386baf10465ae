package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard has lost two of three members. Through a router, its writes fail with errors that drivers understand, within
// their time limit; reads that secondaries may serve continue; the other shard is not affected; and when the members are
// back, everything acknowledged is there.
func TestShardWithoutMajority(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts eight servers")
	}
	l := &shardLoss{t: t, c: launchCluster(t, clusterOptions{shards: []int{3, 3}, net: newNetwork(t)})}
	for i, db := range []string{"well", "lost"} {
		l.c.admin(bson.D{{Key: "enableSharding", Value: db}, {Key: "primaryShard", Value: shardName(i)}})
		for range 20 {
			l.insert(db)
		}
	}
	l.c.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "setParameter", Value: 1}, {Key: "defaultFindReplicaSetHostTimeoutMS", Value: 2000}})
	rs := l.c.shards[1]
	p := rs.elected()
	for i := range rs.members {
		if i != p {
			rs.kill(i)
		}
	}
	waiting := l.beforeStepDown()
	await.True(t, "the shard's primary steps down", func() bool { return rs.members[p].hello()["isWritablePrimary"] == false })
	if err := <-waiting; !mongo.IsNetworkError(err) && !labelled(err, "RetryableWriteError") {
		t.Errorf("a retryable write that waited when the primary stepped down: %v", err)
	}
	l.writesFail()
	l.readsContinue()
	l.insert("well")
	for i := range rs.members {
		if i != p {
			rs.start(i)
		}
	}
	rs.waitReady()
	l.insert("lost")
	for db, n := range map[string]int{"well": l.acked["well"], "lost": l.acked["lost"]} {
		if got, err := l.coll(db).CountDocuments(t.Context(), bson.D{{Key: "acked", Value: true}}); err != nil || int(got) != n {
			t.Errorf("%s has %d documents of %d acknowledged ones (%v)", db, got, n, err)
		}
	}
	// The write that timed out before a majority had it is there once or not at all, the same on all members.
	if n, err := l.coll("lost").CountDocuments(t.Context(), bson.D{{Key: "_id", Value: "left"}}); err != nil || n > 1 {
		t.Errorf("the write that was left is there %d times (%v)", n, err)
	}
	rs.sameEverywhere("lost", "config")
}

// shardLoss is a cluster whose second shard has database "lost".
type shardLoss struct {
	t     *testing.T
	c     *shardedCluster
	acked map[string]int
}

func (l *shardLoss) coll(db string, o ...options.Lister[options.CollectionOptions]) *mongo.Collection {
	return l.c.client.Database(db).Collection("c", append(o, options.Collection().SetWriteConcern(writeconcern.Majority()))...)
}

// insert does a write that must be acknowledged soon.
func (l *shardLoss) insert(db string) {
	l.t.Helper()
	if l.acked == nil {
		l.acked = map[string]int{}
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := l.coll(db).InsertOne(ctx, bson.D{{Key: "_id", Value: l.acked[db]}, {Key: "acked", Value: true}}); err != nil {
		l.t.Errorf("a write to %s: %v", db, err)
	}
	l.acked[db]++
}

// command runs a command and checks how long it takes.
func (l *shardLoss) command(cmd bson.D, least, most time.Duration) (bson.Raw, error) {
	l.t.Helper()
	late := measureLag()
	began := time.Now()
	raw, err := l.c.client.Database("lost").RunCommand(l.t.Context(), cmd).Raw()
	took, lag := time.Since(began), late()
	if took < least || took > most+lag {
		l.t.Errorf("%v took %v, want %v to %v (the machine was late by %v)", cmd[0].Key, took, least, most, lag)
	}
	return raw, err
}

func insertOf(id string, more ...bson.E) bson.D {
	return append(bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}}}, more...)
}

func labelled(err error, label string) bool {
	var e mongo.LabeledError
	return errors.As(err, &e) && e.HasErrorLabel(label)
}

// retryable sends a write as drivers with retryable writes do.
func (l *shardLoss) retryable(id string) (bson.Raw, error) {
	s, err := l.c.client.StartSession()
	if err != nil {
		return nil, err
	}
	defer s.EndSession(context.Background())
	cmd := insertOf(id, bson.E{Key: "lsid", Value: s.ID()}, bson.E{Key: "txnNumber", Value: int64(1)})
	return l.c.client.Database("lost").RunCommand(l.t.Context(), cmd).Raw()
}

// beforeStepDown writes while the primary has not noticed yet and accepts writes, but no majority does. waiting receives the
// result of a write without a time limit.
func (l *shardLoss) beforeStepDown() (waiting chan error) {
	l.t.Helper()
	waiting = make(chan error, 1)
	go func() {
		raw, err := l.retryable("waiting")
		l.t.Logf("a retryable write that waits while the primary steps down: %v", raw)
		waiting <- err
	}()
	raw, err := l.command(insertOf("left", bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: 300}}}),
		0, 2*time.Second)
	var we mongo.WriteException
	if errors.As(err, &we) && we.WriteConcernError != nil {
		err = nil
	}
	if code, ok := raw.Lookup("writeConcernError", "code").AsInt64OK(); !ok || code != int64(mongoerr.WriteConcernTimeout) || err != nil {
		l.t.Errorf("a write with wtimeout: %v (%v)", raw, err)
	}
	return waiting
}

// writesFail checks writes while there is no primary.
func (l *shardLoss) writesFail() {
	l.t.Helper()
	if _, err := l.command(insertOf("timed", bson.E{Key: "maxTimeMS", Value: 500}), 300*time.Millisecond, time.Second); codeOf(err) != int32(mongoerr.MaxTimeMSExpired) {
		l.t.Errorf("a write with maxTimeMS: %v", err)
	}
	if raw, err := l.retryable("late"); codeOf(err) != int32(mongoerr.FailedToSatisfyReadPreference) {
		l.t.Errorf("a retryable write without a primary: %v %v", raw, err)
	}
	find := bson.D{{Key: "find", Value: "c"}, {Key: "maxTimeMS", Value: 500}}
	if _, err := l.command(find, 300*time.Millisecond, time.Second); codeOf(err) != int32(mongoerr.MaxTimeMSExpired) {
		l.t.Errorf("a read of the primary with maxTimeMS: %v", err)
	}
}

// readsContinue checks reads that a secondary may answer.
func (l *shardLoss) readsContinue() {
	l.t.Helper()
	for _, pref := range []*readpref.ReadPref{readpref.SecondaryPreferred(), readpref.Secondary(), readpref.Nearest(), readpref.PrimaryPreferred()} {
		o := options.Collection().SetReadPreference(pref).SetReadConcern(readconcern.Local())
		ctx, cancel := context.WithTimeout(l.t.Context(), 5*time.Second)
		n, err := l.coll("lost", o).CountDocuments(ctx, bson.D{{Key: "acked", Value: true}})
		cancel()
		if err != nil || int(n) != l.acked["lost"] {
			l.t.Errorf("%s: %d documents of %d (%v)", fmt.Sprint(pref.Mode()), n, l.acked["lost"], err)
		}
	}
}
