package indexkey

import (
	"strings"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkWildcard checks the wildcardProjection and, in compound indexes, that no field is indexed twice.
func checkWildcard(s *Spec, _ []byte) error {
	if s.Kind != Wildcard {
		return nil
	}
	scope := WildcardScope(s)
	if p := s.WildcardProjection; p != nil {
		if value.Count(p) == 0 {
			return mongoerr.New(mongoerr.FailedToParse, "The 'wildcardProjection' field can't be an empty object")
		}
		if scope.prefix != "" {
			return mongoerr.New(mongoerr.FailedToParse,
				"The 'wildcardProjection' field is only allowed when the 'key' field contains the '$**' specifier alone")
		}
		if err := checkProjection(p); err != nil {
			return err
		}
	}
	if len(s.Fields) == 1 {
		return nil
	}
	for _, f := range s.Fields {
		if f.Kind == Wildcard {
			continue
		}
		if !scope.Covers(f.Path) && !scope.mayHold(f.Path) {
			continue
		}
		if s.WildcardProjection == nil {
			return cannot("Index key contains a field '%s' that the wildcard field covers, too: %s", f.Path, bsontext.Doc(s.KeyPattern))
		}
		return mongoerr.Newf(7246209, "The wildcardProjection must exclude all regular fields of a compound wildcard index, but not '%s'", f.Path)
	}
	return nil
}

// projected collects what a projection specifies for each path.
type projected struct {
	paths    []string
	includes bool
	known    bool // includes is decided
}

func checkProjection(doc []byte) error {
	var p projected
	return p.document(doc, "")
}

func (p *projected) document(doc []byte, prefix string) error {
	for k, v := range value.Elements(doc) {
		path := prefix + k
		switch {
		case v.T == value.Document && value.Count(v.Doc()) > 0:
			if err := p.document(v.Doc(), path+"."); err != nil {
				return err
			}
			continue
		case v.T != value.Boolean && !v.T.Numeric():
			return mongoerr.Newf(51271, "Bad projection specification, cannot use computed fields when parsing a spec in kBanComputedFields mode: %s",
				bsontext.Value(value.NewDocument(doc)))
		}
		if err := p.add(path, v.Truthy()); err != nil {
			return err
		}
	}
	return nil
}

func (p *projected) add(path string, include bool) error {
	for _, q := range p.paths {
		switch {
		case within(path, q):
			_, rest, _ := strings.Cut(path, ".")
			return mongoerr.Newf(31249, "Path collision at %s remaining portion %s", path, rest)
		case within(q, path):
			return mongoerr.Newf(31250, "Path collision at %s", path)
		}
	}
	p.paths = append(p.paths, path)
	if path == "_id" {
		return nil
	}
	if p.known && p.includes != include {
		if include {
			return mongoerr.Newf(31253, "Cannot do inclusion on field %s in exclusion projection", path)
		}
		return mongoerr.Newf(31254, "Cannot do exclusion on field %s in inclusion projection", path)
	}
	p.known, p.includes = true, include
	return nil
}
