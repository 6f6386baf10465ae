package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/streams"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// watches reports whether an aggregate opens a change stream.
func watches(pipeline value.Value) bool {
	it := value.Walk(pipeline.Doc())
	_, first, ok := it.Next()
	return ok && first.T == value.Document && !value.Lookup(first.Doc(), "$changeStream").IsMissing()
}

// runChangeStream opens a change stream: a cursor over the node's feed (package streams) instead of the snapshot,
// which only determines where it begins.
func runChangeStream(n *Node, op *command.Op, dst []byte, args *aggregateArgs, s *storage.Snapshot) ([]byte, error) {
	now := s.Timestamp()
	p, err := args.over(n, op, s).prepareStream(args.pipeline)
	s.Release()
	if err != nil {
		return dst, err
	}
	e, err := openEvents(n, p, args, now)
	if mongoerr.CodeOf(err) == mongoerr.ChangeStreamHistoryLost {
		err = exec.During(duringAggregate(args.ns), err)
	}
	if err != nil {
		return dst, err
	}
	if err := e.stream.CatchUp(op); err != nil {
		e.Close()
		return dst, mongoerr.ResumableStream(err)
	}
	c := &cursor{ns: args.ns, stream: e, tailable: true, awaitData: true, during: duringAggregate}
	dst, err = n.firstBatch(op, dst, c, args.size, false)
	return dst, mongoerr.ResumableStream(err)
}

// prepareStream parses the pipeline of a change stream.
func (a *aggregation) prepareStream(pipeline value.Value) (*agg.Pipeline, error) {
	if v, err := namespace.ViewIn(a.snap, a.ns); err != nil {
		return nil, err
	} else if v != nil {
		return nil, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", a.ns)
	}
	rest, err := a.prepare(pipeline, nil)
	if err != nil {
		return nil, err
	}
	if rc := a.op.Req.ReadConcern; rc != nil && rc.Given && rc.Level != "majority" && !rc.ByDefault {
		return nil, mongoerr.Newf(mongoerr.InvalidOptions, "Aggregation stage $changeStream cannot run with a readConcern other than 'majority', or in a multi-document transaction. "+
			"Current readConcern: %s", rc.Level)
	}
	return rest, nil
}

// eventStream passes the events of a change stream to its cursor, through the stages after $changeStream.
type eventStream struct {
	n      *Node
	stream *streams.Stream
	spec   *agg.ChangeStream
	form   changestream.Form
	src    agg.Source
	merged bool // a router merges it with other streams: it reports its position when they wait for it

	reported storage.Timestamp // position of the stream according to the last reply

	answered time.Time // the last getMore

	made, given, before *changestream.Token // tokens of the last event made, and of the last two that passed the stages
	id                  []byte              // the _id of the last one made
}

func openEvents(n *Node, p *agg.Pipeline, args *aggregateArgs, now storage.Timestamp) (*eventStream, error) {
	spec, _ := p.ChangeStream()
	start := streams.Start{At: now}
	if spec.HasStartAt {
		start.At = storage.Timestamp(max(spec.StartAt, 1) - 1)
	}
	start.Token, start.After = spec.Token()
	if p.Options().Collator == nil {
		start.Selection = changestream.SelectionOf(args.pipeline, spec.FullDocument != "" && spec.FullDocument != "default")
	}
	e := &eventStream{n: n, spec: spec, form: spec.Form(), merged: args.fromRouter}
	behind, err := p.AfterChangeStream()
	if err != nil {
		return nil, err
	}
	if e.stream, err = n.cursors.feed.NewStream(spec.Filter(p.Options().NS), start); err != nil {
		return nil, err
	}
	if start.Token != nil && start.Token.Type == changestream.EventToken {
		e.given = start.Token
	}
	if e.src, err = behind.Run(eventSource{e}); err != nil {
		e.stream.Close()
		return nil, err
	}
	return e, nil
}

// eventSource yields the events' documents to the stages after $changeStream.
type eventSource struct{ e *eventStream }

// Next implements agg.Source.
func (s eventSource) Next(ctx context.Context) (agg.Doc, bool, error) {
	ev, ok, err := s.e.stream.Next(ctx)
	if err != nil || !ok {
		return agg.Doc{}, false, err
	}
	s.e.made = ev.Token
	doc := ev.Invalidate
	if doc == nil {
		if doc, err = s.e.document(ctx, ev.Event); err != nil {
			return agg.Doc{}, false, err
		}
	}
	s.e.id = append(s.e.id[:0], value.Lookup(doc, "_id").Doc()...) // a copy: the event may be large
	return agg.Doc{Raw: doc}, true, nil
}

// Close implements agg.Source.
func (s eventSource) Close() {}

