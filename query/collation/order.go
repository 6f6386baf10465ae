package collation

import (
	"bytes"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/collate"
	"golang.org/x/text/language"
	"golang.org/x/text/unicode/norm"

	"github.com/shoaldb/shoal/query/value"
)

// ordering is a Collator.
type ordering struct {
	spec    Spec
	pool    sync.Pool // *weigher
	ascii   *asciiTable
	kana    bool // Japanese: hiragana and katakana differ at the quaternary level
	noSpace bool // shifted, and only white space is variable
	drops   bool // shifted, and variable characters are removed before weighing: x/text has no such groups, and then does not weigh numbers
}

// weigher is one of x/text's collators, which serve one goroutine at a time.
type weigher struct {
	c    *collate.Collator
	buf  collate.Buffer
	a, b []byte
}

var orderings sync.Map // Spec → *ordering

// Collator returns the order; nil for the simple collation. Equal specifications share one.
func (s *Spec) Collator() value.Collator {
	if s == nil {
		return nil
	}
	if posix(s.Locale) {
		return posixOrder{}
	}
	if o, ok := orderings.Load(*s); ok {
		return o.(*ordering)
	}
	o, _ := orderings.LoadOrStore(*s, newOrdering(*s))
	return o.(*ordering)
}

func newOrdering(s Spec) *ordering {
	o := &ordering{spec: s, noSpace: s.Alternate == "shifted" && s.MaxVariable == "space"}
	o.drops = o.noSpace || s.Alternate == "shifted" && s.NumericOrdering
	tag := o.tag()
	o.pool.New = func() any { return &weigher{c: collate.New(tag)} }
	lang, rest, variant, _ := splitLocale(s.Locale)
	o.kana = lang == "ja"
	if variant == "" && plainASCII[lang] && (len(rest) == 0 || lang == "en") {
		o.ascii = newASCIITable(o)
	}
	return o
}

// tag expresses the options that x/text supports as the locale's extension.
func (o *ordering) tag() language.Tag {
	t, err := language.Parse(bcp47(o.spec.Locale))
	if err != nil {
		t = language.Und
	}
	set := func(key, val string) {
		if u, err := t.SetTypeForKey(key, val); err == nil {
			t = u
		}
	}
	set("ks", [...]string{1: "level1", 2: "level2", 3: "level3", 4: "level4", 5: "level4"}[o.spec.Strength])
	if o.spec.NumericOrdering {
		set("kn", "true")
	}
	if o.spec.Backwards {
		set("kb", "true")
	}
	if o.spec.Alternate == "shifted" && !o.drops {
		set("ka", "shifted")
	}
	return t
}

// Compare orders two strings.
func (o *ordering) Compare(a, b []byte) int {
	if bytes.Equal(a, b) {
		return 0
	}
	if o.ascii != nil {
		if r, ok := o.ascii.compare(a, b); ok {
			return r
		}
	}
	w := o.pool.Get().(*weigher)
	w.a = o.appendKey(w, w.a[:0], a)
	w.b = o.appendKey(w, w.b[:0], b)
	r := bytes.Compare(w.a, w.b)
	o.pool.Put(w)
	return r
}

// Key appends the sort key of s.
func (o *ordering) Key(dst, s []byte) []byte {
	w := o.pool.Get().(*weigher)
	dst = o.appendKey(w, dst, s)
	o.pool.Put(w)
	return dst
}

// appendKey concatenates the levels: primary, secondary, case, tertiary, quaternary, identical.
func (o *ordering) appendKey(w *weigher, dst, s []byte) []byte {
	text := s
	if o.drops {
		text = o.dropVariable(s)
	}
	if o.spec.NumericOrdering {
		text = splitNumbers(text)
	}
	w.buf.Reset()
	key := w.c.Key(&w.buf, text)
	if o.spec.CaseLevel || o.spec.CaseFirst != "off" {
		cut := caseLevelAt(key, o.spec.Strength)
		dst = append(dst, key[:cut]...)
		dst = o.appendCase(append(dst, 0, 0), s)
		key = key[cut:]
	}
	dst = append(dst, key...)
	if o.drops && o.spec.Strength >= 4 {
		dst = o.appendVariableLevel(append(dst, 0, 0), s)
	}
	if o.kana && o.spec.Strength >= 4 {
		dst = appendKana(append(dst, 0, 0), s)
	}
	if o.spec.Strength == 5 {
		dst = append(norm.NFD.Append(append(dst, 0, 0), s...), 0)
	}
	return dst
}

