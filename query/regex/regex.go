package regex

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// maxPattern is the longest pattern the server accepts, in bytes.
const maxPattern = 16 << 10

// matchTimeout bounds one run of the backtracking engine.
const matchTimeout = 2 * time.Second

// SyntaxError tells that a pattern is not a regular expression.
type SyntaxError struct{ Reason string }

func (e *SyntaxError) Error() string { return "Regular expression is invalid: " + e.Reason }

// OptionError tells that an option letter is unknown.
type OptionError struct{ Option byte }

func (e *OptionError) Error() string {
	return fmt.Sprintf("invalid flag in regex options: %c", e.Option)
}

// Regexp is a compiled regular expression.
type Regexp struct {
	Pattern, Options string

	lit  *literal
	std  *regexp.Regexp
	back *regexp2.Regexp
	tree *tree
	text string // the pattern without its leading verbs
	ucp  bool   // (*UCP): classes are Unicode's
	bsr  bool   // (*BSR_ANYCRLF): \R is \r, \n or both
}

// literal is a pattern that is only text.
type literal struct {
	text          []byte
	start, end    bool // anchored
	caseSensitive bool
}

// Compile reads a pattern for Match.
func Compile(pattern, options string) (*Regexp, error) {
	r, err := prepare(pattern, options)
	if err != nil {
		return nil, err
	}
	if r.lit = literalOf(r.text, options); r.lit != nil {
		return r, nil
	}
	if src, ok := toGo(r.text, options, r.ucp, false); ok {
		if re, err := regexp.Compile(src); err == nil {
			r.std = re
			return r, nil
		}
	}
	return r, r.compileBacktracking()
}

// CompileFind reads a pattern for Find, which tells positions.
func CompileFind(pattern, options string) (*Regexp, error) {
	r, err := prepare(pattern, options)
	if err != nil {
		return nil, err
	}
	if src, ok := toGo(r.text, options, r.ucp, true); ok {
		if re, err := regexp.Compile(src); err == nil {
			r.std = re
			return r, nil
		}
	}
	return r, r.compileBacktracking()
}

func prepare(pattern, options string) (*Regexp, error) {
	for i := 0; i < len(options); i++ {
		if strings.IndexByte("imsxu", options[i]) < 0 {
			return nil, &OptionError{options[i]}
		}
	}
	if len(pattern) > maxPattern {
		return nil, &SyntaxError{"regular expression is too large"}
	}
	r := &Regexp{Pattern: pattern, Options: options, text: pattern}
	return r, r.leadingVerbs()
}

// harmlessVerbs are settings of PCRE that change no answer here: how it searches, how much it may, and what is so anyway.
var harmlessVerbs = map[string]bool{"UTF": true, "UTF8": true, "LF": true, "BSR_UNICODE": true, "NO_START_OPT": true, "NO_AUTO_POSSESS": true,
	"NO_DOTSTAR_ANCHOR": true, "NO_JIT": true}

// leadingVerbs takes the settings off the front of a pattern.
func (r *Regexp) leadingVerbs() error {
	for strings.HasPrefix(r.text, "(*") {
		name, rest, ok := strings.Cut(r.text[2:], ")")
		what, number, limits := strings.Cut(name, "=")
		switch {
		case !ok:
			return nil // what is wrong with it is said later
		case name == "UCP":
			r.ucp = true
		case name == "BSR_ANYCRLF":
			r.bsr = true
		case limits && (what == "LIMIT_MATCH" || what == "LIMIT_DEPTH" || what == "LIMIT_HEAP" || what == "LIMIT_RECURSION"):
			if number == "" || strings.Trim(number, "0123456789") != "" {
				return &SyntaxError{"(*VERB) not recognized or malformed"}
			}
		case newlineVerbs[name]:
			return &SyntaxError{"(*" + name + ") is not supported: lines end with \\n"}
		case !harmlessVerbs[name]:
			return nil // a verb that is part of the pattern
		}
		r.text = rest
	}
	return nil
}

// newlineVerbs say what ends a line.
var newlineVerbs = map[string]bool{"CR": true, "CRLF": true, "ANYCRLF": true, "ANY": true, "NUL": true}

