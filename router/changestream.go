package router

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A change stream of a cluster consists of one stream per shard, merged in the order of their tokens.
//
//	getMore ──► watchMerge.next ── an event is returned once every other shard is past it ──► the client's stages
//	                 └─ fetch: one getMore at a time on each shard that has nothing; a shard that holds others back is asked for a
//	                    no-op write (appendOplogNote), which moves its high-water mark on and wakes its getMore
//
// A shard's requests outlive the client's getMore: the next one takes what they return.

// watchRemote is one shard's stream.
type watchRemote struct {
	shard  string
	peer   cluster.Peer
	ns     string
	id     int64
	events []shardEvent
	mark   *changestream.Token // no earlier event will come
	asking bool                // a getMore is under way
	asked  uint64              // the time up to which the shard was asked to move on
}

type shardEvent struct {
	token *changestream.Token
	doc   []byte
}

// arrival is the reply of a shard's getMore.
type arrival struct {
	m     *watchRemote
	reply []byte
	err   error
}

// watchMerge merges the streams of all shards.
type watchMerge struct {
	r       *Router
	spec    *agg.ChangeStream
	ns      agg.Namespace
	command func(start uint64) []byte // the command that opens a shard's stream
	life    context.Context
	cancel  context.CancelFunc
	pending sync.WaitGroup
	arrived chan arrival

	remotes []*watchRemote
	listed  uint64    // the stream's position when the list of shards was read
	listing time.Time // when that was
	pos     *changestream.Token
	resume  *changestream.Token // the event to continue after, until it has been seen
	within  bool                // that event is delivered once more, to continue within it
	ended   bool

	id   []byte              // of the last event that was merged
	last *changestream.Token // its token
	src  agg.Source          // the client's stages

	before, given *changestream.Token // tokens of the last two events that passed the stages
}

// watchesChanges reports whether a pipeline begins with $changeStream.
func watchesChanges(pipeline value.Value) bool {
	it := value.Walk(pipeline.Doc())
	_, first, ok := it.Next()
	return ok && first.T == value.Document && !value.Lookup(first.Doc(), "$changeStream").IsMissing()
}

// openWatch opens a change stream over all shards.
func (r *Router) openWatch(op *command.Op, a *aggCommand, dst []byte) ([]byte, error) {
	size, err := cursorSize(a.body)
	if err != nil {
		return dst, err
	}
	if rc := op.Req.ReadConcern; rc != nil && rc.Given && rc.Level != "majority" && !rc.ByDefault {
		return dst, mongoerr.Newf(mongoerr.InvalidOptions, "Aggregation stage $changeStream cannot run with a readConcern other than 'majority', or in a multi-document transaction. "+
			"Current readConcern: %s", rc.Level)
	}
	spec, err := collationFor(op.Req.Doc("collation"), &cluster.CollectionInfo{})
	if err != nil {
		return dst, err
	}
	scope, err := r.newScope(op, spec)
	if err != nil {
		return dst, err
	}
	db, coll := cluster.SplitNS(a.ns)
	p, err := agg.Parse(a.pipeline, &agg.Options{NS: agg.Namespace{DB: db, Coll: coll}, Host: &aggHost{r: r}, Collator: spec.Collator(),
		Collation: op.Req.Doc("collation"), Scope: scope, AllowDiskUse: true, StageMemory: r.Params.StageMemory, InTxn: transactionOf(op) != nil})
	if err != nil {
		return dst, err
	}
	p.Optimize()
	w, err := r.newWatch(op, a, p)
	if err != nil {
		return dst, mongoerr.ResumableStream(err)
	}
	c := &mergeCursor{watch: w}
	dst, err = w.batch(op, c, dst, "firstBatch", size, time.Second, func(n int64) int64 {
		if w.ended {
			return 0
		}
		kept := newCursor(op, a.ns)
		kept.merge = c
		kept.returned.Store(n)
		return r.cursors.add(kept, 0)
	}, a.ns)
	if err != nil || w.ended {
		w.close()
	}
	return dst, mongoerr.ResumableStream(err)
}

