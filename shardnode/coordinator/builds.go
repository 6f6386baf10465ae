package coordinator

import (
	"bytes"
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
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

// refuseBuilds returns an error for an operation that is not executed beside an index build, if shards are building for a createIndexes whose DDL locks the
// operation would otherwise wait for, perhaps for hours. A createIndexes that builds nothing, since the collection is empty or has the indexes, is waited for. The
// locks exclude further ones; builds of collections without an entry in the catalog, which take no such lock, are found by the client's own command if this shard
// alone executes it, and otherwise as the critical sections begin (run.participantBlock).
func (m *Coordinators) refuseBuilds(op *command.Op, o operation) error {
	for _, ns := range refusedFor(o) {
		for r, pause := m.createsIndexes(ns), buildPause; r != nil; r, pause = m.createsIndexes(ns), min(2*pause, longestBuildPause) {
			if err := m.checkNoBuild(op, ns); err != nil {
				return err
			}
			timer := time.NewTimer(pause)
			select {
			case <-r.done:
				if r.err == errSteppedDown { // it stays in m.mu.runs
					timer.Stop()
					return errSteppedDown
				}
			case <-timer.C:
			case <-op.Done():
			}
			timer.Stop()
			if err := op.Err(); err != nil {
				return err
			}
			if limit := op.Req.AskedConcern().Timeout; limit > 0 && r.stalled(limit) {
				return errBehind
			}
		}
	}
	return nil
}

// The interval at which an operation that waits for a createIndexes asks the shards whether they build.
const buildPause, longestBuildPause = 5 * time.Millisecond, time.Second

// createsIndexes returns a createIndexes of a collection that is running, or waits for its locks; nil for none.
func (m *Coordinators) createsIndexes(ns string) *run {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, runs := range []map[string]*run{m.mu.runs, m.mu.asked} {
		for _, r := range runs {
			if r.doc.op.name() == createIndexesKind && r.doc.ns == ns {
				return r
			}
		}
	}
	return nil
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
