package storage

import (
	"context"
	"errors"
	"slices"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// IndexBuildsNS is the collection with an entry for each index build of the set that has a commit quorum. The entry is inserted in the unit of work that
// starts the build and removed in the one that ends it, so that a new primary finds one for every such build, and none besides.
const IndexBuildsNS = "config.system.indexBuilds"

// BuildEntry is a document of IndexBuildsNS.
type BuildEntry struct {
	Build, Collection catalog.UUID
	Quorum            value.Value
	Names             []string // of the indexes
	Ready             []string // hosts of the members that have voted to commit
}

// Doc returns the entry's document.
func (e *BuildEntry) Doc() []byte {
	return value.Doc(value.F("_id", e.Build.Value()), value.F("collectionUUID", e.Collection.Value()), value.F("commitQuorum", e.Quorum),
		value.F("indexNames", stringArray(e.Names)), value.F("commitReadyMembers", stringArray(e.Ready)))
}

func stringArray(s []string) value.Value {
	out := make([]value.Value, len(s))
	for i := range s {
		out[i] = value.NewString(s[i])
	}
	return value.NewArray(value.ArrayOf(out...))
}

// parseBuildEntry reads a document of IndexBuildsNS. Clients can write there: a field of another type counts as missing.
func parseBuildEntry(doc []byte) *BuildEntry {
	doc = slices.Clone(doc)
	e := &BuildEntry{Quorum: value.Lookup(doc, "commitQuorum")}
	e.Build, _ = catalog.UUIDFrom(value.Lookup(doc, "_id"))
	e.Collection, _ = catalog.UUIDFrom(value.Lookup(doc, "collectionUUID"))
	strs := func(field string) (out []string) {
		if list := value.Lookup(doc, field); list.T == value.Array {
			for _, v := range value.Values(list.Doc()) {
				if v.T == value.String {
					out = append(out, v.Str())
				}
			}
		}
		return out
	}
	e.Names, e.Ready = strs("indexNames"), strs("commitReadyMembers")
	return e
}

// CheckNoBuild returns the error of an operation that is refused while an index of the collection is being built.
func CheckNoBuild(c *catalog.Collection) error {
	if idx := c.Building(); idx != nil {
		return BuildInProgress(c.UUID, idx.Build.UUID)
	}
	return nil
}

// BuildInProgress returns the error of an operation that is refused because of an index build.
func BuildInProgress(collection, build catalog.UUID) error {
	return mongoerr.Newf(mongoerr.BackgroundOperationInProgressForNamespace,
		"cannot perform operation: an index build is currently running for collection with UUID: %s. Found index build: %s", collection, build)
}

// findEntry reads the entry of a build; nil if there is none.
func (s *Snapshot) findEntry(build catalog.UUID) (c *catalog.Collection, rid RecordID, e *BuildEntry, err error) {
	if c = s.Catalog().Lookup(IndexBuildsNS); c == nil {
		return nil, nil, nil, nil
	}
	at, doc, ok, err := s.FindByID(c, build.Value())
	if err != nil || !ok {
		return c, nil, nil, err
	}
	return c, at.Clone(), parseBuildEntry(doc), nil
}

// BuildEntry returns the entry of a build; nil if there is none.
func (e *Engine) BuildEntry(build catalog.UUID) (*BuildEntry, error) {
	s := e.Snapshot()
	defer s.Release()
	_, _, found, err := s.findEntry(build)
	return found, err
}

// addEntry stages the entry of a build that starts.
func (u *UnitOfWork) addEntry(e *BuildEntry) error {
	c := u.Catalog().Lookup(IndexBuildsNS)
	if c == nil {
		var err error
		if c, err = u.CreateCollection(CollectionSpec{NS: IndexBuildsNS}); err != nil {
			return err
		}
	}
	_, err := u.Insert(c, e.Doc(), NoInfo)
	return err
}

// changeEntry stages a change of a build's entry: f returns its next state, nil if it is to be removed. Without an entry nothing is staged.
func (u *UnitOfWork) changeEntry(build catalog.UUID, f func(e BuildEntry) *BuildEntry) error {
	s := u.base
	if s == nil {
		s = u.e.Snapshot()
		defer s.Release()
	}
	c, rid, now, err := s.findEntry(build)
	if err != nil || now == nil {
		return err
	}
	was := now.Doc()
	_, doc, _, err := s.FindByID(c, build.Value())
	if err != nil {
		return err
	}
	old := slices.Clone(doc)
	next := f(*now)
	switch {
	case next == nil:
		return u.Delete(c, rid, old, NoInfo)
	case string(next.Doc()) == string(was):
		return nil
	}
	return u.Update(c, rid, old, next.Doc(), NoInfo)
}

// endBuilds stages the end of the builds of unfinished indexes that are dropped. The builds notice at once.
func (u *UnitOfWork) endBuilds(indexes []*catalog.Index) error {
	var ended []catalog.UUID
	for _, idx := range indexes {
		if idx.Ready || isLocal(idx.Ident) || slices.Contains(ended, idx.Build.UUID) {
			continue
		}
		ended = append(ended, idx.Build.UUID)
		if err := u.changeEntry(idx.Build.UUID, func(BuildEntry) *BuildEntry { return nil }); err != nil {
			return err
		}
	}
	if len(ended) > 0 {
		u.OnCommit(func(Timestamp) {
			for _, id := range ended {
				u.e.builds.poke(id)
			}
		})
	}
	return nil
}

// SetCommitQuorum stages another commit quorum for the build of unfinished indexes, whose names must be all those of one build. check decides on the
// quorum that it has.
func (u *UnitOfWork) SetCommitQuorum(c *catalog.Collection, names []string, quorum value.Value, check func(now value.Value) error) error {
	id, ok := buildOf(c, names)
	if !ok {
		return mongoerr.Newf(mongoerr.IndexNotFound, "Cannot find an index build on collection '%s' with the provided index names", c.NS)
	}
	var failed error
	err := u.changeEntry(id, func(e BuildEntry) *BuildEntry {
		if failed = check(e.Quorum); failed == nil {
			e.Quorum = quorum
		}
		return &e
	})
	if err == nil {
		err = failed
	}
	u.OnCommit(func(Timestamp) { u.e.builds.poke(id) })
	return err
}

// buildOf returns the build whose indexes have exactly these names.
func buildOf(c *catalog.Collection, names []string) (id catalog.UUID, ok bool) {
	if len(names) == 0 {
		return id, false
	}
	first := c.Index(names[0])
	if first == nil || first.Ready {
		return id, false
	}
	var all []string
	for _, idx := range c.Indexes {
		if !idx.Ready && idx.Build.UUID == first.Build.UUID {
			all = append(all, idx.Name)
		}
	}
	names = slices.Clone(names)
	slices.Sort(all)
	slices.Sort(names)
	return first.Build.UUID, slices.Equal(all, slices.Compact(names))
}

// WaitForCommit is what a build with a commit quorum calls once it is ready to commit. It returns when the build may, or why it ends.
type WaitForCommit func(ctx context.Context, b *IndexBuild) error

// WithQuorum gives a build that has not begun a commit quorum: it has an entry from its start to its end, and calls wait before it commits. Indexes that
// are not replicated have none.
func (b *IndexBuild) WithQuorum(quorum value.Value, wait WaitForCommit) *IndexBuild {
	b.quorum, b.wait = quorum, wait
	return b
}

// Namespace returns the collection's name at the start of the build.
func (b *IndexBuild) Namespace() string {
	b.e.builds.Lock()
	defer b.e.builds.Unlock()
	return b.ns
}

// Names returns the names of the indexes.
func (b *IndexBuild) Names() []string {
	names := make([]string, len(b.specs))
	for i, raw := range b.specs {
		names[i] = value.Lookup(raw, "name").Str()
	}
	return names
}

// Loaded returns the newest unit of work of the build: a member that has applied it has all keys, and is ready to commit.
func (b *IndexBuild) Loaded() Timestamp { return b.loaded }

// Changed receives when the build's entry has been changed, or the build has been ended, from outside.
func (b *IndexBuild) Changed() <-chan struct{} { return b.changed }

// Entry returns the build's entry while the build is under way.
func (b *IndexBuild) Entry() (*BuildEntry, error) {
	s := b.e.Snapshot()
	defer s.Release()
	if c := s.Catalog().LookupUUID(b.uuid); c == nil {
		return nil, b.gone()
	} else if err := lost(c, b.indexes); err != nil {
		return nil, err
	}
	_, _, e, err := s.findEntry(b.build)
	if err == nil && e == nil {
		e = &BuildEntry{Build: b.build, Collection: b.uuid, Quorum: b.quorum, Names: b.Names()}
	}
	return e, err
}

// lost returns an error unless the collection has all of a build's indexes.
func lost(c *catalog.Collection, indexes []*catalog.Index) error {
	for _, idx := range indexes {
		if !slices.ContainsFunc(c.Indexes, func(now *catalog.Index) bool { return now.Ident == idx.Ident }) {
			return dropped(idx)
		}
	}
	return nil
}

func dropped(idx *catalog.Index) error {
	return mongoerr.Newf(mongoerr.IndexBuildAborted, "Index build aborted: index %s was dropped", idx.Name)
}

// Vote stores that the members at these hosts are ready to commit, and with the first vote that the indexes have all their keys: a new primary continues with
// the wait, and the history that a load needs is released.
func (b *IndexBuild) Vote(ctx context.Context, hosts []string) error {
	b.setPhase(phaseQuorum)
	_, err := b.retry(ctx, func(u *UnitOfWork) error {
		if err := b.stageLoaded(u); err != nil {
			return err
		}
		return u.changeEntry(b.build, func(e BuildEntry) *BuildEntry {
			ready := slices.Clone(e.Ready)
			for _, h := range hosts {
				if !slices.Contains(ready, h) {
					ready = append(ready, h)
				}
			}
			e.Ready = ready
			return &e
		})
	})
	return err
}

// stageLoaded marks the indexes as loaded, and as multikey where they are, unless they are marked.
func (b *IndexBuild) stageLoaded(u *UnitOfWork) error {
	c := u.Catalog().LookupUUID(b.uuid)
	if c == nil {
		return b.gone()
	}
	next := *c
	next.Indexes = slices.Clone(c.Indexes)
	changed := false
	for i, idx := range b.indexes {
		at := slices.IndexFunc(next.Indexes, func(now *catalog.Index) bool { return now.Ident == idx.Ident })
		if at < 0 {
			return dropped(idx)
		}
		if now := next.Indexes[at]; !now.Ready && !now.Build.Loaded {
			loaded := *now
			loaded.Build.Loaded, changed = true, true
			next.Indexes[at] = b.withMultikey(&loaded, i)
		}
	}
	if changed {
		u.stageReplace(c, &next)
	}
	return nil
}

func (b *IndexBuild) withMultikey(idx *catalog.Index, i int) *catalog.Index {
	if found := b.marked[i]; found.Multikey {
		return idx.WithMultikey(found.MultikeyPaths, found.ArrayPaths)
	}
	return idx
}

// leaves reports whether a build that ended with err is continued by the next primary, or after a restart, instead of being aborted.
func (b *IndexBuild) leaves(err error) bool {
	if !b.hasEntry() {
		return false
	}
	code := mongoerr.CodeOf(err)
	return code.IsNotPrimary() || code == mongoerr.InterruptedAtShutdown || errors.Is(err, context.Canceled)
}

func (b *IndexBuild) hasEntry() bool {
	return b.wait != nil && len(b.indexes) > 0 && !isLocal(b.indexes[0].Ident)
}

// ReadyBuild returns the build of an UnfinishedBuild that had voted, to be completed; nil if it has to start again.
func (f *UnfinishedBuild) ReadyBuild(wait WaitForCommit) *IndexBuild {
	if f.ready != nil {
		f.ready.WithQuorum(f.Quorum, wait)
	}
	return f.ready
}
