package regex

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// flags are the options in force at a place of a pattern.
type flags struct{ i, m, s, x, n, ungreedy bool }

// treeParser reads PCRE's syntax into a tree.
type treeParser struct {
	p      string
	i      int
	ucp    bool
	bsr    bool
	f      flags
	groups []*node // by number
	names  map[string]int
	last   int // the highest group number
	alts   int // alternations so far
	inAlt  int // the innermost one
	refs   []*node
	conds  []*condition
	looks  []*node // look-behinds, whose widths are known at the end
	depth  int
}

func syntax(reason string) error { return &SyntaxError{reason} }

// maxParens bounds how deep groups nest, as PCRE does.
const maxParens = 250

// parseTree compiles a pattern.
func parseTree(p, options string, ucp, bsr bool) (*tree, error) {
	t := &treeParser{p: p, ucp: ucp, bsr: bsr, names: map[string]int{}, groups: []*node{nil}}
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
	t.groups[0] = root
	for len(t.groups) <= t.last {
		t.groups = append(t.groups, nil)
	}
	if err := t.resolve(); err != nil {
		return nil, err
	}
	return &tree{root: root, groups: t.groups, names: t.names, limit: maxSteps}, nil
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
	case 'J', 'u':
	default:
		return false
	}
	return true
}

// resolve gives references their numbers and look-behinds their widths.
func (t *treeParser) resolve() error {
	find := func(num *int, name string) error {
		if name != "" {
			n, ok := t.names[name]
			if !ok {
				return syntax("reference to non-existent subpattern")
			}
			*num = n
		}
		if *num > t.last || *num > 0 && t.groups[*num] == nil {
			return syntax("reference to non-existent subpattern")
		}
		return nil
	}
	for _, r := range t.refs {
		if err := find(&r.num, r.name); err != nil {
			return err
		}
	}
	for _, c := range t.conds {
		if c.kind == 'n' || c.kind == 'r' {
			if err := find(&c.num, c.name); err != nil {
				return err
			}
		}
	}
	for _, l := range t.looks {
		for _, a := range l.parts {
			w, ok := a.parts[0].width(t, 0)
			if !ok {
				return syntax("lookbehind assertion is not fixed length")
			}
			a.num = w
		}
	}
	return nil
}

func (t *treeParser) rest() string { return t.p[t.i:] }

