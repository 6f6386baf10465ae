package regex

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	asciiWord  = "0-9A-Za-z_"
	asciiSpace = "\\t-\\r\\x20"
	hSpace     = "\\t\\x20\\u00A0\\u1680\\u180E\\u2000-\\u200A\\u202F\\u205F\\u3000"
	vSpace     = "\\n-\\r\\u0085\\u2028\\u2029"
)

// toGo rewrites a pattern for Go's engine; ok is false where it uses something the two read differently. positions says
// that the caller needs to know where matches end.
func toGo(p, options string, ucp, positions bool) (src string, ok bool) {
	if strings.Contains(options, "x") {
		return "", false
	}
	g := goWriter{p: p, ucp: ucp, positions: positions, multiline: strings.Contains(options, "m")}
	if flags := strings.Map(keepGoFlags, options); flags != "" {
		g.out.WriteString("(?" + flags + ")")
	}
	for g.i < len(p) {
		if !g.step() {
			return "", false
		}
	}
	return g.out.String(), true
}

func keepGoFlags(r rune) rune {
	if strings.ContainsRune("ims", r) {
		return r
	}
	return -1
}

type goWriter struct {
	p                         string
	i                         int
	out                       strings.Builder
	ucp, positions, multiline bool
}

func (g *goWriter) step() bool {
	switch c := g.p[g.i]; c {
	case '\\':
		return g.escape()
	case '[':
		return g.class()
	case '(':
		return g.group()
	case '$':
		if g.multiline {
			break
		}
		// Without m, $ also matches before a last newline: eat it, where nothing can follow.
		if rest := g.p[g.i+1:]; g.positions || strings.Trim(rest, ")") != "" {
			return false
		}
		g.out.WriteString(`\n?\z`)
		g.i++
		return true
	}
	g.out.WriteByte(g.p[g.i])
	g.i++
	return true
}

// group lets plain, non-capturing, named and flag groups through.
func (g *goWriter) group() bool {
	rest := g.p[g.i:]
	switch {
	case strings.HasPrefix(rest, "(*"):
		return false
	case !strings.HasPrefix(rest, "(?"), strings.HasPrefix(rest, "(?:"), strings.HasPrefix(rest, "(?P<"):
	default:
		for _, c := range rest[2:] {
			if c == ')' || c == ':' {
				break
			}
			// An inline m would change what $ means from there on; x is not Go's.
			if !strings.ContainsRune("is-", c) && !(c == 'm' && !strings.Contains(g.p, "$")) {
				return false
			}
		}
	}
	g.out.WriteByte('(')
	g.i++
	return true
}

func (g *goWriter) escape() bool {
	if g.i+1 >= len(g.p) {
		return false
	}
	c := g.p[g.i+1]
	switch c {
	case 'd', 'D', 'w', 'W', 's', 'S', 'b', 'B':
		if g.ucp {
			return false
		}
		switch c {
		case 's':
			g.out.WriteString(`[\t-\r ]`)
		case 'S':
			g.out.WriteString(`[^\t-\r ]`)
		default:
			g.out.WriteString(g.p[g.i : g.i+2])
		}
	case 'A', 'z', 'n', 'r', 't', 'f', 'a':
		g.out.WriteString(g.p[g.i : g.i+2])
	case 'p', 'P', 'x':
		g.out.WriteString(g.p[g.i : g.i+2])
	default:
		if isAlnum(c) || c >= utf8.RuneSelf {
			return false
		}
		g.out.WriteString(g.p[g.i : g.i+2])
	}
	g.i += 2
	return true
}

// class copies a bracket expression.
func (g *goWriter) class() bool {
	end := classEnd(g.p, g.i)
	if end < 0 {
		return false
	}
	body := g.p[g.i+1 : end]
	g.out.WriteByte('[')
	for j := 0; j < len(body); j++ {
		c := body[j]
		switch {
		case c == '\\' && j+1 < len(body):
			j++
			switch e := body[j]; {
			case g.ucp && strings.IndexByte("dDwWsS", e) >= 0, e == 'S', e == 'b':
				return false
			case e == 's':
				g.out.WriteString(`\t-\r `)
			case strings.IndexByte("dDwWnrtfapPx", e) >= 0 || !isAlnum(e):
				g.out.WriteString(body[j-1 : j+1])
			default:
				return false
			}
		case c == '[' && j+1 < len(body) && body[j+1] == ':':
			if g.ucp {
				return false
			}
			g.out.WriteByte(c)
		case c == '[':
			g.out.WriteString(`\[`)
		default:
			g.out.WriteByte(c)
		}
	}
	g.out.WriteByte(']')
	g.i = end + 1
	return true
}

