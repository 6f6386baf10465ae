package storage

import (
	"github.com/shoaldb/shoal/storage/catalog"
)

// tableCursor walks the visible keys of one table, and can release the store's resources in between. RecordCursor
// and IndexCursor are built on it.
type tableCursor struct {
	s       *Snapshot
	it      *pooledIter // nil while the cursor holds no resources of the store
	reverse bool

	lower, upper []byte // bounds of the whole walk, without versions
	target       []byte // where the next step seeks to; nil for the walk's start
	place        []byte // the key the cursor stood on when it was saved
	state        cursorState
	err          error
}

type cursorState uint8

const (
	cursorFresh  cursorState = iota // Next seeks target, or the start
	cursorOn                        // Next steps
	cursorSaved                     // Next seeks the key after place
	cursorDone                      // Next returns false
	cursorClosed                    // Next returns false, and seeking has no effect
)

// let returns the iterator to the pool.
func (c *tableCursor) let() {
	if c.it != nil {
		c.s.giveBack(c.it)
		c.it = nil
	}
}

func (c *tableCursor) next() bool {
	if c.state == cursorOn {
		if c.s.current(c.it) {
			return c.finish(c.step())
		}
		// The unit has written since: what lies ahead may have changed.
		c.save()
	}
	if c.state >= cursorDone {
		return false
	}
	if c.it != nil && !c.s.current(c.it) {
		c.let()
	}
	if c.it == nil {
		if c.it, c.err = c.s.iterator(c.lower, c.upper); c.err != nil {
			c.state = cursorDone
			return false
		}
	}
	saved := c.state == cursorSaved
	c.state = cursorOn
	v := &c.it.v
	switch {
	case saved && c.reverse:
		return c.finish(v.seekLT(c.place))
	case saved:
		// The successor of a key is the key with a zero byte appended.
		return c.finish(v.seekGE(append(c.place, 0)))
	case c.reverse && c.target != nil:
		return c.finish(v.seekLT(c.target))
	case c.reverse:
		return c.finish(v.seekLT(c.upper[:len(c.upper)-1]))
	case c.target != nil:
		return c.finish(v.seekGE(c.target))
	}
	return c.finish(v.seekGE(c.lower[:len(c.lower)-1]))
}

func (c *tableCursor) step() bool {
	if c.reverse {
		return c.it.v.prev()
	}
	return c.it.v.next()
}

func (c *tableCursor) finish(ok bool) bool {
	if !ok {
		c.err = c.it.v.err
		c.state = cursorDone
		c.let()
	}
	return ok
}

// seek makes the next step go to target, a key with its ident: to the first key at or above it, or in reverse to
// the last below it.
func (c *tableCursor) seek(target []byte) {
	c.target = append(c.target[:0], target...)
	if c.state != cursorClosed && c.err == nil {
		c.state = cursorFresh
	}
}

func (c *tableCursor) save() {
	if c.state == cursorOn {
		c.place = append(c.place[:0], c.it.v.user...)
		c.state = cursorSaved
	}
	c.let()
}

func (c *tableCursor) close() {
	c.let()
	c.state = cursorClosed
}

// RecordCursor walks records. Save and Restore bracket pauses: a saved cursor holds no resources of the store.
type RecordCursor struct {
	tableCursor
	ops *oplogCursor // local.oplog.rs only
}

// Scan reads records in order of RecordId. The cursor must be closed.
func (s *Snapshot) Scan(c *catalog.Collection, o ScanOptions) *RecordCursor {
	if c.Oplog {
		return &RecordCursor{ops: newOplogCursor(s, o)}
	}
	r := &RecordCursor{tableCursor: tableCursor{s: s, reverse: o.Reverse}}
	r.lower, r.upper = identRange(c.Ident)
	if c.Capped && s.unit == nil && o.To == nil {
		if gone := c.Counters.Trimmed(uint64(s.of(c.Ident))); gone > 0 {
			r.lower = appendUnversioned(append(appendIdent(nil, c.Ident), NewRecordID(gone+1)...))
		}
	}
	if o.From != nil {
		r.lower = appendUnversioned(append(appendIdent(nil, c.Ident), o.From...))
	}
	if o.To != nil {
		// To is inclusive: the bound is its successor.
		r.upper = appendUnversioned(append(append(appendIdent(nil, c.Ident), o.To...), 0))
	}
	return r
}

