package configsvr

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// config.placementHistory has an entry for each change of a database's primary shard, and of the shards of a collection: it
// shows on which shards the data of a namespace was at a time. An entry is written in the unit of work that changes the placement.
//
// Two entries with an empty nss delimit it. The time of one is that from which on the history is complete; the one at Timestamp(0, 1)
// has the shards of that time, for all namespaces before.
//
// An entry of cluster.MembersNS lists the shards of the cluster. One is written with each entry of config.shards that comes or goes: it tells whether the set that had data under
// a shard's name still has the name.
const placementNS = "config.placementHistory"

// wholeHistory is the nss of the entries that delimit the history.
const wholeHistory = ""

// beforeHistory is the time of the entry for all times before the history.
const beforeHistory = 1

// placing is a change of a namespace's placement.
type placing struct {
	nss    string
	uuid   [16]byte // zero for a database
	shards []string // none for a namespace that was dropped
	at     uint64   // 0 for the time of the write
}

// doc returns the entry for a change.
func (p *placing) doc(now uint64) []byte {
	f := []value.Field{fld("_id", value.NewObjectID(cluster.NewObjectID())), fld("nss", str(p.nss))}
	if p.uuid != [16]byte{} {
		f = append(f, fld("uuid", value.NewBinary(4, p.uuid[:])))
	}
	at := p.at
	if at == 0 {
		at = now
	}
	shards := make([]value.Value, len(p.shards))
	for i, s := range slices.Sorted(slices.Values(p.shards)) {
		shards[i] = str(s)
	}
	return value.Doc(append(f, fld("timestamp", value.NewTimestampU64(at)), fld("shards", arr(shards...)))...)
}

// writePlaced commits a change of the catalog with the entries of the placements that it changes.
//
// The time of an entry and its write belong together: resetPlacementHistory, which replaces everything before a time by the current
// state, comes before both or after both.
func (m *Manager) writePlaced(ctx context.Context, w *msg.WriteTogether, changes ...placing) error {
	unlock, err := m.chunks.history.share(ctx, theHistory)
	if err != nil {
		return err
	}
	defer unlock()
	if len(changes) > 0 {
		now := m.tick()
		for i := range changes {
			w.Placement = append(w.Placement, changes[i].doc(now))
		}
	}
	_, err = cluster.Run(ctx, m.local, msg.Doc(w))
	return err
}

// initHistory begins the history of a cluster that has none, and that of its shards.
func (m *Manager) initHistory(ctx context.Context) error {
	docs, err := m.first(ctx, 1, "placementHistory", doc(fld("nss", str(wholeHistory))))
	if err == nil && len(docs) == 0 {
		err = m.resetHistory(ctx)
	}
	if err != nil {
		return err
	}
	all, unlock, err := m.lockedList(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	docs, err = m.first(ctx, 1, "placementHistory", doc(fld("nss", str(cluster.MembersNS))))
	if err != nil || len(docs) > 0 {
		return err
	}
	return m.writePlaced(ctx, &msg.WriteTogether{NS: "config.shards"}, membersAt(cmp.Or(topologyTime(all), m.tick()), all))
}

// membersAt returns the change by which the cluster has certain shards from a time on.
func membersAt(at uint64, all []*cluster.Shard) placing {
	p := placing{nss: cluster.MembersNS, at: at}
	for _, s := range all {
		p.shards = append(p.shards, s.ID)
	}
	return p
}

func (m *Manager) runResetPlacementHistory(op *command.Op, _ *msg.ResetPlacementHistory, dst []byte) ([]byte, error) {
	return dst, m.resetHistory(op)
}

// resetHistory replaces the history by the current placements. That of namespaces which removed shards had data of stays: a stream that begins before
// learns from it that events are lost.
func (m *Manager) resetHistory(ctx context.Context) error {
	for _, lock := range []func(context.Context) (func(), error){m.lockTables, m.lockList, m.lockHistory} {
		unlock, err := lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
	}
	now := m.tick()
	old, err := m.findOnly(ctx, "placementHistory", doc(), "nss", "timestamp", "shards")
	if err != nil {
		return err
	}
	w := &msg.WriteTogether{NS: placementNS}
	shards, err := m.find(ctx, "shards", doc())
	if err != nil {
		return err
	}
	var all []string
	for _, d := range shards {
		all = append(all, value.Lookup(d, "_id").Str())
	}
	stays := onRemoved(old, all)
	for _, d := range old {
		if nss := value.Lookup(d, "nss").Str(); !stays[nss] && nss != cluster.MembersNS {
			w.Changes.Delete = append(w.Changes.Delete, value.Lookup(d, "_id").Clone())
		}
	}
	entries := []placing{{nss: wholeHistory}, {nss: wholeHistory, at: beforeHistory, shards: all}}
	dbs, err := m.find(ctx, "databases", doc())
	if err != nil {
		return err
	}
	for _, d := range dbs {
		entries = append(entries, placing{nss: value.Lookup(d, "_id").Str(), shards: []string{value.Lookup(d, "primary").Str()}})
	}
	colls, err := m.find(ctx, "collections", doc())
	if err != nil {
		return err
	}
	for _, d := range colls {
		e, err := cluster.ParseCollectionEntry(d)
		if err != nil || strings.Contains(e.NS, ".system.resharding.") {
			continue
		}
		on, err := m.ownersOf(ctx, e.NS)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			continue // an unreadable table has no placement, and must not prevent the config server from starting
		}
		entries = append(entries, placing{nss: e.NS, uuid: e.UUID, shards: on})
	}
	for i := range entries {
		w.Changes.Put = append(w.Changes.Put, entries[i].doc(now))
	}
	_, err = cluster.Run(ctx, m.local, msg.Doc(w))
	return err
}

