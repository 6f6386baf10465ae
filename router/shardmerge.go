package router

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// shardMerge is one stream of the cluster: the streams of all shards and the config server's, merged in the order of their tokens. One
// goroutine uses it at a time.
type shardMerge struct {
	r       *Router
	of      watched
	command func(start uint64) []byte // makes the command that opens a shard's stream
	pref    *cluster.ReadPreference
	life    context.Context
	cancel  context.CancelFunc
	pending sync.WaitGroup
	arrived chan arrival

	remotes []*watchRemote
	start   uint64
	pos     *changestream.Token
	time    uint64 // the operationTime of the shards' replies
}

// watchRemote is one shard's stream, or the config server's stream of joining shards.
type watchRemote struct {
	shard  string
	since  uint64 // a topology time at which the set that is read had the shard's name
	peer   cluster.Peer
	ns     string
	id     int64
	events []shardEvent
	part   []byte              // elements of an event of which fragments are still to come
	seen   *changestream.Token // the last whole event that arrived; nil if none did
	mark   *changestream.Token // no earlier event will arrive
	asking bool                // a request is under way
	asked  uint64              // the time up to which the shard was asked to move on
	quiet  bool                // its last reply had no events

	leaving leaving

	lost  time.Time // when its cursor was lost; zero while it has one
	tries int       // the number of cursors requested since
}

type shardEvent struct {
	token *changestream.Token
	doc   []byte
}

// arrival is the reply of a shard's getMore, or of the aggregate that opens its stream again.
type arrival struct {
	m     *watchRemote
	reply []byte
	err   error
	at    cluster.Peer // the member that has the new cursor; nil for a getMore

	leftAt *changestream.Token // for the answer to leave: from where on was asked
}

// joinsStream is the id of the config server's stream of config.shards among those of shards: the config server may be a shard, too.
const joinsStream = "config.shards"

