package coordinator

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// abortBuilds aborts the index builds for which an operation would have to wait only to remove what they build. If the operation expects a collection with another
// UUID, or is a dropIndexes that shards refuse, it changes nothing and is refused.
func (m *Coordinators) abortBuilds(op *command.Op, o operation) error {
	_, err := m.buildsEndedBy(op, o)
	return err
}

// buildsEndedBy is abortBuilds, and returns the runs that it has aborted.
func (m *Coordinators) buildsEndedBy(op *command.Op, o operation) (ended []*run, err error) {
	m.mu.Lock()
	for _, r := range m.mu.runs {
		if m.endsBuild(o, r) != "" {
			ended = append(ended, r)
		}
	}
	m.mu.Unlock()
	f, isDrop := o.(*forward)
	for _, r := range ended {
		if err := m.checkUUID(nameOf(o), r.doc.op.(*forward).at.UUID, expectedUUID(o)); err != nil {
			return nil, err
		}
	}
	if isDrop {
		if err := m.checkFirst(op, f, m.notEndedBy(f, ended)); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range ended {
		if m.mu.runs[r.key()] == r {
			r.discard(errBuildAborted(m.endsBuild(o, r)))
		}
	}
	if isDrop {
		f.ended = append(f.ended, ended...)
	}
	return ended, nil
}

// notEndedBy returns the builds that a dropIndexes has not ended yet.
func (m *Coordinators) notEndedBy(f *forward, builds []*run) []*run {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(builds), func(r *run) bool { return slices.Contains(f.ended, r) })
}

// endsBuild returns why an operation ends a run: "" if it does not, or the run is no createIndexes. m.mu must be held.
func (m *Coordinators) endsBuild(o operation, r *run) string {
	build, ok := r.doc.op.(*forward)
	if !ok || build.kind != createIndexesKind {
		return ""
	}
	switch o := o.(type) {
	case *drop:
		if m.sameCollection(r.doc.ns, o.ns()) {
			return "collection dropped"
		}
	case *dropDatabase:
		if name, _ := cluster.SplitNS(r.doc.ns); name == o.req.DB {
			return "database dropped"
		}
	case *forward:
		if o.kind == dropIndexesKind && m.namesIndexOf(o.req, build) {
			return "dropIndexes command"
		}
	}
	return ""
}

// expectedUUID returns the UUID that the collection of a drop, or of a command about its indexes, must have; nil for any.
func expectedUUID(o operation) *[16]byte {
	switch o := o.(type) {
	case *drop:
		return o.req.UUID
	case *forward:
		if id, ok := catalog.UUIDFrom(value.Lookup(o.req.Command, "collectionUUID")); ok {
			return (*[16]byte)(&id)
		}
	}
	return nil
}

// endBuilds aborts the builds of indexes that a dropIndexes names, and waits for their end. The operation has its locks: no further createIndexes of the collection begins.
func (m *Coordinators) endBuilds(op *command.Op, o *forward) error {
	ended, err := m.buildsEndedBy(op, o)
	for _, r := range ended {
		switch err := r.end(op, op); {
		case err == errGoesOn:
			return errBehind
		case err != nil:
			return err
		case r.err == errSteppedDown:
			return errSteppedDown
		}
	}
	if err == nil {
		m.noteEnded(o)
	}
	return err
}

// sameCollection reports whether two names are the same, or those of a time series and of its buckets.
func (m *Coordinators) sameCollection(a, b string) bool {
	if a == b {
		return true
	}
	if timeseries.BucketsOf(a) != b {
		a, b = b, a
	}
	_, series := m.seriesAt(a)
	return series && timeseries.BucketsOf(a) == b
}

// namesIndexOf reports whether a dropIndexes names an index of a createIndexes of the same collection.
func (m *Coordinators) namesIndexOf(drop *msg.ShardCommand, build *forward) bool {
	if !m.sameCollection(drop.DB+"."+drop.Coll, build.ns()) {
		return false
	}
	list := []value.Value{value.Lookup(drop.Command, "index")}
	if list[0].T == value.Array {
		list = value.Values(list[0].Doc())
	}
	if len(list) == 1 && list[0].T == value.String && list[0].Str() == "*" {
		return true
	}
	return slices.ContainsFunc(list, func(v value.Value) bool { return m.names(drop, v, build) })
}

