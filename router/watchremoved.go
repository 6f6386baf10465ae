package router

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// watched identifies the scope of a change stream: a collection, a database, or everything.
type watched struct {
	ns         string
	everything bool
}

func watchedBy(a *aggCommand, spec *agg.ChangeStream) watched {
	ns := strings.Clone(a.ns) // the request's memory is used again
	if db, coll := cluster.SplitNS(ns); coll == agg.DatabaseAggregate {
		ns = db
	}
	return watched{ns, spec.AllChangesForCluster}
}

// checkRemoved returns an error if a shard that is no longer in the cluster has had data that the stream watches since a time: its
// events from then on cannot be read, and a stream without them would have a gap that its client does not notice.
//
// Whether a shard was removed since then is known without asking: the removal ticked the topology time.
func (w *shardMerge) checkRemoved(ctx context.Context, since uint64) error {
	if w.r.Clock.Now().Topology < since {
		return nil
	}
	removed, err := w.removedSince(ctx, since)
	if err != nil {
		return err
	}
	for _, id := range removed {
		if !slices.ContainsFunc(w.remotes, func(m *watchRemote) bool { return m.shard == id }) {
			return eventsRemoved(id)
		}
	}
	return nil
}

// checkRemovedShard is checkRemoved for a shard whose stream was open, and had reached a time.
func (w *shardMerge) checkRemovedShard(ctx context.Context, id string, since uint64) error {
	removed, err := w.removedSince(ctx, since)
	if err == nil && slices.Contains(removed, id) {
		err = eventsRemoved(id)
	}
	return err
}

// reportRemoved makes step drop the stream of a shard that is no longer in the cluster, or return an error if the shard had data since a time. The shard
// may still be reachable, but its clock no longer follows the cluster's, so that it would hold the other shards' events back.
func (w *shardMerge) reportRemoved(m *watchRemote, since uint64) {
	err := w.checkRemovedShard(w.life, m.shard, since)
	if err == nil {
		err = mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", m.shard)
	}
	select {
	case w.arrived <- arrival{m: m, err: err, removed: true}:
	case <-w.life.Done():
	}
}

// drop continues without the stream of a removed shard that no longer had data that the merge's streams watch.
func (w *shardMerge) drop(m *watchRemote) {
	w.remotes = slices.DeleteFunc(w.remotes, func(o *watchRemote) bool { return o == m })
	w.left[m.shard] = cmp.Or(m.readTo, m.mark.ClusterTime)
	if id, peer, ns := m.id, m.peer, m.ns; id != 0 {
		m.id = 0
		w.pending.Go(func() { w.r.killOn(w.life, peer, ns, id) })
	}
}

// removedSince returns the shards that have had data that the stream watches since a time, and are no longer in the cluster.
func (w *shardMerge) removedSince(ctx context.Context, since uint64) ([]string, error) {
	placed, err := w.placed(ctx, &msg.GetHistoricalPlacement{At: since, UntilNow: true})
	return placed.Removed, err
}

// placed asks which shards had data that the stream watches.
func (w *shardMerge) placed(ctx context.Context, m *msg.GetHistoricalPlacement) (placed msg.GetHistoricalPlacementReply, err error) {
	m.NS, m.WholeCluster = w.of.ns, w.of.everything
	reply, err := cluster.Run(ctx, w.r.config, msg.Doc(m))
	if err != nil {
		return placed, err
	}
	return placed, msg.Parse(reply, &placed)
}

func eventsRemoved(shard string) error {
	return mongoerr.Newf(mongoerr.ChangeStreamHistoryLost, "Resume of change stream was not possible, as shard %s, which had data of the namespace after the resume point, "+
		"has been removed from the cluster.", shard).WithLabel(mongoerr.LabelNonResumableStream)
}

// A shard that is removed may be added again under its name with other hosts: it is another shard, which has none of the events of the first.
//
// Invariant: a shard's events are read from the set that had its name at their time. The event of config.shards by which a shard joins ends the stream of the set that had its name before,
// at the event's time, and begins that of the new one. Hazard: nothing else may tell of the change: the former set may go on serving its cursor, and an idle stream would never see
// an event of the new one. Rejected: comparing the cursor's set with the registry's before each request, which takes a set all of whose members have been replaced for another shard.

// noteAgain records that the event that would be returned next is that by which a shard joins whose former stream is behind.
func (w *shardMerge) noteAgain(shard string, at uint64, behind []*watchRemote) {
	for _, m := range behind {
		if m.shard == shard && m.again != at {
			m.again, m.quiet = at, false
		}
	}
}

// former reports whether nothing more is expected of a stream whose shard has joined again: nobody makes the former set pass the event's time any more. What it may not have delivered
// is looked for by checkFormer.
func (m *watchRemote) former() bool { return m.again != 0 && m.quiet }

// checkFormer has the registry know a shard that joins, and returns an error if the set that had the shard's name before had data that the stream watches, from when it was last read on.
func (w *shardMerge) checkFormer(ctx context.Context, entry *cluster.Shard, joined uint64) error {
	if err := w.r.Registry.Renew(ctx, entry); err != nil {
		return err
	}
	since, known := w.left[entry.ID]
	until := cmp.Or(entry.Topology, joined) // the databases that the new set brings were placed after the former, before the latter
	if !known || since >= until {
		return nil
	}
	placed, err := w.placed(ctx, &msg.GetHistoricalPlacement{At: since, Until: until})
	if err == nil && slices.Contains(placed.Shards, entry.ID) {
		err = eventsRemoved(entry.ID)
	}
	return err
}

// hostOf returns the set and hosts of a shard, "" if it is not known.
func (w *shardMerge) hostOf(ctx context.Context, shard string) string {
	if shard == joinsStream {
		return ""
	}
	s, err := w.r.Registry.Shard(ctx, shard)
	if err != nil {
		return ""
	}
	return s.Host
}

// sharesHost reports whether two connection strings name the same set.
func sharesHost(a, b string) bool {
	setA, hostsA := cluster.SplitHosts(a)
	setB, hostsB := cluster.SplitHosts(b)
	return setA == setB && (len(hostsA) == len(hostsB) && len(hostsA) == 0 || slices.ContainsFunc(hostsA, func(h string) bool { return slices.Contains(hostsB, h) }))
}
