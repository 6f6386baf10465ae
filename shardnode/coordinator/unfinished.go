package coordinator

import (
	"slices"

	"github.com/shoaldb/shoal/query/value"
)

// makes are the indexes that a createIndexes creates. Until its point of no return they may be dropped again (forward.undo), on every shard.
//
// Invariant: a shard has an index for the shard key that no undo drops. A dropIndexes beside a createIndexes therefore does not count on what that makes (unfinished).
type makes struct {
	known chan struct{} // closed once the shards have been asked what they lack
	names []string      // guarded by m.mu until then
}

// continued sets the makes of a run that an earlier primary has stored.
func (x *makes) continued(d *document) {
	f, ok := d.op.(*forward)
	if !ok || f.kind != createIndexesKind {
		return
	}
	x.known = make(chan struct{})
	if d.phase == undoing || phaseIndex(f, d.phase) > phaseIndex(f, "checkShards") {
		x.names = f.made()
		close(x.known)
	}
}

// noteMakes notes what a createIndexes makes, once its shards have been asked.
func (r *run) noteMakes(f *forward) {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.makes.names = f.made()
	close(r.makes.known)
}

// made lists the indexes that are missing on some shards.
func (f *forward) made() (names []string) {
	for _, at := range f.at.Missing {
		names = append(names, at.Names...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// unfinished lists the indexes of a collection that may still be undone while a dropIndexes is executed: no further createIndexes begins meanwhile. unknown is one that has not yet
// asked the shards what they lack, of which all that it names are listed; nil for none.
func (r *run) unfinished(f *forward) (names []string, unknown *run) {
	if f.kind != dropIndexesKind {
		return nil, nil
	}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	for _, o := range r.m.mu.runs {
		build, ok := o.doc.op.(*forward)
		if !ok || build.kind != createIndexesKind || build.at.UUID != f.at.UUID || o.committed || finalPhase(build, o.at) {
			continue
		}
		select {
		case <-o.makes.known:
			names = append(names, o.makes.names...)
		default:
			unknown = o
			for _, spec := range value.Values(value.Lookup(build.req.Command, "indexes").Doc()) {
				names = append(names, value.Lookup(spec.Doc(), "name").Str())
			}
		}
	}
	return names, unknown
}

// finalPhase reports whether a phase that has been stored is beyond the point of no return.
func finalPhase(o operation, name string) bool {
	i := phaseIndex(o, name)
	return i >= 0 && slices.ContainsFunc(o.phases()[:i+1], func(p phase) bool { return p.final })
}
