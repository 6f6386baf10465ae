package cluster

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
)

// LogEntry is an entry of config.changelog or config.actionlog (https://www.mongodb.com/docs/manual/reference/config-database/).
type LogEntry struct {
	Server  string // the node that did it
	Shard   string // the shard that it belongs to
	Client  string // the address of the client that requested it; empty for a node's own work
	Time    time.Time
	What    string
	NS      string // empty for none
	Details value.Value
}

// doc returns the entry as it is stored, with an _id of its own.
func (e *LogEntry) doc() value.Value {
	id := NewObjectID()
	at := e.Time.UTC().Format("2006-01-02T15:04:05.000Z")
	return value.NewDocument(value.Doc(
		value.F("_id", value.NewString(fmt.Sprintf("%s-%s-%s", e.Server, at, hex.EncodeToString(id[:])))),
		value.F("server", value.NewString(e.Server)), value.F("shard", value.NewString(e.Shard)), value.F("clientAddr", value.NewString(e.Client)),
		value.F("time", value.NewTime(e.Time)), value.F("what", value.NewString(e.What)), value.F("ns", value.NewString(e.NS)), value.F("details", e.Details)))
}

// entriesTogether is the maximum number of log entries in one command.
const entriesTogether = 500

// WriteLog writes entries of config.changelog or config.actionlog. Nothing depends on them, so it does not wait until they are durable, and a failure is
// not reported.
func WriteLog(ctx context.Context, config Peer, coll string, entries ...LogEntry) {
	for len(entries) > 0 {
		n := min(len(entries), entriesTogether)
		docs := make([]value.Value, n)
		for i := range docs {
			docs[i] = entries[i].doc()
		}
		_, _ = RunWrite(ctx, config, msg.Doc(&msg.Insert{DB: "config", Coll: coll, Documents: value.ArrayOf(docs...)},
			value.F("writeConcern", value.NewDocument(value.Doc(value.F("w", value.NewInt32(1)), value.F("j", value.NewBool(false)))))))
		entries = entries[n:]
	}
}
