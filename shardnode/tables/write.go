package tables

import (
	"bytes"
	"context"
	"maps"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Service returns the writer as a primary-only service.
func (t *Tables) Service() replication.Service {
	return replication.Service{
		Name: "RoutingTableCache",
		StepUp: func(context.Context, int64) error {
			t.mu.Lock()
			t.mu.queue, t.mu.stored = make(map[string]bool), make(map[string]*stored)
			t.mu.Unlock()
			return t.Docs.Each(CollectionsNS, func(doc []byte) error {
				if id := value.Lookup(doc, "_id"); id.T == value.String {
					t.of(id.Str(), true)
				}
				return nil
			})
		},
		Run: t.run,
	}
}

// retryAfter is the time after which failures are retried.
const retryAfter = time.Second

// run processes the queue until the node steps down.
func (t *Tables) run(ctx context.Context, _ int64) {
	swept := false
	for {
		if !swept {
			swept = t.sweep(ctx) == nil
		}
		failed := t.drain(ctx)
		var again <-chan time.Time
		if failed || !swept {
			again = time.After(retryAfter)
		}
		select {
		case <-t.wake:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// drain processes the queue; failed is true if some of it has to be retried.
func (t *Tables) drain(ctx context.Context) (failed bool) {
	t.mu.Lock()
	names := t.mu.queue
	t.mu.queue = make(map[string]bool)
	t.mu.Unlock()
	for name, ask := range names {
		var err error
		if catalog.CollOf(name) == "" {
			err = t.bringDatabase(ctx, name)
		} else {
			err = t.bring(ctx, name, ask)
		}
		if err != nil && ctx.Err() == nil {
			failed = true
			t.mu.Lock()
			t.mu.queue[name] = t.mu.queue[name] || ask
			t.mu.Unlock()
		}
	}
	return failed
}

// sweep queues the entries of collections that no longer exist, because they were dropped while this set had no
// primary.
func (t *Tables) sweep(ctx context.Context) error {
	t.mu.Lock()
	have := maps.Clone(t.mu.stored)
	t.mu.Unlock()
	if len(have) == 0 {
		return nil
	}
	docs, err := cluster.FindConfig(ctx, t.Config.Config, cluster.Find{NS: "config.collections", Projection: cluster.ByID()}.Doc())
	if err != nil {
		return err
	}
	for _, d := range docs {
		delete(have, value.Lookup(d, "_id").Str())
	}
	for ns := range have {
		t.Catalog.InvalidateCollection(ns)
		t.enqueue(ns, true)
	}
	return nil
}

// Flush stores the config server's placement of a collection at the time of the call.
func (t *Tables) Flush(ctx context.Context, ns string) error {
	if err := t.Catalog.Reload(ctx, ns); err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return err
	}
	return t.bring(ctx, ns, false)
}

// FlushDatabase is Flush for a database.
func (t *Tables) FlushDatabase(ctx context.Context, db string) error {
	if err := t.Catalog.ReloadDatabase(ctx, db); err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return err
	}
	return t.bringDatabase(ctx, db)
}

// bring updates the stored placement of a collection to the last one that the node knows or, with ask, to that of the config server.
// The cache is read while holding the turn: of two callers the later one writes the newer table.
//
// Hazard: what the cache has was read before the collection was dropped, and arrived after its stored table was removed. It is stale, since the drop has invalidated it, and is not
// written: nobody would remove it.
func (t *Tables) bring(ctx context.Context, ns string, ask bool) error {
	info, _ := t.Catalog.Cached(ns)
	s := t.of(ns, info != nil && info.Map != nil)
	if s == nil {
		return nil // it is not stored, and need not be
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var err error
	info, fresh := t.Catalog.Cached(ns)
	if ask || !fresh {
		info, err = t.Catalog.Collection(ctx, ns)
	}
	if err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return err
	}
	if !s.known {
		s.placement, s.sum, s.known = t.read(ns, nil)
	}
	known := s.known
	s.known = false // until all of it is written
	if err != nil || info.Map == nil {
		err = t.remove(ctx, ns)
		s.placement, s.sum = cluster.Placement{}, 0
		if err == nil {
			t.forget(ns, s)
		}
	} else {
		err = t.write(ctx, s, cluster.Placement{Entry: info.Entry, Map: info.Map}, known)
	}
	s.known = err == nil
	return err
}

func (t *Tables) forget(ns string, s *stored) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.stored[ns] == s {
		delete(t.mu.stored, ns)
	}
}

// write replaces the stored placement; known is false if s may differ from that. s.turn must be held.
func (t *Tables) write(ctx context.Context, s *stored, p cluster.Placement, known bool) error {
	had := s.placement
	var now, gone []*cluster.Chunk
	anew := !known || had.Map == nil || had.Map.UUID != p.Map.UUID || !had.Map.Version().SameGeneration(p.Map.Version()) || !sameKey(had.Map, p.Map)
	if anew {
		had, s.sum = cluster.Placement{}, 0
		for c := range p.Map.All() {
			now = append(now, c)
		}
	} else {
		now, gone = p.Map.Changes(had.Map)
	}
	sum := s.sum
	for _, c := range gone {
		sum -= hashOf(c.CacheDoc())
	}
	for _, c := range now {
		sum += hashOf(c.CacheDoc())
	}
	e := cluster.NewCachedEntry(p.Entry, p.Map.Version().Combined(), sum)
	if !anew && len(now)+len(gone) == 0 && bytes.Equal(e.Doc(), cluster.NewCachedEntry(had.Entry, had.Map.Version().Combined(), s.sum).Doc()) {
		s.placement = p
		return nil
	}
	if err := t.writeChunks(ctx, e, anew, now, gone); err != nil {
		return err
	}
	s.placement, s.sum = p, sum
	return nil
}

// sameKey reports whether the bounds of two tables have the same fields: a refined key has more.
func sameKey(a, b *cluster.ChunkMap) bool { return bytes.Equal(a.Key.Doc(), b.Key.Doc()) }

// writeChunks writes the changes of a table, and its entry: in one unit of work, or in several during which the entry is marked
// as refreshing.
func (t *Tables) writeChunks(ctx context.Context, e *cluster.CachedEntry, anew bool, now, gone []*cluster.Chunk) error {
	ns, size := e.ID().Str(), max(1, t.UnitChunks())
	if anew || len(now)+len(gone) > size {
		begun := *e
		begun.Refreshing = true
		if err := t.unit(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			if c := s.Catalog().Lookup(ChunksNS(ns)); c != nil && anew {
				if err := u.DropCollection(c); err != nil {
					return err
				}
			}
			return entries(t.Docs).PutIn(s, u, &begun)
		}); err != nil {
			return err
		}
	}
	for {
		less, more := gone[:min(len(gone), size)], now[:0]
		if gone = gone[len(less):]; len(gone) == 0 {
			more = now[:min(len(now), size-len(less))]
			now = now[len(more):]
		}
		last, began := len(gone)+len(now) == 0, time.Now()
		if err := t.unit(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			if err := t.stage(s, u, ns, more, less); err != nil || !last {
				return err
			}
			return entries(t.Docs).PutIn(s, u, e)
		}); err != nil || last {
			return err
		}
		if err := cluster.Sleep(ctx, time.Since(began)); err != nil { // a large table is written at half speed, to leave the store to clients
			return err
		}
	}
}

