package router

import (
	"bytes"
	"context"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// remote is one shard's part of a merged cursor.
type remote struct {
	shard string
	peer  cluster.Peer // the member that has the cursor
	ns    string
	id    int64 // 0 once the shard has returned all
	batch value.Iter
	doc   []byte // the document at the front, nil before the first
	key   []byte // its sort key
	live  bool   // whether doc is set
}

// take reads a reply's batch.
func (m *remote) take(reply []byte, name string) error {
	cur := value.Lookup(reply, "cursor").Doc()
	id := value.Lookup(cur, "id")
	if cur == nil || id.T != value.Int64 {
		return mongoerr.Newf(mongoerr.FailedToParse, "the reply of shard %s has no cursor", m.shard)
	}
	m.id, m.ns = id.Int64(), value.Lookup(cur, "ns").Str()
	m.batch = value.Walk(value.Lookup(cur, name).Doc())
	return nil
}

// mergeCursor merges the documents of several shards into one stream: in sort order, or as they arrive.
type mergeCursor struct {
	remotes []*remote
	sort    keyer  // nil: any order
	extra   []byte // elements sent with each getMore: lsid and others
	skip    int64
	limit   int64 // 0: none
	started bool
	pending []byte // a document that did not fit the last batch
	shape   func(ctx context.Context, doc []byte) ([]byte, error)
	source  agg.Source    // in place of remotes: the merge part of a pipeline
	watch   *clientStream // in place of both: a change stream
}

// keyer appends a document's comparison key to dst.
type keyer interface {
	append(dst, doc []byte) ([]byte, error)
}

// mergeKeyOption makes shards add to documents the values they were sorted by, in a last field named
// mergeKeyField.
const (
	mergeKeyOption = "_withMergeKey"
	mergeKeyField  = "$sortKey"
)

// shardKeys is the keyer that reads mergeKeyField.
type shardKeys struct{}

func (shardKeys) append(dst, doc []byte) ([]byte, error) {
	_, v := agg.CutLast(doc, mergeKeyField)
	return append(dst, v.Bytes()...), nil
}

// cutMergeKey removes mergeKeyField from a document.
func cutMergeKey(_ context.Context, doc []byte) ([]byte, error) {
	rest, _ := agg.CutLast(doc, mergeKeyField)
	return rest, nil
}

// sortKeys is the keyer that encodes a document's sort fields, like an index on them.
type sortKeys struct {
	gen *indexkey.Generator
	set indexkey.KeySet
}

func newSortKeys(pattern []byte, c value.Collator) (*sortKeys, error) {
	spec := &indexkey.Spec{KeyPattern: pattern}
	for it := value.Walk(pattern); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		spec.Fields = append(spec.Fields, indexkey.Field{Path: string(k), Desc: v.AsFloat64() < 0})
	}
	g, err := indexkey.NewGenerator(spec, indexkey.Options{Collator: c})
	return &sortKeys{gen: g}, err
}

func (s *sortKeys) append(dst, doc []byte) ([]byte, error) {
	if err := s.gen.Keys(doc, &s.set); err != nil {
		if mongoerr.CodeOf(err) == mongoerr.CannotIndexParallelArrays {
			return nil, mongoerr.New(mongoerr.BadValue, "cannot sort with keys that are parallel arrays")
		}
		return nil, err
	}
	if s.set.Len() == 0 {
		return dst, nil
	}
	return append(dst, s.set.Key(0)...), nil
}

// openRemotes opens a cursor on each shard with the command that build makes; on an error all of them are closed again.
func (r *Router) openRemotes(op *command.Op, shards []string, build func(shard string) []byte) ([]*remote, error) {
	replies := r.scatter(op, shards, func(s string) ([]byte, []wire.Sequence) { return build(s), nil })
	err := firstError(replies)
	out := make([]*remote, 0, len(replies))
	for i := range replies {
		if replies[i].err != nil {
			continue
		}
		m := &remote{shard: replies[i].shard, peer: replies[i].at}
		perr := m.take(replies[i].body, "firstBatch")
		if perr != nil && err == nil {
			err = perr
		}
		out = append(out, m)
	}
	if err != nil {
		r.closeRemotes(context.WithoutCancel(op), out)
		return nil, err
	}
	return out, nil
}

