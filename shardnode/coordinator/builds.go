package coordinator

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// abortBuilds aborts the index builds for which an operation would have to wait only to remove what they build.
func (m *Coordinators) abortBuilds(o operation) {
	db, colls := o.locks()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.mu.runs {
		build, ok := r.doc.op.(*forward)
		if !ok || build.kind != createIndexesKind {
			continue
		}
		switch o := o.(type) {
		case *drop:
			if r.doc.ns == colls[0] {
				r.discard(errBuildAborted("collection dropped"))
			}
		case *dropDatabase:
			if name, _ := cluster.SplitNS(r.doc.ns); name == db {
				r.discard(errBuildAborted("database dropped"))
			}
		case *forward:
			if o.kind == "dropIndexes" && r.doc.ns == colls[0] && names(value.Lookup(o.req.Command, "index"), build.req.Command) {
				r.discard(errBuildAborted("dropIndexes command"))
			}
		}
	}
}

// names reports whether the index argument of a dropIndexes names an index of a createIndexes command.
func names(index value.Value, build []byte) bool {
	if index.T == value.Array {
		for _, v := range value.Values(index.Doc()) {
			if names(v, build) {
				return true
			}
		}
		return false
	}
	if index.T == value.String && index.Str() == "*" {
		return true
	}
	for _, spec := range value.Values(value.Lookup(build, "indexes").Doc()) {
		if spec.T != value.Document {
			continue
		}
		switch index.T {
		case value.String:
			if value.Lookup(spec.Doc(), "name").Str() == index.Str() {
				return true
			}
		case value.Document:
			if bytes.Equal(value.LookupDoc(spec.Doc(), "key"), index.Doc()) {
				return true
			}
		}
	}
	return false
}

// refusedFor lists the collections of which no index may be being built when an operation begins.
func refusedFor(o operation) []string {
	switch o := o.(type) {
	case *rename:
		if drop, _, _ := parseDropTarget(o.req.DropTarget); drop || o.req.Out {
			return []string{o.req.NS, o.req.To}
		}
		return []string{o.req.NS}
	case *convert:
		return []string{o.ns()}
	case *reshard:
		return []string{o.req.NS}
	case *forward:
		if o.kind == "collMod" {
			return []string{o.ns()}
		}
	}
	return nil
}

// lockUnlessBuilding takes an operation's locks like lockFor. If the operation is not executed beside an index build, it is refused as soon as shards are found
// building for a createIndexes whose locks it would otherwise wait for, perhaps for hours. A createIndexes that builds nothing, since the collection is empty or has
// the indexes, is waited for. The locks exclude further ones; builds of collections without an entry in the catalog, which take no such lock, are found by the
// client's own command if this shard alone executes it, and otherwise as the critical sections begin (run.participantBlock).
func (m *Coordinators) lockUnlessBuilding(op *command.Op, o operation) (*held, error) {
	names := refusedFor(o)
	if len(names) == 0 {
		return m.lockFor(op, op, o)
	}
	ctx, cancel := context.WithCancelCause(op)
	var watching sync.WaitGroup
	var building error
	watching.Go(func() {
		if building = m.awaitBuild(ctx, names); building != nil {
			cancel(building)
		}
	})
	h, err := m.lockFor(ctx, op, o)
	cancel(nil)
	watching.Wait()
	if err != nil && building != nil {
		err = building
	}
	return h, err
}

// awaitBuild waits until a shard builds an index for a createIndexes of one of the collections, and returns the error that says so; nil once ctx ends.
func (m *Coordinators) awaitBuild(ctx context.Context, names []string) error {
	for pause := buildPause; cluster.Sleep(ctx, pause) == nil; pause = min(2*pause, longestBuildPause) {
		for _, ns := range names {
			if !m.createsIndexes(ns) {
				continue
			}
			if err := m.checkNoBuild(ctx, ns); mongoerr.CodeOf(err) == mongoerr.BackgroundOperationInProgressForNamespace {
				return err
			}
		}
	}
	return nil
}

// The interval at which an operation that waits for a createIndexes asks the shards whether they build.
const buildPause, longestBuildPause = 5 * time.Millisecond, time.Second

// createsIndexes reports whether a createIndexes of a collection is running, or waits for its locks.
func (m *Coordinators) createsIndexes(ns string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, runs := range []map[string]*run{m.mu.runs, m.mu.asked} {
		for _, r := range runs {
			if r.doc.op.name() == createIndexesKind && r.doc.ns == ns {
				return true
			}
		}
	}
	return false
}

// checkNoBuild returns an error if a shard is building an index of a collection with an entry in the catalog. A shard that does not answer is taken to build none.
func (m *Coordinators) checkNoBuild(ctx context.Context, ns string) error {
	at, _, e, err := m.entryOf(ctx, ns)
	if err != nil || e == nil {
		return err
	}
	shards, err := m.State.Registry.All(ctx)
	if err != nil {
		return err
	}
	builds := make(chan *catalog.UUID, len(shards))
	for _, s := range shards {
		go func() { builds <- buildOn(ctx, s.Peer, at) }()
	}
	for range shards {
		if b := <-builds; b != nil {
			err = storage.BuildInProgress(e.UUID, *b)
		}
	}
	return err
}

// buildOn returns a build of an index of a collection on a shard; nil for none.
func buildOn(ctx context.Context, shard cluster.Peer, ns string) *catalog.UUID {
	ctx, cancel := context.WithTimeout(ctx, askBuilds)
	defer cancel()
	list, err := cluster.FindAll(ctx, shard, catalog.DBOf(ns), msg.Doc(&msg.ListIndexes{DB: catalog.DBOf(ns), Coll: catalog.CollOf(ns), Builds: true}))
	if err != nil {
		return nil
	}
	for _, doc := range list {
		if id, ok := catalog.UUIDFrom(value.Lookup(value.LookupDoc(doc, "indexBuildInfo"), "buildUUID")); ok {
			return &id
		}
	}
	return nil
}

// askBuilds is the time limit for a shard to list the indexes of a collection.
const askBuilds = time.Second
