package shardnode

import (
	"context"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire"
)

// ttlMonitor periodically deletes expired documents, with the delete command. It is a primary-only service.
type ttlMonitor struct {
	n      *Node
	client *command.Client
}

// ttlTick is the interval at which the monitor checks whether a pass is due, and so the maximum delay with which a changed interval takes effect.
const ttlTick = 500 * time.Millisecond

func (n *Node) ttlService() replication.Service {
	m := &ttlMonitor{n: n, client: command.OwnClient()}
	return replication.Service{Name: "TTLMonitor", Run: m.loop}
}

func (m *ttlMonitor) loop(ctx context.Context, _ int64) {
	seconds := func() int64 { return m.n.Params.Int("ttlMonitorSleepSecs") }
	everySeconds(ctx, seconds, func() {
		if m.n.Params.Bool("ttlMonitorEnabled") {
			m.pass(ctx)
		}
	})
}

// everySeconds calls pass at an interval in seconds until ctx ends. The interval may change meanwhile.
func everySeconds(ctx context.Context, seconds func() int64, pass func()) {
	tick := time.NewTicker(ttlTick)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if now.Sub(last) < time.Duration(seconds())*time.Second {
				continue
			}
			last = now
			pass()
		}
	}
}

// pass deletes the expired documents of all collections once.
func (m *ttlMonitor) pass(ctx context.Context) {
	now := m.n.now()
	for _, c := range m.n.Engine.Catalog().All() {
		if c.Capped || c.DB() == "local" || ctx.Err() != nil || strings.HasPrefix(c.Name(), "system.resharding.") { // what a resharding copies belongs to its donors
			continue
		}
		for _, idx := range c.Indexes {
			if field := ttlField(c, idx); field != "" {
				m.expire(ctx, c, ttlFilter(idx, field, now), idx)
			}
		}
		if v := value.Lookup(c.Options, "expireAfterSeconds"); v.T.Numeric() && c.Clustered {
			m.expire(ctx, c, clusteredTTLFilter(c, now.Add(-time.Duration(value.SafeInt64(v))*time.Second)), nil)
		}
	}
	m.n.counters.ttlPasses.Add(1)
}

// ttlField returns the field whose time determines when an index's documents expire, "" for none. With an
// index on the time of measurements, a bucket expires with its newest measurement.
func ttlField(c *catalog.Collection, idx *catalog.Index) string {
	switch {
	case !idx.Ready || idx.TTLSeconds < 0 || idx.Spec.Kind != indexkey.BTree:
	case len(idx.Spec.Fields) == 1:
		return idx.Spec.Fields[0].Path
	case namespace.IsBuckets(c.NS) && len(idx.Spec.Fields) == 2:
		newest := "control.max." + namespace.SeriesOptionsOf(value.Lookup(c.Options, "timeseries").Doc()).TimeField
		if idx.Spec.Fields[0].Path == newest || idx.Spec.Fields[1].Path == newest {
			return newest
		}
	}
	return ""
}

// ttlFilter matches the documents that have expired according to an index. Its lower bound keeps the scan to dates.
func ttlFilter(idx *catalog.Index, path string, now time.Time) []byte {
	limit := value.NewTime(now.Add(-time.Duration(idx.TTLSeconds) * time.Second))
	field := value.F(path, value.NewDocument(value.Doc(value.F("$gte", value.NewDateTime(-1<<63)), value.F("$lte", limit))))
	if idx.Spec.PartialFilter == nil {
		return value.Doc(field)
	}
	return value.Doc(value.F("$and", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(field)), value.NewDocument(idx.Spec.PartialFilter)))))
}

// clusteredTTLFilter matches the expired documents of a clustered collection: those with an old _id, or the buckets
// whose newest measurement is old.
func clusteredTTLFilter(c *catalog.Collection, limit time.Time) []byte {
	field := "_id"
	if namespace.IsBuckets(c.NS) {
		field = "control.max." + namespace.SeriesOptionsOf(value.Lookup(c.Options, "timeseries").Doc()).TimeField
	}
	return value.Doc(value.F(field, value.NewDocument(value.Doc(value.F("$gte", value.NewDateTime(-1<<63)), value.F("$lte", value.NewTime(limit))))))
}

// expire deletes what filter matches and this shard owns. A copy of a document that another shard owns may have expired although the document itself has not, and its deletion would be an event
// for change streams. What is on its way to another shard is left to the next pass.
func (m *ttlMonitor) expire(ctx context.Context, c *catalog.Collection, filter []byte, idx *catalog.Index) {
	del := msg.DeleteStatement{Query: filter}
	if idx != nil && !idx.Hidden {
		del.Hint, del.Collation = value.NewString(idx.Name), idx.Spec.Collation
	}
	more := []value.Field{value.F("writeConcern", value.NewDocument(value.Doc(value.F("w", value.NewInt32(1)))))}
	if s := m.n.shard.State(); s != nil {
		versions, ok := s.OwnWrite(ctx, c.NS)
		if !ok {
			return
		}
		more = append(more, versions...)
	}
	body := msg.Doc(&msg.Delete{DB: c.DB(), Coll: c.Name(), Deletes: []msg.DeleteStatement{del}}, more...)
	reply := m.n.Service.Run(ctx, m.client, &wire.Message{Body: body}, nil)
	m.n.counters.ttlDeleted.Add(value.SafeInt64(value.Lookup(reply, "n")))
}