// unfinished reports whether a shard has more than its first batch.
func (c *mergeCursor) unfinished() bool {
	return slices.ContainsFunc(c.remotes, func(m *remote) bool { return m.id != 0 })
}

func (r *Router) closeRemotes(ctx context.Context, remotes []*remote) {
	for _, m := range remotes {
		if m.id == 0 {
			continue
		}
		r.killOn(ctx, m.peer, m.ns, m.id)
		m.id = 0
	}
}

func (c *mergeCursor) close(ctx context.Context, r *Router) {
	if c.watch != nil {
		c.watch.close()
		return
	}
	if c.source != nil {
		c.source.Close()
		return
	}
	r.closeRemotes(ctx, c.remotes)
}

// advance puts the remote's next document at its front; live is false at its end.
func (c *mergeCursor) advance(ctx context.Context, m *remote) error {
	m.live = false
	for {
		if _, v, ok := m.batch.Next(); ok {
			m.doc, m.live = v.Doc(), true
			if c.sort == nil {
				return nil
			}
			var err error
			m.key, err = c.sort.append(m.key[:0], m.doc)
			return err
		}
		if m.id == 0 {
			return nil
		}
		if err := c.more(ctx, m); err != nil {
			return err
		}
	}
}

func (c *mergeCursor) more(ctx context.Context, m *remote) error {
	db, coll := cluster.SplitNS(m.ns)
	op := command.FromContext(ctx)
	body := msg.With(&msg.GetMore{DB: db, Coll: coll, Cursor: m.id}, c.extra)
	if ask := op.AskQueryMetrics(body); ask != nil {
		body = rebuild(body, nil, ask)
	}
	reply, err := cluster.Run(ctx, m.peer, body)
	if err != nil {
		return err
	}
	op.TakeQueryMetrics(reply, false)
	return m.take(reply, "nextBatch")
}

