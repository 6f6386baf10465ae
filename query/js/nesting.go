package js

import (
	"strings"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The interpreter's parser and its compiler recurse: once for each open bracket, and once for each operator of a chain. A stack
// overflow ends the process, and nothing can recover from that. A source is therefore scanned before it is parsed, and refused
// where it may be nested too deeply. Rejected: a limit on the length alone. It would have to be so low, some kilobytes for each
// megabyte of stack, that libraries that applications include in their functions would be refused.
const (
	plainSource   = 8 << 10 // a source no longer than this is parsed as it is: its length bounds the nesting
	longestSource = 1 << 20
	mostNested    = 10000 // open brackets, and tokens since the last comma or semicolon within each
)

// errNested is the error for sources that are nested too deeply.
var errNested = mongoerr.New(mongoerr.JSInterpreterFailure, "InternalError: too much recursion")

// tooDeep reports whether a source may be nested deeper than mostNested. It errs on the side of refusing: where a slash could begin
// a pattern or be a division, and the two readings differ in the brackets and quotes that follow, the source counts as too deep.
func tooDeep(src string) bool {
	if len(src) <= plainSource {
		return false
	}
	s := nesting{src: src, levels: []level{{}}, prev: operator}
	return len(src) > longestSource || !s.scan()
}

// token classifies the text before the current position.
type token int

const (
	operator  token = iota // a slash begins a pattern
	operand                // a slash divides
	ambiguous              // either
)

// level is an open bracket.
type level struct {
	open    byte // one of ( [ { ` and, for an expression in a template, $
	control bool // the parentheses of an if, a for, a while, a with
	tokens  int  // since the last comma or semicolon
}

type nesting struct {
	src    string
	at     int
	levels []level
	total  int // tokens of all levels
	prev   token
	word   string // the word directly before the current position, unless it is the name of a property
	dot    bool   // a dot is directly before the current position
}

func (s *nesting) add(n int) {
	s.levels[len(s.levels)-1].tokens += n
	s.total += n
}

// scan reports whether the source could be read to its end and is nested no deeper than allowed.
func (s *nesting) scan() bool {
	for s.at < len(s.src) {
		if !s.step() || s.total > mostNested {
			return false
		}
	}
	return true
}

func (s *nesting) step() bool {
	if s.levels[len(s.levels)-1].open == '`' {
		return s.template()
	}
	c := s.src[s.at]
	switch {
	case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f':
		s.at++
		return true
	case c == '"' || c == '\'':
		s.quoted(c)
		s.note(1, operand)
		return true
	case c == '`', c == '(', c == '[', c == '{':
		s.push(c)
		return true
	case c == ')' || c == ']' || c == '}':
		return s.pop(c)
	case c == ';' || c == ',':
		l := &s.levels[len(s.levels)-1]
		s.total, l.tokens = s.total-l.tokens, 0
		s.at++
		s.note(0, operator)
		return true
	case c == '/':
		return s.slash()
	case wordByte(c):
		s.name()
		return true
	}
	return s.sign()
}

// note counts tokens and records the kind of the last one.
func (s *nesting) note(n int, prev token) {
	s.add(n)
	s.prev, s.word, s.dot = prev, "", false
}

func wordByte(c byte) bool {
	return c == '_' || c == '$' || c == '\\' || c == '#' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// before has the words after which a slash begins a pattern; after some of them it does so only if they are not
// identifiers.
var before = map[string]token{
	"return": operator, "typeof": operator, "case": operator, "in": operator, "instanceof": operator, "delete": operator, "void": operator, "throw": operator,
	"new": operator, "else": operator, "do": operator, "of": ambiguous, "yield": ambiguous, "await": ambiguous, "let": ambiguous, "static": ambiguous, "async": ambiguous,
}

func (s *nesting) name() {
	from := s.at
	for s.at < len(s.src) && wordByte(s.src[s.at]) {
		s.at++
	}
	word, property := s.src[from:s.at], s.dot
	prev := operand
	if strings.ContainsAny(word, "\\\u2028\u2029") || strings.ContainsFunc(word, func(r rune) bool { return r >= 0x80 }) {
		prev = ambiguous // letters of other scripts, spaces and line ends that are not ASCII, escapes: not distinguished here
	}
	if p, ok := before[word]; ok && !property {
		prev = p
	}
	s.note(1, prev)
	if !property {
		s.word = word
	}
}

// sign reads one character of an operator.
func (s *nesting) sign() bool {
	rest := s.src[s.at:]
	switch {
	case strings.HasPrefix(rest, "<!--"), strings.HasPrefix(rest, "-->"):
		return false // the comments that only browsers accept
	case strings.HasPrefix(rest, "++"), strings.HasPrefix(rest, "--"):
		s.at += 2
		s.note(1, ambiguous)
		return true
	}
	s.at++
	s.note(1, operator)
	s.dot = rest[0] == '.'
	return true
}

func (s *nesting) push(c byte) {
	s.at++
	s.levels = append(s.levels, level{open: c, control: c == '(' && (s.word == "if" || s.word == "for" || s.word == "while" || s.word == "with" || s.word == "await")})
	s.note(1, operator)
}

// closes has, for each closing bracket, the opening ones that it may end.
var closes = map[byte]string{')': "(", ']': "[", '}': "{$"}

func (s *nesting) pop(c byte) bool {
	l := s.levels[len(s.levels)-1]
	if l.open == 0 || strings.IndexByte(closes[c], l.open) < 0 {
		return false
	}
	s.total -= l.tokens
	s.levels = s.levels[:len(s.levels)-1]
	s.at++
	switch {
	case c == ']' || c == ')' && !l.control:
		s.note(0, operand)
	case c == ')':
		s.note(0, operator)
	default:
		s.note(0, ambiguous) // the end of a block or of an object
	}
	return true
}

// template reads the text of a template up to its end or the next expression in it.
func (s *nesting) template() bool {
	i := strings.IndexAny(s.src[s.at:], "`\\$")
	if i < 0 {
		return false
	}
	s.at += i
	switch {
	case s.src[s.at] == '\\':
		s.at += 2
	case s.src[s.at] == '`':
		l := s.levels[len(s.levels)-1]
		s.total -= l.tokens
		s.levels = s.levels[:len(s.levels)-1]
		s.at++
		s.note(0, operand)
	case strings.HasPrefix(s.src[s.at:], "${"):
		s.at++
		s.push('$')
	default:
		s.at++
	}
	return true
}

// quoted reads a string. An unclosed one ends with its line.
func (s *nesting) quoted(quote byte) {
	for s.at++; s.at < len(s.src); s.at++ {
		switch s.src[s.at] {
		case quote:
			s.at++
			return
		case '\\':
			if s.at++; strings.HasPrefix(s.src[s.at:], "\r\n") {
				s.at++
			}
		case '\n', '\r':
			return
		}
	}
}

// lineEnd returns the end of the line that contains i.
func (s *nesting) lineEnd(i int) int {
	end := len(s.src)
	for _, nl := range []string{"\n", "\r", "\u2028", "\u2029"} {
		if n := strings.Index(s.src[i:end], nl); n >= 0 {
			end = i + n
		}
	}
	return end
}

// slash reads a comment, a pattern, or a division.
func (s *nesting) slash() bool {
	rest := s.src[s.at:]
	switch {
	case strings.HasPrefix(rest, "//"):
		s.at = s.lineEnd(s.at)
		return true
	case strings.HasPrefix(rest, "/*"):
		end := strings.Index(rest[2:], "*/")
		if end < 0 {
			return false
		}
		s.at += end + 4
		return true
	case s.prev == operand:
		s.at++
		s.note(1, operator)
		return true
	}
	end := s.patternEnd()
	if s.prev == ambiguous {
		if end < 0 {
			s.at++
			s.note(1, operator)
			return true
		}
		if strings.ContainsAny(s.src[s.at+1:end], "()[]{}'\"`\\/,;") {
			return false
		}
		s.add(end - s.at)
		s.at = end + 1
		s.note(1, ambiguous)
		return true
	}
	if end < 0 {
		return false
	}
	s.at = end + 1
	s.note(1, operand) // its flags follow, as a word
	return true
}

// patternEnd returns the end of the pattern that begins at the current position; -1 if it does not end on this line.
func (s *nesting) patternEnd() int {
	class := false
	for i, end := s.at+1, s.lineEnd(s.at); i < end; i++ {
		switch s.src[i] {
		case '\\':
			i++
		case '[':
			class = true
		case ']':
			class = false
		case '/':
			if !class {
				return i
			}
		}
	}
	return -1
}

// jsonDepth returns how deeply a JSON text is nested.
func jsonDepth(text string) int {
	depth, most := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '[', '{':
			depth++
			most = max(most, depth)
		case ']', '}':
			depth--
		}
	}
	return most
}
