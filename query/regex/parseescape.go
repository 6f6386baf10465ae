package regex

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// classOf returns the set of \d and its like; nil where c is none.
func (t *parser) classOf(c byte) *set {
	if strings.IndexByte("dDwWsShHvV", c) < 0 {
		return nil
	}
	both := classSets[c|0x20]
	s := both[0]
	if t.set.ucp {
		s = both[1]
	}
	if c < 'a' {
		return s.others()
	}
	return &set{subs: []*set{s}}
}

func (t *parser) escape() (n *node, repeatable bool, err error) {
	if t.i+1 >= len(t.p) {
		return nil, false, syntax(`\ at end of pattern`)
	}
	c := t.p[t.i+1]
	if s := t.classOf(c); s != nil {
		t.i += 2
		return &node{kind: kSet, set: s}, true, nil
	}
	switch c {
	case atWordEdge, atNoEdge, atStart, atLastLine, atEnd, atFrom:
		t.i += 2
		return assertion(c), false, nil
	case 'K':
		t.i += 2
		if t.looks > 0 {
			t.after = append(t.after, func() error {
				return syntax(`\K is not allowed in lookarounds (but see PCRE2_EXTRA_ALLOW_LOOKAROUND_BSK)`)
			})
		}
		return &node{kind: kKeep}, false, nil
	case 'N':
		if !strings.HasPrefix(t.rest(), `\N{U+`) {
			if strings.HasPrefix(t.rest(), `\N{`) && quantifierLen(t.rest()[2:]) == 0 {
				return nil, false, errUnsupported
			}
			t.i += 2
			return t.notNewline(), true, nil
		}
	case 'R', 'X', 'C':
		t.i += 2
		return &node{kind: map[byte]kind{'R': kNewline, 'X': kCluster, 'C': kByte}[c]}, true, nil
	case 'g', 'k':
		n, err := t.reference(c)
		return n, true, err
	case 'p', 'P':
		s, err := t.propertyEscape()
		return &node{kind: kSet, set: s}, true, err
	}
	if c >= '1' && c <= '9' {
		if n, err := t.backNumber(); n != nil || err != nil {
			return n, true, err
		}
	}
	r, err := t.charEscape(false)
	return t.char(r), true, err
}

var errUnsupported = syntax(`PCRE2 does not support \F, \L, \l, \N{name}, \U, or \u`)

// backNumber reads \1 and the like: it is a reference if it is below 10, begins with 8 or 9, or if there were that many groups.
func (t *parser) backNumber() (*node, error) {
	digits := digitsOf(t.p[t.i+1:])
	n, err := strconv.Atoi(digits)
	if err != nil || n > maxLookbehind {
		return nil, nil
	}
	if n >= 10 && digits[0] < '8' && n > t.last {
		return nil, nil
	}
	t.i += 1 + len(digits)
	return t.back(n, ""), nil
}

func digitsOf(s string) string {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return s[:n]
}

func (t *parser) back(num int, name string) *node {
	return t.refers(&node{kind: kBack, num: num, name: name, fold: t.f.i})
}

func (t *parser) call(num int, name string) *node {
	return t.refers(&node{kind: kCall, num: num, name: name})
}

// reference reads \g and \k.
func (t *parser) reference(c byte) (*node, error) {
	t.i += 2
	closing := map[byte]byte{'{': '}', '<': '>', '\'': '\''}
	stop := byte(0)
	if t.i < len(t.p) {
		stop = closing[t.p[t.i]]
	}
	if c == 'k' {
		if stop == 0 {
			return nil, syntax(`\k is not followed by a braced, angle-bracketed, or quoted name`)
		}
		t.i++
		name, err := t.name(stop)
		return t.back(0, name), err
	}
	called := stop == '>' || stop == '\''
	if stop != 0 {
		t.i++
	}
	num, ok, err := t.number()
	switch {
	case err != nil:
		return nil, err
	case !ok && stop == 0:
		return nil, syntax(`\g is not followed by a braced, angle-bracketed, or quoted name/number or by a plain number`)
	case !ok:
		name, err := t.name(stop)
		if called {
			return t.call(0, name), err
		}
		return t.back(0, name), err
	case stop != 0 && !t.eat(string(stop)):
		if called {
			return nil, syntax(`\g is not followed by a braced, angle-bracketed, or quoted name/number or by a plain number`)
		}
		return nil, syntax(`\g is not followed by a braced, angle-bracketed, or quoted name/number or by a plain number`)
	case called:
		return t.call(num, ""), nil
	case num == 0:
		return nil, errNoGroup
	}
	return t.back(num, ""), nil
}

// number reads a group's number; with a sign it is relative to the groups so far; ok is false if there is none.
func (t *parser) number() (n int, ok bool, err error) {
	r := t.rest()
	sign := byte(0)
	if r != "" && (r[0] == '+' || r[0] == '-') {
		sign, r = r[0], r[1:]
	}
	digits := digitsOf(r)
	if digits == "" {
		return 0, false, nil
	}
	if n, err = strconv.Atoi(digits); err != nil || n > maxLookbehind {
		return 0, false, errTooBig
	}
	t.i += one(sign != 0) + len(digits)
	switch {
	case sign != 0 && n == 0:
		return 0, false, errZeroAhead
	case sign == '+':
		n += t.last
	case sign == '-':
		if n = t.last + 1 - n; n <= 0 {
			return 0, false, errNoGroup
		}
	}
	return n, true, nil
}

