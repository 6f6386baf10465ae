package router_test

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ddlCommands are DDL commands that the primary shard of a database coordinates, in an order in which all of them have something to do.
var ddlCommands = []struct{ db, cmd string }{
	{"db", `{"create": "new"`}, {"admin", `{"shardCollection": "db.s", "key": {"k": 1}`}, {"db", `{"collMod": "s", "validationLevel": "moderate"`},
	{"db", `{"dropIndexes": "s", "index": "x"`}, {"admin", `{"refineCollectionShardKey": "db.s", "key": {"k": 1, "y": 1}`},
	{"admin", `{"renameCollection": "db.new", "to": "db.renamed"`}, {"db", `{"convertToCapped": "renamed", "size": 4096`},
	{"admin", `{"moveCollection": "db.renamed", "toShard": "shard1"`}, {"admin", `{"movePrimary": "db", "to": "shard1"`},
	{"db", `{"drop": "s"`}, {"db", `{"dropDatabase": 1`},
}

// DDL has no read concern but local. The router refuses others by the name of the client's command, not that of its own message to the coordinator.
func TestReadConcernOfDDL(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	for _, x := range ddlCommands {
		m := c.raw(x.db, x.cmd+`, "readConcern": {"level": "majority"}}`)
		if text, _ := m["errmsg"].(string); m["code"] != int32(mongoerr.InvalidOptions) || !strings.HasPrefix(text, "Command "+strings.Split(x.cmd, `"`)[1]+" does not support read concern") {
			t.Errorf("%s: %v", x.cmd, m)
		}
	}
	c.run("db", `{"create": "c", "readConcern": {"level": "local"}}`)
}
