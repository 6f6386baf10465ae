package text

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// Index determines which terms of documents a text index has.
type Index struct {
	weights  map[string]float64 // by path
	all      float64            // weight of every other string; 0: they are not indexed
	language *language
	override string // the field that names a document's own language
}

// NewIndex reads a stored index specification.
func NewIndex(spec []byte) *Index {
	x := &Index{weights: map[string]float64{}, language: languages["english"], override: "language"}
	for path, w := range value.Elements(value.Lookup(spec, "weights").Doc()) {
		if path == "$**" {
			x.all = w.AsFloat64()
			continue
		}
		x.weights[path] = w.AsFloat64()
	}
	if v := value.Lookup(spec, "default_language"); v.T == value.String {
		if l := languageOf(v.Str()); l != nil {
			x.language = l
		}
	}
	if v := value.Lookup(spec, "language_override"); v.T == value.String {
		x.override = v.Str()
	}
	return x
}

// each calls f for every string of a document that the index covers, with its weight and language.
func (x *Index) each(doc []byte, f func(s string, weight float64, l *language)) {
	x.walk(doc, "", x.language, f)
}

func (x *Index) walk(doc []byte, prefix string, l *language, f func(string, float64, *language)) {
	if v := value.Lookup(doc, x.override); v.T == value.String {
		if own := languageOf(v.Str()); own != nil {
			l = own
		}
	}
	for k, v := range value.Elements(doc) {
		x.visit(prefix+k, v, l, f)
	}
}

func (x *Index) visit(path string, v value.Value, l *language, f func(string, float64, *language)) {
	switch v.T {
	case value.String:
		w, ok := x.weights[path]
		if !ok {
			w = x.all
		}
		if w > 0 {
			f(v.Str(), w, l)
		}
	case value.Document:
		if x.below(path) {
			x.walk(v.Doc(), path+".", l, f)
		}
	case value.Array:
		for _, e := range value.Values(v.Doc()) {
			if e.T != value.Array {
				x.visit(path, e, l, f)
			}
		}
	}
}

// below reports whether any indexed path continues this one.
func (x *Index) below(path string) bool {
	if x.all > 0 {
		return true
	}
	for p := range x.weights {
		if strings.HasPrefix(p, path) && len(p) > len(path) && p[len(path)] == '.' {
			return true
		}
	}
	return false
}

// tally counts the occurrences of a term in one string.
type tally struct{ share, freq, count float64 }

// Scores returns a document's terms. A term's score grows with its occurrences and with its share of the string;
// each further occurrence in a string counts half of the previous one.
func (x *Index) Scores(doc []byte) map[string]float64 {
	out := map[string]float64{}
	x.each(doc, func(s string, weight float64, l *language) {
		seen := map[string]*tally{}
		total := 0.0
		words(s, func(w string) {
			term, ok := l.term(w, folding{})
			if !ok {
				return
			}
			t := seen[term]
			if t == nil {
				t = &tally{share: 1}
				seen[term] = t
			}
			t.freq += t.share
			t.share /= 2
			t.count++
			total++
		})
		for term, t := range seen {
			score := weight * t.freq * (0.5*t.count/total + 0.5)
			if strings.EqualFold(s, term) {
				score *= 1.1
			}
			out[term] += score
		}
	})
	return out
}
