package router

import (
	"slices"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Writes. A batch whose statements all belong to one shard is relayed unchanged. Any other becomes a writeBatch:
// statements are grouped by shard and sent, and those that got a stale error are targeted again.

// insert, update and delete implement the commands.
func (r *Router) insert(op *command.Op, dst []byte) ([]byte, error) {
	return r.write(op, "documents", "insert", dst)
}

func (r *Router) update(op *command.Op, dst []byte) ([]byte, error) {
	return r.write(op, "updates", "update", dst)
}

func (r *Router) delete(op *command.Op, dst []byte) ([]byte, error) {
	return r.write(op, "deletes", "remove", dst)
}

func (r *Router) write(op *command.Op, list, kind string, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return r.relayAny(op, dst)
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, kind
	if err := checkWritable(op, ns); err != nil {
		return dst, err
	}
	if !op.Req.Shared(writtenRanges).IsMissing() {
		return dst, command.UnknownField(op.Req.Spec.Name + "." + writtenRanges)
	}
	r.ops.NoteWrite(op.Req.Spec.Name, op.Req.DocList(list).Count())
	from := len(dst)
	err = r.atFirst(op, func() error {
		var err error
		dst, err = r.writeTo(op, ns, list, dst[:from])
		return err
	})
	if wc := op.Req.WriteConcern; err == nil && wc != nil && wc.Unacknowledged() && !op.Client.Internal {
		dst = withoutErrors(dst, from)
	}
	return dst, err
}

// withoutErrors removes from a reply, whose elements begin at from, what members do not report with w: 0.
func withoutErrors(dst []byte, from int) []byte {
	keep := from
	for it := value.Walk(dst[from-4:]); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			return dst[:keep]
		}
		if s := string(k); s != "writeErrors" && s != "retriedStmtIds" {
			keep += copy(dst[keep:], raw)
		}
	}
}

// writeTo executes a write command on a namespace.
func (r *Router) writeTo(op *command.Op, ns, list string, dst []byte) ([]byte, error) {
	from := len(dst)
	err := r.routed(op, ns, true, func(info *cluster.CollectionInfo) error {
		series, err := r.Catalog.Buckets(op, info)
		if err != nil {
			return err
		}
		if !info.Sharded() && series == nil && identified(op, info) == nil {
			r.targets.note(op.Req.Spec.Name, info, 1)
			if dst, err = r.toHome(op, info, dst[:from]); err != nil || !staleWriteErrors(dst[from-4:]) {
				return err
			}
			b, err := newWriteBatch(r, op, list)
			if err != nil {
				return err
			}
			b.pending = b.pending[:0]
			b.absorb(op, dst[from-4:], b.all(), "")
			dst, err = b.runPaused(ns, dst[:from])
			return err
		}
		b, err := newWriteBatch(r, op, list)
		if err != nil {
			return err
		}
		dst, err = b.runPaused(ns, dst[:from])
		return err
	})
	return dst, err
}

// checkWritable refuses the namespaces that only nodes may write: a shard cannot tell a router's own writes from
// those it relays.
func checkWritable(op *command.Op, ns string) error {
	if op.Client.Internal {
		return nil
	}
	switch {
	case ns == "admin.system.keys" && op.Req.Spec.Name != "delete", strings.HasPrefix(ns, "local."):
		return mongoerr.Newf(mongoerr.InvalidNamespace, "cannot write to %s", ns)
	}
	return command.CheckClientWrite(op, ns)
}

// staleWriteErrors looks for a statement that was refused as stale in the middle of a relayed batch.
func staleWriteErrors(reply []byte) bool {
	const small = 4 + 1 + 2 + 4 // {n: int}
	if len(reply) <= small {
		return false
	}
	for _, e := range value.Values(value.Lookup(reply, "writeErrors").Doc()) {
		if isStale(writeErrorOf(e.Doc())) {
			return true
		}
	}
	return false
}

