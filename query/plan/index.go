package plan

import (
	"github.com/shoaldb/shoal/query/geo"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// Kind is the kind of an index.
type Kind uint8

// The kinds the planner knows how to use, and the others.
const (
	BTree Kind = iota
	Hashed
	Wildcard
	Other // text, geo: used by their own operators only
)

// Field is one field of an index's key pattern.
type Field struct {
	Path string
	Desc bool
	Kind Kind
}

// Index describes an index. The planner never changes it.
type Index struct {
	Name       string
	KeyPattern []byte
	Fields     []Field
	Kind       Kind
	Version    int

	IsID    bool
	Unique  bool
	Sparse  bool
	Hidden  bool
	Partial *match.Matcher // the partialFilterExpression; nil if there is none

	Multikey      bool
	MultikeyPaths []uint64 // for each field, bit i is set if component i of its path had an array; nil if unknown

	// CollationDoc is the collation in full, nil for simple; Collator goes with it.
	CollationDoc []byte
	Collator     value.Collator

	// Covers reports whether a wildcard index has a path, and CoversBelow whether it has a path's subdocuments with all
	// their fields.
	Covers, CoversBelow func(path string) bool

	// Plane is the region of a 2d index.
	Plane geo.Plane

	// Summary is a space and the key pattern as text, for the log.
	Summary string
	// Handle belongs to the executor: the planner only passes it on.
	Handle any
}

// Collection describes the collection that is planned for.
type Collection struct {
	NS      string
	Indexes []*Index
	// Clustered collections are stored by _id and need no index on it.
	Clustered bool
	// Oplog means that the collection is the oplog, stored by its entries' ts.
	Oplog bool
	// Collator and CollationDoc are those of the clustered key.
	CollationDoc []byte
}

// fieldMultikey reports whether the path of field i may have arrays.
func (x *Index) fieldMultikey(i int) bool {
	if !x.Multikey {
		return false
	}
	if x.MultikeyPaths == nil || x.Kind == Wildcard {
		return true
	}
	return i < len(x.MultikeyPaths) && x.MultikeyPaths[i] != 0
}

// lastMultikey returns one more than the position of the last component of field i's path that has arrays; 0 for none.
func (x *Index) lastMultikey(i int) int {
	if !x.fieldMultikey(i) {
		return 0
	}
	if x.MultikeyPaths == nil || x.Kind == Wildcard {
		return components(x.Fields[i].Path)
	}
	n := 0
	for m := x.MultikeyPaths[i]; m != 0; m >>= 1 {
		n++
	}
	return n
}

func components(path string) int {
	n := 1
	for i := range len(path) {
		if path[i] == '.' {
			n++
		}
	}
	return n
}
