package coordinator

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A router that gets no reply from a coordinator sends the request again, with the same id. If the run continues, the request joins it. If
// it has completed, the reply is in this collection for a while: executed once more, many operations would find nothing to do, and
// return an error. If somebody had it aborted, the error is there: it must not begin again. An operation that is one unit of work on this shard has no run; its unit stores the reply, too.

// outcomesNS is the namespace of the replies of completed runs.
const outcomesNS = "config.system.sharding_ddl_outcomes"

// outcomesKept is the time for which replies are kept, longer than the time for which routers retry a request. A request that has waited for longer, behind another operation, and is sent again is refused
// (executedBefore): so that is rare, and the replies to those who create thousands of collections take some megabytes.
const outcomesKept = 10 * time.Minute

// outcomesTidied is the interval at which older replies are removed.
const outcomesTidied = 2 * time.Minute

// requestID identifies a request of a router.
type requestID struct {
	id    catalog.UUID // zero for none
	again bool         // it was sent before
	since uint64       // the router's cluster time when it was sent first; 0 for a router of an earlier version
}

func parseRequestID(body []byte) (r requestID) {
	d := value.LookupDoc(body, msg.RequestID)
	if len(d) == 0 {
		return r
	}
	r.id, _ = catalog.UUIDFrom(value.Lookup(d, "id"))
	r.again, r.since = value.Lookup(d, "again").Truthy(), value.Lookup(d, "since").TimestampU64()
	return r
}

// executedBefore answers a request that is sent again, if its run is under way, has completed, or was aborted on purpose. It compares the versions of any other, as is done with a new request on its
// admission: those of a request that has been executed may be out of date.
//
// Invariant: an error about versions says that the request has not been executed, so that the router may send it to the database's present primary shard. It comes from a primary, which has the outcomes
// of all earlier ones.
//
// Hazard: a router that was paused sends its request again when the outcome has been forgotten. Executed anew, a drop would remove what others have created meanwhile, so it is refused, whatever its versions: they say only
// that it cannot be executed here now. A createIndexes is not: at worst an index is made again that has been dropped since.
func (m *Coordinators) executedBefore(op *command.Op, asked requestID, o identified, dst []byte) (reply []byte, ok bool, err error) {
	undone := false // the run that it has joined has ended without effect
	for sure := false; ; sure = true {
		if r := m.runFor(asked.id); r != nil { // before the outcome, which is stored before the run is forgotten
			if reply, err = r.wait(op, dst); r.doc.request == asked.id || !m.mayBeginAgain(r) {
				return reply, true, err
			}
			undone = true
		}
		if done, ok, err := m.outcome(asked.id); err != nil || ok {
			return append(dst, done...), ok, err
		}
		err = m.State.CheckVersion(op, nameOf(o))
		if migration.MeetsCritical(err) {
			err = nil
		}
		if !undone && o.name() != createIndexesKind { // which queues for as long as another one takes
			err = cmp.Or(asked.forgotten(m.State.Clock.ClusterTime()), err)
		}
		if err == nil {
			return dst, false, nil
		}
		if sure {
			return dst, false, err
		}
		if err := m.Linearize(op); err != nil {
			return dst, false, err
		}
	}
}

// forgotten returns an error if the outcome of a request may have been removed since it was sent first.
func (r requestID) forgotten(now uint64) error {
	if r.since == 0 || !outdated(r.since, now) {
		return nil
	}
	return mongoerr.New(mongoerr.ExceededTimeLimit, "the operation was sent again too late: whether it has been executed is not known any more")
}

// outdated reports whether an outcome of a cluster time may be removed at another one.
func outdated(then, now uint64) bool {
	return storage.Timestamp(now).Seconds() >= storage.Timestamp(then).Seconds()+uint32(outcomesKept/time.Second)
}

// runFor returns the run that a request has begun or joined; nil for none.
func (m *Coordinators) runFor(id catalog.UUID) *run {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.mu.runs {
		if !id.IsZero() && (r.doc.request == id || slices.Contains(r.joined.ids, id)) {
			return r
		}
	}
	return nil
}

