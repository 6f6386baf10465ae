package indexkey

import (
	"bytes"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// MaxIndexes is the largest number of indexes of a collection, that on _id included.
const MaxIndexes = 64

// Conflict compares a normalised specification with the existing indexes. exists reports that the same index
// already exists, so that nothing need be done.
func Conflict(want *Spec, have []*Spec) (exists bool, err error) {
	if want.Kind == Text {
		for _, h := range have {
			if h.Kind == Text {
				if h.Name == want.Name && sameSignature(want, h) && sameOptions(want, h) {
					return true, nil
				}
				return false, mongoerr.Newf(mongoerr.IndexOptionsConflict,
					"An equivalent index already exists with a different name and options. Requested index: %s, existing index: %s",
					want.catalogued(), h.catalogued())
			}
		}
	}
	for _, h := range have {
		if h.Name == want.Name {
			return sameName(want, h)
		}
	}
	for _, h := range have {
		if !sameSignature(want, h) {
			continue
		}
		if want.IsID {
			return true, nil
		}
		if sameOptions(want, h) {
			return false, mongoerr.Newf(mongoerr.IndexOptionsConflict, "Index already exists with a different name: %s", h.Name)
		}
		return false, mongoerr.Newf(mongoerr.IndexOptionsConflict,
			"An equivalent index already exists with a different name and options. Requested index: %s, existing index: %s",
			want.catalogued(), h.catalogued())
	}
	if len(have) >= MaxIndexes {
		return false, cannot("add index fails, too many indexes. Limit: %d", MaxIndexes)
	}
	return false, nil
}

func sameName(want, h *Spec) (exists bool, err error) {
	switch {
	case !sameSignature(want, h):
		return false, mongoerr.Newf(mongoerr.IndexKeySpecsConflict,
			"An existing index has the same name as the requested index. When index names are not specified, they are auto generated "+
				"and can cause conflicts. Please refer to our documentation. Requested index: %s, existing index: %s",
			want.catalogued(), h.catalogued())
	case !sameOptions(want, h):
		return false, mongoerr.Newf(mongoerr.IndexOptionsConflict,
			"An equivalent index already exists with the same name but different options. Requested index: %s, existing index: %s",
			want.catalogued(), h.catalogued())
	}
	return true, nil
}

// sameSignature compares the options that identify an index: two indexes with the same signature cannot coexist.
func sameSignature(a, b *Spec) bool {
	return SameKey(a.KeyPattern, b.KeyPattern) && bytes.Equal(a.Collation, b.Collation) && sameFilter(a.PartialFilter, b.PartialFilter) &&
		bytes.Equal(a.WildcardProjection, b.WildcardProjection) && a.Unique == b.Unique && a.Sparse == b.Sparse
}

// sameFilter compares filters after they are put in order: {a: 1, b: 2} and {$and: [{b: 2}, {a: 1}]} are the same.
func sameFilter(a, b []byte) bool {
	if a == nil || b == nil || bytes.Equal(a, b) {
		return bytes.Equal(a, b)
	}
	ma, err := match.Compile(a, &match.Options{})
	if err != nil {
		return false
	}
	mb, err := match.Compile(b, &match.Options{})
	return err == nil && bytes.Equal(ma.Serialize(), mb.Serialize())
}

// SameKey compares stored key patterns: {a: 1} and {a: 1.0} are the same.
func SameKey(a, b []byte) bool { return value.CompareDocs(a, b, nil) == 0 }

// signature lists the options that sameSignature compares, and those that make no difference.
var signature = map[string]bool{"key": true, "name": true, "v": true, "collation": true, "partialFilterExpression": true, "wildcardProjection": true,
	"unique": true, "sparse": true, "background": true}

func sameOptions(a, b *Spec) bool {
	covers := func(a, b []byte) bool {
		for k, v := range value.Elements(a) {
			w := value.Lookup(b, k)
			if signature[k] || k == "originalSpec" && w.IsMissing() {
				continue // the index that time series create on their own has no client specification
			}
			if !value.Equal(v, w) {
				return false
			}
		}
		return true
	}
	return covers(a.Raw, b.Raw) && covers(b.Raw, a.Raw)
}

// catalogued shows a specification in the order in which messages about conflicts have it: `unique` comes before the key,
// all other options come after the name.
func (s *Spec) catalogued() string {
	var first, rest []value.Field
	for k, v := range value.Elements(s.Raw) {
		if f := value.F(k, v); k == "v" || k == "unique" {
			first = append(first, f)
		} else {
			rest = append(rest, f)
		}
	}
	return bsontext.Doc(value.Doc(append(first, rest...)...))
}