func (r *Router) newWatch(op *command.Op, a *aggCommand, p *agg.Pipeline) (*watchMerge, error) {
	w := &watchMerge{r: r, arrived: make(chan arrival, 64)}
	w.spec, _ = p.ChangeStream()
	w.ns = p.Options().NS
	start := r.Clock.ClusterTime() + 1
	if w.spec.HasStartAt {
		start = max(w.spec.StartAt, 1)
	}
	if t, after := w.spec.Token(); t != nil {
		if t.FromInvalidate && !after {
			return nil, mongoerr.New(mongoerr.InvalidResumeToken, "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification.")
		}
		start = max(t.ClusterTime, 1)
		switch {
		case t.FromInvalidate:
			start++ // otherwise the shards' streams would end at it again
		case t.Type == changestream.EventToken:
			w.resume, w.within = t.Before(), t.Fragment >= 0
			w.given = t
		}
	}
	w.pos = changestream.MarkAt(start)
	filter := watchFilter(a.pipeline, w.spec, op.Req.Doc("collation") == nil)
	w.command = func(start uint64) []byte { return shardStream(a, w.spec, filter, start) }
	w.life, w.cancel = context.WithCancel(context.Background())
	behind, err := p.AfterChangeStream()
	if err != nil {
		return nil, err
	}
	if w.src, err = behind.Run(watchSource{w}); err != nil {
		return nil, err
	}
	if err := w.openShards(op, start); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// shardStream returns the aggregate that opens a shard's stream: the events that pass a filter. Look-ups of
// documents, and the client's own stages, run on the router.
func shardStream(a *aggCommand, spec *agg.ChangeStream, filter []byte, start uint64) []byte {
	it := value.Walk(a.pipeline.Doc())
	_, first, _ := it.Next()
	drop := map[string]bool{"resumeAfter": true, "startAfter": true, "startAtOperationTime": true}
	if spec.FullDocument == "updateLookup" {
		drop["fullDocument"] = true
	}
	options := rebuild(value.Lookup(first.Doc(), "$changeStream").Doc(), drop, value.Append(nil, "startAtOperationTime", value.NewTimestampU64(start)))
	stages := []value.Value{value.NewDocument(value.Doc(value.F("$changeStream", value.NewDocument(options))))}
	if filter != nil {
		stages = append(stages, value.NewDocument(value.Doc(value.F("$match", value.NewDocument(filter)))))
	}
	extra := value.Append(nil, "pipeline", value.NewArray(value.ArrayOf(stages...)))
	extra = value.Append(extra, "fromRouter", value.NewBool(true))
	extra = value.Append(extra, "cursor", value.NewDocument(value.Doc()))
	return rebuild(a.body, map[string]bool{"pipeline": true, "cursor": true, "collation": true, "let": true, "$clusterTime": true, "lsid": true, "maxTimeMS": true,
		"hint": true, "readConcern": true, "fromRouter": true}, extra)
}

// openShards opens the streams of shards that have none yet.
func (w *watchMerge) openShards(op *command.Op, start uint64) error {
	w.listed, w.listing = w.pos.ClusterTime, time.Now()
	all, err := w.r.allShards(op)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, m := range w.remotes {
		known[m.shard] = true
	}
	var missing []string
	for _, s := range all {
		if !known[s] {
			missing = append(missing, s)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	replies := w.r.scatter(op, missing, func(string) ([]byte, []wire.Sequence) { return w.command(start), nil })
	err = firstError(replies)
	for i := range replies {
		if replies[i].err != nil {
			continue
		}
		m := &watchRemote{shard: replies[i].shard, peer: replies[i].at, mark: changestream.MarkAt(start)}
		if terr := m.take(replies[i].body, "firstBatch"); terr != nil && err == nil {
			err = terr
		}
		w.remotes = append(w.remotes, m)
	}
	return err
}

// take reads a reply's events and position.
func (m *watchRemote) take(reply []byte, batch string) error {
	cur := value.Lookup(reply, "cursor").Doc()
	id, after := value.Lookup(cur, "id"), value.Lookup(cur, "postBatchResumeToken")
	if cur == nil || id.T != value.Int64 || after.T != value.Document {
		return mongoerr.Newf(mongoerr.FailedToParse, "the reply of shard %s has no change stream", m.shard)
	}
	m.id, m.ns = id.Int64(), value.Lookup(cur, "ns").Str()
	for _, v := range value.Values(value.Lookup(cur, batch).Doc()) {
		t, err := changestream.ParseToken(value.Lookup(v.Doc(), "_id").Doc())
		if err != nil {
			return err
		}
		m.events = append(m.events, shardEvent{t, v.Doc()})
	}
	var err error
	m.mark, err = changestream.ParseToken(after.Doc())
	return err
}

// front returns the next event if every shard is past it; behind lists the shards that are not.
//
// Invariant: events are returned in the order of their tokens over all shards, and a token once returned is never
// followed by a smaller one. An event may therefore be returned only if every other shard has reported that it is
// past it: a shard with nothing buffered may still deliver an earlier event. Rejected: waiting for slower shards
// for a fixed time. It delays every event, and a shard that is slower still would deliver events that a resumed
// stream never sees.
func (w *watchMerge) front() (best *watchRemote, behind []*watchRemote) {
	for _, m := range w.remotes {
		if len(m.events) > 0 && (best == nil || m.events[0].token.Compare(best.events[0].token) < 0) {
			best = m
		}
	}
	if best == nil {
		return nil, nil
	}
	for _, m := range w.remotes {
		if len(m.events) == 0 && m.id != 0 && m.mark.Compare(best.events[0].token) < 0 {
			behind = append(behind, m)
		}
	}
	return best, behind
}

// merged returns the next event of all shards; ok is false if none can be returned yet.
func (w *watchMerge) merged() (ev shardEvent, ok bool, err error) {
	for !w.ended {
		m, behind := w.front()
		if m == nil || len(behind) > 0 {
			return ev, false, nil
		}
		ev, m.events = m.events[0], m.events[1:]
		if w.resume != nil {
			switch c := ev.token.Compare(w.resume); {
			case c < 0:
				continue
			case c == 0:
				w.resume = nil
				if !w.within {
					continue
				}
				return ev, true, nil
			}
			return ev, false, mongoerr.Newf(mongoerr.ChangeStreamFatalError, "cannot resume stream; the resume token was not found. %s", w.resume.Data()).
				WithLabel(mongoerr.LabelNonResumableStream)
		}
		w.ended = ev.token.FromInvalidate
		return ev, true, nil
	}
	return ev, false, nil
}

// watchSource feeds the client's stages.
type watchSource struct{ w *watchMerge }

// Next implements agg.Source.
func (s watchSource) Next(ctx context.Context) (agg.Doc, bool, error) {
	ev, ok, err := s.w.merged()
	if err != nil || !ok {
		return agg.Doc{}, false, err
	}
	s.w.last, s.w.id = ev.token, value.Lookup(ev.doc, "_id").Doc()
	if s.w.spec.FullDocument == "updateLookup" && value.Lookup(ev.doc, "operationType").Str() == "update" {
		if ev.doc, err = s.w.lookUp(ctx, ev.doc); err != nil {
			return agg.Doc{}, false, err
		}
	}
	return agg.Doc{Raw: ev.doc}, true, nil
}

// Close implements agg.Source.
func (s watchSource) Close() {}

// lookUp adds the current version of the document, from the shard that owns it now.
func (w *watchMerge) lookUp(ctx context.Context, doc []byte) ([]byte, error) {
	ns := value.Lookup(doc, "ns").Doc()
	full := value.NewNull()
	src, err := (&aggHost{r: w.r}).Find(ctx, agg.Namespace{DB: value.Lookup(ns, "db").Str(), Coll: value.Lookup(ns, "coll").Str()},
		agg.Query{Filter: equalities(value.Lookup(doc, "documentKey").Doc()), Limit: 1})
	if err != nil {
		return nil, err
	}
	defer src.Close()
	d, ok, err := src.Next(ctx)
	if err != nil {
		return nil, err
	}
	if ok {
		full = value.NewDocument(d.Raw)
	}
	return value.End(value.Append(append([]byte(nil), doc[:len(doc)-1]...), "fullDocument", full), 0), nil
}

// equalities returns a filter that matches exactly the values of a document's fields.
func equalities(key []byte) []byte {
	var f []value.Field
	for k, v := range value.Elements(key) {
		f = append(f, value.F(k, value.NewDocument(value.Doc(value.F("$eq", v)))))
	}
	return value.Doc(f...)
}

// ask sends a getMore to each shard that has nothing buffered and no request pending.
func (w *watchMerge) ask(wait time.Duration) {
	for _, m := range w.remotes {
		if len(m.events) > 0 || m.asking || m.id == 0 {
			continue
		}
		m.asking = true
		_, coll := cluster.SplitNS(m.ns)
		db, _ := cluster.SplitNS(m.ns)
		body := value.Doc(value.F("getMore", value.NewInt64(m.id)), value.F("collection", value.NewString(coll)),
			value.F("maxTimeMS", value.NewInt64(max(wait.Milliseconds(), 1))), value.F("$db", value.NewString(db)))
		w.pending.Add(1)
		go func() {
			defer w.pending.Done()
			reply, err := cluster.Run(w.life, m.peer, body)
			select {
			case w.arrived <- arrival{m, reply, err}:
			case <-w.life.Done():
			}
		}()
	}
}

// push makes the shards that hold an event back write a no-op at its time: their streams then report that they are
// past it.
func (w *watchMerge) push(at uint64, behind []*watchRemote) {
	for _, m := range behind {
		if m.asked >= at {
			continue
		}
		m.asked = at
		cursor := m.id
		w.pending.Add(1)
		go func() {
			defer w.pending.Done()
			p, err := w.r.peer(w.life, m.shard)
			if err != nil {
				return
			}
			note := []value.Field{value.F("appendOplogNote", value.NewInt32(1)),
				value.F("data", value.NewDocument(value.Doc(value.F("msg", value.NewString(changestream.PositionNote)), value.F("cursor", value.NewInt64(cursor)))))}
			db := value.F("$db", value.NewString("admin"))
			_, err = cluster.Run(w.life, p, value.Doc(append(note, value.F("maxClusterTime", value.NewTimestampU64(at)), db)...))
			if mongoerr.CodeOf(err) == mongoerr.StaleClusterTime { // it is past that time, but has not reported so
				_, _ = cluster.Run(w.life, p, value.Doc(append(note, db)...))
			}
		}()
	}
}

// relist looks for shards that have been added. Their streams begin at this stream's position when the list was
// last read: earlier events on them are not part of the cluster.
func (w *watchMerge) relist(op *command.Op) error {
	if time.Since(w.listing) < time.Second {
		return nil
	}
	from := w.listed
	if err := w.r.Registry.Reload(op); err != nil {
		return err
	}
	return w.openShards(op, from)
}

// collect waits until a reply arrives, or the time is over.
func (w *watchMerge) collect(ctx context.Context) error {
	select {
	case a := <-w.arrived:
		a.m.asking = false
		if a.err != nil {
			a.m.id = 0
			return a.err
		}
		return a.m.take(a.reply, "nextBatch")
	case <-ctx.Done():
		return nil
	}
}

// batch replies with the events that can be returned, waiting for the first one.
func (w *watchMerge) batch(op *command.Op, c *mergeCursor, dst []byte, name string, size int64, wait time.Duration, keep func(n int64) int64, ns string) ([]byte, error) {
	dst, cm := value.BeginKey(dst, value.Document, "cursor")
	dst, bm := value.BeginKey(dst, value.Array, name)
	n := int64(0)
	err := w.relist(op)
	ctx, cancel := context.WithTimeout(context.Context(op), wait)
	defer cancel()
	for err == nil && (size != 0 || name != "firstBatch") {
		var got int64
		if dst, got, _, err = c.fill(op, dst, size); err != nil || got > 0 || w.ended {
			n = got
			break
		}
		m, behind := w.front()
		if m == nil && name == "firstBatch" {
			break // nothing has happened yet
		}
		if m != nil {
			w.push(m.events[0].token.ClusterTime, behind)
		}
		left := wait
		if end, ok := ctx.Deadline(); ok {
			left = time.Until(end)
		}
		w.ask(left)
		if err = w.collect(ctx); err == nil && ctx.Err() != nil {
			err = op.CheckNow()
			break
		}
	}
	if err != nil {
		return dst, err
	}
	op.Stats.NReturned = n
	dst = value.End(dst, bm)
	dst = value.Append(dst, "postBatchResumeToken", value.NewDocument(w.position(c).Document()))
	dst = value.Append(dst, "id", value.NewInt64(keep(n)))
	dst = value.Append(dst, "ns", value.NewString(ns))
	return value.End(dst, cm), nil
}

// position returns the token for resuming after what was returned: the last event's, or the position that all
// shards have reached.
func (w *watchMerge) position(c *mergeCursor) *changestream.Token {
	if c.pending != nil { // the last one that passed the stages waits for the next batch
		if w.before != nil {
			return w.before
		}
		return w.pos
	}
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
	if w.given != nil && w.given.Compare(w.pos) > 0 {
		return w.given
	}
	return w.pos
}

// next returns the next event that has passed the client's stages.
func (w *watchMerge) next(ctx context.Context) ([]byte, bool, error) {
	d, ok, err := w.src.Next(ctx)
	if err != nil || !ok {
		return nil, false, err
	}
	token, err := changestream.CheckID(d.Raw, w.id, w.last)
	if err != nil {
		return nil, false, err
	}
	w.before, w.given = w.given, token
	return d.Raw, true, nil
}

// close ends the streams of the shards.
func (w *watchMerge) close() {
	w.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, m := range w.remotes {
		if m.id != 0 {
			killOn(ctx, m.peer, m.ns, m.id)
			m.id = 0
		}
	}
	w.src.Close()
}

// getMoreWatch returns a change stream's next batch.
func (r *Router) getMoreWatch(op *command.Op, c *routerCursor, dst []byte) ([]byte, error) {
	size := op.Req.Int("batchSize", -1)
	if size == 0 {
		size = -1
	}
	wait := time.Second
	if op.Req.MaxTimeMS > 0 {
		wait = time.Duration(op.Req.MaxTimeMS) * time.Millisecond
	}
	w := c.merge.watch
	dst, err := w.batch(op, c.merge, dst, "nextBatch", size, wait, func(n int64) int64 {
		c.returned.Add(n)
		if w.ended && c.merge.pending == nil {
			return 0
		}
		return c.id
	}, c.ns)
	if err != nil || w.ended && c.merge.pending == nil {
		r.cursors.drop(c.id)
		w.close()
	}
	return dst, mongoerr.ResumableStream(err)
}
