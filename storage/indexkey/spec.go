package indexkey

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/keystring"
)

// Kind is the kind of index that a key pattern defines.
type Kind uint8

// The kinds of index. A compound index is of the kind of its one special field.
const (
	BTree Kind = iota
	Hashed
	Wildcard
	Text
	Sphere
	Geo2D
)

// Field is one field of a key pattern.
type Field struct {
	Path string
	Desc bool
	Kind Kind
}

// Spec is a valid, normalised index specification.
type Spec struct {
	Name       string
	KeyPattern []byte // as the client wrote it
	Fields     []Field
	Kind       Kind
	Unique     bool
	Sparse     bool
	Hidden     bool
	IsID       bool // {_id: 1}

	PrepareUnique      bool
	PartialFilter      []byte      // nil if there is none
	Collation          []byte      // the complete collation document, nil for simple
	WildcardProjection []byte      // nil if there is none
	ExpireAfterSeconds value.Value // Missing if there is none
	Raw                []byte      // the whole normalised specification, as listIndexes shows it
}

// Ordering returns the directions of the fields in the key; a wildcard field counts as two: path (ascending) and
// value.
func (s *Spec) Ordering() (o keystring.Ordering) {
	slot := 0
	for _, f := range s.Fields {
		if f.Kind == Wildcard {
			slot++
		}
		if f.Desc {
			o |= 1 << uint(slot)
		}
		slot++
	}
	return o
}

// KeyFields returns the number of fields in the key.
func (s *Spec) KeyFields() int {
	if s.Kind == Wildcard {
		return len(s.Fields) + 1
	}
	return len(s.Fields)
}

func (k Kind) String() string {
	switch k {
	case Hashed:
		return "hashed"
	case Wildcard:
		return "wildcard"
	case Text:
		return "text"
	case Sphere:
		return "2dsphere"
	case Geo2D:
		return "2d"
	}
	return "btree"
}