// newShardMerge opens the streams of all shards from a time on.
//
// Invariant: an event is returned only if the streams of all shards that the cluster had at the event's time are open. The config server's
// stream of config.shards is therefore merged with the others: it begins at the time of the list of shards, and the stream of a shard that
// joins begins when it joins, before which nothing on the shard is part of the cluster. Hazard: a shard whose stream is opened late
// delivers events that precede those already returned. Rejected: reading the list again every second, which returned the first events of a
// new shard after later events of the others; and relying on events that name new shards: resharding, movePrimary and new databases have
// none.
func newShardMerge(ctx context.Context, r *Router, of watched, command func(start uint64) []byte, pref *cluster.ReadPreference, start uint64) (*shardMerge, error) {
	w := &shardMerge{r: r, of: of, command: command, pref: pref, start: start, arrived: make(chan arrival, 64), pos: changestream.MarkAt(start)}
	w.life, w.cancel = context.WithCancel(context.Background())
	remotes, err := w.listShards(ctx)
	if err == nil {
		err = w.open(ctx, remotes)
	}
	if err == nil {
		err = w.checkOpened(ctx, start)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// listShards returns the shards that the cluster has, and the stream of changes of that list from then on. None is open; each has the time from which it is to be.
func (w *shardMerge) listShards(ctx context.Context) (remotes []*watchRemote, err error) {
	find := cluster.Find{NS: "config.shards", BatchSize: 1 << 20, ReadConcern: "snapshot"}
	reply, err := cluster.Run(ctx, w.r.config, find.Doc())
	if err != nil {
		return nil, err
	}
	cur := value.Lookup(reply, "cursor").Doc()
	newest := uint64(0)
	for _, v := range value.Values(value.Lookup(cur, "firstBatch").Doc()) {
		entry, err := cluster.ParseShard(v.Doc())
		if err != nil {
			return nil, err
		}
		newest = max(newest, entry.Topology)
		remotes = append(remotes, &watchRemote{shard: entry.ID, since: entry.Topology})
	}
	if err := w.r.Registry.CatchUp(ctx, newest); err != nil { // it may have another set under one of the names
		return nil, err
	}
	members, err := w.membersSince(ctx, w.start)
	for _, m := range remotes {
		m.mark = changestream.MarkAt(max(w.start, members.Joined(m.shard)))
	}
	at := value.Lookup(cur, "atClusterTime").TimestampU64()
	return append(remotes, &watchRemote{shard: joinsStream, mark: changestream.MarkAt(at + 1)}), err
}

// joins returns the aggregate that opens the config server's stream of shards that join or leave.
func joins(start uint64) []byte {
	stages := value.ArrayOf(
		value.NewDocument(value.Doc(value.F("$changeStream", value.NewDocument(value.Doc(value.F("startAtOperationTime", value.NewTimestampU64(start))))))),
		value.NewDocument(value.Doc(value.F("$match", value.NewDocument(value.Doc(value.F("operationType", value.NewDocument(value.Doc(
			value.F("$in", value.NewArray(value.ArrayOf(value.NewString("insert"), value.NewString("delete")))))))))))))
	return msg.Doc(&msg.Aggregate{DB: "config", On: value.NewString("shards"), Pipeline: stages, Cursor: new(msg.Cursor), FromRouter: true})
}

// open opens the streams of shards, and that of the config server.
func (w *shardMerge) open(ctx context.Context, remotes []*watchRemote) error {
	var opening sync.WaitGroup
	replies := make([]shardReply, len(remotes))
	for i, m := range remotes {
		reply := &replies[i]
		reply.shard = m.shard
		opening.Go(func() { reply.body, reply.at, reply.err = w.openOn(ctx, m.shard, m.mark.ClusterTime) })
	}
	opening.Wait()
	var err error
	for i, m := range remotes {
		r := &replies[i]
		if mongoerr.CodeOf(r.err) == mongoerr.ShardNotFound { // removed meanwhile
			r.err = nil
			continue
		}
		if r.err != nil {
			continue
		}
		m.peer = r.at
		if terr := m.take(r.body, "firstBatch"); terr != nil && err == nil {
			err = terr
		}
		w.remotes = append(w.remotes, m)
		w.time = max(w.time, value.Lookup(r.body, "operationTime").TimestampU64())
	}
	if failed := firstError(replies); failed != nil {
		err = failed
	}
	return err
}

// peer returns the peer that has the stream of a shard, or that of config.shards.
func (w *shardMerge) peer(ctx context.Context, shard string) (cluster.Peer, error) {
	if shard == joinsStream {
		return w.r.config, nil
	}
	return w.r.peer(ctx, shard)
}

// openOn opens the stream of a shard, or of the config server, from a time on.
func (w *shardMerge) openOn(ctx context.Context, shard string, start uint64) (reply []byte, at cluster.Peer, err error) {
	open, pref := w.command, w.pref
	if shard == joinsStream {
		open, pref = joins, nil
	}
	p, err := w.peer(ctx, shard)
	if err == nil {
		reply, at, err = cluster.CallOn(ctx, p, pref, &wire.Message{OpCode: wire.OpMsg, Body: open(start)}, nil)
	}
	if err == nil {
		err = cluster.ReplyError(reply)
	}
	return reply, at, err
}

// take reads a reply's events and position. If the stream was opened again, events that arrived before are left out.
func (m *watchRemote) take(reply []byte, batch string) error {
	cur := value.Lookup(reply, "cursor").Doc()
	id, after := value.Lookup(cur, "id"), value.Lookup(cur, "postBatchResumeToken")
	if cur == nil || id.T != value.Int64 || after.T != value.Document {
		return mongoerr.Newf(mongoerr.FailedToParse, "the reply of shard %s has no change stream", m.shard)
	}
	m.id, m.ns, m.quiet = id.Int64(), value.Lookup(cur, "ns").Str(), true
	for _, v := range value.Values(value.Lookup(cur, batch).Doc()) {
		t, err := changestream.ParseToken(value.Lookup(v.Doc(), "_id").Doc())
		if err != nil {
			return err
		}
		if m.seen != nil && t.Before().Compare(m.seen) <= 0 {
			continue
		}
		m.quiet = false
		ev := shardEvent{t, v.Doc()}
		if t.Fragment >= 0 && !m.complete(&ev) {
			continue
		}
		m.events, m.seen = append(m.events, ev), ev.token
	}
	mark, err := changestream.ParseToken(after.Doc())
	if err != nil {
		return err
	}
	if m.part != nil {
		mark = changestream.MarkAt(mark.ClusterTime) // its event is still to come
	}
	if mark.Compare(m.mark) > 0 {
		m.mark = mark
	}
	return nil
}

// complete assembles an event from its fragments; false while some are missing.
func (m *watchRemote) complete(ev *shardEvent) bool {
	split := value.Lookup(ev.doc, "splitEvent").Doc()
	if m.part == nil {
		m.part = value.Append(nil, "_id", value.NewDocument(ev.token.Before().Document()))
	}
	for it := value.Walk(ev.doc); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			break
		}
		if string(k) != "_id" && string(k) != "splitEvent" {
			m.part = append(m.part, raw...)
		}
	}
	if value.Compare(value.Lookup(split, "fragment"), value.Lookup(split, "of")) < 0 {
		return false
	}
	dst, mark := value.Begin(make([]byte, 0, len(m.part)+8))
	ev.token, ev.doc, m.part = ev.token.Before(), value.End(append(dst, m.part...), mark), nil
	return true
}

