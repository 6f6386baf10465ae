package router

import (
	"context"
	"errors"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A change stream of a cluster consists of one stream per shard, merged in the order of their tokens (shardMerge).
//
//	getMore ──► clientStream.next ──► the client's stages ──► upstream: a merge of its own, driven by the client's getMores
//	                                                              or a hubReader, a position in a hub's window
//	shardMerge.next ── an event is returned once every other shard is past it
//	         └─ step: one getMore at a time on each shard that has nothing; a shard that holds others back is asked for a
//	            no-op write (appendOplogNote), which advances its high-water mark and wakes its getMore
//
// A request to a shard outlives the client's getMore: the next getMore uses its reply.
//
// Streams that differ only in what they do with the events share one merge, a watchHub: those that begin at the current time join it at once,
// those that are resumed have a merge of their own until they have caught up. A stream whose client falls behind the hub's window gets a
// merge of its own again.

// clientStream is one client's change stream.
type clientStream struct {
	r     *Router
	spec  *agg.ChangeStream
	of    watched
	shape *streamShape // of the streams that can share a hub; nil if this one cannot
	up    upstream
	after *changestream.Token // events up to it have been returned, or do not belong to the stream; nil after a later event
	pos   *changestream.Token

	resume *changestream.Token // the event to continue after, until it has been seen
	within bool                // that event is delivered again, to continue within it
	ended  bool

	seen *changestream.Token // of the last event that arrived behind after, returned or not; it never goes back
	id   []byte              // of the last event passed to the stages
	last *changestream.Token // of the same event
	src  agg.Source          // the client's stages

	before, given *changestream.Token // of the last two that passed the stages
	dry           bool                // the stages have processed all events that arrived
	answered      time.Time           // the last batch
}

// upstream is the source of a client's stream.
type upstream interface {
	// next returns the next event; ok is false if there is none yet: position then returns the time up to which there is none.
	next() (ev shardEvent, ok bool, err error)
	// position returns a time up to which next has returned everything; nil if that is not known.
	position() *changestream.Token
	// buffered reports whether there is an event that cannot be returned yet.
	buffered() bool
	// turn reports whether the stream may read new events without waiting; looked records the size of its reply.
	turn() bool
	looked(size int)
	// catchUp waits briefly for the events up to a time.
	catchUp(ctx context.Context, at uint64)
	// wait returns when there may be more, or ctx ends, which is not an error.
	wait(ctx context.Context) error
	close()
}

// ownMerge is a merge that one client's getMores drive.
type ownMerge struct{ *shardMerge }

func (ownMerge) turn() bool                       { return true }
func (ownMerge) looked(int)                       {}
func (ownMerge) catchUp(context.Context, uint64)  {} // the shards' streams split them
func (m ownMerge) wait(ctx context.Context) error { return m.step(ctx) }

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
	p, err := agg.Parse(a.pipeline, &agg.Options{NS: agg.Namespace{DB: db, Coll: coll}, Host: &aggHost{r: r, collation: spec}, Collator: spec.Collator(),
		Collation: explicit(spec), Scope: scope, AllowDiskUse: true, StageMemory: r.Params.StageMemory, InTxn: transactionOf(op) != nil})
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

func (r *Router) newWatch(op *command.Op, a *aggCommand, p *agg.Pipeline) (*clientStream, error) {
	w := &clientStream{r: r}
	w.spec, _ = p.ChangeStream()
	if w.spec.ShowMigrationEvents {
		return nil, mongoerr.New(31123, "Change streams from mongos may not show migration events")
	}
	start, past := r.Clock.ClusterTime()+1, false
	if w.spec.HasStartAt {
		start, past = max(w.spec.StartAt, 1), true
	}
	if t, after := w.spec.Token(); t != nil {
		if t.FromInvalidate && !after {
			return nil, mongoerr.New(mongoerr.InvalidResumeToken, "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification.")
		}
		start, past = max(t.ClusterTime, 1), true
		switch {
		case t.FromInvalidate:
			start++ // otherwise the shards' streams would end at it again
		case t.Type == changestream.EventToken:
			w.resume, w.within = t.Before(), t.Fragment >= 0
			w.given = t
		}
	}
	w.pos, w.of = changestream.MarkAt(start), watchedBy(a, w.spec)
	simple := op.Req.Doc("collation") == nil
	if readsFrom(op) == nil {
		w.shape = shapeOf(a, w.spec, simple)
	}
	behind, err := p.AfterChangeStream()
	if err != nil {
		return nil, err
	}
	if w.src, err = behind.Run(watchSource{w}); err != nil {
		return nil, err
	}
	if !past && w.shape != nil {
		var hub *hubReader
		if hub, err = r.hubs.join(op, w.shape, w.pos, nil); hub != nil {
			w.up, w.after = hub, w.pos
			op.AdvanceOperationTime(start - 1)
		}
	}
	if w.up == nil && err == nil {
		own, filter := a.stream(), watchFilter(a.pipeline, w.spec, simple)
		err = w.openOwn(op, func(start uint64) []byte { return shardStream(own, w.spec, filter, start) }, start)
	}
	if err != nil {
		w.src.Close()
		return nil, err
	}
	return w, nil
}

// openOwn gives the stream a merge of its own from a time on.
func (w *clientStream) openOwn(op *command.Op, open func(start uint64) []byte, start uint64) error {
	m, err := newShardMerge(op, w.r, w.of, open, readsFrom(op).Clone(), start)
	if err != nil {
		return err
	}
	op.AdvanceOperationTime(m.time)
	w.up = ownMerge{m}
	return nil
}

// stream returns the part of the command that opens shards' streams. It is a copy: streams are opened again, and on shards that join,
// long after the request's memory has been reused.
func (a *aggCommand) stream() *aggCommand {
	body := append([]byte(nil), a.body...)
	return &aggCommand{ns: a.ns, body: body, pipeline: value.Lookup(body, "pipeline")}
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
	if splitsEvents(a.pipeline) {
		stages = append(stages, value.NewDocument(value.Doc(value.F("$changeStreamSplitLargeEvent", value.NewDocument(value.Doc())))))
	}
	extra := value.Append(nil, "pipeline", value.NewArray(value.ArrayOf(stages...)))
	extra = value.Append(extra, "fromRouter", value.NewBool(true))
	extra = value.Append(extra, "cursor", value.NewDocument(value.Doc()))
	return rebuild(a.body, map[string]bool{"pipeline": true, "cursor": true, "collation": true, "let": true, "$clusterTime": true, "lsid": true, "maxTimeMS": true,
		"hint": true, "readConcern": true, "fromRouter": true}, extra)
}

// splitsEvents reports whether a pipeline ends with $changeStreamSplitLargeEvent. The shards then send an event that is too large for a
// document in fragments; the client's stages run over the whole event, and may split it differently.
func splitsEvents(pipeline value.Value) bool {
	stages := value.Values(pipeline.Doc())
	return len(stages) > 1 && !value.Lookup(stages[len(stages)-1].Doc(), "$changeStreamSplitLargeEvent").IsMissing()
}

// merged returns the next event of the cluster that belongs to the stream; ok is false if none can be returned yet.
func (w *clientStream) merged(ctx context.Context) (ev shardEvent, ok bool, err error) {
	for !w.ended {
		ev, ok, err = w.up.next()
		if errors.Is(err, errBehindHub) {
			if err = w.leaveHub(ctx); err == nil {
				continue
			}
		}
		if err != nil || !ok {
			return ev, false, err
		}
		if w.after != nil {
			if ev.token.Compare(w.after) <= 0 {
				continue
			}
			w.after = nil
		}
		w.seen = ev.token
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

// reached returns the position up to which the stream has returned everything: a time, or the last event if that is later.
//
// Invariant: it is never before an event that the stream has returned. Hazard: a hub may be later than the merge that the stream had before, and then delivers events that the stream has returned; if seen
// were of one that is skipped, a stream that falls behind the window among them would return the following ones again.
func (w *clientStream) reached() *changestream.Token {
	if w.seen != nil && w.seen.Compare(w.pos) > 0 {
		return w.seen
	}
	return w.pos
}

// leaveHub gives the stream a merge of its own, from its current position.
func (w *clientStream) leaveHub(ctx context.Context) error {
	op := command.FromContext(ctx)
	at := w.reached()
	w.up.close()
	w.after = at
	return w.openOwn(op, w.shape.own, max(at.ClusterTime, 1))
}

// joinHub makes a stream with a merge of its own share a hub, once it has caught up and holds no event that the hub lacks. If
// there is no hub yet, its merge becomes that of a new one.
func (w *clientStream) joinHub(op *command.Op, c *mergeCursor) {
	own, ok := w.up.(ownMerge)
	if !ok || w.shape == nil || w.resume != nil || w.ended || c.pending != nil || own.buffered() {
		return
	}
	at := own.position()
	if at.ClusterTime>>32+hubLag < w.r.Clock.ClusterTime()>>32 {
		return
	}
	if w.seen != nil && w.seen.Compare(at) > 0 {
		at = w.seen
	}
	if hub, err := w.r.hubs.join(op, w.shape, at, own.shardMerge); err == nil && hub != nil {
		w.up, w.after = hub, at
	}
}

// watchSource feeds the client's stages.
type watchSource struct{ w *clientStream }

// Next implements agg.Source.
func (s watchSource) Next(ctx context.Context) (agg.Doc, bool, error) {
	ev, ok, err := s.w.merged(ctx)
	if err != nil || !ok {
		return agg.Doc{}, false, err
	}
	s.w.last, s.w.id = ev.token, append(s.w.id[:0], value.Lookup(ev.doc, "_id").Doc()...) // a copy: the event may be large
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
func (w *clientStream) lookUp(ctx context.Context, doc []byte) ([]byte, error) {
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

// streamPause is the gap between getMores after which a client is considered not to be following its stream: its next getMore returns everything that was
// committed before.
const streamPause = 50 * time.Millisecond

// batch replies with the events that can be returned, waiting for the first one.
func (w *clientStream) batch(op *command.Op, c *mergeCursor, dst []byte, name string, size int64, wait time.Duration, keep func(n int64) int64, ns string) ([]byte, error) {
	dst, cm := value.BeginKey(dst, value.Document, "cursor")
	dst, bm := value.BeginKey(dst, value.Array, name)
	n := int64(0)
	var err error
	ctx, cancel := context.WithTimeout(context.Context(op), wait)
	defer cancel()
	if name != "firstBatch" {
		if time.Since(w.answered) > streamPause {
			w.up.catchUp(ctx, w.r.Clock.ClusterTime())
		}
		defer func() { w.answered = time.Now() }()
	}
	for look := w.up.turn(); err == nil && (size != 0 || name != "firstBatch"); look = true {
		if look {
			from := len(dst)
			dst, n, _, err = c.fill(op, dst, size)
			w.up.looked(len(dst) - from)
			if err != nil || n > 0 || w.ended {
				break
			}
			if name == "firstBatch" && !w.up.buffered() {
				break // nothing has happened yet
			}
		}
		if ctx.Err() != nil {
			err = op.CheckNow()
			break
		}
		err = op.Await(func() error { return w.up.wait(ctx) })
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
func (w *clientStream) position(c *mergeCursor) *changestream.Token {
	if c.pending != nil { // the last one that passed the stages waits for the next batch
		if w.before != nil {
			return w.before
		}
		return w.pos
	}
	if at := w.up.position(); at != nil && w.dry && at.Compare(w.pos) > 0 {
		w.pos = at
	}
	if w.given != nil && w.given.Compare(w.pos) > 0 {
		return w.given
	}
	return w.pos
}

// next returns the next event that has passed the client's stages.
func (w *clientStream) next(ctx context.Context) ([]byte, bool, error) {
	d, ok, err := w.src.Next(ctx)
	w.dry = !ok
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

// close ends the stream.
func (w *clientStream) close() {
	w.up.close()
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
	w.joinHub(op, c.merge)
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
