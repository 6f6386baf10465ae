package regex

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// flags are the options in force at a position of a pattern.
type flags struct{ i, m, s, x, xx, n, ungreedy, dup bool }

// Limits of a pattern, as in PCRE.
const (
	maxParens = 250
	maxRepeat = 65535
	maxName   = 32
)

func syntax(reason string) error { return &SyntaxError{reason} }

var (
	errUnclosed  = syntax("missing closing parenthesis")
	errNoGroup   = syntax("reference to non-existent subpattern")
	errNoItem    = syntax("quantifier does not follow a repeatable item")
	errVerb      = syntax("(*VERB) not recognized or malformed")
	errNoClose   = syntax("missing terminating ] for character class")
	errBadRange  = syntax("invalid range in character class")
	errTooBig    = syntax("subpattern number is too big")
	errZeroAhead = syntax("a relative value of zero is not allowed")
)

// parser reads PCRE's syntax into a tree.
type parser struct {
	p      string
	i      int
	set    settings
	f      flags
	dot    *set    // of .
	quoted bool    // between \Q and \E
	groups []*node // by number; the first of those that share one
	names  map[string][]int
	titles map[int]string // names by number
	last   int            // the highest group number so far
	depth  int
	looks  int            // open look-arounds
	later  []func() error // checks to be made when all groups are known, in the pattern's order
	after  []func() error // checks to be made after those
	behind []*node        // look-behinds, whose widths are known only then
}

// tree is a parsed pattern.
type tree struct {
	root   *node
	groups []*node // by number; groups[0] is the whole
	set    settings
}

// parse reads a pattern without its leading settings.
func parse(p, options string, set settings) (*tree, error) {
	t := &parser{p: p, set: set, names: map[string][]int{}, titles: map[int]string{}, groups: []*node{nil}}
	for _, c := range options {
		t.f.set(c, true)
	}
	root, err := t.alternation()
	if err == nil && t.i < len(t.p) {
		err = syntax("unmatched closing parenthesis")
	}
	if err != nil {
		return nil, err
	}
	t.groups[0] = &node{kind: kGroup, parts: []*node{root}}
	for len(t.groups) <= t.last {
		t.groups = append(t.groups, nil)
	}
	if err := t.resolve(); err != nil {
		return nil, err
	}
	return &tree{root: root, groups: t.groups, set: set}, nil
}

func (f *flags) set(c rune, on bool) bool {
	switch c {
	case 'i':
		f.i = on
	case 'm':
		f.m = on
	case 's':
		f.s = on
	case 'x':
		f.x = on
	case 'n':
		f.n = on
	case 'U':
		f.ungreedy = on
	case 'J':
		f.dup = on
	default:
		return false
	}
	return true
}

