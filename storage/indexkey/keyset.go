package indexkey

import (
	"bytes"
	"slices"

	"github.com/shoaldb/shoal/storage/keystring"
)

// KeySet collects the keys of one document in one index. It is reused from document to document.
type KeySet struct {
	buf  []byte // keys and type bits, concatenated
	ents []entry
	// Multikey has a mask for each field of the key pattern: bit i is set where component i of the path held an array.
	Multikey []uint64
	// ArrayPaths are the paths below a wildcard that held arrays, in the order of the document; some may be repeated.
	ArrayPaths []string

	stack   []cursor           // of the paths being expanded
	key, tb []byte             // the key under construction
	terms   map[string]float64 // of the text fields
	cells   [][]int64          // of each geospatial field
	placing bool               // the geospatial fields of the key under construction have their cells
}

type entry struct{ from, key, end int }

// Reset empties the set, keeping its memory.
func (s *KeySet) Reset() {
	s.buf, s.ents, s.Multikey, s.ArrayPaths = s.buf[:0], s.ents[:0], s.Multikey[:0], s.ArrayPaths[:0]
}

// Len returns the number of keys.
func (s *KeySet) Len() int { return len(s.ents) }

// Key returns the i-th key; it borrows from the set until Reset.
func (s *KeySet) Key(i int) []byte { e := s.ents[i]; return s.buf[e.from:e.key:e.key] }

// TypeBits returns those of the i-th key.
func (s *KeySet) TypeBits(i int) []byte { e := s.ents[i]; return s.buf[e.key:e.end:e.end] }

// IsMultikey reports whether any path held an array.
func (s *KeySet) IsMultikey() bool {
	for _, m := range s.Multikey {
		if m != 0 {
			return true
		}
	}
	return false
}

// add adds a complete key; both slices are copied.
func (s *KeySet) add(key, tb []byte) {
	from := len(s.buf)
	s.buf = append(s.buf, key...)
	mid := len(s.buf)
	s.buf = append(s.buf, keystring.TrimTypeBits(tb)...)
	s.ents = append(s.ents, entry{from, mid, len(s.buf)})
}

// finish sorts and removes repeated keys; of those that differ only in type bits, the first stays.
func (s *KeySet) finish() {
	if len(s.ents) < 2 {
		return
	}
	slices.SortStableFunc(s.ents, func(a, b entry) int {
		return bytes.Compare(s.buf[a.from:a.key], s.buf[b.from:b.key])
	})
	s.ents = slices.CompactFunc(s.ents, func(a, b entry) bool {
		return bytes.Equal(s.buf[a.from:a.key], s.buf[b.from:b.key])
	})
}

// Diff walks two sets at once: it calls remove for the old keys and add for the new ones, skipping those in both
// with the same type bits.
func Diff(before, after *KeySet, remove, add func(key, typeBits []byte)) {
	i, j := 0, 0
	for i < before.Len() || j < after.Len() {
		var r int
		switch {
		case i == before.Len():
			r = 1
		case j == after.Len():
			r = -1
		default:
			r = bytes.Compare(before.Key(i), after.Key(j))
		}
		switch {
		case r < 0:
			remove(before.Key(i), before.TypeBits(i))
			i++
		case r > 0:
			add(after.Key(j), after.TypeBits(j))
			j++
		default:
			if !bytes.Equal(before.TypeBits(i), after.TypeBits(j)) {
				remove(before.Key(i), before.TypeBits(i))
				add(after.Key(j), after.TypeBits(j))
			}
			i, j = i+1, j+1
		}
	}
}
