package storage

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/storage/catalog"
)

// line is one of an engine's two lines of commits, each with its own timestamps and system tables: the replicated
// one, and the local one for the collections of the local database, which this node alone has. A unit of work
// belongs to one line. Timestamps of the local line are close to the clock, like the others, but never compared
// with them.
type line struct {
	meta, catalog, superseded, first catalog.Ident // its tables; first is the ident of its first collection or index

	oldest    atomic.Uint64 // the Timestamp before which versions may be gone
	nextIdent atomic.Uint32
	drops     dropQueue
	synced    atomic.Uint64 // of the local line: the Timestamp synced to disk; Engine.durable is that of the replicated line
}

const (
	lineReplicated = iota
	lineLocal
)

func (e *Engine) initLines() {
	r, l := &e.lines[lineReplicated], &e.lines[lineLocal]
	r.meta, r.catalog, r.superseded, r.first = identMeta, identCatalog, identSuperseded, identFirst
	l.meta, l.catalog, l.superseded, l.first = identLocalMeta, identLocalCatalog, identLocalSuperseded, identLocalFirst
	for i := range e.lines {
		e.lines[i].oldest.Store(1)
		e.lines[i].nextIdent.Store(uint32(e.lines[i].first))
	}
}

// lineOf returns the line that a table belongs to.
func lineOf(id catalog.Ident) int { return int(id >> 31) }

// isLocal reports whether a table belongs to this node alone.
func isLocal(id catalog.Ident) bool { return id >= identLocal }

// moment is the state of each line in a view. era changes when a snapshot replaces everything replicated, see iterPool.
type moment struct {
	ts    Timestamp
	local Timestamp
	era   uint32
}

// of returns the moment's timestamp for a table.
func (m *moment) of(id catalog.Ident) Timestamp {
	if isLocal(id) {
		return m.local
	}
	return m.ts
}

// covers reports whether m includes everything that o shows.
func (m *moment) covers(o *moment) bool { return m.ts >= o.ts && m.local >= o.local && m.era == o.era }
