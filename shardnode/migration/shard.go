package migration

import (
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
)

// A shard's primary blocks operations while the placement of a collection changes. Its secondaries cannot. They
// learn of the change from the notices of two units: one announces a migration's commit, before it is sent to the
// config server, and one concludes it, before the range may be deleted. In between they ask the config server at
// each read, so that a read after a write to the new owner, or after the deletion, is not answered by the old
// placement.

// Shard is a node's membership of a cluster. It exists before the node is added to one.
type Shard struct {
	docs    *statedoc.Docs
	node    Role
	state   atomic.Pointer[ShardState] // nil on a node that is no shard
	placing placing
}

// Role reports the node's role in the replica set.
type Role interface {
	// NotPrimary returns the error of a write on a member that is not primary; nil on the primary.
	NotPrimary() error
}

// NewShard returns the state of a node that is not a shard yet.
func NewShard(docs *statedoc.Docs, node Role) *Shard { return &Shard{docs: docs, node: node} }

// State returns the node's state as a shard; nil if it is not one.
func (h *Shard) State() *ShardState { return h.state.Load() }

// Become makes the node a shard.
func (h *Shard) Become(s *ShardState) { h.state.Store(s) }

// placing holds the migrations whose commits have been announced and not concluded.
type placing struct {
	mu struct {
		sync.Mutex
		ns   map[string]string // by migration id
		lost bool              // unknown until they are loaded
	}
	// none is true while there is no such migration; every read checks it.
	none atomic.Bool
}

// count brings none up to date; mu must be held.
func (p *placing) count() { p.none.Store(!p.mu.lost && len(p.mu.ns) == 0) }

func placingNotice(state string, id value.Value, ns string) []byte {
	return value.Doc(value.F("placing", value.NewString(state)), value.F("id", id), value.F("ns", value.NewString(ns)))
}

// OnCommitNotice processes a notice, before its unit is visible.
func (h *Shard) OnCommitNotice(ts storage.Timestamp, notice []byte) {
	if !value.Lookup(notice, "section").IsMissing() {
		h.onSection(ts, notice)
		return
	}
	p := &h.placing
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.count()
	if notice == nil {
		p.mu.lost = true
		if s := h.State(); s != nil {
			s.endedBy(storage.MaxTimestamp)
		}
		return
	}
	ns := value.Lookup(notice, "ns").Str()
	if value.Lookup(notice, "placing").Str() == "dropped" {
		if s := h.State(); s != nil {
			s.forget(ns)
		}
		return
	}
	id := string(value.Lookup(notice, "id").Bytes())
	switch value.Lookup(notice, "placing").Str() {
	case "announced":
		if p.mu.ns == nil {
			p.mu.ns = make(map[string]string)
		}
		p.mu.ns[id] = ns
	case "concluded":
		delete(p.mu.ns, id)
		if s := h.State(); s != nil {
			s.Catalog.InvalidateCollection(ns)
		}
	}
}

// Load reads the stored migrations and sections, when the node opens and after a snapshot from another member.
func (h *Shard) Load() error {
	open := make(map[string]string)
	err := coordinatorDocs(h.docs).EachOr(func(d *coordinatorDoc) error {
		open[string(d.id[:])] = d.ns
		return nil
	}, func(doc []byte, _ error) bool {
		if ns, donor, _ := unreadMigration(doc); donor != "" {
			open[string(value.Lookup(doc, "_id").Bytes())] = ns
		}
		return false
	})
	if err == nil {
		err = h.loadSections()
	}
	if err != nil {
		return err
	}
	h.placing.mu.Lock()
	defer h.placing.mu.Unlock()
	h.placing.mu.ns, h.placing.mu.lost = open, false
	h.placing.count()
	if s := h.State(); s != nil {
		s.Catalog.Clear()
	}
	return nil
}

// placementMoves reports whether a secondary's knowledge of a collection's placement may be outdated.
func (h *Shard) placementMoves(ns string) bool {
	p := &h.placing
	if p.none.Load() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lost {
		return true
	}
	for _, moving := range p.mu.ns {
		if moving == ns {
			return h.node.NotPrimary() != nil
		}
	}
	return false
}

// AskWherePlaced makes a secondary ask the config server for a placement that a migration may have changed.
func (h *Shard) AskWherePlaced(ns string) {
	if h.placementMoves(ns) {
		h.State().Catalog.InvalidateCollection(ns)
	}
}
