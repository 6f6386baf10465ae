package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// direct sends a command to a server that is not the router, as a client, and returns the code of its error.
func (c *testCluster) direct(s *command.Service, db, cmd string) any {
	c.t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		c.t.Fatalf("%s: %v", cmd, err)
	}
	body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: db}))
	if err != nil {
		c.t.Fatal(err)
	}
	return decode(c.t, s.Run(c.t.Context(), command.NewClient(77, "test:77", "test:27018", nil), &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))["code"]
}

// Clients do not remove, replace or alter what servers rely on: through a router nothing of the sharding catalog and of the config database's other collections, except
// that some may be dropped; on the server itself what it could not go on without.
func TestDDLOnTheServersOwnCollections(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("d", `{"create": "c"}`)
	const refused, internal = int32(mongoerr.IllegalOperation), int32(mongoerr.InvalidNamespace)
	catalog := []string{"config.chunks", "config.collections", "config.databases", "config.placementHistory", "config.reshardingOperations", "config.shards", "config.tags", "config.version"}
	others := []string{"config.settings", "config.changelog", "config.mongos", "config.other"}
	system := []string{"config.system.indexBuilds", "config.system.preimages", "config.system.sharding_ddl_coordinators"}
	access := []string{"admin.system.users", "admin.system.version"}
	indexes, collMod := `{"dropIndexes": %q, "index": "*"}`, `{"collMod": %q, "validationLevel": "off"}`
	capped, drop, view := `{"convertToCapped": %q, "size": 100000}`, `{"drop": %q}`, `{"create": %q, "viewOn": "x", "pipeline": []}`
	join := func(lists ...[]string) (all []string) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	own := []string{"config.transactions"}
	images := []string{"config.image_collection"}
	oplog := []string{"local.oplog.rs"}
	local := []string{"local.system.replset"}
	router, config, shard := c.router, c.conf.Service, c.server["shard0"].Service
	for _, k := range []struct {
		cmds  []string
		names []string
		on    []*command.Service
		code  int32
	}{
		{[]string{indexes, collMod, capped}, join(catalog, others, images, access, oplog, local), []*command.Service{router}, refused},
		{[]string{indexes, collMod, capped}, join(system, own), []*command.Service{router, config, shard}, internal},
		{[]string{view}, join(catalog, others, system, own, images), []*command.Service{router}, refused},
		{[]string{`{"create": %q, "capped": true, "size": 100000}`, `{"create": %q, "validator": {"x": 1}}`}, catalog, []*command.Service{router}, refused},
		{[]string{drop}, join(catalog, access, oplog, local, []string{"admin.system.roles", "admin.system.keys"}), []*command.Service{router}, refused},
		{[]string{view}, join(system, own), []*command.Service{config, shard}, internal},
		{[]string{drop}, join(access, oplog), []*command.Service{config, shard}, refused},
		{[]string{drop}, join(system, images), []*command.Service{router, config, shard}, internal},
		{[]string{capped}, join(access, oplog, local, images), []*command.Service{config, shard}, refused},
	} {
		for _, s := range k.on {
			for _, ns := range k.names {
				db, coll := cluster.SplitNS(ns)
				for _, cmd := range k.cmds {
					if code := c.direct(s, db, fmt.Sprintf(cmd, coll)); code != k.code {
						t.Errorf("%v: %s on %s: %v, want %d", s.Role, cmd, ns, code, k.code)
					}
				}
			}
		}
	}
	for _, ns := range join(catalog, others, system, own, images) {
		for _, cmd := range []string{fmt.Sprintf(`{"renameCollection": %q, "to": "d.x"}`, ns), fmt.Sprintf(`{"renameCollection": "d.c", "to": %q, "dropTarget": true}`, ns)} {
			if code := c.direct(router, "admin", cmd); code != refused {
				t.Errorf("%s: %v", cmd, code)
			}
		}
	}
	// What tools that restore a dump send, and whoever repairs a cluster by hand.
	for _, k := range []struct {
		on      *command.Service
		db, cmd string
	}{
		{router, "config", `{"create": "chunks"}`}, {router, "config", `{"createIndexes": "chunks", "indexes": [{"key": {"uuid": 1, "min": 1}, "name": "uuid_1_min_1", "unique": true}]}`},
		{router, "config", `{"drop": "changelog"}`}, {router, "admin", `{"create": "tempusers"}`}, {router, "admin", `{"drop": "tempusers"}`},
		{config, "config", `{"collMod": "tags", "validationLevel": "strict"}`}, {config, "config", `{"dropIndexes": "tags", "index": "*"}`}, {config, "config", `{"drop": "tags"}`},
	} {
		if code := c.direct(k.on, k.db, k.cmd); code != nil {
			t.Errorf("%s: %v", k.cmd, code)
		}
	}
	c.fill(4)
}
