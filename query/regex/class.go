package regex

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// set is a set of characters as written in the pattern.
type set struct {
	ranges []rune // pairs; with fold they include their other cases, too
	subs   []*set // nested sets: of escapes and names, whose case is never ignored
	tables []*unicode.RangeTable
	neg    bool
	fold   bool
}

func (s *set) has(r rune) bool { return s.holds(r) != s.neg }

func (s *set) holds(r rune) bool {
	if s.listed(r) {
		return true
	}
	if s.fold && len(s.ranges) > 0 {
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			if s.listed(f) {
				return true
			}
		}
	}
	for _, t := range s.tables {
		if unicode.Is(t, r) {
			return true
		}
	}
	for _, sub := range s.subs {
		if sub.has(r) {
			return true
		}
	}
	return false
}

func (s *set) listed(r rune) bool {
	for i := 0; i < len(s.ranges); i += 2 {
		if r >= s.ranges[i] && r <= s.ranges[i+1] {
			return true
		}
	}
	return false
}

// others returns the set of the characters that are not in s.
func (s *set) others() *set { return &set{subs: []*set{s}, neg: true} }

// only returns the single character of the set, if it obviously has just one.
func (s *set) only() (rune, bool) {
	if s.neg || len(s.subs)+len(s.tables) > 0 || len(s.ranges) != 2 || s.ranges[0] != s.ranges[1] {
		return 0, false
	}
	r := s.ranges[0]
	return r, !s.fold || unicode.SimpleFold(r) == r
}

// narrow reports whether the set does not depend on characters beyond ASCII.
func (s *set) narrow() bool {
	for i := 0; i < len(s.ranges); i += 2 {
		if s.ranges[i+1] >= utf8.RuneSelf {
			return false
		}
		if s.fold && (s.listed('k') || s.listed('K') || s.listed('s') || s.listed('S')) {
			return false // the Kelvin sign and the long s are cases of these
		}
	}
	for _, sub := range s.subs {
		if sub.neg || !sub.narrow() {
			return false
		}
	}
	return len(s.tables) == 0
}

// byteSet is a set of bytes, which may also contain the end of the text.
type byteSet [5]uint64

func (b *byteSet) has(c byte) bool { return b[c>>6]>>(c&63)&1 != 0 }
func (b *byteSet) add(c byte)      { b[c>>6] |= 1 << (c & 63) }
func (b *byteSet) addEnd()         { b[4] = 1 }

// at reports whether the byte at a position is in the set; nil contains everything.
func (b *byteSet) at(s []byte, pos int) bool {
	if b == nil {
		return true
	}
	if pos < len(s) {
		return b.has(s[pos])
	}
	return b[4] != 0
}

func (b *byteSet) union(o *byteSet) *byteSet {
	u := *b
	for i := range u {
		u[i] |= o[i]
	}
	return &u
}

// both returns the intersection of two sets; nil contains everything.
func (b *byteSet) both(o *byteSet) *byteSet {
	if o == nil {
		return b
	}
	u := *b
	for i := range u {
		u[i] &= o[i]
	}
	return &u
}

func (b *byteSet) meets(o *byteSet) bool {
	for i := range b {
		if b[i]&o[i] != 0 {
			return true
		}
	}
	return false
}

// Which characters beyond ASCII are in a class.
const (
	wideAsk uint8 = iota // ask the set
	wideAll
	wideNone
)

// class is a set in the form that the machine uses: ASCII as bits.
type class struct {
	ascii byteSet
	wide  uint8
	stop  int // the only ASCII character that is not in it, if all others are; else -1
	set   *set
}

func newClass(s *set) *class {
	c := &class{set: s, stop: -1}
	missing := 0
	for r := range rune(utf8.RuneSelf) {
		if s.has(r) {
			c.ascii.add(byte(r))
		} else {
			missing, c.stop = missing+1, int(r)
		}
	}
	if s.narrow() {
		if c.wide = wideNone; s.neg {
			c.wide = wideAll
		}
	} else if len(s.ranges) == 2 && s.ranges[0] == 0 && s.ranges[1] == utf8.MaxRune && !s.neg {
		c.wide = wideAll
	}
	if missing != 1 || c.wide != wideAll {
		c.stop = -1
	}
	return c
}