// front returns the next event if every shard is past it; behind lists the shards that are not.
//
// Invariant: events are returned in the order of their tokens over all shards, and a token once returned is never
// followed by a smaller one. Hazard: a shard with nothing buffered may still deliver an earlier event, so an event may
// be returned only if every other shard has reported that it is past it. Rejected: waiting for slower shards for a
// fixed time. It delays every event, and a shard that is slower still would deliver events that a resumed stream never
// sees.
func (w *shardMerge) front() (best *watchRemote, behind []*watchRemote) {
	for _, m := range w.remotes {
		if len(m.events) == 0 {
			continue
		}
		if best == nil || cmp.Or(m.events[0].token.Compare(best.events[0].token), strings.Compare(m.shard, best.shard)) < 0 {
			best = m
		}
	}
	if best == nil {
		return nil, nil
	}
	for _, m := range w.remotes {
		if len(m.events) == 0 && (m.id != 0 || !m.lost.IsZero()) && m.mark.Compare(best.events[0].token) < 0 {
			behind = append(behind, m)
		}
	}
	return best, behind
}

// leaves returns the shard that leaves with the first event, "" if that is another event.
func (m *watchRemote) leaves() string {
	if ev := m.events[0].doc; m.shard == joinsStream && value.Lookup(ev, "operationType").Str() == "delete" {
		return value.Lookup(value.LookupDoc(ev, "documentKey"), "_id").Str()
	}
	return ""
}

// next returns the next event of all shards; ok is false if none can be returned yet.
func (w *shardMerge) next() (ev shardEvent, ok bool, err error) {
	for {
		m, behind := w.front()
		if m == nil || len(behind) > 0 {
			return ev, false, nil
		}
		w.separate(m)
		left := m.leaves()
		if ev = m.pop(); m.shard != joinsStream {
			return ev, true, nil
		}
		if left == "" {
			err = w.join(ev)
		} else if i := slices.IndexFunc(w.remotes, func(m *watchRemote) bool { return m.shard == left }); i >= 0 {
			w.drop(w.remotes[i])
		}
		if err != nil {
			return ev, false, err
		}
	}
}

// separate makes equal tokens of events of several shards distinct: all but first's get the name of their shard.
//
// Invariant: an event has the same token in each merge of the shards' streams. front chooses among equal tokens by the shards' names, and
// not before all shards with the token have delivered it: one with nothing buffered would have to be past it. Hazard: with one token for
// two events, a stream that is resumed there returns one of them again, and one that leaves its hub there loses one. Rejected: the shard's
// name in every token. The oplog does not have it, and a token of a shard's own stream would not be found through a router.
func (w *shardMerge) separate(first *watchRemote) {
	token := first.events[0].token
	for _, m := range w.remotes {
		if m == first || len(m.events) == 0 || m.events[0].token.Compare(token) != 0 {
			continue
		}
		ev := &m.events[0]
		ev.token = ev.token.OnShard(m.shard)
		dst, mark := value.Begin(make([]byte, 0, len(ev.doc)+128))
		dst = value.Append(dst, "_id", value.NewDocument(ev.token.Document()))
		rest := rebuildElements(ev.doc, map[string]bool{"_id": true})
		ev.doc = value.End(append(dst, rest...), mark)
	}
}

// pop takes the first event. It is no longer held: its document shares the memory of its reply.
func (m *watchRemote) pop() shardEvent {
	ev := m.events[0]
	m.events[0] = shardEvent{}
	if m.events = m.events[1:]; len(m.events) == 0 {
		m.events = nil
	}
	return ev
}

