package regex

import (
	"unicode"
	"unicode/utf8"
)

// kind says what a node of a pattern matches.
type kind uint8

const (
	kEmpty   kind = iota
	kSet          // one character of a set
	kSeq          // its parts in order
	kAlt          // one of its parts
	kGroup        // its part, whose place is remembered as group num
	kRepeat       // its part, min to max times
	kAtomic       // its part, without going back into it
	kLook         // its part is there: ahead, or behind the place; neg: is not there
	kBack         // the text of group num again
	kCall         // group num's pattern again; 0 is the whole
	kCond         // parts[0] where the condition holds, else parts[1]
	kAssert       // what op says of the place
	kKeep         // \K: what is reported begins here
	kVerb         // op: accept, fail, commit, prune, skip, then
	kCluster      // \X: a character and the marks on it
)

// node is a part of a pattern.
type node struct {
	kind     kind
	parts    []*node
	set      *set
	num      int
	name     string // of a group that is looked up when all are known
	min, max int    // of a repetition; max < 0: any number
	lazy     bool
	neg      bool
	behind   bool
	fold     bool // back-references: whatever the case
	op       byte
	alt      int // (*THEN): the alternation it goes on in, 0 for none; alternations: their number
	cond     condition
}

// condition is what a conditional group asks.
type condition struct {
	kind byte // 'n' group num is set, 'r' inside a call of group num (-1: of any), 'd' never, 'a' the assertion
	num  int
	name string
	look *node
}

// set is a set of characters.
type set struct {
	ranges []rune // pairs
	not    []*set // characters outside of these belong to it
	tables []*unicode.RangeTable
	neg    bool
	fold   bool
}

func (s *set) has(r rune) bool {
	if s.holds(r) {
		return !s.neg
	}
	if s.fold {
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			if s.holds(f) {
				return !s.neg
			}
		}
	}
	return s.neg
}

func (s *set) holds(r rune) bool {
	for i := 0; i < len(s.ranges); i += 2 {
		if r >= s.ranges[i] && r <= s.ranges[i+1] {
			return true
		}
	}
	for _, t := range s.tables {
		if unicode.Is(t, r) {
			return true
		}
	}
	for _, n := range s.not {
		if !n.holds(r) {
			return true
		}
	}
	return false
}

func (s *set) add(o *set) {
	s.ranges, s.tables, s.not = append(s.ranges, o.ranges...), append(s.tables, o.tables...), append(s.not, o.not...)
}

// classSets are the sets of class escapes, ASCII's and Unicode's.
var classSets = map[byte][2]*set{
	'd': {{ranges: []rune{'0', '9'}}, {tables: []*unicode.RangeTable{unicode.Nd}}},
	'w': {{ranges: []rune{'0', '9', 'A', 'Z', 'a', 'z', '_', '_'}}, {ranges: []rune{'_', '_'}, tables: []*unicode.RangeTable{unicode.L, unicode.N}}},
	's': {{ranges: []rune{'\t', '\r', ' ', ' '}}, {ranges: append(append([]rune{}, hRanges...), vRanges...)}},
	'h': {{ranges: hRanges}, {ranges: hRanges}},
	'v': {{ranges: vRanges}, {ranges: vRanges}},
}

var (
	hRanges = []rune{'\t', '\t', ' ', ' ', 0xA0, 0xA0, 0x1680, 0x1680, 0x180E, 0x180E, 0x2000, 0x200A, 0x202F, 0x202F, 0x205F, 0x205F, 0x3000, 0x3000}
	vRanges = []rune{'\n', '\r', 0x85, 0x85, 0x2028, 0x2029}
)

var posixSets = map[string][2]*set{
	"alpha": {{ranges: []rune{'A', 'Z', 'a', 'z'}}, {tables: []*unicode.RangeTable{unicode.L}}},
	"digit": classSets['d'], "word": classSets['w'], "space": classSets['s'],
	"alnum":  {{ranges: []rune{'0', '9', 'A', 'Z', 'a', 'z'}}, {tables: []*unicode.RangeTable{unicode.L, unicode.N}}},
	"upper":  {{ranges: []rune{'A', 'Z'}}, {tables: []*unicode.RangeTable{unicode.Lu}}},
	"lower":  {{ranges: []rune{'a', 'z'}}, {tables: []*unicode.RangeTable{unicode.Ll}}},
	"blank":  {{ranges: []rune{'\t', '\t', ' ', ' '}}, {ranges: hRanges}},
	"punct":  {{ranges: punctRanges}, {ranges: punctRanges, tables: []*unicode.RangeTable{unicode.P}}},
	"xdigit": {{ranges: xdigits}, {ranges: xdigits}},
	"cntrl":  {{ranges: []rune{0, 0x1F, 0x7F, 0x7F}}, {tables: []*unicode.RangeTable{unicode.Cc}}},
	"print":  {{ranges: []rune{' ', '~'}}, {not: []*set{{tables: []*unicode.RangeTable{unicode.C}}}}},
	"graph":  {{ranges: []rune{'!', '~'}}, {not: []*set{{tables: []*unicode.RangeTable{unicode.C, unicode.Z}}}}},
	"ascii":  {{ranges: []rune{0, 0x7F}}, {ranges: []rune{0, 0x7F}}},
}

var (
	punctRanges = []rune{'!', '/', ':', '@', '[', '`', '{', '~'}
	xdigits     = []rune{'0', '9', 'A', 'F', 'a', 'f'}
)

// property is the set of a \p{name}.
func property(name string) *set {
	switch name {
	case "Any":
		return &set{ranges: []rune{0, utf8.MaxRune}}
	case "L&":
		return &set{tables: []*unicode.RangeTable{unicode.Lu, unicode.Ll, unicode.Lt}}
	case "Xan":
		return posixSets["alnum"][1]
	case "Xwd":
		return classSets['w'][1]
	case "Xsp", "Xps":
		return classSets['s'][1]
	}
	if t := unicode.Categories[name]; t != nil {
		return &set{tables: []*unicode.RangeTable{t}}
	}
	if t := unicode.Scripts[name]; t != nil {
		return &set{tables: []*unicode.RangeTable{t}}
	}
	return nil
}

// width is how many characters a node always takes; ok is false where that varies.
func (n *node) width(p *treeParser, depth int) (w int, ok bool) {
	if depth > 50 {
		return 0, false
	}
	switch n.kind {
	case kSet:
		return 1, true
	case kSeq:
		for _, c := range n.parts {
			cw, ok := c.width(p, depth+1)
			if !ok {
				return 0, false
			}
			w += cw
		}
		return w, true
	case kAlt:
		for i, c := range n.parts {
			cw, ok := c.width(p, depth+1)
			if !ok || i > 0 && cw != w {
				return 0, false
			}
			w = cw
		}
		return w, true
	case kGroup, kAtomic:
		return n.parts[0].width(p, depth+1)
	case kRepeat:
		cw, ok := n.parts[0].width(p, depth+1)
		return cw * n.min, ok && n.min == n.max
	case kBack, kCond, kCluster:
		return 0, false
	case kCall:
		if n.num <= 0 || p.groups[n.num] == nil {
			return 0, false
		}
		return p.groups[n.num].parts[0].width(p, depth+1)
	}
	return 0, true
}
