package storage

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// versions walks the keys of one table as of a timestamp: of each key the newest version that is not later,
// omitting keys whose version is a deletion (an empty value).
type versions struct {
	it  *pebble.Iterator
	ts  uint64
	own bool // versions of the unit of work itself are part of the view

	hidden timestamps // timestamps whose versions the view does not show although they are not later
	shown  timestamps // timestamps whose versions it shows although they are later
	sent   timestamps // timestamps of versions of the unit itself that are already in the store

	within []byte // see seekPrefix; borrowed

	user  []byte // key without version, owned
	value []byte // borrowed from the iterator, or in buf
	at    uint64 // the version's timestamp
	buf   []byte
	seek  []byte
	err   error
}

func (v *versions) reset(it *pebble.Iterator, ts Timestamp, own bool) {
	v.it, v.ts, v.own, v.err, v.hidden, v.sent = it, uint64(ts), own, nil, nil, nil
	v.shown, v.within = nil, nil
}

func (v *versions) sees(ts uint64) bool {
	if v.own && (ts == pending || v.sent.has(ts)) {
		return true
	}
	return ts <= v.ts && !v.hidden.has(ts) || v.shown.has(ts)
}

// first returns the timestamp to seek a key with, so that the seek lands on the newest version in view.
func (v *versions) first() uint64 {
	if v.own {
		return pending
	}
	if n := len(v.shown); n > 0 {
		return v.shown[n-1]
	}
	return v.ts
}

// below returns the newest timestamp before ts that the view may show; ts is later than the view.
func (v *versions) below(ts uint64) uint64 {
	if i, _ := slices.BinarySearch(v.shown, ts); i > 0 {
		return v.shown[i-1]
	}
	return v.ts
}

// seekGE moves to the first visible key at or above user (which includes the ident).
func (v *versions) seekGE(user []byte) bool {
	v.within = nil
	v.seek = appendVersion(append(v.seek[:0], user...), v.first())
	v.it.SeekGE(v.seek)
	return v.settle()
}

// seekPrefix is seekGE for a walk that ends with the keys that begin with prefix, until the next seek. It does not look at the keys
// after those, of which any number may be deleted.
func (v *versions) seekPrefix(prefix []byte) bool {
	v.within = prefix
	v.seek = appendVersion(append(v.seek[:0], prefix...), v.first())
	v.it.SeekGE(v.seek)
	return v.settle()
}

// get looks up exactly one key.
func (v *versions) get(user []byte) (value []byte, ok bool, err error) {
	v.seek = appendVersion(append(v.seek[:0], user...), v.first())
	if !v.it.SeekPrefixGE(v.seek) {
		return nil, false, v.it.Error()
	}
	for v.it.Valid() {
		k := v.it.Key()
		at := binary.BigEndian.Uint64(k[len(k)-suffixLen:])
		if v.sees(at) {
			v.at = at
			val, err := v.it.ValueAndErr()
			return val, err == nil && len(val) > 0, err
		}
		if at <= v.ts { // hidden
			v.it.Next()
			continue
		}
		// Newer than the view, and not one of the later versions that it shows: seek the next that it may show.
		v.seek = appendVersion(append(v.seek[:0], user...), v.below(at))
		if !v.it.SeekPrefixGE(v.seek) {
			break
		}
	}
	return nil, false, v.it.Error()
}

// next moves to the next visible key.
func (v *versions) next() bool {
	if !v.it.Next() {
		return v.end()
	}
	if k := v.it.Key(); len(k) == len(v.user)+1+suffixLen && bytes.Equal(k[:len(v.user)], v.user) {
		v.it.NextPrefix()
	}
	return v.settle()
}

// settle moves forward from the iterator's position to the first key with a visible version.
func (v *versions) settle() bool {
	for skipped := 0; v.it.Valid(); {
		user, ts, ok := splitVersion(v.it.Key())
		if !ok {
			v.it.Next()
			continue
		}
		if v.within != nil && !bytes.HasPrefix(user, v.within) {
			return v.end()
		}
		if !v.sees(ts) {
			// Newer than the view. A few steps are cheaper than a seek.
			if skipped++; skipped < 4 || ts <= v.ts { // or hidden
				v.it.Next()
				continue
			}
			skipped = 0
			v.seek = appendVersion(append(v.seek[:0], user...), v.below(ts))
			v.it.SeekGE(v.seek)
			continue
		}
		val, err := v.it.ValueAndErr()
		if err != nil {
			v.err = err
			return false
		}
		if len(val) == 0 {
			skipped = 0
			v.it.NextPrefix()
			continue
		}
		v.user = append(v.user[:0], user...)
		v.value, v.at = val, ts
		return true
	}
	return v.end()
}

// seekLT moves to the last visible key below user.
func (v *versions) seekLT(user []byte) bool {
	v.seek = appendUnversioned(append(v.seek[:0], user...))
	v.it.SeekLT(v.seek)
	return v.settleBack()
}

// prev moves to the previous visible key; only after seekLT or prev.
func (v *versions) prev() bool { return v.settleBack() }

// settleBack moves backward from the iterator's position, the oldest version of some key, to a key with a visible
// version, and leaves the iterator before all versions of that key.
func (v *versions) settleBack() bool {
	for v.it.Valid() {
		user, _, ok := splitVersion(v.it.Key())
		if !ok {
			v.it.Prev()
			continue
		}
		v.user = append(v.user[:0], user...)
		found := v.newestBack()
		if v.err != nil {
			return false
		}
		if found && len(v.buf) > 0 {
			v.value = v.buf
			return true
		}
	}
	return v.end()
}

// newestBack walks the versions of v.user from oldest to newest and copies the newest visible one to buf.
func (v *versions) newestBack() (found bool) {
	for steps := 0; v.it.Valid(); steps++ {
		user, ts, ok := splitVersion(v.it.Key())
		if !ok || !bytes.Equal(user, v.user) {
			return found
		}
		if steps == 8 {
			return v.jumpBack() || found
		}
		if v.sees(ts) {
			val, err := v.it.ValueAndErr()
			if err != nil {
				v.err = err
				return false
			}
			v.buf, v.at, found = append(v.buf[:0], val...), ts, true
		}
		v.it.Prev()
	}
	return found
}

// jumpBack serves keys with many versions: it seeks the visible one, and then the position before all of them.
func (v *versions) jumpBack() (found bool) {
	v.seek = appendVersion(append(v.seek[:0], v.user...), v.first())
	for ok := v.it.SeekGE(v.seek); ok; {
		user, at, versioned := splitVersion(v.it.Key())
		if !versioned || !bytes.Equal(user, v.user) {
			break
		}
		if v.sees(at) {
			val, err := v.it.ValueAndErr()
			if err != nil {
				v.err = err
				return false
			}
			v.buf, v.at, found = append(v.buf[:0], val...), at, true
			break
		}
		if at <= v.ts { // hidden
			ok = v.it.Next()
			continue
		}
		v.seek = appendVersion(append(v.seek[:0], v.user...), v.below(at))
		ok = v.it.SeekGE(v.seek)
	}
	v.seek = appendUnversioned(append(v.seek[:0], v.user...))
	v.it.SeekLT(v.seek)
	return found
}

func (v *versions) end() bool {
	if err := v.it.Error(); err != nil {
		v.err = err
	}
	return false
}