// join has step open the stream of a shard that joins, from then on.
func (w *shardMerge) join(ev shardEvent) error {
	entry, err := cluster.ParseShard(value.LookupDoc(ev.doc, "fullDocument"))
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(w.remotes, func(m *watchRemote) bool { return m.shard == entry.ID }) {
		from := changestream.MarkAt(max(w.start, ev.token.ClusterTime))
		w.remotes = append(w.remotes, &watchRemote{shard: entry.ID, since: entry.Topology, mark: from, lost: time.Now()})
	}
	return nil
}

// buffered reports whether there is an event, whether it can be returned or not.
func (w *shardMerge) buffered() bool {
	m, _ := w.front()
	return m != nil
}

// step sends the shards requests for more and waits for one reply, at most until ctx ends, which is not an error.
func (w *shardMerge) step(ctx context.Context) error {
	if m, behind := w.front(); m != nil {
		at, leaves := m.events[0].token.ClusterTime, m.leaves()
		for _, o := range behind {
			if o.shard == leaves {
				w.leave(o, at)
			}
		}
		w.push(at, slices.DeleteFunc(behind, func(o *watchRemote) bool { return o.shard == leaves }))
	}
	left := time.Second
	if end, ok := ctx.Deadline(); ok {
		left = time.Until(end)
	}
	w.ask(left)
	select {
	case a := <-w.arrived:
		return w.takeArrival(a)
	case <-ctx.Done():
		return nil
	}
}

// takeArrival handles a reply. One from a shard that has been dropped says nothing: the getMore that was under way ends with its cursor, which drop kills.
func (w *shardMerge) takeArrival(a arrival) error {
	if a.leftAt != nil {
		return w.takeLeft(a)
	}
	m, batch := a.m, "nextBatch"
	if m.asking = false; !slices.Contains(w.remotes, m) {
		w.pending.Go(func() { w.killLateCursor(a) })
		return nil
	}
	switch {
	case a.err == nil:
		if a.at != nil {
			m.peer, batch, m.asked, m.lost, m.tries = a.at, "firstBatch", 0, time.Time{}, 0
		}
		return m.take(a.reply, batch)
	case m.id == 0 && mongoerr.CodeOf(a.err) == mongoerr.ShardNotFound:
		w.drop(m)
		return nil
	case !lostStream(a.err):
		m.id = 0
		return a.err
	}
	if m.id, m.part, m.quiet = 0, nil, true; m.lost.IsZero() {
		m.lost = time.Now()
	}
	m.tries++
	if m.shard != joinsStream && time.Since(m.lost) > w.r.hubs.lostTimeout {
		return a.err
	}
	return nil
}

// lostShardTimeout is the time for which a shard's stream may be lost before the clients get an error.
const lostShardTimeout = time.Minute

// lostStream reports whether a stream has to be opened again after an error: its member has failed, or has changed its state.
func lostStream(err error) bool {
	return err != nil && (cluster.Retryable(err) || mongoerr.CodeOf(err).IsResumableStream())
}

// reopen opens a shard's stream again, from its position, after an election or the end of a member. For clients, events are
// only delayed.
//
// Invariant: a shard's stream continues without a gap or a duplicate, whichever member it is read from. Hazard: another member may be at
// another position in the log. A mark covers only what a majority has, and later events have a later time on every member; the new stream
// begins at the mark's time, and take leaves out the events of that time that arrived before. Rejected: resumeAfter with the last event,
// which the shard would not find if the stream had none, or only fragments of it. Rejected: an error to the client, which would then
// resume: every stream of the router would open one on every shard at once, during the election of one of them.
func (w *shardMerge) reopen(m *watchRemote) {
	start, try := m.mark.ClusterTime, m.tries
	w.request(func() arrival {
		ctx, cancel := context.WithTimeout(w.life, w.r.hubs.opening)
		defer cancel()
		if err := cluster.Backoff(ctx, try); err != nil {
			return arrival{m: m, err: err}
		}
		if m.shard == joinsStream {
			reply, at, err := w.openOn(ctx, m.shard, start)
			return arrival{m: m, reply: reply, err: late(ctx, err), at: at}
		}
		if err := w.r.Registry.CatchUp(ctx, m.since); err != nil {
			return arrival{m: m, err: late(ctx, err)}
		}
		reply, at, err := w.openOn(ctx, m.shard, start)
		checked := w.checkReopened(ctx, m.shard, m.since, start, err)
		if err == nil && checked != nil {
			w.killLateCursor(arrival{reply: reply, at: at})
		}
		return arrival{m: m, reply: reply, err: late(ctx, checked), at: at}
	})
}