// Next advances the cursor; it returns false at the end or on error.
func (c *RecordCursor) Next() bool {
	if c.ops != nil {
		return c.ops.next()
	}
	return c.next()
}

// Skipped returns the time of the newest entries of the oplog that ScanOptions.CopiesOf has left out, 0 if there were none.
func (c *RecordCursor) Skipped() Timestamp {
	if c.ops != nil {
		return c.ops.skipped
	}
	return 0
}

// RecordID returns the current record's id, borrowed until Next.
func (c *RecordCursor) RecordID() RecordID {
	if c.ops != nil {
		return c.ops.rid[:]
	}
	return RecordID(c.it.v.user[identLen:])
}

// Doc returns the current document, borrowed until Next.
func (c *RecordCursor) Doc() []byte {
	if c.ops != nil {
		return c.ops.doc
	}
	return c.it.v.value
}

// SeekTo makes the next Next return the first record at or after rid (at or before, in reverse).
func (c *RecordCursor) SeekTo(rid RecordID) {
	if c.ops != nil {
		c.ops.seekTo(rid)
		return
	}
	k := append(append([]byte(nil), c.lower[:identLen]...), rid...)
	if c.reverse {
		k = append(k, 0)
	}
	c.seek(k)
}

// Save releases the store's resources and keeps the position. Borrowed bytes become invalid.
func (c *RecordCursor) Save() {
	if c.ops != nil {
		c.ops.save()
		return
	}
	c.save()
}

// Restore continues from the position that Save kept. Next also does so.
func (c *RecordCursor) Restore() error { return c.Err() }

// Err returns the error that ended the walk.
func (c *RecordCursor) Err() error {
	if c.ops != nil {
		return c.ops.err
	}
	return c.err
}

// Close ends the cursor.
func (c *RecordCursor) Close() {
	if c.ops != nil {
		c.ops.close()
		return
	}
	c.close()
}

// IndexCursor walks index entries.
type IndexCursor struct {
	tableCursor
	idx *catalog.Index
	ks  []byte
	tb  []byte
	rid RecordID
	buf [8]byte
}

// IndexScan reads an index in key order. The cursor starts before the first key (in reverse: after the last) and
// must be closed.
func (s *Snapshot) IndexScan(c *catalog.Collection, idx *catalog.Index, reverse bool) *IndexCursor {
	x := &IndexCursor{tableCursor: tableCursor{s: s, reverse: reverse}, idx: idx}
	x.lower, x.upper = identRange(idx.Ident)
	return x
}

// Seek makes the next Next return the first entry whose key is at or above ks (in reverse: the last entry below
// ks). ks is any prefix or bound made with package keystring; ranges are half-open at their end, as there.
func (c *IndexCursor) Seek(ks []byte) {
	c.target = append(append(c.target[:0], c.lower[:identLen]...), ks...)
	if c.state != cursorClosed && c.err == nil {
		c.state = cursorFresh
	}
}

// Next advances the cursor; it returns false at the end or on error.
func (c *IndexCursor) Next() bool { return c.next() && c.split() }

func (c *IndexCursor) split() bool {
	key, val := c.it.v.user[identLen:], c.it.v.value
	if c.idx.IsID {
		if len(val) < 8 {
			return c.broken()
		}
		c.ks, c.rid, c.tb = key, RecordID(val[:8]), val[8:]
		return true
	}
	ks, rid, ok := splitIndexKey(c.idx, key, &c.buf)
	if !ok {
		return c.broken()
	}
	c.ks, c.rid, c.tb = ks, rid, val[1:]
	return true
}

func (c *IndexCursor) broken() bool {
	c.err = corrupt("index %s has an unreadable entry", c.idx.IdentName)
	c.close()
	return false
}

// Key returns the keystring without the RecordID, borrowed until Next.
func (c *IndexCursor) Key() []byte { return c.ks }

// TypeBits returns the type bits of Key, borrowed until Next.
func (c *IndexCursor) TypeBits() []byte { return c.tb }

// RecordID returns the id of the record, borrowed until Next.
func (c *IndexCursor) RecordID() RecordID { return c.rid }

// Save releases the store's resources; the position is kept.
func (c *IndexCursor) Save() { c.save() }

// Restore continues from the position that Save kept. Next also does so.
func (c *IndexCursor) Restore() error { return c.err }

// Err returns the error that ended the walk.
func (c *IndexCursor) Err() error { return c.err }

// Close ends the cursor.
func (c *IndexCursor) Close() { c.close() }
