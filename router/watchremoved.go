package router

import (
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
	if id, peer, ns := m.id, m.peer, m.ns; id != 0 {
		m.id = 0
		w.pending.Go(func() { w.r.killOn(w.life, peer, ns, id) })
	}
}

// removedSince returns the shards that have had data that the stream watches since a time, and are no longer in the cluster.
func (w *shardMerge) removedSince(ctx context.Context, since uint64) ([]string, error) {
	reply, err := cluster.Run(ctx, w.r.config, msg.Doc(&msg.GetHistoricalPlacement{NS: w.of.ns, At: since, WholeCluster: w.of.everything, UntilNow: true}))
	if err != nil {
		return nil, err
	}
	var placed msg.GetHistoricalPlacementReply
	err = msg.Parse(reply, &placed)
	return placed.Removed, err
}

func eventsRemoved(shard string) error {
	return mongoerr.Newf(mongoerr.ChangeStreamHistoryLost, "Resume of change stream was not possible, as shard %s, which had data of the namespace after the resume point, "+
		"has been removed from the cluster.", shard).WithLabel(mongoerr.LabelNonResumableStream)
}
