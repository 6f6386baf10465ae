package storage

import (
	"encoding/binary"
	"slices"

	"github.com/shoaldb/shoal/storage/catalog"
)

// heldKeys are the index keys of a batch of inserts, held back until its records are staged, so that the unit's
// batch has the keys of one table after the other. The memtable starts the search for a key's position at that of
// the previous key: adjacent keys cost a fraction of keys that alternate between tables.
type heldKeys struct {
	on      bool
	records catalog.Ident // the table whose keys are not held back
	tables  []catalog.Ident
}

// holdRecords starts to hold back the keys of all tables but one.
func (u *UnitOfWork) holdRecords(records catalog.Ident) {
	u.held = heldKeys{on: true, records: records, tables: u.held.tables[:0]}
}

// hold keeps a key for releaseHeld to stage.
func (u *UnitOfWork) hold(id catalog.Ident, user []byte, size int, value [][]byte) {
	s := u.scratch
	i := slices.Index(u.held.tables, id)
	if i < 0 {
		i = len(u.held.tables)
		u.held.tables = append(u.held.tables, id)
		if len(s.held) == i {
			s.held = append(s.held, nil)
		}
		s.held[i] = s.held[i][:0]
	}
	p := binary.AppendUvarint(s.held[i], uint64(len(user)))
	p = binary.AppendUvarint(p, uint64(size))
	p = append(p, user...)
	for _, v := range value {
		p = append(p, v...)
	}
	s.held[i] = p
}

// releaseHeld stages the held keys in the order they came, and stops holding.
func (u *UnitOfWork) releaseHeld() {
	if !u.held.on {
		return
	}
	u.held.on = false
	for i, id := range u.held.tables {
		for p := u.scratch.held[i]; len(p) > 0; {
			key, n := binary.Uvarint(p)
			size, m := binary.Uvarint(p[n:])
			user := p[n+m:]
			u.put(id, user[:key], user[key:key+size])
			p = user[key+size:]
		}
		if cap(u.scratch.held[i]) > maxHeldBytes {
			u.scratch.held[i] = nil
		}
	}
	u.held.tables = u.held.tables[:0]
}

// maxHeldBytes bounds the memory for held keys that a unit passes on to the next.
const maxHeldBytes = 1 << 20