// writeBatch is a write command on a sharded collection.
type writeBatch struct {
	r       *Router
	op      *command.Op
	list    string
	items   [][]byte
	pending []int // indexes of items not yet done
	ordered bool
	retries bool // whether the command has a txnNumber: statements need their ids

	n, modified int64
	upserted    []value.Value
	errs        map[int][]byte // the elements of writeErrors by index, without the index
	retried     []value.Value
	touched     bool // a shard has executed a part of the batch
	wcErrs      wcErrors
	stale       error               // the last stale error, nil while there is none
	moving      *moving             // an update that its shard refused because its document has to move, until it is executed
	searching   bool                // the statement being sent does not determine its shard
	sent        []string            // the shards that statements went to
	done        map[int][]part      // of statements that concern several shards, the parts that have been executed
	series      *timeseries.Placing // nil unless the collection is a time series whose buckets have an entry in the catalog
}

// moving is a statement of a batch whose document has to move.
type moving struct {
	index int
	doc   *movedDoc
}

func newWriteBatch(r *Router, op *command.Op, list string) (*writeBatch, error) {
	b := &writeBatch{r: r, op: op, list: list, ordered: op.Req.BoolOr("ordered", true), retries: op.Req.HasTxnNumber, errs: map[int][]byte{}, done: map[int][]part{}}
	docs := op.Req.DocList(list)
	n := docs.Count()
	if err := op.Req.CheckBatch(n); err != nil {
		return nil, err
	}
	b.items = make([][]byte, 0, n)
	err := docs.Each(op.Req.Spec.Name+"."+list, func(_ int, d []byte) error {
		b.items = append(b.items, d)
		return nil
	})
	b.pending = b.all()
	return b, err
}

func (b *writeBatch) all() []int {
	out := make([]int, len(b.items))
	for i := range out {
		out[i] = i
	}
	return out
}

// aim is the target of one statement.
type aim struct {
	shards []string
	search bool   // it changes one document, but the filter does not determine its shard
	doc    []byte // the statement as it is to be sent
}

// run sends the batch until nothing is pending.
func (b *writeBatch) run(ns string, dst []byte) ([]byte, error) {
	var info *cluster.CollectionInfo
	defer func() {
		if info != nil {
			b.r.targets.note(b.op.Req.Spec.Name, info, len(b.sent))
		}
	}()
	for try := 0; len(b.pending) > 0; try++ {
		var err error
		if info, err = b.r.collectionForWrite(b.op, ns); err != nil {
			return dst, err
		}
		if info, err = b.placed(info); err != nil {
			return dst, err
		}
		if err := identified(b.op, info); err != nil {
			b.failPending(err)
			break
		}
		if b.stale = nil; b.ordered {
			err = b.runOrdered(info)
		} else {
			err = b.runUnordered(info)
		}
		if err == nil {
			err = b.stale
		}
		if err == nil && b.moving != nil {
			err = b.move(info)
		}
		if err == nil {
			if b.ordered && len(b.errs) > 0 {
				break
			}
			continue
		}
		if info.Late() != nil && isStale(err) {
			return dst, info.Late()
		}
		if err = b.mayResend(err, try); err != nil {
			if !isStale(err) || transactionOf(b.op) != nil {
				return dst, err
			}
			b.failPending(err)
			break
		}
	}
	return b.reply(dst), nil
}

// placed returns the placement that the batch is sent by: that of the buckets for a time series.
func (b *writeBatch) placed(info *cluster.CollectionInfo) (*cluster.CollectionInfo, error) {
	buckets, err := b.r.Catalog.Buckets(b.op, info)
	b.series = nil
	if err != nil || buckets == nil {
		return info, err
	}
	b.series = placingOf(buckets)
	return buckets, nil
}

// mayResend returns nil if pending statements are sent again after an error, else the error to report. In a transaction, which a stale error
// has ended on the shard that returned it, they are not if shards have already executed a part of the command.
func (b *writeBatch) mayResend(err error, try int) error {
	if !b.touched || transactionOf(b.op) == nil || mongoerr.CodeOf(err) == mongoerr.ShardInvalidatedForTargeting {
		return b.r.absorbStale(b.op, err, try)
	}
	if b.r.noteStale(err) {
		b.op.AddLabel(mongoerr.LabelTransientTransaction)
	}
	return err
}

