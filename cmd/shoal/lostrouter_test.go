package main

import (
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// A router is killed while a transaction is open: writers of its documents through another router used to wait until
// the transaction had been open for 60 s. A live router keeps its transactions, even if its client is slow.
func TestRouterKilledInATransaction(t *testing.T) {
	t.Parallel()
	routerLost(t, (*server).kill)
}

// A paused router, like one whose machine has lost power, keeps its connections and sends nothing. When it resumes, its
// transaction has ended.
func TestRouterPausedInATransaction(t *testing.T) {
	t.Parallel()
	router, commit := routerLost(t, func(router *server) { router.pause() })
	router.signal(syscall.SIGCONT)
	if err := commit(); !labelled(err, "TransientTransactionError") {
		t.Errorf("the transaction of the router that was paused: %v", err)
	}
}

// routerLost loses a router by lose while it has a transaction open, and has another router's client write the same
// documents. commit commits the lost router's transaction.
func routerLost(t *testing.T, lose func(router *server)) (router *server, commit func() error) {
	t.Helper()
	c := launchCluster(t, clusterOptions{shards: []int{1}, routers: 2})
	router, other := c.routers[0], c.routers[1]
	ctx := t.Context()
	coll := other.direct.Database("d").Collection("c")
	if _, err := coll.InsertMany(ctx, []bson.D{{{Key: "_id", Value: 1}}, {{Key: "_id", Value: 2}}}); err != nil {
		t.Fatal(err)
	}
	s, err := other.direct.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(ctx)
	if err := s.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	in := mongo.NewSessionContext(ctx, s)
	if _, err := coll.UpdateByID(in, 2, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 2}}}}); err != nil {
		t.Fatal(err)
	}
	dead, err := router.direct.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	if _, err := router.direct.Database("d").Collection("c").UpdateByID(mongo.NewSessionContext(ctx, dead), 1, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}); err != nil {
		t.Fatal(err)
	}
	lose(router)
	write := bson.D{{Key: "update", Value: "c"}, {Key: "maxTimeMS", Value: 20000},
		{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 3}}}}}}}}}
	var r bson.M
	if err := other.direct.Database("d").RunCommand(ctx, write).Decode(&r); err != nil || r["n"] != int32(1) {
		t.Errorf("a write of another router's client: %v, %v", r, err)
	}
	if err := s.CommitTransaction(in); err != nil {
		t.Errorf("the other router's own transaction: %v", err)
	}
	return router, func() error { return dead.CommitTransaction(ctx) }
}
