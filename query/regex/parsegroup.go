package regex

import (
	"slices"
	"strconv"
	"strings"
)

// closing reads the parenthesis that ends a group.
func (t *parser) closing() error {
	if !t.eat(")") {
		return errUnclosed
	}
	return nil
}

// inner reads a group's contents and its end.
func (t *parser) inner() (*node, error) {
	n, err := t.alternation()
	if err != nil {
		return nil, err
	}
	return n, t.closing()
}

// capture reads a capturing group's contents, after its parenthesis.
func (t *parser) capture(name string) (*node, error) {
	t.last++
	n := &node{kind: kGroup, num: t.last}
	for len(t.groups) <= n.num {
		t.groups = append(t.groups, nil)
	}
	if t.groups[n.num] == nil {
		t.groups[n.num] = n
	}
	if err := t.title(name, n.num); err != nil {
		return nil, err
	}
	body, err := t.inner()
	n.parts = []*node{body}
	return n, err
}

// title gives a group its name.
func (t *parser) title(name string, num int) error {
	if name == "" {
		return nil
	}
	if slices.Contains(t.names[name], num) {
		return nil
	}
	if len(t.names[name]) > 0 && !t.f.dup {
		return syntax("two named subpatterns have the same name (PCRE2_DUPNAMES not set)")
	}
	if t.titles[num] != "" {
		return syntax("different names for subpatterns of the same number are not allowed")
	}
	t.names[name] = append(t.names[name], num)
	t.titles[num] = name
	return nil
}

func (t *parser) group() (n *node, repeatable bool, err error) {
	r := t.rest()
	switch {
	case len(r) > 2 && r[1] == '*' && (r[2] == ':' || isAlnum(r[2])):
		return t.verb()
	case !strings.HasPrefix(r, "(?"):
		t.i++
		if t.f.n {
			n, err = t.inner()
		} else {
			n, err = t.capture("")
		}
		return n, true, err
	case len(r) == 2:
		return nil, false, errUnclosed
	}
	t.i += 2
	if t.lookOpens() {
		n, err = t.lookAround()
		return n, true, err
	}
	switch r[2] {
	case '#':
		return nil, false, syntax("missing ) after (?# comment")
	case ':':
		t.i++
		n, err = t.inner()
	case '|':
		t.i++
		n, err = t.branchReset()
	case '>':
		t.i++
		if n, err = t.inner(); err == nil {
			n = &node{kind: kAtomic, parts: []*node{n}}
		}
	case '(':
		n, err = t.conditional()
	case 'C':
		t.i++
		return nil, false, t.callout()
	case 'P':
		n, err = t.pythonGroup()
	case '<', '\'':
		t.i++
		n, err = t.named(r[2])
	case '&':
		t.i++
		n, err = t.callByName()
	case 'R', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '+':
		n, err = t.recursion()
	default:
		if r[2] == '-' && len(r) > 3 && r[3] >= '0' && r[3] <= '9' {
			n, err = t.recursion()
			break
		}
		return t.flagGroup()
	}
	return n, true, err
}

// named reads what follows (?< and its like.
func (t *parser) named(open byte) (*node, error) {
	if open == '<' {
		open = '>'
	}
	name, err := t.name(open)
	if err != nil {
		return nil, err
	}
	return t.capture(name)
}

func (t *parser) callByName() (*node, error) {
	name, err := t.name(')')
	return t.call(0, name), err
}

// pythonGroup reads (?P<name>…), (?P=name) and (?P>name).
func (t *parser) pythonGroup() (*node, error) {
	t.i++
	switch {
	case t.i >= len(t.p):
		return nil, errUnclosed
	case t.eat("<"):
		return t.named('<')
	case t.eat("="):
		name, err := t.name(')')
		return t.back(0, name), err
	case t.eat(">"):
		return t.callByName()
	}
	return nil, syntax("unrecognized character after (?P")
}

func (t *parser) recursion() (*node, error) {
	if t.eat("R") {
		if !t.eat(")") {
			return nil, syntax("(?R (recursive pattern call) must be followed by a closing parenthesis")
		}
		return t.call(0, ""), nil
	}
	n, ok, err := t.number()
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, syntax("digit expected after (?+ or (?-")
	}
	return t.call(n, ""), t.closing()
}

