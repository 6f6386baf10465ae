package regex

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/shoaldb/shoal/query/value"
)

// maxPattern is the longest pattern the server accepts, in bytes.
const maxPattern = 16 << 10

// SyntaxError is the error of a pattern that is not a valid regular expression.
type SyntaxError struct{ Reason string }

func (e *SyntaxError) Error() string { return "Regular expression is invalid: " + e.Reason }

// OptionError is the error of an unknown option letter.
type OptionError struct{ Option byte }

func (e *OptionError) Error() string {
	return fmt.Sprintf("invalid flag in regex options: %c", e.Option)
}

// Regexp is a compiled regular expression.
type Regexp struct {
	Pattern, Options string

	lit    *literal
	prog   *program
	linear func() *regexp.Regexp // nil if Go's engine does not interpret the pattern in the same way
	text   string                // the pattern without its leading settings
	pool   sync.Pool             // of *machine
}

// literal is a pattern that is only text.
type literal struct {
	text       []byte
	start, end bool // anchored
}

// Compile reads a pattern.
func Compile(pattern, options string) (*Regexp, error) {
	for i := 0; i < len(options); i++ {
		if strings.IndexByte("imsxu", options[i]) < 0 {
			return nil, &OptionError{options[i]}
		}
	}
	if len(pattern) > maxPattern {
		return nil, &SyntaxError{"regular expression is too large"}
	}
	set, text, err := leadingSettings(pattern)
	if err != nil {
		return nil, err
	}
	t, err := parse(text, options, set)
	if err != nil {
		return nil, err
	}
	r := &Regexp{Pattern: pattern, Options: options, text: text, prog: compileTree(t)}
	if set == (settings{}) {
		r.lit = literalOf(text, options)
		r.linear = linearOf(t, text, options)
	}
	r.pool.New = func() any {
		return &machine{p: r.prog, regs: make([]int32, r.prog.regs)}
	}
	return r, nil
}

// fewTries is the number of tries after which a search is passed to the linear engine, if that can run it.
const fewTries = 50_000

// Match reports whether the expression matches somewhere in s. The error is that of a limit, or of an operation that has to stop.
func (r *Regexp) Match(s []byte, work value.Work) (bool, error) {
	if r.lit != nil {
		return r.lit.match(s), nil
	}
	m := r.machine()
	defer r.release(m)
	m.plain = r.prog.plain
	limit := 0
	if r.linear != nil {
		limit = fewTries
	}
	loc, err := m.find(s, 0, work, limit)
	if errors.Is(err, slowError{}) {
		return r.matchLinear(s, work)
	}
	return loc != nil, err
}

func (r *Regexp) machine() *machine { return r.pool.Get().(*machine) }

// keptEntries is the size of the largest stack that is kept for the next search.
const keptEntries = 1 << 14

func (r *Regexp) release(m *machine) {
	m.s, m.work = nil, nil
	if cap(m.stack) > keptEntries {
		m.stack = nil
	}
	if cap(m.saved) > keptEntries {
		m.saved = nil
	}
	r.pool.Put(m)
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

// Find returns the positions in s, from byte offset from on, of the first match and its groups as pairs of byte
// offsets (-1 for groups that did not take part); nil if there is none.
func (r *Regexp) Find(s []byte, from int, work value.Work) (loc []int, err error) {
	m := r.machine()
	defer r.release(m)
	return m.locate(s, from, work)
}

func (m *machine) locate(s []byte, from int, work value.Work) ([]int, error) {
	m.plain = false
	regs, err := m.find(s, from, work, 0)
	if err != nil || regs == nil {
		return nil, err
	}
	loc := make([]int, len(regs))
	for i, at := range regs {
		loc[i] = int(at)
	}
	return loc, nil
}

// FindAll calls f with each match in turn, in the form of Find's, until f returns false. After an empty match the search
// continues one character further.
func (r *Regexp) FindAll(s []byte, work value.Work, f func(loc []int) (more bool, err error)) error {
	m := r.machine()
	defer r.release(m)
	for from := 0; from <= len(s); {
		loc, err := m.locate(s, from, work)
		if err != nil || loc == nil {
			return err
		}
		if more, err := f(loc); err != nil || !more {
			return err
		}
		if from = loc[1]; loc[0] == loc[1] {
			_, n := utf8.DecodeRune(s[from:])
			from += max(n, 1)
		}
	}
	return nil
}

// Groups returns the number of capturing groups.
func (r *Regexp) Groups() int { return r.prog.groups - 1 }

// Prefix returns the text with which every matching string starts ("" if unknown), for bounds on an index; exact
// is true if every string with that prefix matches.
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

// literalPrefix splits off the text that a pattern starts with, without a character that a quantifier makes optional.
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
	l := &literal{}
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
