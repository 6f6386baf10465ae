package resharding

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// gatherPause is the time between two looks at a donor's oplog while its documents are cloned.
const gatherPause = 500 * time.Millisecond

// gatherBeside stores what is written on the donors while their documents are cloned, until the function that it returns is called: a clone may take longer than donors keep their
// oplog. Changes are sent as documents in their current state (package comment), so that what is stored of them is the _id alone, once, however often the document changes.
//
// Not of a capped collection, whose changes are sent in order; it is soon cloned.
func (r *recipient) gatherBeside(ctx context.Context) (stop func()) {
	asking, cancel := context.WithCancel(ctx)
	var w sync.WaitGroup
	for _, donor := range r.doc.donors {
		w.Go(func() {
			if err := r.gatherFrom(ctx, asking, donor); err != nil && asking.Err() == nil {
				r.fail(err) // ends the clone
			}
		})
	}
	return func() {
		cancel()
		w.Wait()
	}
}

// gatherFrom fetches as long as asking lasts. What it stores lasts longer: a position that was stored after others have gone on would lead back.
func (r *recipient) gatherFrom(ctx, asking context.Context, donor string) error {
	s := r.m.Engine.Snapshot()
	c, err := r.collection(s)
	s.Release()
	if err != nil || c.Capped {
		return err
	}
	f, err := r.follower(donor)
	if err != nil {
		return err
	}
	f.ask = func(_ context.Context, m, reply msg.Message) error { return r.ask(asking, donor, m, reply) }
	for {
		more, err := f.gather(ctx)
		if err != nil {
			return err
		}
		if !more {
			err = cluster.Sleep(asking, gatherPause)
		} else {
			err = asking.Err()
		}
		if err != nil {
			return nil
		}
	}
}

// gather fetches the _ids of some of what was written after the position, and stores them with the new one.
func (f *follower) gather(ctx context.Context) (more bool, err error) {
	r, ask := f.r, f.request()
	from := ask.After
	ask.Ahead = true
	var reply msg.ReshardFetchChangesReply
	if err := f.ask(ctx, ask, &reply); err != nil {
		return false, err
	}
	upTo := value.NewTimestampU64(reply.UpTo)
	if len(reply.Rest) > 0 || reply.UpTo > from && r.m.Now().Sub(f.noted) > noteEvery {
		if err := f.buffer(ctx, reply.Rest, upTo); err != nil {
			return false, err
		}
		f.noted = r.m.Now()
	}
	f.p.at = upTo
	r.mu.Lock()
	r.mu.figures.fetched += reply.Entries
	r.mu.Unlock()
	return reply.More, nil
}

// buffer stores _ids, together with the position that they reach.
func (f *follower) buffer(ctx context.Context, ids [][]byte, upTo value.Value) error {
	r := f.r
	return r.m.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		of, err := r.collection(s)
		if err != nil {
			return err
		}
		c, err := beside(s, u, of, bufferNS(r.doc.id, f.donor))
		if err != nil {
			return err
		}
		for _, id := range ids {
			if _, _, ok, err := s.FindByID(c, value.Lookup(id, "_id")); err != nil {
				return err
			} else if ok {
				continue
			}
			if _, err := u.Insert(c, id, storage.NoInfo); err != nil {
				return err
			}
		}
		p := *f.p
		p.at = upTo
		return progressDocs(r.m.Docs, appliersNS).PutIn(s, u, &p)
	})
}

// beside finds a collection for _ids, or documents, of another one, or creates it in the unit. It compares _ids in the same way.
func beside(s *storage.Snapshot, u *storage.UnitOfWork, of *catalog.Collection, ns string) (*catalog.Collection, error) {
	if c := s.Catalog().Lookup(ns); c != nil {
		return c, nil
	}
	spec := storage.CollectionSpec{NS: ns, Unreplicated: catalog.Unreplicated(ns)}
	if len(of.Collation) > 0 {
		spec.Options = value.Doc(value.F("collation", value.NewDocument(of.Collation)))
	}
	return u.CreateCollection(spec)
}

// buffered is a document of the buffer, which has an _id alone.
type buffered struct {
	rid storage.RecordID
	doc []byte
}

// drain applies some of the changes whose _ids wait in the buffer. It reports whether there are more.
//
// Hazard: what is written meanwhile is stored in the buffer if there are. If it were stored in any case, a buffer would never be empty beside clients that write all the time, and the recipient
// would never be known to have caught up.
func (f *follower) drain(ctx context.Context) (more bool, err error) {
	list, more, err := f.waiting()
	if err != nil || len(list) == 0 {
		return false, err
	}
	ask := f.request()
	for _, b := range list {
		ask.IDs = append(ask.IDs, b.doc)
	}
	var reply msg.ReshardFetchChangesReply
	if err := f.ask(ctx, ask, &reply); err != nil {
		return false, err
	}
	if len(reply.Rest) >= len(list) {
		return false, mongoerr.Newf(mongoerr.InternalError, "of %d documents %s sends none", len(list), f.donor)
	}
	list = list[:len(list)-len(reply.Rest)] // the rest is the end of what was asked for
	if err := f.apply(ctx, &reply, f.p.at, list); err != nil {
		return false, err
	}
	f.drained = list[len(list)-1].rid
	f.r.mu.Lock()
	f.r.mu.figures.applied += int64(len(list))
	f.r.mu.Unlock()
	f.r.m.counts.applied.Add(int64(len(list)))
	return more || len(reply.Rest) > 0, nil
}

// waiting returns what is next in the buffer, and whether there is more.
func (f *follower) waiting() (list []buffered, more bool, err error) {
	s := f.r.m.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(bufferNS(f.r.doc.id, f.donor))
	if c == nil {
		return nil, false, nil
	}
	var o storage.ScanOptions
	if f.drained != nil {
		o.From = following(f.drained)
	}
	cur := s.Scan(c, o)
	defer cur.Close()
	for size := 0; cur.Next(); {
		if len(list) >= idsAtOnce || size > maxReply {
			return list, true, nil
		}
		size += len(cur.Doc())
		list = append(list, buffered{storage.RecordID(cur.RecordID()).Clone(), bytes.Clone(cur.Doc())})
	}
	return list, false, cur.Err()
}
