package text

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Query is the operand of $text.
type Query struct {
	search   string
	language string // as given; "" for the index's own
	folding  folding

	index             *Index
	words, banned     []string // terms folded as the query requires
	terms             []string // terms in the form of the index
	phrases, unwanted []string
}

// ParseQuery reads the operand of $text.
func ParseQuery(v value.Value) (*Query, error) {
	if v.T != value.Document {
		return nil, mongoerr.New(mongoerr.BadValue, "$text expects an object")
	}
	q := &Query{}
	found := false
	for k, e := range value.Elements(v.Doc()) {
		want := value.String
		if k == "$caseSensitive" || k == "$diacriticSensitive" {
			want = value.Boolean
		}
		switch k {
		case "$search", "$language", "$caseSensitive", "$diacriticSensitive":
			if e.T != want {
				return nil, mongoerr.Newf(mongoerr.TypeMismatch, "%q had the wrong type. Expected %s, found %s", k, want.Name(), e.T.Name())
			}
		default:
			return nil, mongoerr.New(mongoerr.BadValue, "extra fields in $text")
		}
		switch k {
		case "$search":
			q.search, found = e.Str(), true
		case "$language":
			q.language = e.Str()
		case "$caseSensitive":
			q.folding.cases = e.Bool()
		case "$diacriticSensitive":
			q.folding.diacritics = e.Bool()
		}
	}
	if !found {
		return nil, mongoerr.New(mongoerr.NoSuchKey, "Missing expected field \"$search\"")
	}
	if q.language != "" && languageOf(q.language) == nil {
		return nil, mongoerr.Newf(mongoerr.BadValue, "unsupported language: %q for text index version 3", q.language)
	}
	return q, nil
}

// Bind sets the index that the query runs on.
func (q *Query) Bind(x *Index) {
	q.index = x
	l := x.language
	if q.language != "" {
		l = languageOf(q.language)
	}
	q.words, q.banned, q.terms, q.phrases, q.unwanted = nil, nil, nil, nil, nil
	rest := q.search
	negated, fresh := false, true // fresh: at the start or after a space, where a dash negates
	for rest != "" {
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case r == '"':
			phrase, after, closed := strings.Cut(rest[1:], `"`)
			if !closed {
				phrase, after = rest[1:], ""
			}
			q.addPhrase(l, phrase, negated)
			rest, negated, fresh = after, false, true
			continue
		case r == '-' && fresh:
			negated = true
		case inWord(r):
			end := strings.IndexFunc(rest, func(r rune) bool { return !inWord(r) })
			if end < 0 {
				end = len(rest)
			}
			q.addWord(l, strings.Trim(rest[:end], "'"), negated)
			rest, fresh = rest[end:], false
			continue
		case unicode.IsSpace(r):
			negated, fresh = false, true
		default:
			fresh = false
		}
		rest = rest[size:]
	}
	slices.Sort(q.terms)
	q.terms = slices.Compact(q.terms)
}

func (q *Query) addPhrase(l *language, phrase string, negated bool) {
	if phrase = q.folding.apply(phrase); negated {
		q.unwanted = append(q.unwanted, phrase)
		return
	}
	q.phrases = append(q.phrases, phrase)
	words(phrase, func(w string) { q.addWord(l, w, false) })
}

func (q *Query) addWord(l *language, word string, negated bool) {
	w, ok := l.term(word, q.folding)
	if !ok || word == "" {
		return
	}
	if negated {
		q.banned = append(q.banned, w)
		return
	}
	q.words = append(q.words, w)
	t, _ := l.term(word, folding{})
	q.terms = append(q.terms, t)
}

// Terms returns the index keys that lead to possible results; none if the query can match nothing.
func (q *Query) Terms() []string { return q.terms }

// Score reports whether a document is a result, and its score.
func (q *Query) Score(doc []byte) (score float64, ok bool) {
	if q.index == nil || len(q.terms) == 0 {
		return 0, false
	}
	scores := q.index.Scores(doc)
	for _, t := range q.terms {
		score += scores[t]
	}
	if score == 0 {
		return 0, false
	}
	return score, q.exact(doc)
}

// exact checks what the index alone cannot decide: phrases, words that must not occur, and case and diacritics.
func (q *Query) exact(doc []byte) bool {
	hit := q.folding == folding{}
	if hit && len(q.banned)+len(q.phrases)+len(q.unwanted) == 0 {
		return true
	}
	found := make([]bool, len(q.phrases))
	bad := false
	q.index.each(doc, func(s string, _ float64, l *language) {
		words(s, func(w string) {
			t, ok := l.term(w, q.folding)
			hit = hit || ok && slices.Contains(q.words, t)
			bad = bad || ok && slices.Contains(q.banned, t)
		})
		folded := q.folding.apply(s)
		for i, p := range q.phrases {
			found[i] = found[i] || strings.Contains(folded, p)
		}
		for _, p := range q.unwanted {
			bad = bad || strings.Contains(folded, p)
		}
	})
	return hit && !bad && !slices.Contains(found, false)
}
