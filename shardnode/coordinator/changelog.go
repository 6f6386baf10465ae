package coordinator

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
)

// logWait limits the time spent on logging the beginning of a run.
const logWait = 5 * time.Second

// beginning returns the entry of config.changelog for a run that begins, such as dropCollection.start; false for operations that the log does not show. Their
// ends are logged by the config server, which changes the catalog.
func (r *run) beginning(op *command.Op) (cluster.LogEntry, bool) {
	details := value.Doc()
	switch o := r.doc.op.(type) {
	case *drop, *dropDatabase, *reshard:
	case *rename:
		details = value.Doc(value.F("source", value.NewString(o.req.NS)), value.F("destination", value.NewString(o.req.To)))
	case *movePrimary:
		details = value.Doc(value.F("from", value.NewString(o.at.From)), value.F("to", value.NewString(o.req.To)))
	case *shard:
		details = value.Doc(value.F("shardKey", value.NewDocument(o.req.Key)), value.F("primary", value.NewString(r.m.State.ID)))
	case *refine:
		details = value.Doc(value.F("newKey", value.NewDocument(o.req.Key)))
	default:
		return cluster.LogEntry{}, false
	}
	return cluster.LogEntry{
		Server: r.m.Host(), Shard: r.m.State.ID, Client: op.Sender(), Time: time.Now(),
		What: r.doc.op.name() + ".start", NS: r.doc.ns, Details: value.NewDocument(details),
	}, true
}

// logBeginning logs in the background that a run begins: nothing waits for the log. m.mu must be held.
func (m *Coordinators) logBeginning(e cluster.LogEntry) {
	ctx := m.mu.ctx
	m.wg.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, logWait)
		defer cancel()
		cluster.WriteLog(bounded, m.State.Registry.Config(), "changelog", e)
	})
}