// document returns an event's document, with the post-image and pre-image that its stream asks for.
func (e *eventStream) document(ctx context.Context, ev *changestream.Event) ([]byte, error) {
	doc := ev.Document(e.form)
	if !ev.Changes() {
		return doc, nil
	}
	more, err := e.images(nil, ev)
	if err != nil {
		return nil, err
	}
	if ev.Type == "update" && e.spec.FullDocument == "updateLookup" {
		full, err := e.lookUp(ctx, ev)
		if err != nil {
			return nil, err
		}
		more = value.Append(more, "fullDocument", full)
	}
	if more == nil {
		return doc, nil
	}
	return value.End(append(append(make([]byte, 0, len(doc)+len(more)), doc[:len(doc)-1]...), more...), 0), nil
}

// lookUp returns the current version of an updated document; null if it is gone.
func (e *eventStream) lookUp(ctx context.Context, ev *changestream.Event) (value.Value, error) {
	id, ok := catalog.UUIDFrom(ev.UUID)
	if !ok {
		return value.NewNull(), nil
	}
	s := e.n.Engine.MajoritySnapshot()
	defer s.Release()
	c := s.Catalog().LookupUUID(id)
	if c == nil {
		return value.NewNull(), nil
	}
	_, doc, ok, err := s.FindByID(c, value.Lookup(ev.Key, "_id"))
	if err != nil || !ok {
		return value.NewNull(), err
	}
	return value.NewDocument(append([]byte(nil), doc...)), nil
}

// labelled adds ResumableChangeStreamError to errors after which a driver may resume a change stream.
func (c *cursor) labelled(err error) error {
	if _, ok := c.stream.(*eventStream); ok {
		return mongoerr.ResumableStream(err)
	}
	return err
}

// NextDoc implements docStream.
func (e *eventStream) NextDoc(op *command.Op) ([]byte, bool, error) {
	d, ok, err := e.src.Next(op)
	if err != nil || !ok {
		return nil, false, err
	}
	token, err := changestream.CheckID(d.Raw, e.id, e.made)
	if err != nil {
		return nil, false, err
	}
	e.before, e.given = e.given, token
	return d.Raw, true, nil
}

// Stop implements docStream. What the stream holds is bounded.
func (e *eventStream) Stop() {}

// Close implements docStream.
func (e *eventStream) Close() {
	e.src.Close()
	e.stream.Close()
}

// postBatch returns the token from which a change stream resumes after everything that its cursor has returned;
// nil for other cursors.
func postBatch(c *cursor) []byte {
	e, ok := c.stream.(*eventStream)
	if !ok {
		return nil
	}
	given, done := e.given, uint64(e.stream.Done())
	e.reported = e.stream.Done()
	if c.pending != nil {
		given = e.before
		if given == nil {
			done = e.given.ClusterTime - 1
		}
	}
	if given != nil && (given.ClusterTime >= done || c.pending != nil) {
		return given.Document()
	}
	return changestream.MarkAt(done + 1).Document()
}

// streamPause is the gap between two getMores after which a client counts as having been away.
const streamPause = 50 * time.Millisecond

// look fills a batch with the events that have arrived.
func (e *eventStream) look(op *command.Op, dst []byte, c *cursor, size int64) (out []byte, count int64, done bool, err error) {
	from := len(dst)
	out, count, done, err = c.fillBatch(op, dst, size)
	e.stream.Looked(len(out) - from)
	return out, count, done, err
}

// more returns a getMore's batch: buffered events if it is the stream's turn to check, otherwise the next ones to arrive.
//
// A client that returns after a pause receives everything that was committed before its return, as from a new stream.
func (e *eventStream) more(op *command.Op, dst []byte, c *cursor, size int64) (out []byte, count int64, done bool, err error) {
	if time.Since(e.answered) > streamPause {
		if err := e.stream.CatchUp(op); err != nil {
			return dst, 0, true, err
		}
	}
	defer func() { e.answered = time.Now() }()
	if e.stream.Turn() {
		if dst, count, done, err = e.look(op, dst, c, size); err != nil || count > 0 || !done {
			return dst, count, done, err
		}
	}
	return e.await(op, dst, c, size)
}

// await waits for events that pass the stages, for the getMore's maxTimeMS or a second.
func (e *eventStream) await(op *command.Op, dst []byte, c *cursor, size int64) (out []byte, count int64, done bool, err error) {
	wait := time.Second
	if op.Req.MaxTimeMS > 0 {
		wait = time.Duration(op.Req.MaxTimeMS) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(op, wait)
	defer cancel()
	if e.merged && e.stream.Listen(c.id) {
		return e.look(op, dst, c, size)
	}
	for !e.stream.Ended() {
		var werr error
		if !e.stream.AskedSince(e.reported) {
			werr = op.Await(func() error { return e.stream.Wait(ctx) })
		}
		asked := e.stream.AskedSince(e.reported)
		if dst, count, done, err = e.look(op, dst, c, size); err != nil || count > 0 || asked {
			return dst, count, done, err
		}
		if werr != nil {
			if ctx.Err() == nil {
				return dst, 0, true, werr
			}
			return dst, 0, true, op.CheckNow()
		}
	}
	return dst, 0, true, nil
}
