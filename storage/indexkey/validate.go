package indexkey

import "github.com/shoaldb/shoal/query/value"

// ParseSpec reads a specification that was validated when it was created, as the catalog holds it.
func ParseSpec(raw []byte) (*Spec, error) {
	s := &Spec{Raw: raw, Name: value.Lookup(raw, "name").Str(), KeyPattern: value.Lookup(raw, "key").Doc()}
	for it := value.Walk(s.KeyPattern); ; {
		k, v, ok := it.Next()
		if !ok {
			return s, nil
		}
		s.Fields = append(s.Fields, Field{Path: string(k), Desc: v.AsFloat64() < 0})
	}
}