// all reports whether every character is in the class.
func (c *class) all() bool { return c.wide == wideAll && c.ascii == asciiAll }

var asciiAll = byteSet{^uint64(0), ^uint64(0)}

// first returns the set of first bytes of the class's characters.
func (c *class) first() *byteSet {
	b := c.ascii
	if r, ok := c.set.only(); ok && r >= utf8.RuneSelf {
		b.add(string(r)[0])
	} else if c.wide != wideNone {
		b[2], b[3] = ^uint64(0), ^uint64(0)
	}
	return &b
}

func (c *class) hasWide(r rune) bool {
	return c.wide == wideAll || c.wide == wideAsk && c.set.has(r)
}

// step returns the end of the character of the class that begins at pos; -1 if there is none.
func (c *class) step(s []byte, pos int) int {
	if pos >= len(s) {
		return -1
	}
	if b := s[pos]; b < utf8.RuneSelf {
		if !c.ascii.has(b) {
			return -1
		}
		return pos + 1
	}
	if c.wide == wideNone {
		return -1
	}
	r, n := utf8.DecodeRune(s[pos:])
	if c.wide != wideAll && !c.set.has(r) {
		return -1
	}
	return pos + n
}

// classSets are the sets of class escapes, ASCII's and Unicode's.
var classSets = map[byte][2]*set{
	'd': {{ranges: []rune{'0', '9'}}, {tables: []*unicode.RangeTable{unicode.Nd}}},
	'w': {{ranges: []rune{'0', '9', 'A', 'Z', 'a', 'z', '_', '_'}}, {ranges: []rune{'_', '_'}, tables: []*unicode.RangeTable{unicode.L, unicode.N}}},
	's': {{ranges: []rune{'\t', '\r', ' ', ' '}}, unicodeSpace},
	'h': {{ranges: hRanges}, {ranges: hRanges}},
	'v': {{ranges: vRanges}, {ranges: vRanges}},
}

var unicodeSpace = &set{ranges: append(append([]rune{}, hRanges...), vRanges...)}

var (
	hRanges = []rune{'\t', '\t', ' ', ' ', 0xA0, 0xA0, 0x1680, 0x1680, 0x180E, 0x180E, 0x2000, 0x200A, 0x202F, 0x202F, 0x205F, 0x205F, 0x3000, 0x3000}
	vRanges = []rune{'\n', '\r', 0x85, 0x85, 0x2028, 0x2029}
	xdigits = []rune{'0', '9', 'A', 'F', 'a', 'f'}
)

var wordClasses = [2]*class{newClass(classSets['w'][0]), newClass(classSets['w'][1])}

var posixSets = map[string][2]*set{
	"alpha": {{ranges: []rune{'A', 'Z', 'a', 'z'}}, {tables: []*unicode.RangeTable{unicode.L}}},
	"digit": classSets['d'], "word": classSets['w'], "space": classSets['s'],
	"alnum":  {{ranges: []rune{'0', '9', 'A', 'Z', 'a', 'z'}}, {tables: []*unicode.RangeTable{unicode.L, unicode.N}}},
	"upper":  {{ranges: []rune{'A', 'Z'}}, {tables: []*unicode.RangeTable{unicode.Lu}}},
	"lower":  {{ranges: []rune{'a', 'z'}}, {tables: []*unicode.RangeTable{unicode.Ll}}},
	"blank":  {{ranges: []rune{'\t', '\t', ' ', ' '}}, {ranges: hRanges}},
	"punct":  {{ranges: []rune{'!', '/', ':', '@', '[', '`', '{', '~'}}, unicodePunct},
	"xdigit": {{ranges: xdigits}, {ranges: xdigits}},
	"cntrl":  {{ranges: []rune{0, 0x1F, 0x7F, 0x7F}}, {tables: []*unicode.RangeTable{unicode.Cc}}},
	"print":  {{ranges: []rune{' ', '~'}}, unicodePrint},
	"graph":  {{ranges: []rune{'!', '~'}}, unicodeGraph},
	"ascii":  {{ranges: []rune{0, 0x7F}}, {ranges: []rune{0, 0x7F}}},
}