// name reads a group's name and its terminator.
func (t *parser) name(stop byte) (string, error) {
	r := t.rest()
	if r == "" {
		return "", syntax("subpattern name expected")
	}
	if first, _ := utf8.DecodeRuneInString(r); unicode.Is(unicode.Nd, first) {
		return "", syntax("subpattern name must start with a non-digit")
	}
	end := strings.IndexFunc(r, func(c rune) bool { return c != '_' && !unicode.IsLetter(c) && !unicode.Is(unicode.Nd, c) })
	if end < 0 {
		end = len(r)
	}
	switch {
	case end > maxName:
		return "", syntax("subpattern name is too long (maximum 32 code units)")
	case end == 0:
		return "", syntax("subpattern name expected")
	case end == len(r) || r[end] != stop:
		return "", syntax("syntax error in subpattern name (missing terminator?)")
	}
	t.i += end + 1
	return r[:end], nil
}

func (t *parser) propertyEscape() (*set, error) {
	malformed := syntax(`malformed \P or \p sequence`)
	r := t.p[t.i+2:]
	name, size := "", 1
	if strings.HasPrefix(r, "{") {
		end := strings.IndexByte(r, '}')
		if end < 0 {
			return nil, malformed
		}
		name, size = r[1:end], end+1
	} else if r == "" {
		return nil, malformed
	} else {
		name = r[:1]
	}
	neg := t.p[t.i+1] == 'P'
	if strings.HasPrefix(strings.TrimSpace(name), "^") {
		name, neg = strings.TrimSpace(name)[1:], !neg
	}
	s := property(name)
	if s == nil {
		return nil, syntax(`unknown property after \P or \p`)
	}
	t.i += 2 + size
	if neg {
		return s.others(), nil
	}
	return &set{subs: []*set{s}}, nil
}

var controls = map[byte]rune{'a': 7, 'e': 27, 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// charEscape reads an escape that stands for one character.
func (t *parser) charEscape(inClass bool) (rune, error) {
	c := t.p[t.i+1]
	switch {
	case c == 'x' || c == 'o' || c == 'N':
		return t.codePoint(inClass)
	case c == 'c':
		if t.i+2 >= len(t.p) {
			return 0, syntax(`\c at end of pattern`)
		}
		up := t.p[t.i+2]
		if up < ' ' || up > '~' {
			return 0, syntax(`\c must be followed by a printable ASCII character`)
		}
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
	case c == '8' || c == '9':
		t.i += 2
		return rune(c), nil
	case controls[c] != 0:
		t.i += 2
		return controls[c], nil
	case strings.IndexByte("FlLuU", c) >= 0:
		return 0, errUnsupported
	case inClass && c == 'g':
		t.i += 2
		return 'g', nil
	case inClass && strings.IndexByte("ABCGKRXZzk", c) >= 0:
		return 0, syntax("escape sequence is invalid in character class")
	case isAlnum(c):
		return 0, syntax(`unrecognized character follows \`)
	}
	r, n := utf8.DecodeRuneInString(t.p[t.i+1:])
	t.i += 1 + n
	return r, nil
}

// codePoint reads \xhh, \x{h…}, \o{…} and \N{U+h…}.
func (t *parser) codePoint(inClass bool) (rune, error) {
	c := t.p[t.i+1]
	t.i += 2
	switch {
	case c == 'N' && t.eat("{U+"):
		return t.braced(16, "non-hex character in \\x{} (closing brace missing?)")
	case c == 'N' && inClass && !strings.HasPrefix(t.rest(), "{"):
		return 0, syntax(`\N is not supported in a class`)
	case c == 'N':
		return 0, errUnsupported
	case c == 'o' && t.eat("{"):
		return t.braced(8, "non-octal character in \\o{} (closing brace missing?)")
	case c == 'o':
		return 0, syntax(`missing opening brace after \o`)
	case t.eat("{"):
		return t.braced(16, "non-hex character in \\x{} (closing brace missing?)")
	}
	r, size := t.rest(), 0
	for size < len(r) && size < 2 && isHex(r[size]) {
		size++
	}
	n, _ := strconv.ParseUint("0"+r[:size], 16, 32)
	t.i += size
	return rune(n), nil
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

// braced reads a number up to a closing brace.
func (t *parser) braced(base int, otherwise string) (rune, error) {
	r, n := t.rest(), 0
	if r == "" || r[0] == '}' {
		return 0, syntax(`digits missing in \x{} or \o{} or \N{U+}`)
	}
	for i := 0; ; i++ {
		switch {
		case i == len(r), base == 8 && (r[i] < '0' || r[i] > '7') && r[i] != '}', !isHex(r[i]) && r[i] != '}':
			return 0, syntax(otherwise)
		case r[i] == '}':
			if n >= 0xD800 && n <= 0xDFFF {
				return 0, syntax("disallowed Unicode code point (>= 0xd800 && <= 0xdfff)")
			}
			t.i += i + 1
			return rune(n), nil
		}
		d, _ := strconv.ParseUint(r[i:i+1], base, 8)
		if n = n*base + int(d); n > utf8.MaxRune {
			return 0, syntax(`character code point value in \x{} or \o{} is too large`)
		}
	}
}
