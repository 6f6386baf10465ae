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

// A shard that is removed may be followed by another set under its name: it is another shard, which has none of the events of the first.
//
// Invariant: a shard's events are read from the set that had its name at their time, and each set's from when it joined until it left. Two changes of config.shards, which the
// merge gets as events among the others, begin and end a set's stream: that by which it joins opens the stream at its time (join), and that by which it leaves is passed once
// the set's stream is past it, or had no data from where it is (leave). A stream that is opened, at whatever time, on a set that got its name after the topology time at which the merge knows
// the shard, is dropped at once (checkOpened, checkReopened).
// Hazard: nothing else tells of the change. The former set may go on serving its cursor, and an idle stream would never see an event of the new one; a cursor that is lost is opened again on the
// new set, which returns what it wrote before it was part of the cluster. And nobody makes a set that has left pass a time, for which the others' events would wait.
// Rejected: comparing the hosts of a cursor's set with those of the shard's entry, which takes a set all of whose members have been replaced for another shard, and a set that is back
// for one that never left.

// newestChange returns the time of the newest change of the list of shards that this router can know of.
func (w *shardMerge) newestChange() uint64 {
	return max(w.r.Clock.Now().Topology, w.r.Registry.Topology())
}

// placedSince asks which shards have had data that the stream watches since a time, and which the cluster has had.
func (w *shardMerge) placedSince(ctx context.Context, since uint64) (placed msg.GetHistoricalPlacementReply, members cluster.Membership, err error) {
	reply, err := cluster.Run(ctx, w.r.config, msg.Doc(&msg.GetHistoricalPlacement{NS: w.of.ns, At: since, WholeCluster: w.of.everything, UntilNow: true}))
	if err == nil {
		err = msg.Parse(reply, &placed)
	}
	return placed, cluster.ParseMembership(placed.Members), err
}

// membersSince returns what is known of the shards since a time. If none has joined or left since, that is nothing: the change ticked the topology time.
func (w *shardMerge) membersSince(ctx context.Context, since uint64) (members cluster.Membership, err error) {
	if w.newestChange() >= since {
		_, members, err = w.placedSince(ctx, since)
	}
	return members, err
}

// checkOpened drops the streams of sets that have been removed since the shards were listed, and returns an error if a set that no longer has its shard's name has had data that the stream watches since a
// time: its events from then on cannot be read, and a stream without them would have a gap that its client does not notice.
func (w *shardMerge) checkOpened(ctx context.Context, since uint64) error {
	if w.newestChange() < since {
		return nil
	}
	placed, members, err := w.placedSince(ctx, since)
	if err != nil {
		return err
	}
	if len(placed.Removed) > 0 {
		return eventsRemoved(placed.Removed[0])
	}
	for _, m := range slices.Clone(w.remotes) {
		if m.shard != joinsStream && members.Left(m.shard, m.since) != 0 {
			w.drop(m)
		}
	}
	return nil
}

// checkReopened returns ShardNotFound if the set of a shard's stream, which the shard had at a topology time, no longer has its name. If that set had data that the stream watches from where it was read, the
// error is that the events are lost.
func (w *shardMerge) checkReopened(ctx context.Context, shard string, had, readTo uint64, opened error) error {
	if mongoerr.CodeOf(opened) != mongoerr.ShardNotFound && (opened != nil || w.newestChange() <= had) {
		return opened
	}
	placed, members, err := w.placedSince(ctx, readTo)
	switch {
	case err != nil:
		return err
	case slices.Contains(placed.Removed, shard):
		return eventsRemoved(shard)
	case members.Left(shard, had) != 0:
		return mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", shard)
	}
	return opened
}

// drop continues without the stream of a removed shard that no longer had data that the merge's streams watch.
func (w *shardMerge) drop(m *watchRemote) {
	w.remotes = slices.DeleteFunc(w.remotes, func(o *watchRemote) bool { return o == m })
	if id, peer, ns := m.id, m.peer, m.ns; id != 0 {
		m.id = 0
		w.pending.Go(func() { w.r.killOn(w.life, peer, ns, id) })
	}
}

func eventsRemoved(shard string) error {
	return mongoerr.Newf(mongoerr.ChangeStreamHistoryLost, "Resume of change stream was not possible, as shard %s, which had data of the namespace after the resume point, "+
		"has been removed from the cluster.", shard).WithLabel(mongoerr.LabelNonResumableStream)
}

// leaving is what is known of a set that leaves the cluster with the next event, at a time that its stream has not passed.
type leaving struct {
	at      uint64
	asking  bool // whether it had data from where its stream is
	tries   int
	hadData bool
}

// leave has step drop the stream of a set that leaves with the next event, if the set had no data from where the stream is. If it had, what the set still delivers is waited for, and asked again
// when that is nothing: nobody makes it pass the time.
func (w *shardMerge) leave(m *watchRemote, at uint64) {
	if m.leaving.at != at {
		m.leaving, m.quiet = leaving{at: at}, false
	}
	if m.leaving.asking || m.leaving.hadData && !m.quiet {
		return
	}
	m.leaving.asking = true
	readTo, try := m.mark, m.leaving.tries
	w.request(func() arrival {
		ctx, cancel := context.WithTimeout(w.life, w.r.hubs.opening)
		defer cancel()
		err := cluster.Backoff(ctx, try)
		if err == nil {
			var placed msg.GetHistoricalPlacementReply
			if placed, _, err = w.placedSince(ctx, readTo.ClusterTime); err == nil && slices.Contains(placed.Removed, m.shard) {
				err = eventsRemoved(m.shard)
			}
		}
		return arrival{m: m, err: late(ctx, err), leftAt: readTo}
	})
}

// takeLeft handles the answer to leave.
func (w *shardMerge) takeLeft(a arrival) error {
	m := a.m
	m.leaving.asking = false
	switch {
	case !slices.Contains(w.remotes, m):
	case a.err == nil:
		w.drop(m)
	case mongoerr.CodeOf(a.err) == mongoerr.ChangeStreamHistoryLost:
		m.leaving.hadData = true
		if m.quiet && m.mark.Compare(a.leftAt) == 0 {
			return a.err
		}
	case !lostStream(a.err):
		return a.err
	default:
		m.leaving.tries++
	}
	return nil
}

// late returns NetworkTimeout for the error of a request whose time has passed, so that it is repeated.
func late(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return mongoerr.New(mongoerr.NetworkTimeout, "the shards of a change stream were not reached in time")
	}
	return err
}
