package storage

import "encoding/binary"

// SessionEntry is an oplog entry of a retryable write or a transaction.
type SessionEntry struct {
	OplogEntry
	LSID   []byte
	Number int64
	At     OpTime
	Prev   OpTime // prevOpTime, NoOpTime where the entry has none
	WallMS int64
}

// SessionEntries calls f with the entries of sessions that are later than after, in order, and with each operation of a vectored
// insert. The entries are borrowed. Blocks of writes outside sessions are skipped unread, so that following the oplog costs little.
func (s *Snapshot) SessionEntries(after Timestamp, f func(e *SessionEntry) error) error {
	lower, upper := identRange(identOplog)
	it, err := s.e.iters.get(&s.moment, &s.e.view.Load().moment, lower, upper)
	if err != nil {
		return err
	}
	defer func() { s.e.iters.put(it, &s.e.view.Load().moment, s.e.opts.Clock().UnixNano()) }()
	var b openBlock
	for ok := it.SeekGE(timeKey(nil, identOplog, after+1)); ok; ok = it.Next() {
		p, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if !inSession(p) {
			continue
		}
		if p, err = s.e.blockBytes(timeOf(it.Key()), p); err != nil {
			return err
		}
		if err := b.read(timeOf(it.Key()), p); err != nil {
			return err
		}
		for i := range b.entries {
			ts := b.ts(i)
			if ts <= after || ts > s.ts {
				continue
			}
			for _, op := range b.operations(i) {
				if err := f(b.sessionEntry(i, &op)); err != nil {
					return err
				}
			}
		}
	}
	return it.Error()
}

// sessionEntry returns an operation of entry i of a block of a session.
func (b *openBlock) sessionEntry(i int, op *blockEntry) *SessionEntry {
	e := &SessionEntry{OplogEntry: op.OplogEntry, LSID: b.lsid, Number: b.number, At: OpTime{b.ts(i), b.term}, Prev: NoOpTime, WallMS: b.wall}
	if prev, ok := b.before(i); ok {
		e.Prev = prev
	}
	return e
}

// SessionHistory follows the entries of a session by their prevOpTime, from the one at an optime back to the first one of its txnNumber,
// and calls f with each, and with each operation of a vectored insert; the entries are borrowed. whole is false if the oplog does not have one of them, or if f returns false because
// one does not belong to the history. The optime of a unit may be that of an entry that is not a statement, such as the image of a
// findAndModify: the entries before it are the session's.
func (s *Snapshot) SessionHistory(at OpTime, f func(e *SessionEntry) bool) (whole bool, err error) {
	lower, upper := identRange(identOplog)
	it, err := s.e.iters.get(&s.moment, &s.e.view.Load().moment, lower, upper)
	if err != nil {
		return false, err
	}
	defer func() { s.e.iters.put(it, &s.e.view.Load().moment, s.e.opts.Clock().UnixNano()) }()
	var b openBlock
	for at.TS != 0 {
		if at.TS > s.ts || !it.SeekGE(timeKey(nil, identOplog, at.TS)) {
			return false, it.Error()
		}
		last := timeOf(it.Key())
		p, err := it.ValueAndErr()
		if err == nil {
			p, err = s.e.blockBytes(last, p)
		}
		if err == nil {
			err = b.read(last, p)
		}
		if err != nil || at.TS < b.ts(0) {
			return false, err
		}
		for first := b.ts(0); at.TS >= first; {
			i := int(at.TS - first)
			if b.lsid == nil || b.term != at.Term {
				return false, nil
			}
			if b.entries[i].ofSession() {
				for _, op := range b.operations(i) {
					if !f(b.sessionEntry(i, &op)) {
						return false, nil
					}
				}
			}
			prev, known := b.before(i)
			if !known || prev.TS >= at.TS {
				return false, nil // an earlier version did not record it
			}
			if at = prev; at.TS == 0 {
				return true, nil
			}
		}
	}
	return true, nil
}

// inSession reports whether a stored block may hold entries of a session; for a compressed block that is unknown,
// so it may. A block of references, as bulk copies write it, is checked without its documents.
func inSession(p []byte) bool {
	at := blockHeader
	if isRefs(p) {
		at = refsHeader
	}
	if len(p) < at+2 || p[0] != blockVersion && !isRefs(p) {
		return true
	}
	_, n := binary.Uvarint(p[at:])
	return n <= 0 || len(p) <= at+n || p[at+n] != noSession
}
