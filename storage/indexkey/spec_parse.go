package indexkey

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// ParseSpec reads a specification that was validated when it was created, as the catalog holds it.
func ParseSpec(raw []byte) (*Spec, error) {
	s := &Spec{Raw: raw}
	for it := value.Walk(raw); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		s.set(string(k), v)
	}
	s.parseFields()
	return s, nil
}

// set stores one option in the struct; options without a field in the struct are in Raw only.
func (s *Spec) set(name string, v value.Value) {
	switch name {
	case "name":
		s.Name = v.Str()
	case "key":
		s.KeyPattern = v.Doc()
	case "unique":
		s.Unique = v.Truthy()
	case "sparse":
		s.Sparse = v.Truthy()
	case "hidden":
		s.Hidden = v.Truthy()
	case "prepareUnique":
		s.PrepareUnique = v.Truthy()
	case "partialFilterExpression":
		s.PartialFilter = v.Doc()
	case "collation":
		s.Collation = v.Doc()
	case "wildcardProjection":
		s.WildcardProjection = v.Doc()
	case "expireAfterSeconds":
		s.ExpireAfterSeconds = v
	}
}

func (s *Spec) parseFields() {
	for path, v := range value.Elements(s.KeyPattern) {
		f := Field{Path: path, Kind: kindOf(path, v), Desc: v.T.Numeric() && v.AsFloat64() < 0}
		if f.Kind != BTree {
			s.Kind = f.Kind
		}
		s.Fields = append(s.Fields, f)
	}
	s.IsID = len(s.Fields) == 1 && s.Fields[0].Path == "_id" && s.Fields[0].Kind == BTree && !s.Fields[0].Desc
}

func kindOf(path string, v value.Value) Kind {
	if v.T == value.String {
		switch v.Str() {
		case "hashed":
			return Hashed
		case "text":
			return Text
		case "2dsphere":
			return Sphere
		case "2d":
			return Geo2D
		}
	}
	if isWildcard(path) {
		return Wildcard
	}
	return BTree
}

func isWildcard(path string) bool { return path == "$**" || strings.HasSuffix(path, ".$**") }
