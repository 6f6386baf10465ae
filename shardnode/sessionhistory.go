package shardnode

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
)

// history is the records of the sessions with retryable writes, of those that wrote after a time.
func (t *retryTable) history(since storage.Timestamp) [][]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([][]byte, 0, len(t.mu.sessions))
	for _, s := range t.mu.sessions {
		s.mu.Lock()
		if len(s.runs) > 0 && s.last.TS >= since {
			out = append(out, s.record(s.used))
		}
		s.mu.Unlock()
	}
	return out
}

// withImage adds to a record what the session's findAndModify answered, where that is stored.
func (n *Node) withImage(rec []byte) ([]byte, error) {
	image, err := n.Docs.Get(imagesNS, value.Lookup(rec, "_id"))
	if err != nil {
		return nil, err
	}
	if image != nil && value.SafeInt64(value.Lookup(image, "txnNum")) == value.SafeInt64(value.Lookup(rec, "txnNum")) {
		rec = value.WithField(rec, "image", value.NewDocument(image))
	}
	return rec, nil
}

// adoptSessions takes up the history of another shard, durably.
func (n *Node) adoptSessions(ctx context.Context, records []value.Value) error {
	var adopted []adoptedSession
	for _, rec := range records {
		a, err := n.adoptSession(ctx, rec.Doc())
		if err != nil {
			return err
		}
		if a != nil {
			adopted = append(adopted, *a)
		}
	}
	return n.retries.storeAdopted(ctx, n.Docs, adopted)
}

// adoptedSession is a session of which the table has taken up a history of another shard.
type adoptedSession struct {
	dueRecord
	number int64
	image  []byte // the record of what its findAndModify answered, nil for none
}

// storeAdopted makes durable what was taken up. Where a client has gone on meanwhile with another number, what that one wrote
// stays.
func (t *retryTable) storeAdopted(ctx context.Context, docs *statedoc.Docs, adopted []adoptedSession) error {
	return docs.WriteWith(ctx, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		due := make([]dueRecord, len(adopted))
		for i := range adopted {
			due[i] = adopted[i].dueRecord
		}
		if err := t.put(s, u, due); err != nil {
			return err
		}
		c, err := statedoc.CollectionFor(s, u, imagesNS)
		for i := range adopted {
			a := &adopted[i]
			a.of.mu.Lock()
			current := a.of.number == a.number
			a.of.mu.Unlock()
			if err == nil && current && a.image != nil {
				err = statedoc.PutIn(s, u, c, a.image)
			}
		}
		return err
	})
}

// takeForHistory takes a session whose history of a txnNumber is to be taken up. What is newer wins: an open transaction of a
// lower number will be aborted, as the client would abort it by going on here, and one that has promised to commit is waited
// for. So are the internal transactions that carry out a write of the session.
func (n *Node) takeForHistory(ctx context.Context, s *retrySession, number int64) (release func(), err error) {
	for try := 0; ; try++ {
		select {
		case <-s.busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		release := func() { s.busy <- struct{}{} }
		child := s.openChild(number)
		promised := number > s.number && s.txn != nil && s.txn.state == txnPrepared
		if number < s.number || child == nil && !promised {
			return release, nil
		}
		release()
		if promised {
			err = cluster.Backoff(ctx, try)
		} else {
			err = n.endChild(ctx, child)
		}
		if err != nil {
			return nil, err
		}
	}
}

// adoptSession merges a record into the table and gives the session, which is to be stored; nil where this shard knows better.
func (n *Node) adoptSession(ctx context.Context, rec []byte) (*adoptedSession, error) {
	id, err := cluster.ParseLSID(value.Lookup(rec, "_id").Doc(), cluster.NoUser)
	if err != nil {
		return nil, nil // no session of a client's
	}
	t := &n.retries
	t.mu.Lock()
	s := sessionOf(t.mu.sessions, id)
	t.mu.Unlock()
	from := newRetrySession()
	if err := from.readRecord(rec); err != nil {
		return nil, err
	}
	release, err := n.takeForHistory(ctx, s, from.number)
	if err != nil {
		return nil, err
	}
	defer release()
	switch {
	case from.number < s.number, from.number == s.number && s.txn != nil:
		return nil, nil
	case from.number > s.number:
		n.abortTxn(s)
		s.begin(from.number)
		s.used = from.used
	}
	for _, r := range from.runs {
		for id := r.from; id <= r.to; id++ {
			if !s.has(id) {
				s.ran(stmtRun{id, id, r.op, r.id})
			}
		}
	}
	a := &adoptedSession{dueRecord: dueRecord{id, s, s.used}, number: s.number}
	if img := value.Lookup(rec, "image"); img.T == value.Document {
		a.image = img.Doc()
		s.image = append([]byte(nil), value.Lookup(a.image, "image").Doc()...)
	}
	return a, nil
}
