package coordinator

import (
	"context"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// Requests for what a run is doing join it: its outcome is theirs. Their ids are in the state document beside that of the request that has begun it, so that any primary that ends the run stores the
// outcome for all of them, and each finds it when it is sent again.
//
// Invariant: a request has joined a run, or it comes after it. Those that have joined are known to the primary that stores the outcome, in the unit that removes the document; from there on none joins
// (settled). A request that comes later, or finds that too many have joined, waits for the end of the run and is executed then, as a new one. So does one that comes when others may have used the names already (shut).
//
// Hazard: a dropDatabase has let go of the names and waits for a shard that does not answer. The database is made again and filled, and dropped: that request joined the run, and was answered with ok.
//
// Hazard: a primary crashes before the document has the id of a request that has just joined, and the next one ends the run before the request is sent again. It is executed anew, even a resharding that has been
// aborted meanwhile. That is right: the client has been told nothing, since the outcome and its id are stored in one unit before the reply, and nobody can tell its request from one that was on its way to the shard
// for so long. An abort ends what is under way, and says nothing about what is asked for after it. Therefore the ids are stored in the background: a request that waited for that would know no more, and its
// client's limits apply to the run (run.end), not to a write of its own.
//
// Rejected: recognising a request that is sent again by its command, some time after the run has ended. The same command, sent after an abort, is a new one, and was answered with the abort's error.

// joinedAtMost is the maximum number of requests that join a run: 25 KB of its state document.
const joinedAtMost = 1000

// joined are the requests that have joined a run; guarded by m.mu.
type joined struct {
	ids     []catalog.UUID
	exists  bool // the state document does
	stored  int  // the number of ids that it durably has
	storing bool // the others are being stored
	settled bool // the outcome is being stored: no more requests join
	shut    bool // nor do they, as others may have used the names (phase.opens)
}

// joinedBefore are the requests that have joined a run when another primary executed it.
func joinedBefore(d *document) joined {
	opened := slices.ContainsFunc(d.op.phases()[:phaseIndex(d.op, d.phase)+1], func(p phase) bool { return p.opens })
	return joined{ids: slices.Clone(d.joined), exists: true, stored: len(d.joined), shut: opened}
}

// join makes a request one of those that have joined the run, and reports whether it is one. A request without an id is not sent again, and has to be known to nobody.
func (r *run) join(id catalog.UUID) bool {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	j := &r.joined
	switch {
	case !id.IsZero() && (id == r.doc.request || slices.Contains(j.ids, id)):
		return true
	case j.settled || j.shut:
		return false
	case id.IsZero():
		return true
	case len(j.ids) == joinedAtMost:
		return false
	}
	j.ids = append(j.ids, id)
	r.storeJoined()
	return true
}

// shut keeps further requests from joining the run.
func (r *run) shut() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.joined.shut = true
}

// puts returns a function that stages the state document, with the requests that have joined, and one to be called when that has been stored durably.
func (r *run) puts() (put func(*storage.Snapshot, *storage.UnitOfWork) error, wrote func()) {
	m, stored := r.m, 0
	put = func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		m.mu.Lock()
		r.doc.joined = slices.Clone(r.joined.ids)
		m.mu.Unlock()
		stored = len(r.doc.joined)
		return documents(m.Docs).PutIn(s, u, r.doc)
	}
	return put, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		r.joined.exists, r.joined.stored = true, max(r.joined.stored, stored)
		r.storeJoined()
	}
}

// storeJoined stores in the background the ids that the state document does not have yet. m.mu must be held.
func (r *run) storeJoined() {
	m, j := r.m, &r.joined
	if j.storing || m.mu.runs[r.key()] != r || !j.lacks() || m.mu.ctx.Err() != nil {
		return
	}
	j.storing = true
	m.wg.Add(1)
	go func(ctx context.Context) {
		defer m.wg.Done()
		for try := 0; ; try++ {
			m.mu.Lock()
			ids := slices.Clone(j.ids)
			if !j.lacks() || ctx.Err() != nil {
				j.storing = false
				m.mu.Unlock()
				return
			}
			m.mu.Unlock()
			err := documents(m.Docs).Update(ctx, r.doc.ID(), func(d *document) {
				if d.id == r.doc.id { // and not of a later run
					d.joined = ids
				}
			})
			if err != nil {
				_ = cluster.Backoff(ctx, try) // ended is looked for above
				continue
			}
			m.mu.Lock()
			j.stored = max(j.stored, len(ids))
			m.mu.Unlock()
		}
	}(m.mu.ctx)
}

// lacks reports whether ids have to be stored in the document. A document that does not exist yet will have them.
func (j *joined) lacks() bool { return j.exists && !j.settled && j.stored < len(j.ids) }

// settleRequests returns the ids of the requests whose outcome is stored. No more join.
func (r *run) settleRequests() (ids []catalog.UUID) {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.joined.settled = true
	if r.doc.failed != nil && !deliberate(r.doc.failed) {
		return nil
	}
	if !r.doc.request.IsZero() {
		ids = append(ids, r.doc.request)
	}
	return append(ids, r.joined.ids...)
}

// uuids returns an array of UUIDs.
func uuids(ids []catalog.UUID) value.Value {
	list := make([]value.Value, len(ids))
	for i, id := range ids {
		list[i] = id.Value()
	}
	return value.NewArray(value.ArrayOf(list...))
}

// uuidsFrom returns the UUIDs in an array.
func uuidsFrom(list value.Value) (ids []catalog.UUID) {
	if list.T != value.Array {
		return nil
	}
	for _, v := range value.Values(list.Doc()) {
		if id, ok := catalog.UUIDFrom(v); ok {
			ids = append(ids, id)
		}
	}
	return ids
}
