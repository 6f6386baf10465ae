package router_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// DDL of a client that may write while users are blocked is under way when the coordinating shard has another primary: that executes it to its end, and tells the shards, too, for whom
// it does. Others stay blocked.
func TestDDLThatBypassesTheBlockOutlastsAnElection(t *testing.T) {
	t.Parallel()
	for _, x := range ddlUnderWay {
		t.Run(x.cmd, func(t *testing.T) {
			t.Parallel()
			var elected atomic.Bool
			var told, untold atomic.Int64 // messages of the next primary to participants
			c := newWatchedCluster(t, 2, func(_ string, m *wire.Message) error {
				if name := string(m.CommandName()); elected.Load() && (strings.Contains(name, "Participant") || strings.HasPrefix(x.cmd, `{"`+name+`"`)) {
					if value.Lookup(m.Body, msg.BypassesWriteBlock).Truthy() {
						told.Add(1)
					} else {
						untold.Add(1)
					}
				}
				return nil
			})
			c.readyForDDL(x.cmd)
			was := c.catalogs()
			c.run("admin", blockWrites)
			c.refusedAsBlocked("DDL of others", c.raw(x.db, x.cmd))
			exempt := c.through()
			exempt.client = &command.Client{InProcess: true, Internal: true, Started: c.client.Started} // of which the command itself says that it may
			reached, release := c.hangAt("shard0", x.phase)
			reply := make(chan bson.M, 1)
			go func() { reply <- exempt.raw(x.db, x.cmd[:len(x.cmd)-1]+`, "mayBypassWriteBlocking": true}`) }()
			reached()
			c.restart("shard0")
			elected.Store(true)
			release()
			if m := <-reply; m["ok"] != 1.0 {
				t.Errorf("%v", m)
			}
			c.leftOver()
			switch {
			case strings.Contains(x.cmd, "moveCollection"): // is the config server's from here on, which sends as itself
			case untold.Load() > 0, told.Load() == 0 && !strings.Contains(x.cmd, "createIndexes"): // which has asked the shards before the election
				t.Errorf("%d messages of the next primary say for whom they are, %d do not", told.Load(), untold.Load())
			}
			c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
			if c.catalogs() == was {
				t.Error("nothing was changed")
			}
			c.refusedAsBlocked("DDL of others", c.raw("db", `{"create": "fresh"}`))
		})
	}
}
