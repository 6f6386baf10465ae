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

// SessionEntries calls f with the entries of sessions that are later than after, in order. The entries are
// borrowed. Blocks of writes outside sessions are skipped unread, so that following the oplog costs little.
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
			e := SessionEntry{OplogEntry: b.entries[i].OplogEntry, LSID: b.lsid, Number: b.number, At: OpTime{ts, b.term}, Prev: NoOpTime, WallMS: b.wall}
			if prev, ok := b.before(i); ok {
				e.Prev = prev
			}
			if err := f(&e); err != nil {
				return err
			}
		}
	}
	return it.Error()
}

// inSession reports whether a stored block may hold entries of a session; for a compressed block that is unknown,
// so it may.
func inSession(p []byte) bool {
	if len(p) < blockHeader+2 || p[0] != blockVersion {
		return true
	}
	_, n := binary.Uvarint(p[blockHeader:])
	return n <= 0 || len(p) <= blockHeader+n || p[blockHeader+n] != noSession
}