// identified is what tells which operation a request asks for.
type identified interface {
	name() string
	locks() (db string, colls []string)
}

// mayBeginAgain reports whether a request that has waited for a run is executed anew, since the obstacle may be gone. What was aborted on purpose must not begin again.
func (m *Coordinators) mayBeginAgain(r *run) bool {
	return r.undone() && !m.isDiscarded(r) && !deliberate(r.err)
}

// outcome returns the fields of the reply to a request whose run has completed, or the error of one that was aborted.
func (m *Coordinators) outcome(id catalog.UUID) (reply []byte, ok bool, err error) {
	doc, err := m.Docs.Get(outcomesNS, id.Value())
	if err != nil || doc == nil {
		return nil, false, err
	}
	if err := abortedBy(doc); err != nil {
		return nil, true, err
	}
	for it := value.Walk(value.LookupDoc(doc, "reply")); ; {
		raw, _, _, more := it.NextRaw()
		if !more {
			return reply, true, nil
		}
		reply = append(reply, raw...)
	}
}

// abortedBy returns the error of a request whose run was aborted; nil for other outcomes.
func abortedBy(outcome []byte) error {
	if code := value.SafeInt64(value.Lookup(outcome, "code")); code != 0 {
		return mongoerr.New(mongoerr.Code(code), value.Lookup(outcome, "errmsg").Str())
	}
	return nil
}

// deliberate reports whether a run failed since somebody wanted it to: it does not begin again for the requests that have joined it, or that are sent again.
func deliberate(failed error) bool {
	return mongoerr.CodeOf(failed) == mongoerr.ReshardCollectionAborted
}

// remove removes the state document of a run that has ended; if the run has completed, or was aborted, it stores the reply and removes old ones. The same unit ends the sections
// that the last phase has left on this shard. Behind a harmless phase that need not be durable (release).
func (r *run) remove(ctx context.Context) error {
	concern := replication.Durable
	phases := r.doc.op.phases()
	zoned, ok := r.doc.op.(rezoning)
	if rezones := ok && zoned.rezones(); !rezones && r.doc.failed == nil && phases[len(phases)-1].harmless {
		concern = replication.Visible
	}
	m := r.m
	return m.Docs.WriteWith(ctx, concern, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		if err := migration.StageEnd(m.Docs, s, u, r.doc.id, r.releases); err != nil {
			return err
		}
		requests := r.settleRequests()
		if err := documents(m.Docs).RemoveIn(s, u, r.doc.ID()); err != nil || len(requests) == 0 {
			return err
		}
		c, err := statedoc.CollectionFor(s, u, outcomesNS)
		if err != nil {
			return err
		}
		if _, err := m.forgetOutcomes(s, u, c, fewOutcomes); err != nil {
			return err
		}
		for _, id := range requests {
			if err := statedoc.PutIn(s, u, c, r.outcome(id)); err != nil {
				return err
			}
		}
		return nil
	})
}

// outcome returns the stored outcome for a request.
func (r *run) outcome(id catalog.UUID) []byte {
	if why := r.doc.failed; why != nil {
		return r.m.outcomeDoc(id, value.F("code", value.NewInt32(int32(why.Code))), value.F("errmsg", value.NewString(why.Message)))
	}
	return r.m.outcomeDoc(id, replied(r.doc.op.reply(nil)))
}

// outcomeDoc returns the stored outcome for a request.
func (m *Coordinators) outcomeDoc(request catalog.UUID, outcome ...value.Field) []byte {
	at := value.NewTimestampU64(m.State.Clock.ClusterTime())
	return value.Doc(append([]value.Field{value.F("_id", request.Value()), value.F("at", value.NewTime(time.Now())), value.F("ts", at)}, outcome...)...)
}

// replied is the outcome of a request that was answered with these elements.
func replied(elements []byte) value.Field {
	doc, mark := value.Begin(nil)
	return value.F("reply", value.NewDocument(value.End(append(doc, elements...), mark)))
}