// onRemoved returns the namespaces that, by entries of the history, sets other than those of the cluster have had data of.
func onRemoved(history [][]byte, shards []string) map[string]bool {
	out := map[string]bool{}
	members := cluster.ParseMembership(history)
	for _, d := range history {
		nss, at := value.Lookup(d, "nss").Str(), value.Lookup(d, "timestamp").TimestampU64()
		for _, s := range value.Values(value.Lookup(d, "shards").Doc()) {
			if nss != wholeHistory && (!slices.Contains(shards, s.Str()) || members.Left(s.Str(), at) != 0) {
				out[nss] = true
			}
		}
	}
	return out
}

// ownersOf lists the shards that own chunks of a collection.
func (m *Manager) ownersOf(ctx context.Context, ns string) ([]string, error) {
	info, err := m.placement(ctx, ns)
	if err != nil || info.Map == nil {
		return nil, err
	}
	return slices.Clone(info.Map.Shards()), nil
}

// ownersAfter returns the owners of a collection once a range has moved; changed is false if they are the same as before.
func ownersAfter(info *cluster.CollectionInfo, from, to string, whole bool) (shards []string, changed bool) {
	last := whole && info.Map.CountOf(from) == 1
	for _, s := range info.Map.Shards() {
		if s != from || !last {
			shards = append(shards, s)
		}
	}
	if !slices.Contains(shards, to) {
		return append(shards, to), true
	}
	return shards, last
}

func (m *Manager) runHistoricalPlacement(op *command.Op, req *msg.GetHistoricalPlacement, dst []byte) ([]byte, error) {
	found, err := m.placedAt(op, req)
	if err != nil {
		return dst, err
	}
	reply := &msg.GetHistoricalPlacementReply{Shards: slices.Sorted(maps.Keys(found.on)), Exact: found.exact, Members: found.members}
	if err := m.addRemoved(op, found); err != nil {
		return dst, err
	}
	reply.Removed = slices.Sorted(maps.Keys(found.removed))
	return msg.AppendFields(dst, reply), nil
}

// placedShards are the shards that had data of a namespace.
type placedShards struct {
	on      map[string]bool
	removed map[string]bool // those of them whose set is known to have been removed
	exact   bool
	members [][]byte // the entries of the membership since the time, and the one of that time
}

// addRemoved adds the shards that the cluster no longer has. Their names were read before: a shard that has joined since is not among them.
func (m *Manager) addRemoved(ctx context.Context, found *placedShards) error {
	docs, err := m.find(ctx, "shards", doc())
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for _, d := range docs {
		has[value.Lookup(d, "_id").Str()] = true
	}
	for s := range found.on {
		if !has[s] {
			found.removed[s] = true
		}
	}
	return nil
}