// alternation reads up to a closing parenthesis or the end.
func (t *treeParser) alternation() (*node, error) {
	parts, alt, err := t.branches(nil)
	if err != nil {
		return nil, err
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	return &node{kind: kAlt, parts: parts, alt: alt}, nil
}

// branches reads alternatives; before is called before each.
func (t *treeParser) branches(before func()) (parts []*node, alt int, err error) {
	if t.depth++; t.depth > maxParens {
		return nil, 0, syntax("parentheses are too deeply nested")
	}
	defer func() { t.depth-- }()
	outer, f := t.inAlt, t.f
	if t.hasBar() {
		t.alts++
		t.inAlt = t.alts
	}
	alt = t.inAlt
	for {
		if before != nil {
			before()
		}
		n, err := t.sequence()
		if err != nil {
			return nil, 0, err
		}
		parts = append(parts, n)
		if t.i >= len(t.p) || t.p[t.i] != '|' {
			t.inAlt, t.f = outer, f
			return parts, alt, nil
		}
		t.i++
	}
}

// hasBar looks for a | before the group ends. One too many does no harm: the number then stands for a group of one.
func (t *treeParser) hasBar() bool {
	depth := 0
	for i := t.i; i < len(t.p); i++ {
		switch t.p[i] {
		case '\\':
			i++
		case '[':
			if end := classEnd(t.p, i); end > 0 {
				i = end
			}
		case '(':
			depth++
		case ')':
			if depth--; depth < 0 {
				return false
			}
		case '|':
			if depth == 0 {
				return true
			}
		}
	}
	return false
}

func (t *treeParser) sequence() (*node, error) {
	var parts []*node
	for t.i < len(t.p) {
		c := t.p[t.i]
		if c == '|' || c == ')' {
			break
		}
		if t.skips() {
			continue
		}
		n, err := t.item()
		if err != nil {
			return nil, err
		}
		if n == nil {
			continue
		}
		for t.f.x && t.skips() {
		}
		if n, err = t.quantified(n); err != nil {
			return nil, err
		}
		parts = append(parts, n)
	}
	switch len(parts) {
	case 0:
		return &node{kind: kEmpty}, nil
	case 1:
		return parts[0], nil
	}
	return &node{kind: kSeq, parts: parts}, nil
}

// skips passes over comments, and with x over blanks.
func (t *treeParser) skips() bool {
	r := t.rest()
	switch {
	case strings.HasPrefix(r, "(?#"):
		if end := strings.IndexByte(r, ')'); end >= 0 {
			t.i += end + 1
			return true
		}
	case strings.HasPrefix(r, `\E`), strings.HasPrefix(r, `\Q\E`):
		t.i += strings.IndexByte(r, 'E') + 1
		return true
	case t.f.x && r != "" && strings.IndexByte(" \t\n\v\f\r", r[0]) >= 0:
		t.i++
		return true
	case t.f.x && strings.HasPrefix(r, "#"):
		if end := strings.IndexByte(r, '\n'); end >= 0 {
			t.i += end + 1
		} else {
			t.i = len(t.p)
		}
		return true
	}
	return false
}

func (t *treeParser) quantified(n *node) (*node, error) {
	r := t.rest()
	q := &node{kind: kRepeat, parts: []*node{n}}
	switch size := quantifierLen(r); {
	case r == "":
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
	case r[0] == '{' && size > 0:
		lo, hi, ranged := strings.Cut(r[1:size-1], ",")
		q.min, _ = strconv.Atoi(lo)
		if q.max = q.min; ranged {
			if q.max = -1; hi != "" {
				q.max, _ = strconv.Atoi(hi)
			}
		}
		if q.min > 65535 || q.max > 65535 {
			return nil, syntax("number too big in {} quantifier")
		}
		if q.max >= 0 && q.max < q.min {
			return nil, syntax("numbers out of order in {} quantifier")
		}
		t.i += size
	default:
		return n, nil
	}
	if n.kind == kAssert || n.kind == kVerb || n.kind == kKeep {
		return nil, syntax("quantifier does not follow a repeatable item")
	}
	q.lazy = t.f.ungreedy
	switch r := t.rest(); {
	case strings.HasPrefix(r, "?"):
		q.lazy = !q.lazy
		t.i++
	case strings.HasPrefix(r, "+"):
		q.lazy = false
		t.i++
		return &node{kind: kAtomic, parts: []*node{q}}, nil
	}
	return q, nil
}

// item reads one item; nil for what matches nothing by itself (flags).
func (t *treeParser) item() (*node, error) {
	switch c := t.p[t.i]; c {
	case '\\':
		return t.escape()
	case '[':
		return t.class()
	case '(':
		return t.group()
	case '*', '+', '?':
		return nil, syntax("quantifier does not follow a repeatable item")
	case '{':
		if quantifierLen(t.rest()) > 0 {
			return nil, syntax("quantifier does not follow a repeatable item")
		}
	case '^':
		t.i++
		return assertion(map[bool]byte{false: 'A', true: 'm'}[t.f.m]), nil
	case '$':
		t.i++
		return assertion(map[bool]byte{false: '$', true: 'e'}[t.f.m]), nil
	case '.':
		t.i++
		if t.f.s {
			return &node{kind: kSet, set: property("Any")}, nil
		}
		return &node{kind: kSet, set: notNewline()}, nil
	}
	r, n := utf8.DecodeRuneInString(t.rest())
	t.i += n
	return t.char(r), nil
}

func assertion(op byte) *node { return &node{kind: kAssert, op: op} }

func notNewline() *set { return &set{ranges: []rune{'\n', '\n'}, neg: true} }

func (t *treeParser) char(r rune) *node {
	return &node{kind: kSet, set: &set{ranges: []rune{r, r}, fold: t.f.i}}
}

// classOf is the set of \d and its like; nil where c is none.
func (t *treeParser) classOf(c byte) *set {
	both, ok := classSets[c|0x20]
	if !ok || strings.IndexByte("dDwWsShHvV", c) < 0 {
		return nil
	}
	s := both[0]
	if t.ucp {
		s = both[1]
	}
	if c < 'a' {
		return &set{not: []*set{s}}
	}
	return s
}

func (t *treeParser) escape() (*node, error) {
	if t.i+1 >= len(t.p) {
		return nil, syntax("\\ at end of pattern")
	}
	c := t.p[t.i+1]
	if s := t.classOf(c); s != nil {
		t.i += 2
		return &node{kind: kSet, set: s}, nil
	}
	switch c {
	case 'Q':
		return t.quotation(), nil
	case 'b', 'B':
		t.i += 2
		if t.ucp {
			c = map[byte]byte{'b': 'u', 'B': 'U'}[c]
		}
		return assertion(c), nil
	case 'A', 'Z', 'z', 'G':
		t.i += 2
		return assertion(c), nil
	case 'K':
		t.i += 2
		return &node{kind: kKeep}, nil
	case 'N':
		t.i += 2
		return &node{kind: kSet, set: notNewline()}, nil
	case 'R':
		t.i += 2
		return t.newline(), nil
	case 'X':
		t.i += 2
		return &node{kind: kCluster}, nil
	case 'g', 'k':
		return t.reference(c)
	case 'p', 'P':
		s, err := t.propertyEscape()
		return &node{kind: kSet, set: s}, err
	}
	if c >= '1' && c <= '9' {
		if n := t.backNumber(); n != nil {
			return n, nil
		}
	}
	r, err := t.charEscape()
	return t.char(r), err
}

// quotation is the text between \Q and \E; a quantifier behind it is for its last character.
func (t *treeParser) quotation() *node {
	body, _, found := strings.Cut(t.p[t.i+2:], `\E`)
	t.i += 2 + len(body)
	if found {
		t.i += 2
	}
	var parts []*node
	for _, r := range body {
		parts = append(parts, t.char(r))
	}
	if len(parts) == 0 {
		return nil
	}
	if last := parts[len(parts)-1]; len(parts) > 1 {
		if q, err := t.quantified(last); err == nil {
			parts[len(parts)-1] = q
		}
	}
	return &node{kind: kSeq, parts: parts}
}

// newline is \R.
func (t *treeParser) newline() *node {
	pair := &node{kind: kSeq, parts: []*node{{kind: kSet, set: &set{ranges: []rune{'\r', '\r'}}}, {kind: kSet, set: &set{ranges: []rune{'\n', '\n'}}}}}
	single := &set{ranges: vRanges}
	if t.bsr {
		single = &set{ranges: []rune{'\n', '\n', '\r', '\r'}}
	}
	return &node{kind: kAtomic, parts: []*node{{kind: kAlt, parts: []*node{pair, {kind: kSet, set: single}}}}}
}

// backNumber reads \1 and its like: a reference where there are so many groups, or below 10.
func (t *treeParser) backNumber() *node {
	end := t.i + 1
	for end < len(t.p) && t.p[end] >= '0' && t.p[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(t.p[t.i+1 : end])
	if err != nil || n >= 10 && n > t.countGroups() {
		return nil
	}
	t.i = end
	return t.back(n, "")
}

// countGroups counts the groups of the whole pattern, about.
func (t *treeParser) countGroups() int { return strings.Count(t.p, "(") }

func (t *treeParser) back(num int, name string) *node {
	n := &node{kind: kBack, num: num, name: name, fold: t.f.i}
	t.refs = append(t.refs, n)
	return n
}

func (t *treeParser) call(num int, name string) *node {
	n := &node{kind: kCall, num: num, name: name}
	t.refs = append(t.refs, n)
	return n
}

// reference reads what follows \g and \k.
func (t *treeParser) reference(c byte) (*node, error) {
	r := t.p[t.i+2:]
	bad := syntax("\\" + string(c) + " is not followed by a braced, angle-bracketed, or quoted name")
	if r == "" {
		return nil, bad
	}
	ends := map[byte]byte{'{': '}', '<': '>', '\'': '\''}
	name, size := "", 0
	if stop, ok := ends[r[0]]; ok {
		end := strings.IndexByte(r[1:], stop)
		if end < 1 {
			return nil, bad
		}
		name, size = strings.TrimSpace(r[1:1+end]), end+2
	} else if c == 'g' {
		for size < len(r) && (r[size] >= '0' && r[size] <= '9' || size == 0 && (r[size] == '-' || r[size] == '+')) {
			size++
		}
		name = r[:size]
	}
	if name == "" {
		return nil, bad
	}
	t.i += 2 + size
	num, isNumber, err := t.number(name)
	switch {
	case err != nil:
		return nil, err
	case c == 'g' && r[0] != '{' && (r[0] == '<' || r[0] == '\''):
		if isNumber {
			return t.call(num, ""), nil
		}
		return t.call(0, name), nil
	case isNumber && c == 'g':
		return t.back(num, ""), nil
	}
	return t.back(0, name), nil
}

// number reads a group number, which may be relative to the groups opened so far.
func (t *treeParser) number(s string) (n int, ok bool, err error) {
	digits := strings.TrimLeft(s, "+-")
	if n, err = strconv.Atoi(digits); err != nil || len(s)-len(digits) > 1 {
		return 0, false, nil
	}
	switch s[0] {
	case '-':
		n = t.last + 1 - n
	case '+':
		n = t.last + n
	}
	if n < 0 || s[0] == '-' && n == 0 {
		return 0, false, syntax("reference to non-existent subpattern")
	}
	return n, true, nil
}

func (t *treeParser) propertyEscape() (*set, error) {
	r := t.p[t.i+2:]
	name, size := "", 1
	if strings.HasPrefix(r, "{") {
		end := strings.IndexByte(r, '}')
		if end < 0 {
			return nil, syntax("malformed \\P or \\p sequence")
		}
		name, size = strings.TrimSpace(r[1:end]), end+1
	} else if r != "" {
		name = r[:1]
	}
	neg := t.p[t.i+1] == 'P'
	if strings.HasPrefix(name, "^") {
		name, neg = name[1:], !neg
	}
	s := property(name)
	if s == nil {
		return nil, syntax("unknown property name after \\P or \\p")
	}
	t.i += 2 + size
	if neg {
		return &set{not: []*set{s}}, nil
	}
	return s, nil
}

var controls = map[byte]rune{'a': 7, 'e': 27, 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// charEscape reads an escape that stands for one character.
func (t *treeParser) charEscape() (rune, error) {
	c := t.p[t.i+1]
	switch {
	case c == 'x' || c == 'o':
		return t.codePoint()
	case c == 'c':
		if t.i+2 >= len(t.p) || t.p[t.i+2] >= utf8.RuneSelf {
			return 0, syntax("\\c at end of pattern")
		}
		up := t.p[t.i+2]
		if up >= 'a' && up <= 'z' {
			up -= 'a' - 'A'
		}
		t.i += 3
		return rune(up ^ 0x40), nil
	case c >= '0' && c <= '7':
		end := t.i + 1
		for end < len(t.p) && end < t.i+4 && t.p[end] >= '0' && t.p[end] <= '7' {
			end++
		}
		n, _ := strconv.ParseUint(t.p[t.i+1:end], 8, 16)
		t.i = end
		return rune(n), nil
	case controls[c] != 0:
		t.i += 2
		return controls[c], nil
	case isAlnum(c):
		return 0, syntax("unrecognized character follows \\")
	}
	r, n := utf8.DecodeRuneInString(t.p[t.i+1:])
	t.i += 1 + n
	return r, nil
}

// codePoint reads \xhh, \x{h…} and \o{…}.
func (t *treeParser) codePoint() (rune, error) {
	base, r := 16, t.p[t.i+2:]
	if t.p[t.i+1] == 'o' {
		base = 8
	}
	if strings.HasPrefix(r, "{") {
		end := strings.IndexByte(r, '}')
		if end < 0 {
			return 0, syntax("missing terminating } for hexadecimal or property escape")
		}
		n, err := strconv.ParseUint(strings.TrimSpace(r[1:end]), base, 32)
		if err != nil || n > utf8.MaxRune {
			return 0, syntax("character code point value in \\x{} or \\o{} is too large")
		}
		t.i += 3 + end
		return rune(n), nil
	}
	if base == 8 {
		return 0, syntax("missing opening brace after \\o")
	}
	size := 0
	for size < len(r) && size < 2 && strings.IndexByte("0123456789abcdefABCDEF", r[size]) >= 0 {
		size++
	}
	n, _ := strconv.ParseUint("0"+r[:size], 16, 32)
	t.i += 2 + size
	return rune(n), nil
}

func (t *treeParser) class() (*node, error) {
	end := classEnd(t.p, t.i)
	if end < 0 {
		return nil, syntax("missing terminating ] for character class")
	}
	s := &set{fold: t.f.i}
	if t.i++; t.p[t.i] == '^' {
		s.neg = true
		t.i++
	}
	for first := true; t.i < end || first && t.p[t.i] == ']'; first = false {
		lo, one, err := t.classItem(s)
		if err != nil {
			return nil, err
		}
		if !one {
			continue
		}
		hi := lo
		if t.i+1 < end && t.p[t.i] == '-' {
			mark := t.i
			t.i++
			probe := &set{}
			if hi, one, err = t.classItem(probe); err != nil {
				return nil, err
			}
			if !one { // what follows the hyphen is no character: the hyphen is one
				hi, t.i = lo, mark+1
				s.ranges = append(s.ranges, '-', '-')
			}
		}
		if hi < lo {
			return nil, syntax("range out of order in character class")
		}
		s.ranges = append(s.ranges, lo, hi)
	}
	t.i = end + 1
	return &node{kind: kSet, set: s}, nil
}

// classItem reads what stands in a class: a character (one is true), or a set that it adds to s.
func (t *treeParser) classItem(s *set) (r rune, one bool, err error) {
	rest := t.rest()
	switch {
	case strings.HasPrefix(rest, "[:"):
		name, _, ok := strings.Cut(rest[2:], ":]")
		if !ok {
			break
		}
		bare := strings.TrimPrefix(name, "^")
		both, known := posixSets[bare]
		if !known {
			return 0, false, syntax("unknown POSIX class name")
		}
		add := both[0]
		if t.ucp {
			add = both[1]
		}
		if bare != name {
			add = &set{not: []*set{add}}
		}
		s.add(add)
		t.i += len(name) + 4
		return 0, false, nil
	case strings.HasPrefix(rest, `\Q`), strings.HasPrefix(rest, `\E`):
		t.i += 2
		return 0, false, nil
	case strings.HasPrefix(rest, `\b`):
		t.i += 2
		return '\b', true, nil
	case len(rest) > 1 && rest[0] == '\\':
		if set := t.classOf(rest[1]); set != nil {
			s.add(set)
			t.i += 2
			return 0, false, nil
		}
		if rest[1] == 'p' || rest[1] == 'P' {
			set, err := t.propertyEscape()
			if err == nil {
				s.add(set)
			}
			return 0, false, err
		}
		r, err := t.charEscape()
		return r, true, err
	}
	r, n := utf8.DecodeRuneInString(rest)
	t.i += n
	return r, true, nil
}

// closing reads the parenthesis that ends a group.
func (t *treeParser) closing() error {
	if t.i >= len(t.p) {
		return syntax("missing closing parenthesis")
	}
	t.i++
	return nil
}

// inner reads a group's contents and its end.
func (t *treeParser) inner() (*node, error) {
	n, err := t.alternation()
	if err != nil {
		return nil, err
	}
	return n, t.closing()
}

// capture reads a capturing group's contents; the parenthesis is behind.
func (t *treeParser) capture(name string) (*node, error) {
	t.last++
	n := &node{kind: kGroup, num: t.last}
	for len(t.groups) <= n.num {
		t.groups = append(t.groups, nil)
	}
	if t.groups[n.num] == nil {
		t.groups[n.num] = n
	}
	if name != "" {
		if _, known := t.names[name]; !known {
			t.names[name] = n.num
		}
	}
	body, err := t.inner()
	n.parts = []*node{body}
	return n, err
}

func (t *treeParser) group() (*node, error) {
	r := t.rest()
	switch {
	case strings.HasPrefix(r, "(*"):
		return t.verb()
	case !strings.HasPrefix(r, "(?"):
		t.i++
		if t.f.n {
			return t.inner()
		}
		return t.capture("")
	case strings.HasPrefix(r, "(?:"):
		t.i += 3
		return t.inner()
	case strings.HasPrefix(r, "(?|"):
		t.i += 3
		return t.branchReset()
	case strings.HasPrefix(r, "(?>"):
		t.i += 3
		n, err := t.inner()
		return &node{kind: kAtomic, parts: []*node{n}}, err
	case strings.HasPrefix(r, "(?="), strings.HasPrefix(r, "(?!"), strings.HasPrefix(r, "(?<="), strings.HasPrefix(r, "(?<!"):
		return t.lookAround()
	case strings.HasPrefix(r, "(?("):
		return t.conditional()
	case strings.HasPrefix(r, "(?#"):
		return nil, syntax("missing ) after (?# comment")
	case strings.HasPrefix(r, "(?P="):
		name, err := t.nameUpTo(4, ")")
		return t.back(0, name), err
	case strings.HasPrefix(r, "(?P>"), strings.HasPrefix(r, "(?&"):
		name, err := t.nameUpTo(strings.IndexAny(r, ">&")+1, ")")
		return t.call(0, name), err
	case strings.HasPrefix(r, "(?<"), strings.HasPrefix(r, "(?P<"):
		name, err := t.nameUpTo(strings.IndexByte(r, '<')+1, ">")
		if err != nil {
			return nil, err
		}
		return t.capture(name)
	case strings.HasPrefix(r, "(?'"):
		name, err := t.nameUpTo(3, "'")
		if err != nil {
			return nil, err
		}
		return t.capture(name)
	case len(r) > 2 && (r[2] == 'R' || r[2] >= '0' && r[2] <= '9' || len(r) > 3 && (r[2] == '+' || r[2] == '-') && r[3] >= '0' && r[3] <= '9'):
		return t.recursion()
	}
	return t.flagGroup()
}

// nameUpTo reads a name from an offset to what ends it.
func (t *treeParser) nameUpTo(from int, end string) (string, error) {
	name, _, ok := strings.Cut(t.rest()[from:], end)
	switch {
	case !ok:
		return "", syntax("syntax error in subpattern name (missing terminator?)")
	case name == "":
		return "", syntax("subpattern name expected")
	case name[0] >= '0' && name[0] <= '9':
		return "", syntax("subpattern name must start with a non-digit")
	case len(name) > 128:
		return "", syntax("subpattern name is too long (maximum 128 code units)")
	}
	for i := 0; i < len(name); i++ {
		if !isAlnum(name[i]) && name[i] != '_' && name[i] < utf8.RuneSelf {
			return "", syntax("syntax error in subpattern name (missing terminator?)")
		}
	}
	t.i += from + len(name) + 1
	return name, nil
}

func (t *treeParser) recursion() (*node, error) {
	what, _, ok := strings.Cut(t.rest()[2:], ")")
	if !ok {
		return nil, syntax("missing closing parenthesis")
	}
	t.i += 3 + len(what)
	if what == "R" {
		return t.call(0, ""), nil
	}
	n, ok, err := t.number(what)
	if err == nil && !ok {
		err = syntax("(?R (recursive pattern call) must be followed by a closing parenthesis")
	}
	return t.call(n, ""), err
}

// branchReset reads (?|…): each alternative numbers its groups anew.
func (t *treeParser) branchReset() (*node, error) {
	start, most := t.last, t.last
	parts, alt, err := t.branches(func() {
		most = max(most, t.last)
		t.last = start
	})
	if err != nil {
		return nil, err
	}
	t.last = max(most, t.last)
	return &node{kind: kAlt, parts: parts, alt: alt}, t.closing()
}

func (t *treeParser) lookAround() (*node, error) {
	r := t.rest()
	n := &node{kind: kLook, behind: r[2] == '<'}
	t.i += 3
	if n.behind {
		t.i++
	}
	n.neg = t.p[t.i-1] == '!'
	parts, alt, err := t.branches(nil)
	if err != nil {
		return nil, err
	}
	if n.behind {
		for _, p := range parts {
			n.parts = append(n.parts, &node{parts: []*node{p}})
		}
		t.looks = append(t.looks, n)
	} else {
		n.parts = []*node{{parts: []*node{{kind: kAlt, parts: parts, alt: alt}}}}
	}
	return n, t.closing()
}

func (t *treeParser) conditional() (*node, error) {
	n := &node{kind: kCond}
	t.i += 2
	if r := t.rest(); strings.HasPrefix(r, "(?=") || strings.HasPrefix(r, "(?!") || strings.HasPrefix(r, "(?<=") || strings.HasPrefix(r, "(?<!") {
		look, err := t.lookAround()
		if err != nil {
			return nil, err
		}
		n.cond = condition{kind: 'a', look: look}
	} else if err := t.condition(&n.cond); err != nil {
		return nil, err
	}
	parts, _, err := t.branches(nil)
	if err != nil {
		return nil, err
	}
	if len(parts) > 2 || len(parts) > 1 && n.cond.kind == 'd' {
		return nil, syntax("conditional subpattern contains more than two branches")
	}
	n.parts = append(slices.Clone(parts), &node{kind: kEmpty})[:2]
	t.conds = append(t.conds, &n.cond)
	return n, t.closing()
}

// condition reads (1), (<name>), (R), (R1), (R&name), (DEFINE).
func (t *treeParser) condition(c *condition) (err error) {
	what, _, ok := strings.Cut(t.rest()[1:], ")")
	if !ok || what == "" {
		return syntax("malformed number or name after (?(")
	}
	t.i += 2 + len(what)
	c.kind = 'n'
	if n, ok, err := t.number(what); ok || err != nil {
		if c.num = n; err == nil && n == 0 {
			err = syntax("invalid condition (?(0)")
		}
		return err
	}
	bare := strings.Trim(what, "<>'")
	_, named := t.names[bare]
	switch {
	case bare != what || named:
		c.name = bare
	case what == "DEFINE":
		c.kind = 'd'
	case what == "R":
		c.kind, c.num = 'r', -1
	case strings.HasPrefix(what, "R&"):
		c.kind, c.name = 'r', what[2:]
	case strings.HasPrefix(what, "R") && strings.Trim(what[1:], "0123456789") == "":
		c.kind = 'r'
		c.num, err = strconv.Atoi(what[1:])
	default:
		c.name = bare
	}
	return err
}

// flagGroup reads (?i), (?i-m), (?i:…).
func (t *treeParser) flagGroup() (*node, error) {
	on := true
	before := t.f
	t.i += 2
	for first := true; t.i < len(t.p); t.i++ {
		switch c := rune(t.p[t.i]); {
		case c == ')':
			t.i++
			return nil, nil
		case c == ':':
			t.i++
			n, err := t.inner()
			t.f = before
			return n, err
		case c == '^' && first:
			t.f = flags{}
		case c == '-':
			on = false
		case !t.f.set(c, on):
			return nil, syntax("unrecognized character after (? or (?-")
		}
		first = false
	}
	return nil, syntax("missing closing parenthesis")
}

var verbs = map[string]byte{"ACCEPT": 'a', "F": 'f', "FAIL": 'f', "COMMIT": 'c', "PRUNE": 'p', "SKIP": 's', "THEN": 't'}

// wordy are assertions and atomic groups by name.
var wordy = map[string]string{
	"pla": "(?=", "positive_lookahead": "(?=", "nla": "(?!", "negative_lookahead": "(?!", "plb": "(?<=", "positive_lookbehind": "(?<=",
	"nlb": "(?<!", "negative_lookbehind": "(?<!", "atomic": "(?>",
}

func (t *treeParser) verb() (*node, error) {
	r := t.rest()
	end := strings.IndexAny(r, ":)")
	if end < 0 {
		return nil, syntax("missing closing parenthesis")
	}
	name := r[2:end]
	if group, ok := wordy[name]; ok && r[end] == ':' {
		t.p = t.p[:t.i] + group + t.p[t.i+end+1:]
		return t.group()
	}
	op, ok := verbs[name]
	switch {
	case name == "MARK" || name == "":
		op, ok = 0, true // a name for the place; nothing is asked of it
	case !ok:
		return nil, syntax("(*VERB) not recognized or malformed")
	}
	close := strings.IndexByte(r, ')')
	if close < 0 {
		return nil, syntax("missing closing parenthesis")
	}
	if r[end] == ':' && op == 's' {
		return nil, syntax("(*SKIP) with a name is not supported")
	}
	t.i += close + 1
	if op == 0 {
		return &node{kind: kEmpty}, nil
	}
	return &node{kind: kVerb, op: op, alt: t.inAlt}, nil
}