// request makes a request in another goroutine; step receives the reply.
func (w *shardMerge) request(send func() arrival) {
	w.pending.Add(1)
	go func() {
		defer w.pending.Done()
		a := send()
		select {
		case w.arrived <- a:
		case <-w.life.Done():
			w.killLateCursor(a)
		}
	}()
}

// killLateCursor kills the cursor of a reply that arrived after its reader had gone.
func (w *shardMerge) killLateCursor(a arrival) {
	cur := value.Lookup(a.reply, "cursor").Doc()
	if id := value.Lookup(cur, "id"); a.err == nil && a.at != nil && id.T == value.Int64 && id.Int64() != 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		w.r.killOn(ctx, a.at, value.Lookup(cur, "ns").Str(), id.Int64())
	}
}

// ask sends a getMore to each shard that has nothing buffered and no request pending, and reopens the streams that were lost.
func (w *shardMerge) ask(wait time.Duration) {
	for _, m := range w.remotes {
		if len(m.events) > 0 || m.asking || m.id == 0 && m.lost.IsZero() {
			continue
		}
		m.asking = true
		if !m.lost.IsZero() {
			w.reopen(m)
			continue
		}
		db, coll := cluster.SplitNS(m.ns)
		body := msg.Doc(&msg.GetMore{DB: db, Coll: coll, Cursor: m.id}, value.F("maxTimeMS", value.NewInt64(max(wait.Milliseconds(), 1))))
		peer := m.peer
		w.request(func() arrival {
			reply, err := cluster.Run(w.life, peer, body)
			return arrival{m: m, reply: reply, err: err}
		})
	}
}

// push makes the shards that hold an event back write a no-op at its time: their streams then report that they are
// past it.
func (w *shardMerge) push(at uint64, behind []*watchRemote) {
	for _, m := range behind {
		if m.asked >= at || m.id == 0 {
			continue
		}
		m.asked = at
		cursor := m.id
		w.pending.Add(1)
		go func() {
			defer w.pending.Done()
			err := w.writeNote(m.shard, cursor, at)
			for try := 0; lostStream(err) && cluster.Backoff(w.life, try) == nil; try++ {
				err = w.writeNote(m.shard, cursor, at)
			}
		}()
	}
}

// writeNote writes the no-op of one push.
func (w *shardMerge) writeNote(shard string, cursor int64, at uint64) error {
	p, err := w.peer(w.life, shard)
	if err != nil {
		return err
	}
	note := &msg.AppendOplogNote{
		Data:           value.Doc(value.F("msg", value.NewString(changestream.PositionNote)), value.F("cursor", value.NewInt64(cursor))),
		MaxClusterTime: at,
	}
	_, err = cluster.Run(w.life, p, msg.Doc(note))
	if mongoerr.CodeOf(err) == mongoerr.StaleClusterTime { // it is past that time, but has not reported so
		note.MaxClusterTime = 0
		_, err = cluster.Run(w.life, p, msg.Doc(note))
	}
	return err
}

// position returns the time up to which all events of all shards have been returned.
func (w *shardMerge) position() *changestream.Token {
	var low *changestream.Token
	for _, m := range w.remotes {
		at := m.mark
		if len(m.events) > 0 {
			at = changestream.MarkAt(m.events[0].token.ClusterTime)
		} else if at.Type == changestream.EventToken {
			at = changestream.MarkAt(at.ClusterTime)
		}
		if low == nil || at.Compare(low) < 0 {
			low = at
		}
	}
	if low != nil && low.Compare(w.pos) > 0 {
		w.pos = low
	}
	return w.pos
}

// close ends the streams of the shards.
func (w *shardMerge) close() {
	w.cancel()
	w.pending.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, m := range w.remotes {
		if m.id != 0 {
			w.r.killOn(ctx, m.peer, m.ns, m.id)
			m.id = 0
		}
	}
	for {
		select {
		case a := <-w.arrived:
			w.killLateCursor(a)
		default:
			return
		}
	}
}
