package shardnode

import (
	"sync"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// A shard's primary holds operations up while the placement of a collection changes. Its secondaries cannot; they hear of
// it by the notices of the units that announce a migration's commit, before the config server is asked for it, and that
// conclude it, before the range may be deleted. In between they ask the config server at each read, so that a reader who
// comes after a write to the new owner, or after the deletion, is not answered by the placement of before.

// placing are the migrations whose commits have been announced and not concluded.
type placing struct {
	mu struct {
		sync.Mutex
		ns   map[string]string // by migration id
		lost bool              // not known before they are loaded
	}
}

func placingNotice(state string, id value.Value, ns string) []byte {
	return value.Doc(value.F("placing", value.NewString(state)), value.F("id", id), value.F("ns", value.NewString(ns)))
}

// hearPlacing takes in a notice, before its unit is visible.
func (n *Node) hearPlacing(notice []byte) {
	p := &n.placing
	p.mu.Lock()
	defer p.mu.Unlock()
	if notice == nil {
		p.mu.lost = true
		return
	}
	ns := value.Lookup(notice, "ns").Str()
	if value.Lookup(notice, "placing").Str() == "dropped" {
		if s := n.sharding.Load(); s != nil {
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
		if s := n.sharding.Load(); s != nil {
			s.Catalog.InvalidateCollection(ns)
		}
	}
}

// loadPlacing reads what is stored of migrations, when the node opens and after a snapshot from another member.
func (n *Node) loadPlacing() error {
	open := make(map[string]string)
	err := n.Docs.Each(coordinatorsNS, func(doc []byte) error {
		open[string(value.Lookup(doc, "_id").Bytes())] = value.Lookup(doc, "nss").Str()
		return nil
	})
	if err != nil {
		return err
	}
	n.placing.mu.Lock()
	defer n.placing.mu.Unlock()
	n.placing.mu.ns, n.placing.mu.lost = open, false
	if s := n.sharding.Load(); s != nil {
		s.Catalog.Clear()
	}
	return nil
}

// placementMoves tells a secondary that what it knows of a collection's placement may be out of date.
func (n *Node) placementMoves(ns string) bool {
	p := &n.placing
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lost {
		return true
	}
	for _, moving := range p.mu.ns {
		if moving == ns {
			return n.notPrimary() != nil
		}
	}
	return false
}

// hear takes in a notice of a unit of work.
func (n *Node) hear(ts storage.Timestamp, notice []byte) {
	n.prepared.hear(ts, notice, n.now())
	n.hearPlacing(notice)
}

// loadNoticed reads what the notices that were missed told of.
func (n *Node) loadNoticed() error {
	if err := n.loadPromises(); err != nil {
		return err
	}
	return n.loadPlacing()
}
