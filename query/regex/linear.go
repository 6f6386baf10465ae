package regex

import (
	"io"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/shoaldb/shoal/query/value"
)

// maxLinear is the size of a pattern, with its repetitions written out, up to which the linear engine may run it.
const maxLinear = 10_000

// linearOf prepares Go's engine, whose time is linear in the text, for patterns that it interprets in the same way.
func linearOf(t *tree, text, options string) func() *regexp.Regexp {
	src, ok := toGo(text, options)
	if !ok || writtenOut(t.root) > maxLinear {
		return nil
	}
	return sync.OnceValue(func() *regexp.Regexp {
		re, err := regexp.Compile(src)
		if err != nil {
			return nil
		}
		return re
	})
}

// writtenOut returns the size of a node with its repetitions expanded.
func writtenOut(n *node) int {
	size := 1
	for _, p := range n.parts {
		size += writtenOut(p)
	}
	if n.kind == kRepeat {
		size *= max(n.min, n.max, 1)
	}
	return min(size, 2*maxLinear)
}

// matchLinear completes a search that takes the machine too long.
func (r *Regexp) matchLinear(s []byte, work value.Work) (bool, error) {
	re := r.linear()
	if re == nil {
		m := r.machine()
		defer r.release(m)
		loc, err := m.find(s, 0, work, 0)
		return loc != nil, err
	}
	in := &checkedText{s: s, work: work}
	ok := re.MatchReader(in)
	return ok && in.err == nil, in.err
}

// checkedText reads a text character by character, and ends early if the operation has to stop.
type checkedText struct {
	s    []byte
	at   int
	n    uint
	work value.Work
	err  error
}

func (c *checkedText) ReadRune() (r rune, size int, err error) {
	if c.n++; c.n%64 == 0 && c.work != nil && c.err == nil {
		c.err = c.work.Check()
	}
	if c.at >= len(c.s) || c.err != nil {
		return 0, 0, io.EOF
	}
	r, size = utf8.DecodeRune(c.s[c.at:])
	c.at += size
	return r, size, nil
}

// toGo rewrites a pattern for Go's engine; ok is false if it uses something that the two engines interpret differently.
func toGo(p, options string) (src string, ok bool) {
	if strings.Contains(options, "x") {
		return "", false
	}
	g := goWriter{p: p, multiline: strings.Contains(options, "m")}
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
	p         string
	i         int
	out       strings.Builder
	multiline bool
}

func (g *goWriter) step() bool {
	switch c := g.p[g.i]; c {
	case '\\':
		return g.escape()
	case '[':
		return g.class()
	case '(':
		return g.group()
	case '^':
		if g.multiline { // Go's matches after a last newline, too
			return false
		}
	case '$':
		if g.multiline {
			break
		}
		// Without m, $ also matches before a last newline: consume it, if nothing can follow.
		if rest := g.p[g.i+1:]; strings.Trim(rest, ")") != "" {
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

// group accepts plain, non-capturing, named and flag groups.
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
			// An inline m would change what ^ and $ mean from there on; x is not Go's.
			if !strings.ContainsRune("is-", c) && !(c == 'm' && !strings.ContainsAny(g.p, "^$")) {
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
	case 'x':
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
			case e == 'S', e == 'b':
				return false
			case e == 's':
				g.out.WriteString(`\t-\r `)
			case strings.IndexByte("dDwWnrtfax", e) >= 0 || !isAlnum(e):
				g.out.WriteString(body[j-1 : j+1])
			default:
				return false
			}
		case c == '[' && j+1 < len(body) && body[j+1] == ':':
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

// classEnd returns the index of the ] that closes the class starting at i, or -1.
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
