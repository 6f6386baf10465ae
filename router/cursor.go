package router

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// routerCursor is an open cursor of a client: either the cursor of one shard, passed through, or a merge of several.
type routerCursor struct {
	id    int64
	ns    string
	rns   string // namespace on the shard, if it differs: the collection below a view
	lsid  string // the session it was opened in; "" if none
	owner command.CursorOwner
	at    cluster.Peer // pass-through: the member that has the cursor, and its id there
	rid   int64
	merge *mergeCursor
	txn   *transaction // the transaction it was opened in, nil if none
	query *command.QueryRun
	// client is the client that opened it, if that is behind a load balancer; else nil.
	client *command.Client

	mu struct {
		sync.Mutex
		busy   bool
		killed bool
		used   time.Time
	}
	noTimeout bool
	origin    []byte // the command that opened it
	concern   *command.ReadConcern
	created   time.Time
	returned  atomic.Int64 // number of documents returned
	batches   atomic.Int64
}

// cursorTable holds a router's open cursors.
type cursorTable struct {
	mu struct {
		sync.Mutex
		byID map[int64]*routerCursor
	}
	kill     func(*routerCursor) // closes the shards' cursors
	unkilled unkilled
	command.CursorCounts
}

func (t *cursorTable) init() { t.mu.byID = make(map[int64]*routerCursor) }

// add registers a cursor under an id that is free here: two shards may choose the same one.
func (t *cursorTable) add(c *routerCursor, want int64) int64 {
	c.created = time.Now()
	c.mu.used = c.created
	c.batches.Store(1)
	t.Opened.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	for want <= 0 || t.mu.byID[want] != nil {
		want = rand.Int64N(1<<62) + 1
	}
	c.id = want
	t.mu.byID[want] = c
	return want
}

