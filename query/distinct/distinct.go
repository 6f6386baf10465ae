package distinct

import (
	"slices"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxSize is the largest array that a reply has room for: 16 MiB.
const maxSize = 16 << 20

// Values are the distinct values found so far. Of two equal ones (1 and 1.0) the first is kept.
type Values struct {
	path []string
	coll value.Collator
	seen map[string]struct{}
	key  []byte
	out  []value.Value
	size int
}

// New collects the values at a dotted path, compared by a collation (nil for the binary one).
func New(path string, coll value.Collator) *Values {
	return &Values{path: strings.Split(path, "."), coll: coll, seen: map[string]struct{}{}}
}

// AddDocument adds the values at the path in a document, with arrays unwound.
func (d *Values) AddDocument(doc []byte) error { return d.walk(value.NewDocument(doc), d.path) }

// AddArray adds the elements of an array as they are.
func (d *Values) AddArray(arr []byte) error {
	for it := value.Walk(arr); ; {
		_, e, ok := it.Next()
		if !ok {
			return nil
		}
		if err := d.add(e); err != nil {
			return err
		}
	}
}

func (d *Values) walk(v value.Value, path []string) error {
	if len(path) == 0 {
		if v.T == value.Array {
			return d.AddArray(v.Doc())
		}
		return d.add(v)
	}
	switch v.T {
	case value.Document:
		return d.walk(value.Lookup(v.Doc(), path[0]), path[1:])
	case value.Array:
		return d.walkArray(v, path)
	}
	return nil
}

func (d *Values) walkArray(v value.Value, path []string) error {
	if value.IsIndex(path[0]) {
		if e := value.Lookup(v.Doc(), path[0]); !e.IsMissing() {
			if err := d.walk(e, path[1:]); err != nil {
				return err
			}
		}
	}
	for it := value.Walk(v.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return nil
		}
		if e.T == value.Document {
			if err := d.walk(e, path); err != nil {
				return err
			}
		}
	}
}

// add adds one value; it returns an error if the reply would be too large.
func (d *Values) add(v value.Value) error {
	if v.IsMissing() {
		return nil
	}
	d.key = value.AppendGroupKey(d.key[:0], v, d.coll)
	if _, dup := d.seen[string(d.key)]; dup {
		return nil
	}
	d.seen[string(d.key)] = struct{}{}
	v = v.Clone()
	d.out = append(d.out, v)
	// An element is its type, its name (the index and a zero) and its value.
	if d.size += 2 + len(strconv.Itoa(len(d.out))) + len(value.AppendPayload(d.key[:0], v)); d.size > maxSize {
		return mongoerr.New(17217, "distinct too big, 16mb cap")
	}
	return nil
}

// Sorted returns the values in order, as an array.
func (d *Values) Sorted() []byte {
	slices.SortStableFunc(d.out, func(a, b value.Value) int { return value.CompareCollated(a, b, d.coll) })
	return value.ArrayOf(d.out...)
}