// branchReset reads (?|…): each alternative numbers its groups from the same start.
func (t *parser) branchReset() (*node, error) {
	start, most := t.last, t.last
	parts, err := t.branches(func() {
		most = max(most, t.last)
		t.last = start
	})
	if err != nil {
		return nil, err
	}
	t.last = max(most, t.last)
	return &node{kind: kAlt, parts: parts}, t.closing()
}

// lookOpens recognises the beginning of a look-around, after "(?".
func (t *parser) lookOpens() bool {
	r := strings.TrimPrefix(t.rest(), "<")
	return r != "" && strings.IndexByte("=!*", r[0]) >= 0
}

// lookAround reads a look-around, after its "(?".
func (t *parser) lookAround() (*node, error) {
	n := &node{kind: kLook, behind: t.eat("<")}
	n.neg, n.open = t.p[t.i] == '!', t.p[t.i] == '*'
	t.i++
	t.looks++
	parts, err := t.branches(nil)
	t.looks--
	if err != nil {
		return nil, err
	}
	n.parts = parts
	if n.behind {
		t.behind = append(t.behind, n)
	}
	return n, t.closing()
}

func (t *parser) conditional() (*node, error) {
	n := &node{kind: kCond}
	if err := t.condition(&n.cond); err != nil {
		return nil, err
	}
	t.later = append(t.later, func() error { return t.resolveCondition(&n.cond) })
	parts, err := t.branches(nil)
	if err == nil {
		err = t.closing()
	}
	if err != nil {
		return nil, err
	}
	n.written = len(parts)
	t.after = append(t.after, func() error {
		switch {
		case n.written > 1 && n.cond.kind == 'd':
			return syntax("DEFINE subpattern contains more than one branch")
		case n.written > 2:
			return syntax("conditional subpattern contains more than two branches")
		}
		return nil
	})
	n.parts = append(parts, &node{kind: kEmpty})[:2]
	return n, nil
}

// condition reads what follows "(?" of a conditional group.
func (t *parser) condition(c *condition) (err error) {
	r := t.rest()
	if strings.HasPrefix(r, "(?C") {
		t.i += 3
		if err := t.callout(); err != nil {
			return err
		}
		r = t.rest()
	}
	if strings.HasPrefix(r, "(?") || strings.HasPrefix(r, "(*") {
		return t.assertionCondition(c)
	}
	if !t.eat("(") {
		return errNoAssertion
	}
	if strings.HasPrefix(t.rest(), "VERSION") {
		if ok, err := t.version(c); ok || err != nil {
			return err
		}
	}
	c.kind = 'n'
	n, ok, err := t.number()
	if err != nil {
		return err
	}
	if ok {
		if c.num = n; n == 0 {
			return errNoGroup
		}
		if !t.eat(")") {
			return syntax("missing closing parenthesis for condition")
		}
		return nil
	}
	switch {
	case t.rest() == "":
		return errUnclosed
	case t.eat("R&"):
		c.kind = '&'
		c.name, err = t.name(')')
	case t.eat("<"):
		if c.name, err = t.name('>'); err == nil && !t.eat(")") {
			err = syntax("missing closing parenthesis for condition")
		}
	case t.eat("'"):
		if c.name, err = t.name('\''); err == nil && !t.eat(")") {
			err = syntax("missing closing parenthesis for condition")
		}
	default:
		return t.bareCondition(c)
	}
	return err
}

var errNoAssertion = syntax("assertion expected after (?( or (?(?C)")

func (t *parser) assertionCondition(c *condition) error {
	var look *node
	if t.rest()[1] == '?' {
		if t.i += 2; t.i >= len(t.p) || !t.lookOpens() {
			return errNoAssertion
		}
		var err error
		if look, err = t.lookAround(); err != nil {
			return err
		}
	} else {
		n, _, err := t.verb()
		if err != nil {
			return err
		}
		look = n
	}
	if look == nil || look.kind != kLook {
		return errNoAssertion
	}
	c.kind, c.look = 'a', look
	return nil
}

// bareCondition reads a name, DEFINE, R and R1.
func (t *parser) bareCondition(c *condition) (err error) {
	if c.name, err = t.name(')'); err != nil {
		return err
	}
	switch {
	case c.name == "DEFINE":
		c.kind, c.name = 'd', ""
	case c.name[0] == 'R' && strings.Trim(c.name[1:], "0123456789") == "":
		c.kind, c.num = 'r', -1
		if len(c.name) > 1 {
			if c.num, err = strconv.Atoi(c.name[1:]); err != nil {
				err = errTooBig
			}
		}
	}
	return err
}

