package tables

import (
	"bytes"
	"context"
	"hash/fnv"
	"strings"
	"sync"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Namespaces of the stored placements.
const (
	DatabasesNS   = "config.cache.databases"
	CollectionsNS = "config.cache.collections"
	chunksPrefix  = "config.cache.chunks."
)

// ChunksNS returns the namespace of a collection's stored chunks.
func ChunksNS(ns string) string { return chunksPrefix + ns }

// Config has the dependencies of Tables.
type Config struct {
	Docs    *statedoc.Docs
	Catalog *cluster.Catalog
	Config  cluster.Peer // the config server
	Shard   string       // the id of the node's shard
	// Primary reports whether the node is the primary of its set.
	Primary func() bool
	// AskPrimary sends a command to the primary of the node's set.
	AskPrimary func(ctx context.Context, cmd []byte) (reply []byte, err error)
	// UnitChunks returns the maximum number of documents of chunks in one unit of work
	// (persistedChunkCacheUpdateMaxBatchSize).
	UnitChunks func() int
}

// Tables are a shard's stored routing tables. They implement cluster.Disk.
type Tables struct {
	Config
	wake chan struct{}

	mu struct {
		sync.Mutex
		stored map[string]*stored // by namespace, of those that are stored or about to be
		// queue has the namespaces and databases to process; true for those that may have been dropped, for which the config server
		// is asked.
		queue map[string]bool
	}
}

// stored is the primary's knowledge of a collection's stored table.
type stored struct {
	turn chan struct{} // full during a write
	// placement and sum are those of the stored table. known is false before they have been read, or if the extent of a failed
	// write is unknown.
	known     bool
	placement cluster.Placement
	sum       uint64
}

// New returns the tables of a node.
func New(c Config) *Tables {
	t := &Tables{Config: c, wake: make(chan struct{}, 1)}
	t.mu.stored, t.mu.queue = make(map[string]*stored), make(map[string]bool)
	return t
}

// Loaded implements cluster.Disk.
func (t *Tables) Loaded(name string) {
	if t.Primary() {
		t.enqueue(name, false)
	}
}

// Changed is called when a collection, or a database and its collections, may have been dropped. It does not block.
func (t *Tables) Changed(name string) {
	if !t.Primary() {
		return
	}
	t.mu.Lock()
	var of []string
	for ns := range t.mu.stored {
		if ns == name || strings.HasPrefix(ns, name+".") {
			of = append(of, ns)
		}
	}
	t.mu.Unlock()
	if catalog.CollOf(name) == "" {
		of = append(of, name)
	}
	for _, ns := range of {
		t.enqueue(ns, true)
	}
}

func (t *Tables) enqueue(name string, ask bool) {
	t.mu.Lock()
	t.mu.queue[name] = t.mu.queue[name] || ask
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// of returns the knowledge of a collection's stored table; nil if there is none, unless it is about to be stored.
func (t *Tables) of(ns string, about bool) *stored {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.mu.stored[ns]
	if s == nil && about {
		s = &stored{turn: make(chan struct{}, 1)}
		t.mu.stored[ns] = s
	}
	return s
}

// Base implements cluster.Disk.
func (t *Tables) Base(ns string) (cluster.Placement, bool) {
	p, sum, ok := t.read(ns, nil)
	if !ok || p.Map == nil || !t.Primary() {
		return p, ok && p.Map != nil
	}
	s := t.of(ns, true)
	select {
	case s.turn <- struct{}{}:
		if !s.known { // the next write begins with this table, and does not have to read it again
			s.placement, s.sum, s.known = p, sum, true
		}
		<-s.turn
	default:
	}
	return p, true
}

// read reads a stored placement; ok is false if it is incomplete. If old has a part of it, only newer chunks are read.
func (t *Tables) read(ns string, old *cluster.ChunkMap) (p cluster.Placement, sum uint64, ok bool) {
	s := t.Docs.Snapshot()
	defer s.Release()
	coll := s.Catalog().Lookup(CollectionsNS)
	if coll == nil {
		return p, 0, true
	}
	_, doc, found, err := s.FindByID(coll, value.NewString(ns))
	if err != nil || !found {
		return p, 0, err == nil
	}
	e, err := cluster.ParseCachedEntry(bytes.Clone(doc))
	if err != nil || e.Refreshing {
		return p, 0, false
	}
	entry, err := cluster.ParseCollectionEntry(e.Entry)
	chunks := s.Catalog().Lookup(ChunksNS(ns))
	if err != nil || chunks == nil {
		return p, 0, false
	}
	if old != nil && old.UUID == entry.UUID && old.Version().SameGeneration(entry.Generation) {
		if m, err := readSince(s, chunks, entry, old); err == nil && m.Version().Combined() == e.Version {
			return cluster.Placement{Entry: e.Entry, Map: m}, e.Sum, true
		}
	}
	m, sum, err := readAll(s, chunks, entry)
	if err == nil && (sum != e.Sum || m.Version().Combined() != e.Version) {
		err = mongoerr.New(mongoerr.FailedToParse, "its documents differ from those that were written")
	}
	if err != nil {
		t.Docs.Unreadable(CollectionsNS, doc, err)
		return p, 0, false
	}
	return cluster.Placement{Entry: e.Entry, Map: m}, sum, true
}

// hashOf returns a chunk's contribution to the checksum of its table.
func hashOf(doc []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(doc)
	return h.Sum64()
}