// runOrdered sends runs of neighbouring statements that go to the same shard, one run after the other.
func (b *writeBatch) runOrdered(info *cluster.CollectionInfo) error {
	for len(b.pending) > 0 && len(b.errs) == 0 && b.stale == nil && b.moving == nil {
		first := b.pending[0]
		a, err := b.aim(info, first)
		if isStale(err) {
			return err // nothing was sent
		}
		if err != nil {
			b.fail(first, err)
			return nil
		}
		if b.isWide(a, first) {
			b.pending = b.pending[1:]
			if err := b.sendWide(info, first, a); err != nil {
				return err
			}
			continue
		}
		run, docs := []int{first}, slices.Clip(a.doc) // the first append copies it, because it is part of the client's message
		for _, i := range b.pending[1:] {
			next, err := b.aim(info, i)
			if err != nil || b.isWide(next, i) || next.shards[0] != a.shards[0] {
				break
			}
			run, docs = append(run, i), append(docs, next.doc...)
		}
		b.pending = b.pending[len(run):]
		if err := b.sendGroup(info, a.shards[0], run, docs); err != nil {
			return err
		}
	}
	return nil
}

// runUnordered sends each shard its statements at once, then those that concern several.
func (b *writeBatch) runUnordered(info *cluster.CollectionInfo) error {
	groups := make(map[string][]int)
	docs := make(map[string][]byte)
	var order []string
	wide := map[int]aim{}
	var wideOrder []int
	waiting := b.pending
	b.pending = nil
	for _, i := range waiting {
		a, err := b.aim(info, i)
		switch {
		case isStale(err): // nothing was sent
			b.pending = slices.DeleteFunc(waiting, func(i int) bool { return b.errs[i] != nil })
			return err
		case err != nil:
			b.fail(i, err)
		case b.isWide(a, i):
			wide[i] = a
			wideOrder = append(wideOrder, i)
		default:
			s := a.shards[0]
			if groups[s] == nil {
				order = append(order, s)
			}
			groups[s], docs[s] = append(groups[s], i), append(docs[s], a.doc...)
		}
	}
	b.sentTo(order...)
	replies := b.r.scatter(b.op, order, func(s string) ([]byte, []wire.Sequence) {
		return b.command(info, groups[s], info.ClientSuffix(s)), []wire.Sequence{{ID: b.list, Docs: docs[s]}}
	})
	for i := range replies {
		if err := b.settle(&replies[i], groups[replies[i].shard]); err != nil {
			return err
		}
	}
	for n, i := range wideOrder {
		if b.moving != nil {
			b.pending = mergeIndexes(b.pending, wideOrder[n:])
			return nil
		}
		if err := b.sendWide(info, i, wide[i]); err != nil {
			return err
		}
	}
	return nil
}

// command returns the write command for one shard, without its statements.
func (b *writeBatch) command(info *cluster.CollectionInfo, indexes []int, suffix ...[]byte) []byte {
	body := b.op.Req.Body
	if b.series != nil {
		body = onBuckets(body, info)
	}
	drop := map[string]bool{b.list: true, "stmtIds": true, "stmtId": true, "$clusterTime": true}
	var ids []byte
	if b.retries {
		vals := make([]value.Value, len(indexes))
		for i, at := range indexes {
			vals[i] = value.NewInt32(b.stmtID(at))
		}
		ids = value.Append(nil, "stmtIds", value.NewArray(value.ArrayOf(vals...)))
	}
	return rebuild(body, drop, append(suffix, ids)...)
}

// sentTo records that statements are sent to shards.
func (b *writeBatch) sentTo(shards ...string) {
	for _, s := range shards {
		if !slices.Contains(b.sent, s) {
			b.sent = append(b.sent, s)
		}
	}
}

func (b *writeBatch) sendGroup(info *cluster.CollectionInfo, shard string, indexes []int, docs []byte) error {
	b.sentTo(shard)
	body, err := b.r.call(b.op, shard, b.command(info, indexes, info.ClientSuffix(shard)), []wire.Sequence{{ID: b.list, Docs: docs}})
	return b.settle(&shardReply{shard: shard, body: body, err: err}, indexes)
}

// settle processes one shard's reply for the statements at indexes.
func (b *writeBatch) settle(rep *shardReply, indexes []int) error {
	if rep.err != nil {
		if isStale(rep.err) {
			b.stale = rep.err
			b.pending = mergeIndexes(b.pending, indexes)
			return nil
		}
		if d := movedDocOf(rep.err); d != nil {
			b.mustMove(indexes[0], d)
			return nil
		}
		return rep.err
	}
	b.absorb(b.op, rep.body, indexes, rep.shard)
	return nil
}

