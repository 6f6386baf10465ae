package storage

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/storage/catalog"
)

// line is one of the two lines of commits that an engine has, each with its own timestamps and system tables: what is
// replicated, and what this node alone has, the collections of the local database. A unit of work is of one line.
// Timestamps of the local line are near the clock's, like the others, and never compared with them.
type line struct {
	meta, catalog, superseded, first catalog.Ident // its tables; first is that of the first collection or index

	oldest    atomic.Uint64 // Timestamp before which versions may be gone
	nextIdent atomic.Uint32
	drops     dropQueue
	synced    atomic.Uint64 // of the local line: Timestamp that was synced to disk; Engine.durable is the other's
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

// lineOf is the line a table is of.
func lineOf(id catalog.Ident) int { return int(id >> 31) }

// isLocal tells whether a table is of this node alone.
func isLocal(id catalog.Ident) bool { return id >= identLocal }

// moment is what a view shows of each line. era changes when a snapshot replaces everything replicated, see iterPool.
type moment struct {
	ts    Timestamp
	local Timestamp
	era   uint32
}

// of is the moment's timestamp for a table.
func (m *moment) of(id catalog.Ident) Timestamp {
	if isLocal(id) {
		return m.local
	}
	return m.ts
}

// covers tells whether who sees m sees o.
func (m *moment) covers(o *moment) bool { return m.ts >= o.ts && m.local >= o.local && m.era == o.era }