// classEnd is the index of the ] that closes the class starting at i, or -1.
func classEnd(p string, i int) int {
	i++
	if i < len(p) && p[i] == '^' {
		i++
	}
	if i < len(p) && p[i] == ']' {
		i++
	}
	for ; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '[':
			if i+1 < len(p) && p[i+1] == ':' {
				if k := strings.Index(p[i+2:], ":]"); k >= 0 {
					i += k + 3
				}
			}
		case ']':
			return i
		}
	}
	return -1
}

// toBacktracking rewrites PCRE's syntax in that of the backtracking engine.
func toBacktracking(p string, ucp bool) (string, error) {
	b := backWriter{p: p, ucp: ucp, atom: -1}
	for b.i < len(p) {
		if err := b.step(); err != nil {
			return "", err
		}
	}
	if len(b.open) > 0 {
		return "", &SyntaxError{"missing closing parenthesis"}
	}
	return b.out.String(), nil
}

type backWriter struct {
	p    string
	i    int
	out  strings.Builder
	ucp  bool
	atom int   // where in out the last quantifiable item starts; -1: nothing to quantify
	open []int // starts of open groups
}

// put writes one quantifiable item that took n bytes of the pattern.
func (b *backWriter) put(text string, n int) {
	b.atom = b.out.Len()
	b.out.WriteString(text)
	b.i += n
}

func (b *backWriter) step() error {
	switch c := b.p[b.i]; c {
	case '\\':
		return b.escape()
	case '[':
		return b.class()
	case '(':
		return b.group()
	case ')':
		if len(b.open) == 0 {
			return &SyntaxError{"unmatched closing parenthesis"}
		}
		start := b.open[len(b.open)-1]
		b.open = b.open[:len(b.open)-1]
		b.out.WriteByte(c)
		b.i++
		b.atom = start
		return nil
	case '*', '+', '?':
		return b.quantifier(string(c), 1)
	case '{':
		if n := quantifierLen(b.p[b.i:]); n > 0 {
			return b.quantifier(b.p[b.i:b.i+n], n)
		}
		b.put(`\{`, 1)
		return nil
	case '|', '^':
		b.out.WriteByte(c)
		b.i++
		b.atom = -1
		return nil
	}
	_, n := utf8.DecodeRuneInString(b.p[b.i:])
	b.put(b.p[b.i:b.i+n], n)
	return nil
}

// quantifier writes a quantifier; a possessive one becomes an atomic group around the item.
func (b *backWriter) quantifier(q string, n int) error {
	if b.atom < 0 {
		return &SyntaxError{"quantifier does not follow a repeatable item"}
	}
	b.i += n
	if b.i < len(b.p) && b.p[b.i] == '+' {
		b.i++
		text := b.out.String()
		b.out.Reset()
		b.out.WriteString(text[:b.atom] + "(?>" + text[b.atom:] + q + ")")
		return nil
	}
	b.out.WriteString(q)
	if b.i < len(b.p) && b.p[b.i] == '?' {
		b.out.WriteByte('?')
		b.i++
	}
	b.atom = -1
	return nil
}

// quantifierLen is the length of a {n}, {n,} or {n,m} at the start of p; 0 where it is none.
func quantifierLen(p string) int {
	end := strings.IndexByte(p, '}')
	if end < 2 {
		return 0
	}
	lo, hi, _ := strings.Cut(p[1:end], ",")
	if _, err := strconv.ParseUint(lo, 10, 32); err != nil {
		return 0
	}
	if hi != "" {
		if _, err := strconv.ParseUint(hi, 10, 32); err != nil {
			return 0
		}
	}
	return end + 1
}

func (b *backWriter) group() error {
	rest := b.p[b.i:]
	switch {
	case strings.HasPrefix(rest, "(?P<"):
		b.openGroup("(?<", 4)
	case strings.HasPrefix(rest, "(?P="):
		name, _, ok := strings.Cut(rest[4:], ")")
		if !ok {
			return &SyntaxError{"missing closing parenthesis"}
		}
		b.put(`\k<`+name+`>`, 5+len(name))
	case strings.HasPrefix(rest, "(?#"):
		end := strings.IndexByte(rest, ')')
		if end < 0 {
			return &SyntaxError{"missing ) after (?# comment"}
		}
		b.i += end + 1
	case strings.HasPrefix(rest, "(?R"), strings.HasPrefix(rest, "(?P>"), strings.HasPrefix(rest, "(?&"),
		strings.HasPrefix(rest, "(?|"), strings.HasPrefix(rest, "(*"):
		return &SyntaxError{fmt.Sprintf("(%s...) is not supported", rest[1:min(3, len(rest))])}
	case strings.HasPrefix(rest, "(?("):
		end := strings.IndexByte(rest, ')')
		if end < 0 {
			return &SyntaxError{"missing closing parenthesis"}
		}
		b.openGroup(rest[:end+1], end+1)
	case strings.HasPrefix(rest, "(?"):
		n := 2
		for n < len(rest) && strings.IndexByte("imsxnU^-", rest[n]) >= 0 {
			n++
		}
		if n > 2 && n < len(rest) && rest[n] == ')' { // flags for the rest of the group: opens none
			b.out.WriteString(rest[:n+1])
			b.i += n + 1
			b.atom = -1
			return nil
		}
		b.openGroup("(", 1)
		b.out.WriteString("?")
		b.i++
		for n = 2; n < len(rest) && strings.IndexByte("imsx-<=!>:'", rest[n]) >= 0; n++ {
			b.out.WriteByte(rest[n])
			b.i++
		}
	default:
		b.openGroup("(", 1)
	}
	return nil
}