func (r *Regexp) compileBacktracking() error {
	if needsTree(r.text) || r.bsr {
		return r.compileTree()
	}
	err := r.compileEngine()
	if err != nil && r.compileTree() == nil {
		return nil
	}
	return err
}

func (r *Regexp) compileTree() (err error) {
	r.tree, err = parseTree(r.text, r.Options, r.ucp, r.bsr)
	return err
}

// beyondEngine recognises what the backtracking engine lacks: calls of groups, verbs, groups that share their numbers; and
// what it does otherwise: \K, \G, and the numbers of groups with names.
var beyondEngine = regexp.MustCompile(`\(\?(R|\||&|P>|P?<[^=!]|'|[-+]?[0-9]|\(R|\(DEFINE)|\(\*|\\[KG]|\\g[<']`)

func needsTree(p string) bool { return beyondEngine.MatchString(p) }

func (r *Regexp) compileEngine() error {
	if variableLookbehind(r.text) {
		return &SyntaxError{"lookbehind assertion is not fixed length"}
	}
	src, err := toBacktracking(r.text, r.ucp)
	if err != nil {
		return err
	}
	opts := regexp2.None
	for i := 0; i < len(r.Options); i++ {
		switch r.Options[i] {
		case 'i':
			opts |= regexp2.IgnoreCase
		case 'm':
			opts |= regexp2.Multiline
		case 's':
			opts |= regexp2.Singleline
		case 'x':
			opts |= regexp2.IgnorePatternWhitespace
		}
	}
	re, err := regexp2.Compile(src, opts)
	if err != nil {
		return &SyntaxError{reasonOf(err)}
	}
	re.MatchTimeout = matchTimeout
	r.back = re
	return nil
}

// reasonOf words an engine's complaint as PCRE does, for the common ones.
func reasonOf(err error) string {
	msg := err.Error()
	for _, m := range [][2]string{
		{"unterminated []", "missing terminating ] for character class"},
		{"missing closing )", "missing closing parenthesis"},
		{"not enough )", "missing closing parenthesis"},
		{"unexpected )", "unmatched closing parenthesis"},
		{"too many )", "unmatched closing parenthesis"},
		{"following nothing", "quantifier does not follow a repeatable item"},
		{"illegal \\ at end", "\\ at end of pattern"},
		{"reference to undefined group", "reference to non-existent subpattern"},
		{"[x-y] range in reverse", "range out of order in character class"},
		{"illegal {x,y}", "numbers out of order in {} quantifier"},
	} {
		if strings.Contains(strings.ToLower(msg), m[0]) {
			return m[1]
		}
	}
	return msg
}

// Match reports whether the expression matches somewhere in s. The error is the backtracking engine's time limit.
func (r *Regexp) Match(s []byte) (bool, error) {
	switch {
	case r.lit != nil:
		return r.lit.match(s), nil
	case r.std != nil:
		return r.std.Match(s), nil
	case r.tree != nil:
		loc, err := r.tree.find(s, 0)
		return loc != nil, err
	}
	return r.back.MatchString(string(s))
}

func (l *literal) match(s []byte) bool {
	switch {
	case l.start && l.end:
		return bytes.HasPrefix(s, l.text) && tailEmpty(s[len(l.text):])
	case l.start:
		return bytes.HasPrefix(s, l.text)
	case l.end:
		return bytes.HasSuffix(s, l.text) || len(s) > 0 && s[len(s)-1] == '\n' && bytes.HasSuffix(s[:len(s)-1], l.text)
	}
	return bytes.Contains(s, l.text)
}

func tailEmpty(s []byte) bool { return len(s) == 0 || len(s) == 1 && s[0] == '\n' }

// Find gives the positions in s, from byte offset from on, of the first match and its groups as pairs of byte offsets
// (-1 for groups that did not take part); nil where there is none. The Regexp must come from CompileFind.
func (r *Regexp) Find(s []byte, from int) ([]int, error) {
	if r.std != nil {
		return r.findStd(s, from), nil
	}
	if r.tree != nil {
		return r.tree.find(s, from)
	}
	text := string(s)
	m, err := r.back.FindStringMatchStartingAt(text, from)
	if err != nil || m == nil {
		return nil, err
	}
	return positions(m), nil
}