// names reports whether an element of a dropIndexes' argument names an index of a createIndexes. Keys are compared as the shards do, in the form in which they are stored: for a
// time series as those of its buckets, whichever of the two a command has.
func (m *Coordinators) names(drop *msg.ShardCommand, element value.Value, build *forward) bool {
	for _, spec := range value.Values(value.Lookup(build.req.Command, "indexes").Doc()) {
		switch {
		case spec.T != value.Document:
		case element.T == value.String && value.Lookup(spec.Doc(), "name").Str() == element.Str():
			return true
		case element.T == value.Document && indexkey.SameKey(m.onBuckets(build.ns(), indexkey.StoredKey(spec.Doc())), m.onBuckets(drop.DB+"."+drop.Coll, element.Doc())):
			return true
		}
	}
	return false
}

// onBuckets returns a key pattern as the collection has it: for a time series that of its buckets.
func (m *Coordinators) onBuckets(ns string, key []byte) []byte {
	if t, series := m.seriesAt(ns); series {
		return namespace.BucketKeyPattern(t.Options, key)
	}
	return key
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
		if o.kind == collModKind {
			return []string{o.ns()}
		}
	}
	return nil
}

// givesWay reports whether an operation that would have to wait for an index build is refused. Those that remove what is built end the build instead (abortBuilds),
// and createIndexes, create and a dropIndexes of another index do not exclude it.
func givesWay(o operation) bool {
	switch o.(type) {
	case *shard, *refine, *untrack, *movePrimary:
		return true
	}
	return len(refusedFor(o)) > 0
}

// lockUnlessBuilding takes an operation's locks like lockFor. If the operation is not executed beside an index build, it is refused as soon as shards are found
// building for a createIndexes whose locks it would otherwise wait for, perhaps for hours. A createIndexes that builds nothing, since the collection is empty or has
// the indexes, is waited for. The locks exclude further ones; builds of collections without an entry in the catalog, which take no such lock, are found by the
// client's own command if this shard alone executes it, and otherwise as the critical sections begin (run.participantBlock).
//
// A createIndexes beside a resharding, move or unsharding of the collection is refused at once, as by shards that are its donors (SERVER-52771): the indexes of the new copy
// are decided.
func (m *Coordinators) lockUnlessBuilding(op *command.Op, o operation) (*held, error) {
	if other := m.inTheWay(o); other != nil && o.name() == createIndexesKind {
		if _, ok := other.doc.op.(*reshard); ok {
			return nil, migration.ErrResharding(other.doc.ns)
		}
	}
	if !givesWay(o) {
		return m.lockFor(op, op, o)
	}
	ctx, cancel := context.WithCancelCause(op)
	var watching sync.WaitGroup
	var building error
	watching.Go(func() {
		if building = m.awaitBuild(ctx, o); building != nil {
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

// awaitBuild waits until a shard builds an index for a createIndexes that is in an operation's way, and returns the error that says so; nil once ctx ends.
func (m *Coordinators) awaitBuild(ctx context.Context, o operation) error {
	for pause := buildPause; cluster.Sleep(ctx, pause) == nil; pause = min(2*pause, longestBuildPause) {
		for _, ns := range m.indexesInTheWay(o) {
			if err := m.checkNoBuild(ctx, ns); mongoerr.CodeOf(err) == mongoerr.BackgroundOperationInProgressForNamespace {
				return m.refusal(o, ns, err)
			}
		}
	}
	return nil
}

// refusal returns the error of an operation that is refused because an index of a collection is being built. The target of a rename that would not drop it is in its way in
// any case.
func (m *Coordinators) refusal(o operation, ns string, err error) error {
	if n, ok := o.(*rename); ok && len(refusedFor(o)) == 1 && m.sameCollection(ns, n.req.To) && !m.sameCollection(ns, n.req.NS) {
		return errTargetExists
	}
	return err
}

// The interval at which an operation that waits for a createIndexes asks the shards whether they build.
const buildPause, longestBuildPause = 5 * time.Millisecond, time.Second

// indexesInTheWay lists the collections of those createIndexes, running or waiting for their locks, that an operation excludes: under the name of a time series or that of its
// buckets, whichever name the operation has.
func (m *Coordinators) indexesInTheWay(o operation) (names []string) {
	locks := namesOf(o)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, runs := range []map[string]*run{m.mu.runs, m.mu.asked} {
		for _, r := range runs {
			if r.doc.op.name() == createIndexesKind && conflict(locks, namesOf(r.doc.op)) {
				names = append(names, r.doc.ns)
			}
		}
	}
	return names
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