// caseLevelAt finds the end of the secondary weights (of the primary ones, at strength 1) in x/text's key: primaries take
// two bytes, or three with the high bit set; secondaries take two; levels are separated by two zeros.
func caseLevelAt(key []byte, strength int) int {
	i := 0
	for i+1 < len(key) && (key[i] != 0 || key[i+1] != 0) {
		if key[i]&0x80 != 0 {
			i++
		}
		i += 2
	}
	if strength == 1 {
		return len(key)
	}
	for i += 2; i+1 < len(key) && (key[i] != 0 || key[i+1] != 0); {
		i += 2
	}
	return min(i, len(key))
}

// appendCase writes one byte for each letter or other character that is not a mark: its case, in the required order.
func (o *ordering) appendCase(dst, s []byte) []byte {
	lower, mixed, upper := byte(1), byte(2), byte(3)
	if o.spec.CaseFirst == "upper" {
		lower, upper = 3, 1
	}
	for _, r := range string(norm.NFKD.Bytes(s)) {
		switch {
		case unicode.Is(unicode.M, r), o.spec.Alternate == "shifted" && o.variable(r):
		case unicode.IsTitle(r):
			dst = append(dst, mixed)
		case unicode.IsUpper(r):
			dst = append(dst, upper)
		case r == 'ß':
			dst = append(dst, lower, lower)
		default:
			dst = append(dst, lower)
		}
	}
	return dst
}

// variable reports whether a character is ignored at the first levels when alternate is "shifted".
func (o *ordering) variable(r rune) bool {
	return isSpace(r) || !o.noSpace && (unicode.IsPunct(r) || unicode.Is(unicode.Z, r))
}

// isSpace distinguishes white space from punctuation; according to the rules, no-break spaces are punctuation.
func isSpace(r rune) bool {
	switch r {
	case 0xA0, 0x2007, 0x202F:
		return false
	}
	return unicode.IsSpace(r) || unicode.Is(unicode.Z, r)
}

func (o *ordering) dropVariable(s []byte) []byte {
	out := make([]byte, 0, len(s))
	for _, r := range string(s) {
		if !o.variable(r) {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

// appendVariableLevel appends the quaternary level of what dropVariable removes.
func (o *ordering) appendVariableLevel(dst, s []byte) []byte {
	for _, r := range string(s) {
		if o.variable(r) {
			dst = append(dst, byte(r>>8)+1, byte(r))
		} else {
			dst = append(dst, 0xFF)
		}
	}
	return dst
}

// appendKana writes the quaternary level of Japanese.
func appendKana(dst, s []byte) []byte {
	for _, r := range string(s) {
		switch {
		case unicode.Is(unicode.Hiragana, r):
			dst = append(dst, 1)
		case unicode.Is(unicode.Katakana, r):
			dst = append(dst, 2)
		default:
			dst = append(dst, 3)
		}
	}
	return dst
}

// longestNumber is the maximum number of digits that are read as one number.
const longestNumber = 254

// splitNumbers separates longer runs of digits by an ignorable character.
func splitNumbers(s []byte) []byte {
	var out []byte
	run, from := 0, 0
	for i, c := range s {
		if c < '0' || c > '9' {
			run = 0
			continue
		}
		if run++; run > longestNumber {
			out = append(append(out, s[from:i]...), 0)
			run, from = 1, i
		}
	}
	if from == 0 {
		return s
	}
	return append(out, s[from:]...)
}

// posixOrder is en_US_POSIX: the order of code points.
type posixOrder struct{}

func (posixOrder) Compare(a, b []byte) int  { return bytes.Compare(a, b) }
func (posixOrder) Key(dst, s []byte) []byte { return append(dst, s...) }
