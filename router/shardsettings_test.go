package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The settings of a cluster are set through a router: a client of a shard or of the config server alone would leave the members with different ones.
func TestSettingsOfAClusterAreNotSetOnAShard(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	for _, x := range []struct {
		command  string
		onShard  mongoerr.Code
		onConfig mongoerr.Code
	}{
		{`{"setClusterParameter": {"defaultMaxTimeMS": {"readOperations": 700}}}`, mongoerr.NotImplemented, mongoerr.NotImplemented},
		{`{"setUserWriteBlockMode": 1, "global": false}`, mongoerr.IllegalOperation, mongoerr.IllegalOperation},
		{`{"setDefaultRWConcern": 1, "defaultReadConcern": {"level": "majority"}}`, 51301, 0},
		{`{"getDefaultRWConcern": 1}`, 51301, 0},
		{`{"setFeatureCompatibilityVersion": "8.2", "confirm": true}`, mongoerr.IllegalOperation, 0},
	} {
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(x.command), false, &d); err != nil {
			t.Fatal(err)
		}
		body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: "admin"}))
		if err != nil {
			t.Fatal(err)
		}
		for id, want := range map[string]mongoerr.Code{"shard0": x.onShard, "config": x.onConfig} {
			client := command.NewClient(1, "test:1", "test:27017", nil)
			m := decode(t, c.server[id].Service.Run(t.Context(), client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))
			if code, _ := m["code"].(int32); mongoerr.Code(code) != want {
				t.Errorf("%s on %s: %v", x.command, id, m)
			}
		}
		c.run("admin", x.command)
	}
}