// pcreVersion is the version that conditions of patterns compare with.
const pcreVersion = 10.42

// version reads VERSION>=n.m and VERSION=n.m; ok is false if it is a name after all.
func (t *parser) version(c *condition) (ok bool, err error) {
	r := t.rest()[len("VERSION"):]
	least := strings.HasPrefix(r, ">")
	r = strings.TrimPrefix(r, ">")
	if !least && !strings.HasPrefix(r, "=") {
		return false, nil
	}
	end := strings.IndexByte(r, ')')
	bad := syntax("syntax error or number too big in (?(VERSION condition")
	if end < 0 || r[0] != '=' {
		return false, bad
	}
	asked, err := strconv.ParseFloat(r[1:end], 64)
	if err != nil || asked > 1000 || strings.Trim(r[1:end], "0123456789.") != "" {
		return false, bad
	}
	c.kind = 'x'
	if asked == pcreVersion || least && asked < pcreVersion {
		c.kind = 'y'
	}
	t.i += strings.IndexByte(t.rest(), ')') + 1
	return true, nil
}

// callout reads what follows (?C: a number or a text, for callouts, which are ignored.
func (t *parser) callout() error {
	if t.i >= len(t.p) {
		return syntax("closing parenthesis for (?C expected")
	}
	open := t.p[t.i]
	switch {
	case open == ')' || open >= '0' && open <= '9':
		digits := digitsOf(t.rest())
		if n, err := strconv.Atoi("0" + digits); err != nil || n > 255 {
			return syntax("number after (?C is greater than 255")
		}
		t.i += len(digits)
	case strings.IndexByte("`'\"^%#${", open) >= 0:
		if open == '{' {
			open = '}'
		}
		for t.i++; ; t.i++ {
			end := strings.IndexByte(t.rest(), open)
			if end < 0 {
				return syntax("missing terminating delimiter for callout with string argument")
			}
			if t.i += end + 1; !strings.HasPrefix(t.rest(), string(open)) { // doubled, it is literal
				break
			}
		}
	default:
		return syntax("unrecognized string delimiter follows (?C")
	}
	if !t.eat(")") {
		return syntax("closing parenthesis for (?C expected")
	}
	return nil
}

// flagGroup reads (?i), (?i-m), (?^i:…), after its "(?".
func (t *parser) flagGroup() (n *node, repeatable bool, err error) {
	before, on, hyphen := t.f, true, false
	if t.eat("^") {
		t.f.i, t.f.m, t.f.s, t.f.x, t.f.xx, t.f.n = false, false, false, false, false, false
		hyphen = true // none may follow
	}
	for ; t.i < len(t.p); t.i++ {
		switch c := rune(t.p[t.i]); {
		case c == ')':
			t.i++
			return nil, false, nil
		case c == ':':
			t.i++
			n, err = t.inner()
			t.f = before
			return n, true, err
		case c == '-' && hyphen:
			return nil, false, syntax("invalid hyphen in option setting")
		case c == '-':
			on, hyphen = false, true
		case c == 'x':
			t.f.x, t.f.xx = on, false
			if t.i+1 < len(t.p) && t.p[t.i+1] == 'x' {
				t.f.xx = on
				t.i++
			}
		case !t.f.set(c, on):
			return nil, false, syntax("unrecognized character after (? or (?-")
		}
	}
	return nil, false, errUnclosed
}

var verbs = map[string]byte{"ACCEPT": verbAccept, "F": verbFail, "FAIL": verbFail, "COMMIT": verbCommit, "PRUNE": verbPrune, "SKIP": verbSkip,
	"THEN": verbThen, "MARK": verbMark, "": verbMark}

// wordy maps names of look-arounds and atomic groups to their form after "(?".
var wordy = map[string]string{
	"pla": "=", "positive_lookahead": "=", "nla": "!", "negative_lookahead": "!", "plb": "<=", "positive_lookbehind": "<=", "nlb": "<!",
	"negative_lookbehind": "<!", "napla": "*", "non_atomic_positive_lookahead": "*", "naplb": "<*", "non_atomic_positive_lookbehind": "<*", "atomic": ">",
	"sr": "s", "script_run": "s", "asr": "s", "atomic_script_run": "s",
}