// placedAt finds the shards that had data of a namespace at a time, or at that time and since: those of a collection and of its database, or of
// all databases and collections. The answer is not exact for a time before the history: then it has the shards of the time when the history began.
func (m *Manager) placedAt(ctx context.Context, req *msg.GetHistoricalPlacement) (*placedShards, error) {
	until := req.At
	if req.UntilNow {
		until = math.MaxUint64
	}
	docs, err := m.first(ctx, 0, "placementHistory", doc(fld("timestamp", doc(fld("$lte", value.NewTimestampU64(until))))), fld("timestamp", value.NewInt32(-1)))
	if err != nil {
		return nil, err
	}
	found := &placedShards{on: map[string]bool{}, removed: map[string]bool{}}
	members := cluster.ParseMembership(docs)
	seen := map[string]bool{}
	var fallback []byte
	began := req.At
	for _, d := range docs {
		nss, at := value.Lookup(d, "nss").Str(), value.Lookup(d, "timestamp").TimestampU64()
		if nss == wholeHistory {
			if at != beforeHistory {
				found.exact, began = found.exact || at <= req.At, max(began, at)
			}
			fallback = d
			continue
		}
		if seen[nss] || !covers(req, nss) {
			continue
		}
		seen[nss] = at <= req.At
		if nss == cluster.MembersNS {
			found.members = append(found.members, d)
			continue
		}
		found.add(d, members, max(at, req.At))
	}
	if !found.exact && fallback != nil {
		if !req.UntilNow {
			clear(found.on)
		}
		found.add(fallback, members, began)
	}
	return found, nil
}

// covers reports whether a request is about a namespace of the history.
func covers(req *msg.GetHistoricalPlacement, nss string) bool {
	db, coll := cluster.SplitNS(req.NS)
	its, _ := cluster.SplitNS(nss)
	switch {
	case nss == cluster.MembersNS:
		return req.UntilNow
	case req.UntilNow && its == "config": // streams do not return its events
		return false
	}
	return req.WholeCluster || its == db && (coll == "" || nss == db || nss == req.NS)
}

// add adds the shards of an entry that was in force at a time.
func (f *placedShards) add(entry []byte, members cluster.Membership, at uint64) {
	for _, s := range value.Values(value.Lookup(entry, "shards").Doc()) {
		f.on[s.Str()] = true
		if members.Left(s.Str(), at) != 0 {
			f.removed[s.Str()] = true
		}
	}
}

// historyCleaning is the time between two cleanings of the history.
const historyCleaning = time.Hour

// RunHistoryCleaner removes the part of the history that no change stream can ask for, until ctx ends. It runs on the config server's primary.
func (m *Manager) RunHistoryCleaner(ctx context.Context) {
	for m.pause(ctx, historyCleaning) {
		_, _ = m.CleanHistory(ctx) // failures are retried in the next round
	}
}

// CleanHistory removes the entries that were replaced by a later one before the first operation in any shard's oplog: no change stream
// can begin at an earlier time.
func (m *Manager) CleanHistory(ctx context.Context) (removed int, err error) {
	oldest, err := m.oldestOperation(ctx)
	if err != nil || oldest == 0 {
		return 0, err
	}
	unlock, err := m.lockHistory(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	docs, err := m.first(ctx, 0, "placementHistory", doc(fld("timestamp", doc(fld("$lte", value.NewTimestampU64(oldest))))), fld("timestamp", value.NewInt32(-1)))
	if err != nil {
		return 0, err
	}
	w := &msg.WriteTogether{NS: placementNS}
	last := map[string]bool{}
	for _, d := range docs {
		nss := value.Lookup(d, "nss").Str()
		switch {
		case nss == wholeHistory && value.Lookup(d, "timestamp").TimestampU64() == beforeHistory:
		case nss == wholeHistory:
			w.Changes.Put = append(w.Changes.Put, value.Doc(withField(d, "timestamp", value.NewTimestampU64(oldest))...))
		case last[nss] || nss != cluster.MembersNS && len(value.Lookup(d, "shards").Doc()) <= emptyArray:
			w.Changes.Delete = append(w.Changes.Delete, value.Lookup(d, "_id").Clone())
		}
		last[nss] = true
	}
	if len(w.Changes.Delete) == 0 {
		return 0, nil
	}
	_, err = cluster.Run(ctx, m.local, msg.Doc(w))
	return len(w.Changes.Delete), err
}

// emptyArray is the size of an array without elements.
const emptyArray = 5

// oldestOperation returns the earliest time in the oplogs of the shards; 0 if a shard does not reply.
func (m *Manager) oldestOperation(ctx context.Context) (oldest uint64, err error) {
	all, err := m.registry.All(ctx)
	if err != nil {
		return 0, err
	}
	for _, s := range all {
		first, err := cluster.Find{NS: "local.oplog.rs", Sort: value.Doc(fld("$natural", value.NewInt32(1))), Limit: 1}.All(ctx, s.Peer)
		if err != nil {
			return 0, err
		}
		if len(first) == 0 {
			return 0, mongoerr.Newf(mongoerr.CollectionIsEmpty, "shard %s has no oplog", s.ID)
		}
		if ts := value.Lookup(first[0], "ts").TimestampU64(); oldest == 0 || ts < oldest {
			oldest = ts
		}
	}
	return oldest, nil
}
