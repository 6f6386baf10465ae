package text

import (
	"strings"
	"unicode"

	"github.com/blevesearch/snowballstem"
	"github.com/blevesearch/snowballstem/danish"
	"github.com/blevesearch/snowballstem/dutch"
	"github.com/blevesearch/snowballstem/english"
	"github.com/blevesearch/snowballstem/finnish"
	"github.com/blevesearch/snowballstem/french"
	"github.com/blevesearch/snowballstem/german"
	"github.com/blevesearch/snowballstem/hungarian"
	"github.com/blevesearch/snowballstem/italian"
	"github.com/blevesearch/snowballstem/norwegian"
	"github.com/blevesearch/snowballstem/portuguese"
	"github.com/blevesearch/snowballstem/romanian"
	"github.com/blevesearch/snowballstem/russian"
	"github.com/blevesearch/snowballstem/spanish"
	"github.com/blevesearch/snowballstem/swedish"
	"github.com/blevesearch/snowballstem/turkish"
	"golang.org/x/text/unicode/norm"
)

// language determines how words are reduced.
type language struct {
	stem func(*snowballstem.Env) bool // nil: not at all
	stop map[string]bool
}

var languages = map[string]*language{
	"none": {}, "danish": {stem: danish.Stem}, "dutch": {stem: dutch.Stem}, "english": {stem: english.Stem, stop: englishStop},
	"finnish": {stem: finnish.Stem}, "french": {stem: french.Stem}, "german": {stem: german.Stem}, "hungarian": {stem: hungarian.Stem},
	"italian": {stem: italian.Stem}, "norwegian": {stem: norwegian.Stem}, "portuguese": {stem: portuguese.Stem},
	"romanian": {stem: romanian.Stem}, "russian": {stem: russian.Stem}, "spanish": {stem: spanish.Stem}, "swedish": {stem: swedish.Stem},
	"turkish": {stem: turkish.Stem},
}

var codes = map[string]string{"da": "danish", "nl": "dutch", "en": "english", "fi": "finnish", "fr": "french", "de": "german", "hu": "hungarian",
	"it": "italian", "nb": "norwegian", "pt": "portuguese", "ro": "romanian", "ru": "russian", "es": "spanish", "sv": "swedish", "tr": "turkish"}

// languageOf finds a language by its name or code; nil if it is unknown.
func languageOf(name string) *language {
	name = strings.ToLower(name)
	if full, ok := codes[name]; ok {
		name = full
	}
	return languages[name]
}

var englishStop = set(`a about above after again against all am an and any are aren't as at be because been before being below between both
	but by can't cannot could couldn't did didn't do does doesn't doing don't down during each few for from further had hadn't has hasn't
	have haven't having he he'd he'll he's her here here's hers herself him himself his how how's i i'd i'll i'm i've if in into is isn't
	it it's its itself let's me more most mustn't my myself no nor not of off on once only or other ought our ours ourselves out over own
	same shan't she she'd she'll she's should shouldn't so some such than that that's the their theirs them themselves then there there's
	these they they'd they'll they're they've this those through to too under until up very was wasn't we we'd we'll we're we've were
	weren't what what's when when's where where's which while who who's whom why why's with won't would wouldn't you you'd you'll you're
	you've your yours yourself yourselves`)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}

// inWord reports whether a character belongs to a word.
func inWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) || r == '_' || r == '\''
}

// words splits a string at everything that does not belong to a word.
func words(s string, f func(word string)) {
	for _, w := range strings.FieldsFunc(s, func(r rune) bool { return !inWord(r) }) {
		if w = strings.Trim(w, "'"); w != "" {
			f(w)
		}
	}
}

// folding says which differences between characters count.
type folding struct{ cases, diacritics bool }

func (f folding) apply(s string) string {
	if !f.cases {
		s = strings.ToLower(s)
	}
	if f.diacritics || isASCII(s) {
		return s
	}
	return norm.NFC.String(strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) {
			return -1
		}
		return r
	}, norm.NFD.String(s)))
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// term reduces a word; ok is false for a stop word.
func (l *language) term(word string, f folding) (term string, ok bool) {
	if l.stop[strings.ToLower(word)] {
		return "", false
	}
	if l.stem == nil {
		return f.apply(word), true
	}
	if !f.cases {
		word = strings.ToLower(word)
	}
	env := snowballstem.NewEnv(word)
	l.stem(env)
	return f.apply(env.Current()), true
}
