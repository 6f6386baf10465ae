package plan

import (
	"slices"

	"github.com/shoaldb/shoal/query/geo"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// Kind is the kind of an index.
type Kind uint8

// The kinds that the planner can use, and the others.
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
	ArrayPaths    []string // of a wildcard index: the paths at which documents had arrays, sorted; nil if unknown

	// CollationDoc is the collation in full, nil for simple; Collator goes with it.
	CollationDoc []byte
	Collator     value.Collator

	// Covers reports whether a wildcard index has a path, and CoversBelow whether it has a path's subdocuments with all
	// their fields.
	Covers, CoversBelow func(path string) bool

	// Plane is the region of a 2d index.
	Plane geo.Plane

	Summaries

	// Handle belongs to the executor: the planner only passes it on.
	Handle any
}

// Summaries are an index's parts of plan summaries, for the log.
type Summaries struct {
	Summary     string // a space and the key pattern as text
	ScanSummary string // the summary of a plan that scans the index and no other
}

// Collection describes the collection that is planned for.
type Collection struct {
	NS      string
	Indexes []*Index
	// Clustered collections are stored by _id and need no index on it.
	Clustered bool
	// Oplog means that the collection is the oplog, stored by its entries' ts.
	Oplog bool
	// CollationDoc is the collation of the clustered key.
	CollationDoc []byte
}

// at returns a wildcard index as the index of one of its paths, which is multikey only if the path goes through arrays; "" stands for all paths.
func (x *Index) at(path string) *Index {
	c := *x
	c.Fields, c.MultikeyPaths = slices.Clone(x.Fields), make([]uint64, len(x.Fields))
	c.Multikey = false
	for i := range c.Fields {
		if c.Fields[i].Kind != Wildcard { // such a field has no arrays
			continue
		}
		if path != "" {
			c.Fields[i].Path = path
		}
		c.MultikeyPaths[i] = x.arraysAlong(path)
		c.Multikey = c.MultikeyPaths[i] != 0
	}
	return &c
}

// arraysAlong returns the mask of a wildcard's path: which of its components may have arrays.
func (x *Index) arraysAlong(path string) (mask uint64) {
	all := uint64(1)<<min(components(path), 63) - 1
	switch {
	case !x.Multikey:
		return 0
	case x.ArrayPaths == nil || path == "":
		return all
	}
	for i, n := 0, 0; i <= len(path); i++ {
		if i < len(path) && path[i] != '.' {
			continue
		}
		if _, found := slices.BinarySearch(x.ArrayPaths, path[:i]); found {
			mask |= 1 << min(n, 63)
		}
		n++
	}
	if mask != 0 && hasIndexComponent(path) {
		return all // below the first array a number is the index of an element, or the name of a field
	}
	return mask
}

// fieldMultikey reports whether the path of field i may have arrays.
func (x *Index) fieldMultikey(i int) bool {
	if !x.Multikey {
		return false
	}
	if x.MultikeyPaths == nil {
		return true
	}
	return i < len(x.MultikeyPaths) && x.MultikeyPaths[i] != 0
}

// lastMultikey returns one more than the position of the last component of field i's path that has arrays; 0 for none.
func (x *Index) lastMultikey(i int) int {
	if !x.fieldMultikey(i) {
		return 0
	}
	if x.MultikeyPaths == nil {
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
