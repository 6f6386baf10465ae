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
	var known, images [][]byte
	for _, rec := range records {
		doc, image, err := n.adoptSession(ctx, rec.Doc())
		if err != nil {
			return err
		}
		if doc != nil {
			known = append(known, doc)
		}
		if image != nil {
			images = append(images, image)
		}
	}
	return n.Docs.WriteWith(ctx, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		for ns, docs := range map[string][][]byte{transactionsNS: known, imagesNS: images} {
			c, err := statedoc.CollectionFor(s, u, ns)
			for _, doc := range docs {
				if err == nil {
					err = statedoc.PutIn(s, u, c, doc)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
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

// adoptSession merges a record into the table and gives what is to be stored of it; nil where this shard knows better.
func (n *Node) adoptSession(ctx context.Context, rec []byte) (doc, image []byte, err error) {
	t := &n.retries
	t.mu.Lock()
	s := known(t.mu.sessions, value.Lookup(rec, "_id").Doc())
	t.mu.Unlock()
	if s == nil {
		return nil, nil, nil
	}
	from := newRetrySession()
	if err := from.readRecord(rec); err != nil {
		return nil, nil, err
	}
	release, err := n.takeForHistory(ctx, s, from.number)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	switch {
	case from.number < s.number, from.number == s.number && s.txn != nil:
		return nil, nil, nil
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
	if img := value.Lookup(rec, "image"); img.T == value.Document {
		image = img.Doc()
		s.image = append([]byte(nil), value.Lookup(image, "image").Doc()...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record(s.used), image, nil
}