// verb reads (*VERB), (*VERB:name) and (*word:…).
func (t *parser) verb() (n *node, repeatable bool, err error) {
	r := t.rest()[2:]
	end := 0
	for end < len(r) && (isAlnum(r[end]) || r[end] == '_') {
		end++
	}
	word := r[:end]
	if word != "" && word[0] >= 'a' {
		return t.wordGroup(word)
	}
	op, known := verbs[word]
	name := ""
	if end < len(r) && r[end] == ':' {
		size := strings.IndexByte(r, ')')
		if size < 0 {
			return nil, false, errVerb
		}
		name, end = r[end+1:size], size
	}
	switch {
	case !known || end >= len(r) || r[end] != ')':
		return nil, false, errVerb
	case op == verbMark && name == "":
		return nil, false, syntax("(*MARK) must have an argument")
	case len(name) > 255:
		return nil, false, syntax("name is too long in (*MARK), (*PRUNE), (*SKIP), or (*THEN)")
	}
	t.i += 2 + end + 1
	return &node{kind: kVerb, op: op, name: name}, op == verbAccept, nil
}

// wordGroup reads (*pla:…) and its like.
func (t *parser) wordGroup(word string) (n *node, repeatable bool, err error) {
	group, known := wordy[word]
	t.i += 2 + len(word)
	switch {
	case !known || !t.eat(":"):
		return nil, false, syntax("(*alpha_assertion) not recognized")
	case group == "s":
		return nil, false, syntax("script runs are not supported")
	case group == ">":
		if n, err = t.inner(); err == nil {
			n = &node{kind: kAtomic, parts: []*node{n}}
		}
		return n, true, err
	}
	t.p = t.p[:t.i] + group + t.p[t.i:]
	n, err = t.lookAround()
	return n, true, err
}

// settings are the options at the beginning of a pattern.
type settings struct {
	ucp, bsr         bool // classes are Unicode's; \R is \r, \n or both
	noStart          bool // matches are tried everywhere
	newline          newlines
	notEmpty         bool // an empty text is no match
	notEmptyAt       bool // nor is one where the search began
	tries, depth, kb int  // limits; 0: none
}

var plainSettings = map[string]func(*settings){
	"UTF": nil, "UTF8": nil, "NO_START_OPT": func(s *settings) { s.noStart = true }, "NO_AUTO_POSSESS": nil, "NO_DOTSTAR_ANCHOR": nil, "NO_JIT": nil,
	"BSR_UNICODE": func(s *settings) { s.bsr = false }, "BSR_ANYCRLF": func(s *settings) { s.bsr = true }, "UCP": func(s *settings) { s.ucp = true },
	"CR": func(s *settings) { s.newline = nlCR }, "LF": func(s *settings) { s.newline = nlLF }, "CRLF": func(s *settings) { s.newline = nlCRLF },
	"ANY": func(s *settings) { s.newline = nlAny }, "ANYCRLF": func(s *settings) { s.newline = nlAnyCRLF }, "NUL": func(s *settings) { s.newline = nlNUL },
	"NOTEMPTY": func(s *settings) { s.notEmpty = true }, "NOTEMPTY_ATSTART": func(s *settings) { s.notEmptyAt = true },
}

// leadingSettings removes the settings from the beginning of a pattern.
func leadingSettings(p string) (s settings, rest string, err error) {
	for strings.HasPrefix(p, "(*") {
		name, after, ok := strings.Cut(p[2:], ")")
		if !ok {
			break
		}
		what, number, limits := strings.Cut(name, "=")
		apply, plain := plainSettings[name]
		limit := map[string]*int{"LIMIT_MATCH": &s.tries, "LIMIT_DEPTH": &s.depth, "LIMIT_RECURSION": &s.depth, "LIMIT_HEAP": &s.kb}[what]
		switch {
		case plain && apply != nil:
			apply(&s)
		case plain:
		case limits && limit != nil:
			n, err := strconv.ParseUint(number, 10, 32)
			if err != nil {
				return s, p, errVerb
			}
			*limit = max(int(n), 1)
		default:
			return s, p, nil // part of the pattern
		}
		p = after
	}
	return s, p, nil
}