// With (*UCP), punctuation is Unicode's, and ASCII's symbols; printing characters are neither control characters nor
// unassigned, except for invisible format characters.
var (
	unicodePunct = &set{ranges: []rune{'$', '$', '+', '+', '<', '>', '^', '^', '`', '`', '|', '|', '~', '~'}, tables: []*unicode.RangeTable{unicode.P}}
	unprinted    = &set{tables: []*unicode.RangeTable{unicode.Cc, unicode.Cs, unicode.Cn}, ranges: []rune{0x61C, 0x61C, 0x180E, 0x180E, 0x2066, 0x2069}}
	unicodePrint = &set{neg: true, subs: []*set{unprinted, {ranges: []rune{0x2028, 0x2029}}}}
	unicodeGraph = &set{neg: true, subs: []*set{unprinted, {tables: []*unicode.RangeTable{unicode.Z}}}}
)

// properties are the names for \p{…}, without case, blanks, hyphens and underscores.
var properties = sync.OnceValue(func() map[string]*set {
	known := map[string]*set{
		"any": {ranges: []rune{0, utf8.MaxRune}}, "l&": {tables: []*unicode.RangeTable{unicode.LC}}, "ascii": posixSets["ascii"][0],
		"xan": posixSets["alnum"][1], "xwd": classSets['w'][1], "xsp": unicodeSpace, "xps": unicodeSpace,
		"xuc": {ranges: []rune{'$', '$', '@', '@', '`', '`', 0xA0, 0xD7FF, 0xE000, utf8.MaxRune}},
	}
	union := func(name string, tables ...*unicode.RangeTable) { known[name] = &set{tables: tables} }
	for name, t := range unicode.Properties {
		union(looseName(name), t)
	}
	union("alphabetic", unicode.L, unicode.Nl, unicode.Other_Alphabetic)
	union("lowercase", unicode.Ll, unicode.Other_Lowercase)
	union("uppercase", unicode.Lu, unicode.Other_Uppercase)
	union("math", unicode.Sm, unicode.Other_Math)
	union("idstart", unicode.L, unicode.Nl, unicode.Other_ID_Start)
	for short, long := range map[string]string{"alpha": "alphabetic", "lower": "lowercase", "upper": "uppercase", "ids": "idstart", "wspace": "whitespace"} {
		known[short] = known[long]
	}
	for name, t := range unicode.Scripts {
		union(looseName(name), t)
	}
	for code, name := range scriptCodes {
		union(code, unicode.Scripts[name])
	}
	for name, t := range unicode.Categories {
		union(looseName(name), t)
	}
	return known
})

// scriptCodes are the short names of common scripts.
var scriptCodes = map[string]string{
	"arab": "Arabic", "armn": "Armenian", "beng": "Bengali", "bopo": "Bopomofo", "cyrl": "Cyrillic", "deva": "Devanagari", "ethi": "Ethiopic",
	"geor": "Georgian", "grek": "Greek", "gujr": "Gujarati", "guru": "Gurmukhi", "hang": "Hangul", "hani": "Han", "hebr": "Hebrew",
	"hira": "Hiragana", "kana": "Katakana", "khmr": "Khmer", "knda": "Kannada", "laoo": "Lao", "latn": "Latin", "mlym": "Malayalam",
	"mong": "Mongolian", "mymr": "Myanmar", "orya": "Oriya", "sinh": "Sinhala", "syrc": "Syriac", "taml": "Tamil", "telu": "Telugu",
	"thai": "Thai", "tibt": "Tibetan", "zyyy": "Common", "zinh": "Inherited",
}

// looseName returns a name in the form for comparison.
func looseName(name string) string {
	return strings.ToLower(strings.Map(func(r rune) rune {
		if r == ' ' || r == '_' || r == '-' {
			return -1
		}
		return r
	}, name))
}

// property returns the set of a \p{name}, nil if the name is unknown.
func property(name string) *set {
	name = looseName(name)
	if kind, script, ok := strings.Cut(strings.ReplaceAll(name, "=", ":"), ":"); ok {
		switch kind {
		case "sc", "script", "scx", "scriptextensions":
			if long := scriptCodes[script]; long != "" {
				script = looseName(long)
			}
			for full, t := range unicode.Scripts {
				if looseName(full) == script {
					return &set{tables: []*unicode.RangeTable{t}}
				}
			}
		}
		return nil
	}
	return properties()[name]
}
