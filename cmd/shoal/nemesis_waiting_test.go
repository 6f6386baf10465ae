package main

import (
	"context"
	"math/rand"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

const (
	waitingLimit = 40 * time.Second // of an operation that waits for a member which is away
	awayFor      = 12 * time.Second // longer than two flushes of the table of sessions take
)

// waiter increments a number by writes that wait for all members of a set: retryable writes, or transactions. While one of
// the members is away they wait, and meanwhile the primary may step down. Then the driver retries them: a write is not
// executed twice, and a committed transaction is not denied. Its document is in an unsharded collection.
type waiter struct {
	l           *clusterLoad
	id          string
	transaction bool

	session     *mongo.Session
	least, most int
	known       bool // no write from before the last operation can still happen
	done        int
	waiting     atomic.Bool
}

func (w *waiter) prepare() {
	w.l.t.Helper()
	if _, err := w.l.db(w.l.c.client).Collection("waits").InsertOne(context.Background(), bson.D{{Key: "_id", Value: w.id}, {Key: "n", Value: 0}}); err != nil {
		w.l.t.Fatal(err)
	}
}

// write increments the number, and reads it if the outcome is known.
func (w *waiter) write(_ context.Context, client *mongo.Client, rnd *rand.Rand) error {
	pauseUpTo(rnd, 200*time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), waitingLimit)
	defer cancel()
	if w.session == nil {
		s, err := client.StartSession()
		if err != nil {
			return err
		}
		w.session = s
	}
	w.waiting.Store(true)
	err := w.raise(ctx, client)
	w.waiting.Store(false)
	switch w.known = err == nil; {
	case err == nil:
		w.least, w.most = w.least+1, w.most+1
		w.done++
		w.l.acked.Add(1)
	case w.transaction && labelled(err, "TransientTransactionError"): // it did not happen
	default:
		w.most++
	}
	if err != nil {
		w.l.errors.add(w.id, err)
		return err
	}
	return w.compare(ctx, client)
}

func (w *waiter) raise(ctx context.Context, client *mongo.Client) error {
	all := &writeconcern.WriteConcern{W: 3}
	coll := client.Database("nemesis").Collection("waits", options.Collection().SetWriteConcern(all))
	sctx, q, u := mongo.NewSessionContext(ctx, w.session), bson.D{{Key: "_id", Value: w.id}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	if !w.transaction {
		_, err := coll.UpdateOne(sctx, q, u)
		return err
	}
	if err := w.session.StartTransaction(options.Transaction().SetWriteConcern(all)); err != nil {
		return err
	}
	if _, err := coll.UpdateOne(sctx, q, u); err != nil {
		_ = w.session.AbortTransaction(ctx)
		return err
	}
	for { // as WithTransaction does: the commit is retried until the outcome is known
		err := w.session.CommitTransaction(ctx)
		if err == nil || !labelled(err, "UnknownTransactionCommitResult") || ctx.Err() != nil {
			return err
		}
		withoutServer()
	}
}

// compare reads the number: a later write of the session is acknowledged, so that none before it can still happen.
func (w *waiter) compare(ctx context.Context, client *mongo.Client) error {
	var d struct{ N int }
	coll := client.Database("nemesis").Collection("waits", options.Collection().SetReadConcern(readconcern.Linearizable()))
	if err := coll.FindOne(ctx, bson.D{{Key: "_id", Value: w.id}}).Decode(&d); err != nil {
		w.l.errors.add(w.id+" read", err)
		return err
	}
	if d.N < w.least || d.N > w.most {
		w.l.h.violation("%s is at %d, between %d and %d were counted (%v after the start)", w.id, d.N, w.least, w.most, time.Since(w.l.h.start))
	}
	w.least, w.most = d.N, d.N
	return nil
}

// keepAway isolates a member of the set that the waiters write to for so long that the session table is flushed while
// writes wait for it, and then has the primary step down.
func (l *clusterLoad) keepAway(rnd *rand.Rand) (name string, undo func()) {
	var d struct{ Primary string }
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := l.c.client.Database("config").Collection("databases").FindOne(ctx, bson.D{{Key: "_id", Value: "nemesis"}}).Decode(&d); err != nil {
		l.errors.add("config.databases", err)
	}
	rs := l.c.shards[0]
	for _, s := range l.c.shards {
		if s.name == d.Primary {
			rs = s
		}
	}
	p := max(rs.primary(), 0)
	away := (p + 1 + rnd.Intn(len(rs.members)-1)) % len(rs.members)
	rs.kill(away)
	pause(awayFor) // the writes wait for it meanwhile
	for _, w := range l.waiters {
		if w.waiting.Load() {
			l.waited++
		}
	}
	if p = rs.primary(); p >= 0 {
		stepDownOf(rs, p)
	}
	return "keep away " + rs.members[away].name + " and step down", func() { rs.start(away) }
}
