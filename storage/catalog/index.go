package catalog

import (
	"slices"
	"sync"

	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/indexkey"
)

// Index is one index of a collection at one moment. It never changes; a change makes a new one.
type Index struct {
	Name      string
	Ident     Ident
	IdentName string
	// Spec is the parsed specification; Spec.Raw is the document listIndexes shows.
	Spec *indexkey.Spec
	// Keys makes the keys of documents.
	Keys *indexkey.Generator
	// Collator orders the index's strings; nil compares bytes.
	Collator value.Collator

	IsID          bool
	Unique        bool
	PrepareUnique bool // refuses new duplicates while old ones may exist (collMod)
	Hidden        bool
	// Clustered is true if the RecordIds behind the keys are keystrings instead of numbers.
	Clustered bool
	// TTLSeconds is expireAfterSeconds, negative where the index has none.
	TTLSeconds int64

	// Ready is false while the index is being built: writers keep it up to date, readers must not use it.
	Ready bool
	// Build is the build of an index that is not ready.
	Build Build
	// Enforcing is true from the moment writers check uniqueness: always for ready unique indexes, and in the last part
	// of a build.
	Enforcing bool

	// Multikey is set once any document had several keys. MultikeyPaths has a mask for each field of the key
	// pattern: bit i is set if component i of the path held an array.
	Multikey      bool
	MultikeyPaths []uint64
	// ArrayPaths are the paths below a wildcard at which documents held arrays, sorted; nil if Multikey is set means that any may
	// have. A path of several components is multikey if it, or a path above it, is among them.
	ArrayPaths []string

	// Usage counts how often plans chose the index since the start; Tail holds its highest key. Both are shared by
	// all snapshots.
	Usage *Usage
	Tail  *Tail
}

// Build describes the build of an index.
type Build struct {
	UUID UUID
	// Loaded is true once the index has all its keys, and the build waits for its commit quorum.
	Loaded bool
}

// Tail tracks the highest key put into an index since the start. A key above it is new; no lookup is needed.
type Tail struct {
	mu    sync.Mutex
	known bool
	key   []byte
}

// Raise reports whether key is above all keys so far, and remembers it if so. first returns the highest key in the
// store; it is called once.
func (t *Tail) Raise(key []byte, first func() ([]byte, error)) (above bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known {
		k, err := first()
		if err != nil {
			return false, err
		}
		t.key, t.known = append(t.key[:0], k...), true
	}
	if string(key) <= string(t.key) {
		return false, nil
	}
	t.key = append(t.key[:0], key...)
	return true, nil
}

// Forget makes the next call look up the highest key again: other members have written.
func (t *Tail) Forget() {
	t.mu.Lock()
	t.known = false
	t.mu.Unlock()
}

// NewIndex compiles a raw specification. The index is ready.
func NewIndex(raw []byte, ident Ident, identName string, clustered bool) (*Index, error) {
	spec, err := indexkey.ParseSpec(raw)
	if err != nil {
		return nil, err
	}
	opts, err := generatorOptions(spec)
	if err != nil {
		return nil, err
	}
	gen, err := indexkey.NewGenerator(spec, opts)
	if err != nil {
		return nil, err
	}
	i := &Index{
		Name: spec.Name, Ident: ident, IdentName: identName, Spec: spec, Keys: gen, Collator: opts.Collator, Clustered: clustered, Ready: true,
		IsID: isIDPattern(spec), Unique: spec.Unique, PrepareUnique: spec.PrepareUnique, Hidden: spec.Hidden,
		TTLSeconds: -1, Usage: &Usage{}, Tail: &Tail{},
	}
	if i.IsID {
		i.Unique = true
	}
	i.Enforcing = i.Unique || i.PrepareUnique
	if v := value.Lookup(raw, "expireAfterSeconds"); v.T.Numeric() {
		i.TTLSeconds, _ = v.AsInt64()
	}
	return i, nil
}

// isIDPattern recognises {_id: 1}; {_id: "hashed"} and {_id: -1} are ordinary indexes.
func isIDPattern(s *indexkey.Spec) bool {
	return len(s.Fields) == 1 && s.Fields[0].Path == "_id" && s.Kind == indexkey.BTree && !s.Fields[0].Desc
}

func generatorOptions(spec *indexkey.Spec) (o indexkey.Options, err error) {
	if len(spec.Collation) > 0 {
		c, err := collation.Parse(spec.Collation)
		if err != nil {
			return o, err
		}
		o.Collator = c.Collator()
	}
	if len(spec.PartialFilter) > 0 {
		m, err := match.Compile(spec.PartialFilter, &match.Options{Collator: o.Collator})
		if err != nil {
			return o, err
		}
		o.Filter = m.Match
	}
	return o, nil
}

// WithMultikey returns the index with more paths known as multikey; the index itself when nothing is new. arrays are the ArrayPaths of a
// wildcard index, nil for any path.
func (i *Index) WithMultikey(masks []uint64, arrays []string) *Index {
	added := !i.Multikey || len(masks) > len(i.MultikeyPaths)
	for n := 0; !added && n < len(masks); n++ {
		added = masks[n]&^i.MultikeyPaths[n] != 0
	}
	paths, more := i.withArrays(arrays)
	if !added && !more {
		return i
	}
	c := *i
	c.Multikey, c.ArrayPaths = true, paths
	c.MultikeyPaths = append([]uint64(nil), i.MultikeyPaths...)
	for len(c.MultikeyPaths) < len(masks) {
		c.MultikeyPaths = append(c.MultikeyPaths, 0)
	}
	for n, m := range masks {
		c.MultikeyPaths[n] |= m
	}
	return &c
}

// maxArrayPaths bounds the bytes of the paths that a wildcard index remembers one by one. They are a part of the collection's entry, which each
// new one rewrites: documents whose field names are data would make it grow with the collection.
const maxArrayPaths = 16 << 10

// withArrays returns the ArrayPaths with more paths; added is false if they are known.
func (i *Index) withArrays(more []string) (paths []string, added bool) {
	switch {
	case i.Spec.Kind != indexkey.Wildcard || i.Multikey && i.ArrayPaths == nil:
		return nil, false
	case more == nil:
		return nil, true
	}
	for _, p := range more {
		if _, known := slices.BinarySearch(i.ArrayPaths, p); !known {
			added = true
			break
		}
	}
	if !added {
		return i.ArrayPaths, false
	}
	paths = slices.Concat(i.ArrayPaths, more)
	slices.Sort(paths)
	paths = slices.Compact(paths)
	size := 0
	for _, p := range paths {
		size += len(p) + 16
	}
	if size > maxArrayPaths {
		return nil, true
	}
	return paths, true
}