// entries returns the documents of config.cache.collections.
func entries(store statedoc.Store) statedoc.Collection[*cluster.CachedEntry] {
	return statedoc.In(store, CollectionsNS, cluster.ParseCachedEntry)
}

func (t *Tables) unit(ctx context.Context, f func(*storage.Snapshot, *storage.UnitOfWork) error) error {
	return t.Docs.WriteWith(ctx, replication.Visible, f)
}

// stage stages the replacement of chunks by others in a unit.
func (t *Tables) stage(s *storage.Snapshot, u *storage.UnitOfWork, ns string, now, gone []*cluster.Chunk) error {
	if len(now)+len(gone) == 0 {
		return nil
	}
	c := s.Catalog().Lookup(ChunksNS(ns))
	if c == nil {
		var err error
		if c, err = u.CreateCollection(storage.CollectionSpec{NS: ChunksNS(ns)}); err != nil {
			return err
		}
		if _, err = u.CreateIndexes(c, [][]byte{value.Doc(value.F("v", value.NewInt32(2)),
			value.F("key", value.NewDocument(value.Doc(value.F("lastmod", value.NewInt32(1))))), value.F("name", value.NewString(lastmodIndex)))}); err != nil {
			return err
		}
	}
	stays := make(map[string]bool, len(now))
	for _, ch := range now {
		stays[string(ch.Min)] = true
	}
	for _, ch := range gone {
		if stays[string(ch.Min)] {
			continue
		}
		if err := statedoc.PutRecord(s, u, c, value.NewDocument(ch.Min), nil); err != nil {
			return err
		}
	}
	for _, ch := range now {
		if err := statedoc.PutRecord(s, u, c, value.NewDocument(ch.Min), ch.CacheDoc()); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a collection's stored placement.
func (t *Tables) remove(ctx context.Context, ns string) error {
	return t.unit(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		if c := s.Catalog().Lookup(ChunksNS(ns)); c != nil {
			if err := u.DropCollection(c); err != nil {
				return err
			}
		}
		return entries(t.Docs).RemoveIn(s, u, value.NewString(ns))
	})
}

// bringDatabase is bring for a database.
func (t *Tables) bringDatabase(ctx context.Context, db string) error {
	if cluster.FixedDatabase(db) {
		return nil
	}
	have, err := t.Docs.Get(DatabasesNS, value.NewString(db))
	if err != nil {
		return err
	}
	info, err := t.Catalog.Database(ctx, db)
	switch {
	case mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound && have == nil:
		return nil
	case mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound:
		return t.Docs.Remove(ctx, DatabasesNS, value.NewString(db))
	case err != nil:
		return err
	}
	doc := value.Doc(value.F("_id", value.NewString(db)), value.F("primary", value.NewString(info.Primary)), value.F("version", value.NewDocument(info.Version.Doc())))
	if bytes.Equal(have, doc) {
		return nil
	}
	return t.unit(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, err := statedoc.CollectionFor(s, u, DatabasesNS)
		if err != nil {
			return err
		}
		return statedoc.PutIn(s, u, c, doc)
	})
}