// absorb adds a shard's reply to the batch's result.
func (b *writeBatch) absorb(op *command.Op, reply []byte, indexes []int, shard string) {
	b.touched = true
	add := func(name string, to *int64) {
		v, _ := value.Lookup(reply, name).AsInt64()
		*to += v
	}
	add("n", &b.n)
	add("nModified", &b.modified)
	for _, u := range value.Values(value.Lookup(reply, "upserted").Doc()) {
		i, _ := value.Lookup(u.Doc(), "index").AsInt64()
		if int(i) < len(indexes) {
			b.upserted = append(b.upserted, value.NewDocument(value.Doc(
				value.F("index", value.NewInt32(int32(indexes[i]))), value.F("_id", value.Lookup(u.Doc(), "_id").Clone()))))
		}
	}
	b.retried = append(b.retried, value.Values(value.Lookup(reply, "retriedStmtIds").Doc())...)
	b.wcErrs.note(shard, reply)
	for _, e := range value.Values(value.Lookup(reply, "writeErrors").Doc()) {
		i, _ := value.Lookup(e.Doc(), "index").AsInt64()
		if int(i) >= len(indexes) {
			continue
		}
		err := writeErrorOf(e.Doc())
		if d := movedDocOf(err); d != nil {
			b.mustMove(indexes[i], d)
			if !b.ordered { // the shard has stopped there
				b.pending = mergeIndexes(b.pending, indexes[i+1:])
			}
			return
		}
		if !isStale(err) {
			b.errs[indexes[i]] = rebuildElements(e.Doc(), map[string]bool{"index": true})
			continue
		}
		// A shard stops at a stale statement, ordered or not: nothing after it was attempted.
		b.stale = err
		b.pending = mergeIndexes(b.pending, indexes[i:])
		return
	}
}

// mustMove records a statement whose document has to move; if it may not move, the statement fails here. An
// upsert whose filter does not determine its shard may be one of many.
func (b *writeBatch) mustMove(i int, d *movedDoc) {
	d.searched = b.searching
	if len(b.items) == 1 || d.upsert() && d.searched {
		b.moving = &moving{i, d}
		return
	}
	err := d.mayMove(b.op)
	if err == nil {
		err = errMoveAlone
	}
	b.fail(i, err)
	b.failTransaction()
}

// mergeIndexes merges statements into the sorted list of pending ones.
func mergeIndexes(a, b []int) []int {
	out := make([]int, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0] <= b[0] {
			if a[0] == b[0] { // two shards have answered
				b = b[1:]
			}
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

func (b *writeBatch) fail(i int, err error) {
	e := hidden(mongoerr.From(err))
	d := value.Append(nil, "code", value.NewInt32(int32(e.Code)))
	if len(e.Details) > 0 {
		d = append(d, rebuildElements(e.Details, nil)...)
	}
	b.errs[i] = value.Append(d, "errmsg", value.NewString(e.Message))
}

// failPending fails the statements that are not done yet.
func (b *writeBatch) failPending(err error) {
	for _, i := range b.pending {
		b.fail(i, err)
	}
}

// reply writes the batch's result as the command's.
func (b *writeBatch) reply(dst []byte) []byte {
	dst = value.Append(dst, "n", value.NewInt32(int32(b.n)))
	if b.list == "updates" {
		dst = value.Append(dst, "nModified", value.NewInt32(int32(b.modified)))
		if len(b.upserted) > 0 {
			sortByIndex(b.upserted)
			dst = value.Append(dst, "upserted", value.NewArray(value.ArrayOf(b.upserted...)))
		}
	}
	if len(b.errs) > 0 {
		var arr int
		dst, arr = value.BeginKey(dst, value.Array, "writeErrors")
		n := 0
		for i := range b.items {
			e, ok := b.errs[i]
			if !ok {
				continue
			}
			var m int
			dst, m = value.BeginKey(dst, value.Document, strconv.Itoa(n))
			dst = value.Append(dst, "index", value.NewInt32(int32(i)))
			dst = value.End(append(dst, e...), m)
			if n++; b.ordered {
				break
			}
		}
		dst = value.End(dst, arr)
	}
	dst = command.AppendRetried(dst, b.retried)
	b.wcErrs.report(b.op)
	return dst
}
