package indexkey

import (
	fts "github.com/shoaldb/shoal/query/text"
	"github.com/shoaldb/shoal/query/value"
)

// textFields are the two fields that represent text in a key: a term and its score. A document has a key for each
// of its terms.
type textFields struct {
	term, score int // indexes of the fields
	index       *fts.Index
}

func newTextFields(spec *Spec) *textFields {
	if spec.Kind != Text {
		return nil
	}
	t := &textFields{term: -1, score: -1, index: fts.NewIndex(spec.Raw)}
	for i, f := range spec.Fields {
		switch {
		case f.Path == "_ftsx":
			t.score = i
		case f.Kind == Text && t.term < 0:
			t.term = i
		}
	}
	return t
}

func (t *textFields) has(i int) bool { return t != nil && (i == t.term || i == t.score) }

// read finds the terms of a document. A document without any has no keys.
func (t *textFields) read(doc []byte, s *KeySet) bool {
	s.terms = t.index.Scores(doc)
	return len(s.terms) > 0
}

// emit makes a key for each term.
func (t *textFields) emit(g *Generator, s *KeySet, at int) (err error) {
	if len(s.terms) > 1 {
		s.Multikey[t.term] |= 1
	}
	s.placing = true
	defer func() { s.placing = false }()
	for term, score := range s.terms {
		s.stack[at+t.term] = cursor{v: value.NewString(term), done: true}
		if t.score >= 0 {
			s.stack[at+t.score] = cursor{v: value.NewDouble(score), done: true}
		}
		if err = g.emit(s, at); err != nil {
			return err
		}
	}
	return nil
}