// start fetches the first document of each remote, which the first comparison needs.
func (c *mergeCursor) start(ctx context.Context) error {
	c.started = true
	for _, m := range c.remotes {
		if err := c.advance(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// next returns the next document; it borrows from the shard's reply until the next call.
func (c *mergeCursor) next(ctx context.Context) ([]byte, bool, error) {
	if c.watch != nil {
		return c.watch.next(ctx)
	}
	if c.source != nil {
		d, ok, err := c.source.Next(ctx)
		return d.Raw, ok, err
	}
	if !c.started {
		if err := c.start(ctx); err != nil {
			return nil, false, err
		}
	}
	for {
		m := c.pick()
		if m == nil {
			return nil, false, nil
		}
		doc := m.doc
		if c.skip > 0 {
			c.skip--
			if err := c.advance(ctx, m); err != nil {
				return nil, false, err
			}
			continue
		}
		if c.limit > 0 {
			if c.limit--; c.limit == 0 {
				c.limit = -1
			}
		} else if c.limit < 0 {
			return nil, false, nil
		}
		// The document's bytes belong to the reply, which advance leaves alone: a new reply is a new buffer.
		if err := c.advance(ctx, m); err != nil {
			return nil, false, err
		}
		if c.shape == nil {
			return doc, true, nil
		}
		doc, err := c.shape(ctx, doc)
		return doc, err == nil, err
	}
}

// pick chooses the remote to take from: the one with the lowest sort key, or the first that has anything.
func (c *mergeCursor) pick() *remote {
	var best *remote
	for i := range c.remotes {
		m := c.remotes[i]
		if !m.live {
			continue
		}
		if c.sort == nil {
			return m
		}
		if best == nil || bytes.Compare(m.key, best.key) < 0 {
			best = m
		}
	}
	return best
}

// maxBatchBytes is the maximum size of a batch.
const maxBatchBytes = command.MaxBSONSize

// defaultBatch is the size of a first batch if the client names none.
const defaultBatch = 101

// fill appends documents to an array begun at dst's end, until size documents (< 0: no limit) or the byte limit.
func (c *mergeCursor) fill(op *command.Op, dst []byte, size int64) (out []byte, n int64, done bool, err error) {
	start := len(dst)
	for size < 0 || n < size {
		doc := c.pending
		if c.pending = nil; doc == nil {
			var ok bool
			if doc, ok, err = c.next(op); err != nil {
				return dst, n, false, err
			}
			if !ok {
				return dst, n, true, nil
			}
		}
		if err := command.CheckResultSize(doc); err != nil {
			return dst, n, false, err
		}
		if n > 0 && len(dst)-start+len(doc)+16 > maxBatchBytes {
			c.pending = append([]byte(nil), doc...)
			return dst, n, false, nil
		}
		dst = value.AppendIndex(dst, int(n), value.NewDocument(doc))
		n++
		if err := op.Check(); err != nil {
			return dst, n, false, err
		}
	}
	return dst, n, c.exhausted(), nil
}

// exhausted reports whether nothing can follow, so that the last batch can close the cursor.
func (c *mergeCursor) exhausted() bool {
	if c.source != nil || c.watch != nil || c.pending != nil {
		return false
	}
	if c.limit < 0 {
		return true
	}
	for _, m := range c.remotes {
		if m.live || m.id != 0 {
			return false
		}
	}
	return c.started
}

// openMerged replies with the first batch of a merge and keeps the cursor if there is more.
func (r *Router) openMerged(op *command.Op, ns string, c *mergeCursor, size int64, single bool, dst []byte) ([]byte, error) {
	dst, cm := value.BeginKey(dst, value.Document, "cursor")
	dst, bm := value.BeginKey(dst, value.Array, "firstBatch")
	dst, n, done, err := c.fill(op, dst, size)
	if err != nil {
		c.close(context.WithoutCancel(op), r)
		return dst, err
	}
	op.Stats.NReturned = n
	dst = value.End(dst, bm)
	id := int64(0)
	if done || single {
		c.close(context.WithoutCancel(op), r)
	} else {
		kept := newCursor(op, ns)
		kept.merge = c
		kept.returned.Store(n)
		id = r.cursors.add(kept, 0)
	}
	dst = appendSnapshotTime(dst, op)
	dst = value.Append(dst, "id", value.NewInt64(id))
	dst = value.Append(dst, "ns", value.NewString(ns))
	return value.End(dst, cm), nil
}

// getMoreMerged returns the next batch of a merge.
func (r *Router) getMoreMerged(op *command.Op, c *routerCursor, size int64, dst []byte) ([]byte, error) {
	if c.merge.watch != nil {
		return r.getMoreWatch(op, c, dst)
	}
	if op.Req.MaxTimeMS > 0 {
		return dst, mongoerr.New(mongoerr.BadValue, "maxTimeMS can only be used with getMore for tailable, awaitData cursors")
	}
	dst, cm := value.BeginKey(dst, value.Document, "cursor")
	dst, bm := value.BeginKey(dst, value.Array, "nextBatch")
	dst, n, done, err := c.merge.fill(op, dst, size)
	if err != nil {
		r.cursors.drop(c.id)
		c.merge.close(context.WithoutCancel(op), r)
		return dst, err
	}
	op.Stats.NReturned = n
	c.returned.Add(n)
	dst = value.End(dst, bm)
	id := c.id
	if done {
		r.cursors.drop(c.id)
		c.merge.close(context.WithoutCancel(op), r)
		id = 0
	}
	dst = value.Append(dst, "id", value.NewInt64(id))
	dst = value.Append(dst, "ns", value.NewString(c.ns))
	return value.End(dst, cm), nil
}

// carried returns the elements of a request that the getMores of its remote cursors repeat.
func carried(op *command.Op) []byte {
	if t := transactionOf(op); t != nil {
		return t.fields()
	}
	if op.Req.LSID == nil {
		return nil
	}
	return value.Append(nil, "lsid", value.NewDocument(append([]byte(nil), op.Req.LSID...)))
}
