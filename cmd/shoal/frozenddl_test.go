package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// frozenDDL are commands on the collections of TestKilledRouter, with the errors that they may end with if an earlier attempt at them was carried out after all.
func frozenDDL() []lostRouterDDL {
	rows := lostRouterRows(nil)
	for i := range rows {
		switch rows[i].name {
		case "create":
			rows[i].again = mongoerr.NamespaceExists
		case "unshardCollection":
			rows[i].again = mongoerr.NamespaceNotSharded
		}
	}
	return rows
}

// A node is frozen, and keeps its connections: DDL that needs it is answered at its maxTimeMS (50), and at its wtimeout (64) if another shard than
// the coordinating one does not answer. When the node continues, so does what has begun, nothing
// hangs, and the catalog agrees with the shards.
func TestFrozenNodeDuringDDL(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five servers")
	}
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{1, 1}, routers: 2})
	nodes := []func(*shardedCluster) *server{onOtherShard, onConfigServer, onCoordinator}
	for i, k := range frozenDDL() {
		if k.name == "addShard" {
			break // from here on, rows concern a third shard
		}
		k.freeze(c, nodes[i%3](c))
	}
}

// freeze sends the command, with a time limit, while a node is frozen.
func (k *lostRouterDDL) freeze(c *shardedCluster, node *server) {
	t := c.t
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	k.prepareIn(ctx, c)
	node.pause()
	limits := []bson.D{pairs("maxTimeMS", 300)}
	if node == onOtherShard(c) && slices.Contains([]string{"drop", "createIndexes", "movePrimary"}, k.name) {
		limits = append(limits, pairs("maxTimeMS", 60000, "writeConcern", pairs("w", "majority", "wtimeout", 300)))
	}
	for i, limit := range limits {
		answer := make(chan error, 1)
		go func() { // a deadline of the context would replace maxTimeMS
			answer <- c.survivor().Database(k.db).RunCommand(context.Background(), append(append(bson.D{}, k.command...), limit...)).Err()
		}()
		select {
		case err := <-answer:
			var refused mongo.CommandError
			want := []mongoerr.Code{mongoerr.MaxTimeMSExpired, mongoerr.WriteConcernTimeout}[i]
			if err != nil && (!errors.As(err, &refused) || refused.Code != int32(want)) || err == nil && i == 1 {
				t.Errorf("%s, %s frozen, with %v: %v", k.name, node.name, limit, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s, %s frozen, with %v: not answered", k.name, node.name, limit)
		}
	}
	node.resume()
	var refused mongo.CommandError
	if err := c.survivor().Database(k.db).RunCommand(ctx, k.command).Err(); err != nil && (k.again == 0 || !errors.As(err, &refused) || refused.Code != int32(k.again)) {
		t.Errorf("%s after %s was frozen: %v", k.name, node.name, err)
	}
	for _, rs := range c.shards {
		for _, coll := range []string{"system.sharding_ddl_coordinators", "collection_critical_sections", "movePrimaryRecipients"} {
			awaitNone(t, ctx, coll+" after "+k.name, rs.members[0].direct.Database("config").Collection(coll))
		}
	}
	if err := k.check(ctx, c); err != nil {
		t.Errorf("%s after %s was frozen: %v", k.name, node.name, err)
	}
	c.checkCatalog("crash")
}