// FindAll calls f with each match in turn, as Find gives them, until it wants no more. The Regexp must come from
// CompileFind.
func (r *Regexp) FindAll(s []byte, f func(loc []int) (more bool, err error)) error {
	if r.std != nil {
		for _, loc := range r.std.FindAllSubmatchIndex(s, -1) {
			if more, err := f(loc); err != nil || !more {
				return err
			}
		}
		return nil
	}
	if r.tree != nil {
		return r.tree.findAll(s, f)
	}
	m, err := r.back.FindStringMatch(string(s))
	for m != nil && err == nil {
		if more, err := f(positions(m)); err != nil || !more {
			return err
		}
		m, err = r.back.FindNextMatch(m)
	}
	return err
}

// positions are the byte offsets of a match and its groups.
func positions(m *regexp2.Match) []int {
	groups := m.Groups()
	out := make([]int, 0, 2*len(groups))
	for i := range groups {
		g := &groups[i]
		if len(g.Captures) == 0 {
			out = append(out, -1, -1)
			continue
		}
		at, n := g.ByteRange()
		out = append(out, at, at+n)
	}
	return out
}

// findStd keeps what stands before from visible to anchors and \b by searching all of s.
func (r *Regexp) findStd(s []byte, from int) []int {
	if from == 0 {
		return r.std.FindSubmatchIndex(s)
	}
	for _, m := range r.std.FindAllSubmatchIndex(s, -1) {
		if m[0] >= from {
			return m
		}
	}
	return nil
}

// Groups is the number of capturing groups.
func (r *Regexp) Groups() int {
	if r.std != nil {
		return r.std.NumSubexp()
	}
	if r.tree != nil {
		return len(r.tree.groups) - 1
	}
	return len(r.back.GetGroupNumbers()) - 1
}

// Prefix gives the text every matching string starts with ("" where nothing is known), for bounds on an index; exact is
// true where every string with that prefix matches.
func (r *Regexp) Prefix() (prefix string, exact bool) {
	if strings.ContainsAny(r.Options, "imx") {
		return "", false
	}
	p := r.text
	switch {
	case strings.HasPrefix(p, "^"):
		p = p[1:]
	case strings.HasPrefix(p, "\\A"):
		p = p[2:]
	default:
		return "", false
	}
	if strings.Contains(p, "|") {
		return "", false
	}
	text, rest := literalPrefix(p)
	return text, rest == "" || rest == ".*" && strings.Contains(r.Options, "s")
}

// literalPrefix splits off the text a pattern starts with; a character that a quantifier makes optional is left out.
func literalPrefix(p string) (text, rest string) {
	var out []byte
	i := 0
	for i < len(p) {
		c, n := p[i], 1
		if c == '\\' {
			if i+1 >= len(p) || isAlnum(p[i+1]) {
				break
			}
			c, n = p[i+1], 2
		} else if strings.IndexByte(".^$*+?()[]{}|", c) >= 0 {
			break
		} else if c >= utf8.RuneSelf {
			_, n = utf8.DecodeRuneInString(p[i:])
		}
		if i+n < len(p) && strings.IndexByte("*?{", p[i+n]) >= 0 {
			break
		}
		if i+n < len(p) && p[i+n] == '+' {
			out = append(out, p[i+n-1])
			if n == 2 {
				out[len(out)-1] = c
			} else {
				out = append(out[:len(out)-1], p[i:i+n]...)
			}
			return string(out), p[i+n:]
		}
		if n == 2 && c < utf8.RuneSelf && p[i] == '\\' {
			out = append(out, c)
		} else {
			out = append(out, p[i:i+n]...)
		}
		i += n
	}
	return string(out), p[i:]
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// literalOf recognises patterns that are plain text with at most a leading ^ and a trailing $.
func literalOf(p, options string) *literal {
	if strings.ContainsAny(options, "imx") {
		return nil
	}
	l := &literal{caseSensitive: true}
	if strings.HasPrefix(p, "^") {
		l.start, p = true, p[1:]
	}
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case c == '$' && i == len(p)-1:
			l.end = true
		case c == '\\':
			if i++; i >= len(p) || isAlnum(p[i]) || p[i] >= utf8.RuneSelf {
				return nil
			}
			l.text = append(l.text, p[i])
		case strings.IndexByte(".^$*+?()[]{}|", c) >= 0:
			return nil
		default:
			l.text = append(l.text, c)
		}
	}
	return l
}