// resolve computes the widths of look-behinds and the numbers of references.
func (t *parser) resolve() error {
	m := &widthOf{parser: t, asked: map[*node]bool{}}
	for _, l := range t.behind {
		for _, part := range l.parts {
			if hasByte(part) {
				return syntax(`\C is not allowed in a lookbehind assertion in UTF-8 mode`)
			}
			w, ok := m.of(part)
			switch {
			case m.err != nil:
				return m.err
			case m.work > maxWidthWork:
				return syntax("lookbehind is too complicated")
			case !ok:
				return syntax("lookbehind assertion is not fixed length")
			case w > maxLookbehind:
				return syntax("lookbehind assertion is too long")
			}
			l.widths = append(l.widths, w)
		}
	}
	for _, f := range append(t.later, t.after...) {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// find looks groups up by name or number.
func (t *parser) find(name string, num int) ([]int, error) {
	if name != "" {
		if nums := t.names[name]; len(nums) > 0 {
			return nums, nil
		}
		return nil, errNoGroup
	}
	if num > t.last {
		return nil, errNoGroup
	}
	return []int{num}, nil
}

// refers records a node that refers to a group.
func (t *parser) refers(n *node) *node {
	t.later = append(t.later, func() (err error) {
		if n.nums, err = t.find(n.name, n.num); err == nil {
			n.num = n.nums[0]
		}
		return err
	})
	return n
}

func (t *parser) resolveCondition(c *condition) (err error) {
	switch c.kind {
	case 'n':
		c.nums, err = t.find(c.name, c.num)
	case 'r':
		if c.name != "" { // "R1": a call of group 1, unless a group is called that
			if nums := t.names[c.name]; len(nums) > 0 {
				c.kind, c.nums = 'n', nums
				return nil
			}
			c.name = ""
		}
		if c.num > t.last {
			return errNoGroup
		}
	case '&':
		var nums []int
		if nums, err = t.find(c.name, 0); err == nil {
			c.kind, c.num = 'r', nums[0]
		}
	}
	return err
}

func hasByte(n *node) bool {
	if n.kind == kByte {
		return true
	}
	for _, p := range n.parts {
		if hasByte(p) {
			return true
		}
	}
	return false
}

func (t *parser) rest() string { return t.p[t.i:] }

// eat consumes a prefix of the rest, if it is there.
func (t *parser) eat(prefix string) bool {
	if !strings.HasPrefix(t.rest(), prefix) {
		return false
	}
	t.i += len(prefix)
	return true
}

// alternation reads up to a closing parenthesis or the end.
func (t *parser) alternation() (*node, error) {
	parts, err := t.branches(nil)
	if err != nil {
		return nil, err
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	return &node{kind: kAlt, parts: parts}, nil
}

// branches reads alternatives; before is called before each.
func (t *parser) branches(before func()) (parts []*node, err error) {
	if t.depth++; t.depth > maxParens+1 {
		return nil, syntax("parentheses are too deeply nested")
	}
	defer func(f flags) { t.f, t.depth = f, t.depth-1 }(t.f)
	for {
		if before != nil {
			before()
		}
		n, err := t.sequence()
		if err != nil {
			return nil, err
		}
		parts = append(parts, n)
		if t.i >= len(t.p) || t.p[t.i] != '|' {
			return parts, nil
		}
		t.i++
	}
}

func (t *parser) sequence() (*node, error) {
	var parts []*node
	for t.i < len(t.p) {
		if t.skips() {
			continue
		}
		if c := t.p[t.i]; !t.quoted && (c == '|' || c == ')') {
			break
		}
		n, repeatable, err := t.item()
		if err != nil {
			return nil, err
		}
		for t.skips() {
		}
		if n, err = t.quantified(n, repeatable); err != nil {
			return nil, err
		}
		if n != nil {
			parts = append(parts, n)
		}
	}
	switch len(parts) {
	case 0:
		return &node{kind: kEmpty}, nil
	case 1:
		return parts[0], nil
	}
	return &node{kind: kSeq, parts: parts}, nil
}

// skips skips comments, the beginnings and ends of quotations and, with x, blanks.
func (t *parser) skips() bool {
	r := t.rest()
	switch {
	case r == "":
	case t.quoted:
		if t.eat(`\E`) {
			t.quoted = false
			return true
		}
	case strings.HasPrefix(r, `\E`):
		t.i += 2
		return true
	case strings.HasPrefix(r, `\Q`):
		t.i += 2
		t.quoted = true
		return true
	case strings.HasPrefix(r, "(?#"):
		if end := strings.IndexByte(r, ')'); end >= 0 {
			t.i += end + 1
			return true
		}
	case !t.f.x:
	case r[0] == '#':
		t.i += t.commentLen(r)
		return true
	default:
		if n := blankLen(r); n > 0 {
			t.i += n
			return true
		}
	}
	return false
}

// blankLen returns the length of the blank that a pattern with x begins with, 0 for none.
func blankLen(s string) int {
	if strings.IndexByte(" \t\n\v\f\r", s[0]) >= 0 {
		return 1
	}
	switch r, n := utf8.DecodeRuneInString(s); r {
	case 0x85, 0x200E, 0x200F, 0x2028, 0x2029:
		return n
	}
	return 0
}

// commentLen returns the length of a comment that ends with its line.
func (t *parser) commentLen(s string) int {
	for i := range s {
		if n := t.set.newline.at([]byte(s), i); n > 0 {
			return i + n
		}
	}
	return len(s)
}

// quantified reads the quantifier of an item, if it has one.
func (t *parser) quantified(n *node, repeatable bool) (*node, error) {
	q := &node{kind: kRepeat, parts: []*node{n}}
	r := t.rest()
	switch {
	case t.quoted || r == "":
		return n, nil
	case r[0] == '*':
		q.max = -1
		t.i++
	case r[0] == '+':
		q.min, q.max = 1, -1
		t.i++
	case r[0] == '?':
		q.max = 1
		t.i++
	case r[0] == '{':
		size, err := q.bounds(r)
		if err != nil || size == 0 {
			return n, err
		}
		t.i += size
	default:
		return n, nil
	}
	if !repeatable {
		return nil, errNoItem
	}
	q.lazy = t.f.ungreedy
	possessive := false
	for !t.quoted && t.skips() {
	}
	if t.quoted {
		return q, nil
	}
	if t.eat("?") {
		q.lazy = !q.lazy
	} else if possessive = t.eat("+"); possessive {
		q.lazy = false
	}
	switch {
	case n == nil:
		return nil, nil
	case n.kind == kLook && q.min > 0:
		return n, nil // repeating an assertion changes nothing
	case n.kind == kLook && q.max != 0:
		q.max = 1
	}
	if possessive {
		return &node{kind: kAtomic, parts: []*node{q}}, nil
	}
	return q, nil
}

// quantifierLen returns the length of a {n}, {n,} or {n,m} at the start of p; 0 if it is none.
func quantifierLen(p string) int {
	end := strings.IndexByte(p, '}')
	if end < 2 {
		return 0
	}
	lo, hi, _ := strings.Cut(p[1:end], ",")
	if lo == "" || strings.Trim(lo+hi, "0123456789") != "" {
		return 0
	}
	return end + 1
}

// bounds reads {n}, {n,} and {n,m}; size is 0 where r begins with none of these.
func (n *node) bounds(r string) (size int, err error) {
	if size = quantifierLen(r); size == 0 {
		return 0, nil
	}
	lo, hi, ranged := strings.Cut(r[1:size-1], ",")
	if n.min, err = repeatCount(lo); err != nil {
		return 0, err
	}
	if n.max = n.min; ranged {
		if n.max = -1; hi != "" {
			if n.max, err = repeatCount(hi); err != nil {
				return 0, err
			}
		}
	}
	if n.max >= 0 && n.max < n.min {
		return 0, syntax("numbers out of order in {} quantifier")
	}
	return size, nil
}

func repeatCount(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n > maxRepeat {
		return 0, syntax("number too big in {} quantifier")
	}
	return n, nil
}

// item reads one item, nil for one that matches nothing by itself (flags), and whether it may be repeated.
func (t *parser) item() (n *node, repeatable bool, err error) {
	c := t.p[t.i]
	if t.quoted {
		return t.literal(), true, nil
	}
	switch c {
	case '\\':
		return t.escape()
	case '[':
		return t.class()
	case '(':
		return t.group()
	case '*', '+', '?':
		return nil, false, errNoItem
	case '{':
		if quantifierLen(t.rest()) > 0 {
			return nil, false, errNoItem
		}
	case '^':
		t.i++
		if t.f.m {
			return assertion(atLineStart), false, nil
		}
		return assertion(atStart), false, nil
	case '$':
		t.i++
		if t.f.m {
			return assertion(atLineEnd), false, nil
		}
		return assertion(atLastLine), false, nil
	case '.':
		t.i++
		if t.f.s {
			return &node{kind: kSet, set: property("Any")}, true, nil
		}
		return t.notNewline(), true, nil
	}
	return t.literal(), true, nil
}

func assertion(op byte) *node { return &node{kind: kAssert, op: op} }

// notNewline is . without s, and \N.
func (t *parser) notNewline() *node {
	if t.set.newline == nlCRLF {
		return &node{kind: kDot}
	}
	if t.dot == nil {
		t.dot = &set{ranges: t.set.newline.chars(), neg: true}
	}
	return &node{kind: kSet, set: t.dot}
}

func (t *parser) literal() *node {
	r, n := utf8.DecodeRuneInString(t.rest())
	t.i += n
	return t.char(r)
}

func (t *parser) char(r rune) *node {
	return &node{kind: kSet, set: &set{ranges: []rune{r, r}, fold: t.f.i}}
}