func (b *backWriter) openGroup(text string, n int) {
	b.open = append(b.open, b.out.Len())
	b.out.WriteString(text)
	b.i += n
	b.atom = -1
}

func (b *backWriter) escape() error {
	if b.i+1 >= len(b.p) {
		return &SyntaxError{"\\ at end of pattern"}
	}
	c := b.p[b.i+1]
	switch c {
	case 'Q':
		body, _, found := strings.Cut(b.p[b.i+2:], `\E`)
		b.i += 2 + len(body)
		if found {
			b.i += 2
		}
		for _, r := range body {
			b.put(regexp.QuoteMeta(string(r)), 0)
		}
	case 'E', 'K': // \K moves the start of the reported match; whether there is one it does not change
		b.i += 2
	case 'b', 'B', 'A', 'Z', 'z', 'G':
		b.assertion(c)
	case 'R':
		b.put(`(?>\r\n|[`+vSpace+`])`, 2)
	case 'N':
		b.put(`[^\n]`, 2)
	case 'X':
		b.put(`(?>\P{M}\p{M}*)`, 2)
	case 'g', 'k':
		return b.reference()
	case 'x', 'o', 'p', 'P':
		text, n, err := longEscape(b.p[b.i:])
		if err != nil {
			return err
		}
		b.put(text, n)
	default:
		if set := b.set(c); set != "" {
			if c < 'a' {
				b.put("[^"+set+"]", 2)
			} else {
				b.put("["+set+"]", 2)
			}
			return nil
		}
		_, n := utf8.DecodeRuneInString(b.p[b.i+1:])
		b.put(b.p[b.i:b.i+1+n], 1+n)
	}
	return nil
}