// keepsOutcome makes the client's command of a request, which is one unit of work on this shard, store its reply in that unit.
func (m *Coordinators) keepsOutcome(op, in *command.Op) {
	asked := parseRequestID(op.Req.Body)
	if asked.id.IsZero() {
		return
	}
	if done := m.tidyOutcomes(); done != nil {
		t := time.NewTimer(tidyWait)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
		case <-op.Done():
		}
	}
	namespace.KeepOutcome(in, func(u *storage.UnitOfWork, reply []byte) error {
		c := u.Catalog().Lookup(outcomesNS)
		if c == nil {
			return nil // this shard is without a majority, and cannot create it
		}
		_, err := u.Insert(c, m.outcomeDoc(asked.id, replied(reply)), storage.NoInfo)
		return err
	})
}

// tidyWait is the time that a client's command waits for the collection of replies to be created, which happens once.
const tidyWait = 200 * time.Millisecond

// tidyOutcomes creates the collection of replies, and from time to time removes old ones, in the background: the units of clients' commands only
// add some. Without a majority that lasts until the node steps down. If the collection has to be created, it returns a channel that is
// closed when that has ended.
func (m *Coordinators) tidyOutcomes() (created <-chan struct{}) {
	there := m.Engine.Catalog().Lookup(outcomesNS) != nil
	m.mu.Lock()
	ctx := m.mu.ctx
	if ctx.Err() != nil || there && time.Since(m.mu.tidied) < outcomesTidied {
		m.mu.Unlock()
		return nil
	}
	m.mu.tidied = time.Now()
	m.wg.Add(1)
	m.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer m.wg.Done()
		defer close(done)
		for more := true; more; { // after an error a later command tries again
			err := m.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
				c, err := statedoc.CollectionFor(s, u, outcomesNS)
				if err == nil {
					more, err = m.forgetOutcomes(s, u, c, manyOutcomes)
				}
				return err
			})
			more = more && err == nil
		}
	}()
	if there {
		return nil
	}
	return done
}

// The units of work that remove old replies remove at most so many: fewer the one by which a run ends, for which clients wait.
const (
	fewOutcomes  = 100
	manyOutcomes = 2000
)

// forgetOutcomes removes old replies, which are the first ones of the collection, and reports whether there may be more of them. They are old by the clock and by the cluster's, by which requests are judged
// (forgotten): a cluster time that is ahead of the clocks hardly advances.
func (m *Coordinators) forgetOutcomes(s *storage.Snapshot, u *storage.UnitOfWork, c *catalog.Collection, most int) (more bool, err error) {
	if s.Catalog().Lookup(c.NS) == nil {
		return false, nil // it is new
	}
	before, now := time.Now().Add(-outcomesKept).UnixMilli(), m.State.Clock.ClusterTime()
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	for n := 0; cur.Next(); n++ {
		at, ts := value.Lookup(cur.Doc(), "at"), value.Lookup(cur.Doc(), "ts")
		if at.T == value.DateTime && at.DateTime() > before || ts.T == value.Timestamp && !outdated(ts.TimestampU64(), now) {
			break
		}
		if n == most {
			return true, nil
		}
		if err := u.Delete(c, cur.RecordID().Clone(), bytes.Clone(cur.Doc()), storage.NoInfo); err != nil {
			return false, err
		}
	}
	return false, cur.Err()
}

// abortable returns a context that ends when the run is aborted.
func (r *run) abortable(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.stop = cancel; r.aborted != nil {
		cancel(r.aborted)
	}
	return ctx, func() {
		cancel(nil)
		r.m.mu.Lock()
		r.stop = nil
		r.m.mu.Unlock()
	}
}

// abort interrupts the run's current step, if that can be aborted; the run is then undone. m.mu must be held.
func (r *run) abort(why error) {
	if r.aborted == nil {
		r.aborted = why
	}
	if r.stop != nil {
		r.stop(r.aborted)
	}
}

// discard aborts the run because another operation removes what it makes: it does not begin again for the requests that have joined it. m.mu must be held.
func (r *run) discard(why error) {
	r.discarded = true
	r.abort(why)
}

func errBuildAborted(why string) error {
	return mongoerr.Newf(mongoerr.IndexBuildAborted, "Index build aborted: %s", why)
}