// pin takes a cursor for one getMore.
func (t *cursorTable) pin(id int64) (*routerCursor, error) {
	t.mu.Lock()
	c := t.mu.byID[id]
	t.mu.Unlock()
	if c == nil {
		return nil, mongoerr.Newf(mongoerr.CursorNotFound, "cursor id %d not found", id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.killed {
		return nil, mongoerr.Newf(mongoerr.CursorNotFound, "cursor id %d not found", id)
	}
	if c.mu.busy {
		return nil, mongoerr.Newf(mongoerr.CursorInUse, "cursor id %d is already in use", id)
	}
	c.mu.busy = true
	return c, nil
}

// unpin releases a cursor; if it was killed meanwhile, it is closed now.
func (t *cursorTable) unpin(c *routerCursor) {
	c.mu.Lock()
	c.mu.busy, c.mu.used = false, time.Now()
	killed := c.mu.killed
	c.mu.Unlock()
	if killed && t.kill != nil {
		t.kill(c)
	}
}

// drop removes an exhausted cursor.
func (t *cursorTable) drop(id int64) {
	t.mu.Lock()
	c := t.mu.byID[id]
	delete(t.mu.byID, id)
	t.mu.Unlock()
	if c != nil {
		t.Closed(time.Since(c.created))
		c.query.Close()
	}
}

// take removes a cursor to close it; nil if there is none.
func (t *cursorTable) take(id int64) *routerCursor {
	t.mu.Lock()
	c := t.mu.byID[id]
	delete(t.mu.byID, id)
	t.mu.Unlock()
	if c == nil {
		return nil
	}
	t.Closed(time.Since(c.created))
	c.query.Close()
	c.mu.Lock()
	c.mu.killed = true
	busy := c.mu.busy
	c.mu.Unlock()
	if !busy && t.kill != nil {
		t.kill(c)
	}
	return c
}

// matching lists the cursors for which f returns true.
func (t *cursorTable) matching(f func(c *routerCursor) bool) (ids []int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, c := range t.mu.byID {
		if f(c) {
			ids = append(ids, id)
		}
	}
	return ids
}

// sessions lists the sessions that cursors were opened in.
func (t *cursorTable) sessions() (ids []cluster.LogicalSessionID) {
	seen := make(map[cluster.LogicalSessionID]bool)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.mu.byID {
		if id, err := cluster.ParseLSID([]byte(c.lsid), cluster.NoUser); c.lsid != "" && err == nil && !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	return ids
}

// expire closes cursors that have not been used for longer than idle.
func (t *cursorTable) expire(idle time.Duration) {
	limit := time.Now().Add(-idle)
	for _, id := range t.matching(func(c *routerCursor) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !c.mu.busy && !c.noTimeout && c.mu.used.Before(limit)
	}) {
		if t.take(id) != nil {
			t.TimedOut.Add(1)
		}
	}
}

// metrics returns metrics.cursor of serverStatus.
func (t *cursorTable) metrics() value.Field {
	var noTimeout, pinned, single, multi int64
	t.mu.Lock()
	for _, c := range t.mu.byID {
		if c.noTimeout {
			noTimeout++
		}
		if c.merge != nil {
			multi++
		} else {
			single++
		}
		c.mu.Lock()
		if c.mu.busy {
			pinned++
		}
		c.mu.Unlock()
	}
	t.mu.Unlock()
	return t.Doc(value.F("multiTarget", value.NewInt64(multi)), value.F("noTimeout", value.NewInt64(noTimeout)), value.F("pinned", value.NewInt64(pinned)),
		value.F("singleTarget", value.NewInt64(single)), value.F("total", value.NewInt64(single+multi)))
}

// newCursor makes the cursor that an operation opens.
func newCursor(op *command.Op, ns string) *routerCursor {
	var client *command.Client
	if op.Client.Via != "" {
		client = op.Client
	}
	return &routerCursor{client: client, ns: ns, lsid: string(op.Req.LSID), owner: op.CursorOwner(), noTimeout: op.Req.Shared("noCursorTimeout").Truthy(), txn: transactionOf(op), origin: append([]byte(nil), op.Req.Body...),
		concern: op.Req.ReadConcern.Clone(), query: op.HoldQuery()}
}

// adopt registers the cursor of a relayed reply (elements that begin at from) and writes the router's id over the
// shard's, in place.
func (r *Router) adopt(op *command.Op, at cluster.Peer, reply []byte, from int) *routerCursor {
	raw := cursorIDElement(reply[from-4:])
	if raw == nil {
		return nil
	}
	id := int64(binary.LittleEndian.Uint64(raw[len(raw)-8:]))
	if id == 0 {
		return nil
	}
	c := newCursor(op, cursorNS(reply[from-4:]))
	c.at, c.rid = at, id
	c.returned.Store(batchLen(reply[from-4:]))
	if mine := r.cursors.add(c, id); mine != id {
		binary.LittleEndian.PutUint64(raw[len(raw)-8:], uint64(mine))
	}
	return c
}

// adoptAs is adopt for a request on a view: the client sees the view's name, requests to the shard have the collection's.
func (r *Router) adoptAs(op *command.Op, at cluster.Peer, ns string, reply []byte, from int) []byte {
	if c := r.adopt(op, at, reply, from); c != nil {
		c.rns, c.ns = c.ns, ns
	}
	return renameCursor(reply, from, ns)
}

// renameCursor replaces the namespace in the cursor of a reply whose elements begin at from.
func renameCursor(reply []byte, from int, ns string) []byte {
	var out []byte
	for it := value.Walk(reply[from-4:]); ; {
		raw, k, v, ok := it.NextRaw()
		if !ok {
			return append(reply[:from], out...)
		}
		if string(k) == "cursor" && v.T == value.Document {
			doc := rebuild(v.Doc(), map[string]bool{"ns": true}, value.Append(nil, "ns", value.NewString(ns)))
			out = value.Append(out, "cursor", value.NewDocument(doc))
			continue
		}
		out = append(out, raw...)
	}
}

// cursorIDElement finds the element cursor.id of a reply whose length may not be written yet.
func cursorIDElement(reply []byte) []byte {
	for it := value.Walk(reply); ; {
		_, k, v, ok := it.NextRaw()
		if !ok {
			return nil
		}
		if string(k) != "cursor" || v.T != value.Document {
			continue
		}
		for in := value.Walk(v.Doc()); ; {
			raw, k, e, ok := in.NextRaw()
			if !ok {
				return nil
			}
			if string(k) == "id" && e.T == value.Int64 {
				return raw
			}
		}
	}
}

// batchLen counts the documents of a reply's batch.
func batchLen(reply []byte) int64 {
	for k, v := range value.Elements(value.Lookup(reply, "cursor").Doc()) {
		if k == "firstBatch" || k == "nextBatch" {
			return int64(value.Count(v.Doc()))
		}
	}
	return 0
}

func cursorNS(reply []byte) string {
	return value.Lookup(value.Lookup(reply, "cursor").Doc(), "ns").Str()
}

// getMore continues a cursor.
func (r *Router) getMore(op *command.Op, dst []byte) ([]byte, error) {
	g, err := command.ParseGetMore(op)
	if err != nil {
		return dst, err
	}
	c, err := r.cursors.pin(g.Cursor)
	if err != nil {
		return dst, err
	}
	defer r.cursors.unpin(c)
	if err := checkCursorSession(op, c); err != nil {
		return dst, err
	}
	if c.ns != "" && g.NS != c.ns {
		return dst, mongoerr.Newf(mongoerr.Unauthorized, "Requested getMore on namespace '%s', but cursor belongs to a different namespace %s", g.NS, c.ns)
	}
	op.ResumeQuery(c.query)
	op.Stats.Origin = c.origin
	if data, on := r.Fail.Hit("failGetMoreAfterCursorCheckout"); on {
		code, _ := value.Lookup(data, "errorCode").AsInt64()
		err := mongoerr.New(mongoerr.Code(code), "Failing getMore via 'failGetMoreAfterCursorCheckout' failpoint")
		if c.merge != nil && c.merge.watch != nil {
			r.cursors.drop(c.id)
			c.merge.watch.close()
			return dst, mongoerr.ResumableStream(err)
		}
		return dst, err
	}
	if c.batches.Add(1) == 2 {
		r.cursors.MoreThanOneBatch.Add(1)
	}
	return op.WhileAllowed(c.id, &c.owner, c.origin, dst, func(dst []byte) ([]byte, error) {
		if c.merge != nil {
			op.Req.ReadConcern = c.concern // for the collections that its pipeline joins
			return r.getMoreMerged(op, c, g.Size, dst)
		}
		return r.getMorePassed(op, c, dst)
	})
}

func checkCursorSession(op *command.Op, c *routerCursor) error {
	if err := op.CheckCursor(c.id, &c.owner, c.origin); err != nil {
		return err
	}
	switch {
	case c.lsid == "" && op.Req.LSID != nil:
		return mongoerr.Newf(50737, "Cannot run getMore on cursor %d, which was not created in a session, in session %s", c.id, value.ShowDoc(op.Req.LSID))
	case c.lsid != "" && op.Req.LSID == nil:
		return mongoerr.Newf(50736, "Cannot run getMore on cursor %d, which was created in session %s, without an lsid", c.id, value.ShowDoc([]byte(c.lsid)))
	case c.lsid != "" && value.Compare(value.Lookup([]byte(c.lsid), "id"), value.Lookup(op.Req.LSID, "id")) != 0:
		return mongoerr.Newf(50738, "Cannot run getMore on cursor %d, which was created in session %s, in session %s", c.id, value.ShowDoc([]byte(c.lsid)), value.ShowDoc(op.Req.LSID))
	}
	switch t := transactionOf(op); {
	case c.txn == t:
	case t == nil:
		return mongoerr.Newf(50740, "Cannot run getMore on cursor %d, which was created in transaction %d, without a txnNumber", c.id, c.txn.number)
	case c.txn == nil:
		return mongoerr.Newf(50739, "Cannot run getMore on cursor %d, which was not created in a transaction, in transaction %d", c.id, t.number)
	default:
		return mongoerr.Newf(50741, "Cannot run getMore on cursor %d, which was created in transaction %d, in transaction %d", c.id, c.txn.number, t.number)
	}
	return nil
}

// getMorePassed relays to the one shard that has the cursor, with that shard's cursor id in place of the router's.
func (r *Router) getMorePassed(op *command.Op, c *routerCursor, dst []byte) ([]byte, error) {
	body := op.Req.Body
	if c.rid != c.id {
		it := value.Walk(body)
		raw, _, _, _ := it.NextRaw()
		body = rebuildFirst(body, len(raw), value.Append(nil, "getMore", value.NewInt64(c.rid)))
	}
	if c.rns != "" {
		_, coll := cluster.SplitNS(c.rns)
		body = rebuild(body, map[string]bool{"collection": true}, value.Append(nil, "collection", value.NewString(coll)))
	}
	from := len(dst)
	if c.txn != nil {
		body = rebuild(body, replaced, c.txn.fields())
	}
	out, _, err := r.relayTo(op, "", c.at, nil, body, nil, dst)
	if err != nil {
		switch mongoerr.CodeOf(err) {
		case mongoerr.CursorNotFound, mongoerr.CursorKilled, mongoerr.QueryPlanKilled:
			r.cursors.drop(c.id)
		}
		return out, err
	}
	if c.rns != "" {
		out = renameCursor(out, from, c.ns)
	}
	raw := cursorIDElement(out[from-4:])
	if raw == nil {
		return out, nil
	}
	c.returned.Add(batchLen(out[from-4:]))
	slot := raw[len(raw)-8:]
	if binary.LittleEndian.Uint64(slot) == 0 {
		r.cursors.drop(c.id)
	} else {
		binary.LittleEndian.PutUint64(slot, uint64(c.id))
	}
	return out, nil
}

// closeRemote ends a cursor's cursors on the shards.
func (r *Router) closeRemote(c *routerCursor) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if c.merge != nil {
		c.merge.close(ctx, r)
		return
	}
	ns := c.ns
	if c.rns != "" {
		ns = c.rns
	}
	r.killOn(ctx, c.at, ns, c.rid)
}

// killCursors implements the command.
func (r *Router) killCursors(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	op.Stats.NS, op.Stats.Type = op.Req.NS(coll), "command"
	return command.KillCursors(op, r.cursors.ownerOf, func(id int64) bool { return r.cursors.take(id) != nil }, dst)
}

// ownerOf returns the digest of the user who opened a cursor.
func (t *cursorTable) ownerOf(id int64) (of [32]byte, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.byID[id]
	if c == nil {
		return of, false
	}
	return c.owner.Digest, true
}

// KillSessionCursors ends the cursors of the sessions for which f returns true.
func (r *Router) KillSessionCursors(f func(cluster.LogicalSessionID) bool) (killed int) {
	for _, id := range r.cursors.matching(func(c *routerCursor) bool {
		if c.lsid == "" {
			return false
		}
		id, err := cluster.ParseLSID([]byte(c.lsid), cluster.NoUser)
		return err == nil && f(id)
	}) {
		if r.cursors.take(id) != nil {
			killed++
		}
	}
	return killed
}

// rebuildFirst replaces a command's first element, old bytes long.
func rebuildFirst(body []byte, old int, first []byte) []byte {
	out := make([]byte, 0, len(body)+len(first))
	out = append(append(append(out, body[:4]...), first...), body[4+old:]...)
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return out
}