func (b *backWriter) assertion(c byte) {
	word := "[" + asciiWord + "]"
	switch {
	case c == 'b' && !b.ucp:
		b.out.WriteString(`(?:(?<=` + word + `)(?!` + word + `)|(?<!` + word + `)(?=` + word + `))`)
	case c == 'B' && !b.ucp:
		b.out.WriteString(`(?:(?<=` + word + `)(?=` + word + `)|(?<!` + word + `)(?!` + word + `))`)
	default:
		b.out.WriteString(`\` + string(c))
	}
	b.i += 2
	b.atom = -1
}

// set is the contents of a bracket expression for a class escape, whichever its case; "" where c is none.
func (b *backWriter) set(c byte) string {
	switch c {
	case 'h', 'H':
		return hSpace
	case 'v', 'V':
		return vSpace
	case 'd', 'D':
		if b.ucp {
			return `\p{Nd}`
		}
		return "0-9"
	case 'w', 'W':
		if b.ucp {
			return `\p{L}\p{N}_`
		}
		return asciiWord
	case 's', 'S':
		if b.ucp {
			return hSpace + vSpace
		}
		return asciiSpace
	}
	return ""
}

// reference rewrites \g{n}, \gn, \g{name}, \k{name}, \k'name', \k<name>.
func (b *backWriter) reference() error {
	rest := b.p[b.i+2:]
	if rest == "" {
		return &SyntaxError{"a numbered reference must not be zero"}
	}
	if close := strings.IndexByte("}'>", map[byte]byte{'{': '}', '\'': '\'', '<': '>'}[rest[0]]); close >= 0 {
		end := strings.IndexByte(rest[1:], "}'>"[close])
		if end < 0 {
			return &SyntaxError{"\\k is not followed by a braced, angle-bracketed, or quoted name"}
		}
		b.put(`\k<`+rest[1:1+end]+`>`, 4+end)
		return nil
	}
	n := 0
	for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
		n++
	}
	if n == 0 {
		return &SyntaxError{"\\g is not followed by a braced, angle-bracketed, or quoted name/number or by a plain number"}
	}
	b.put(`\k<`+rest[:n]+`>`, 2+n)
	return nil
}

// longEscape rewrites \x.., \x{..}, \o{..}, \pX, \p{..}.
func longEscape(p string) (text string, n int, err error) {
	arg, braced := "", len(p) > 2 && p[2] == '{'
	if braced {
		end := strings.IndexByte(p, '}')
		if end < 0 {
			return "", 0, &SyntaxError{"missing terminating } for hexadecimal or property escape"}
		}
		arg, n = p[3:end], end+1
	}
	switch p[1] {
	case 'p', 'P':
		if !braced {
			if len(p) < 3 {
				return "", 0, &SyntaxError{"malformed \\P or \\p sequence"}
			}
			arg, n = p[2:3], 3
		}
		kind := p[1:2]
		if strings.HasPrefix(arg, "^") {
			arg, kind = arg[1:], map[string]string{"p": "P", "P": "p"}[kind]
		}
		return `\` + kind + `{` + arg + `}`, n, nil
	}
	base := 16
	if p[1] == 'o' {
		base = 8
	}
	if !braced {
		for n = 2; n < len(p) && n < 4 && strings.IndexByte("0123456789abcdefABCDEF", p[n]) >= 0; n++ {
		}
		if arg = p[2:n]; arg == "" {
			arg = "0"
		}
	}
	code, perr := strconv.ParseUint(arg, base, 32)
	if perr != nil || code > utf8.MaxRune {
		return "", 0, &SyntaxError{"character code point value in \\x{} or \\o{} is too large"}
	}
	return regexp.QuoteMeta(string(rune(code))), n, nil
}

// posix gives the ranges of [:name:] without the brackets, ASCII and Unicode.
var posix = map[string][2]string{
	"alpha": {"A-Za-z", `\p{L}`}, "digit": {"0-9", `\p{Nd}`}, "alnum": {"0-9A-Za-z", `\p{L}\p{N}`},
	"upper": {"A-Z", `\p{Lu}`}, "lower": {"a-z", `\p{Ll}`}, "word": {asciiWord, `\p{L}\p{N}_`},
	"space": {asciiSpace, hSpace + vSpace}, "blank": {`\t\x20`, hSpace}, "punct": {"!-/:-@\\[-`{-~", `\p{P}!-/:-@\[-` + "`{-~"},
	"xdigit": {"0-9A-Fa-f", "0-9A-Fa-f"}, "cntrl": {`\x00-\x1F\x7F`, `\p{Cc}`}, "print": {`\x20-~`, `\P{C}`},
	"graph": {"!-~", `\P{C}`}, "ascii": {`\x00-\x7F`, `\x00-\x7F`},
}

func (b *backWriter) class() error {
	end := classEnd(b.p, b.i)
	if end < 0 {
		return &SyntaxError{"missing terminating ] for character class"}
	}
	body := b.p[b.i+1 : end]
	out := "["
	j := 0
	if strings.HasPrefix(body, "^") {
		out, j = "[^", 1
	}
	for j < len(body) {
		text, n, err := b.classItem(body[j:])
		if err != nil {
			return err
		}
		out += text
		j += n
	}
	b.put(out+"]", end+1-b.i)
	return nil
}

// classItem rewrites what stands at the start of s inside a class.
func (b *backWriter) classItem(s string) (text string, n int, err error) {
	switch {
	case strings.HasPrefix(s, "[:"):
		name, _, ok := strings.Cut(s[2:], ":]")
		ranges, known := posix[name]
		if !ok || !known {
			return "", 0, &SyntaxError{"unknown POSIX class name"}
		}
		if b.ucp {
			return ranges[1], len(name) + 4, nil
		}
		return ranges[0], len(name) + 4, nil
	case s[0] == '[' || s[0] == ']':
		return `\` + s[:1], 1, nil
	case s[0] != '\\' || len(s) < 2:
		_, n := utf8.DecodeRuneInString(s)
		return s[:n], n, nil
	}
	switch c := s[1]; c {
	case 'x', 'o', 'p', 'P':
		return longEscape(s)
	case 'W', 'D', 'S':
		if !b.ucp {
			return map[byte]string{'W': `\x00-/:-@\[-^` + "`" + `{-\uFFFF`, 'D': `\x00-/:-\uFFFF`, 'S': `\x00-\x08\x0E-\x1F!-\uFFFF`}[c], 2, nil
		}
		return s[:2], 2, nil
	default:
		if set := b.set(c); set != "" && c >= 'a' {
			return set, 2, nil
		}
	}
	_, n = utf8.DecodeRuneInString(s[1:])
	return s[:1+n], 1 + n, nil
}
