package regex

import (
	"strings"
	"unicode/utf8"
)

// posixLen returns the length of the [:name:] (or [.x.], [=x=]) at the start of s; 0 if it is none.
func posixLen(s string) int {
	if len(s) < 4 || s[0] != '[' || strings.IndexByte(":.=", s[1]) < 0 {
		return 0
	}
	for i := 2; i+1 < len(s); i++ {
		switch {
		case s[i] == '\\' && (s[i+1] == ']' || s[i+1] == '\\'):
			i++
		case s[i] == s[1] && s[i+1] == ']':
			return i + 2
		case s[i] == ']', s[i] == '[' && s[i+1] == s[1]:
			return 0
		}
	}
	return 0
}

// classReader reads the contents of brackets.
type classReader struct {
	*parser
	out   *set
	first bool // nothing was read yet: a ] is a character
	lo    rune // the possible beginning of a range, -1 for none
	open  bool // a hyphen follows lo
}

func (t *parser) class() (n *node, repeatable bool, err error) {
	r := t.rest()
	for edge, look := range map[string]*node{"[[:<:]]": {kind: kLook}, "[[:>:]]": {kind: kLook, behind: true}} {
		if t.eat(edge) {
			look.parts = []*node{{kind: kSet, set: &set{subs: []*set{t.classOf('w')}}}}
			if look.behind {
				t.behind = append(t.behind, look)
			}
			return &node{kind: kSeq, parts: []*node{assertion(atWordEdge), look}}, false, nil
		}
	}
	if posixLen(r) > 0 {
		if r[1] != ':' {
			return nil, false, syntax("POSIX collating elements are not supported")
		}
		return nil, false, syntax("POSIX named classes are supported only within a class")
	}
	c := &classReader{parser: t, out: &set{fold: t.f.i}, first: true, lo: -1}
	t.i++
	for t.eat(`\E`) {
	}
	c.out.neg = t.eat("^")
	for {
		done, err := c.item()
		if err != nil {
			return nil, false, err
		}
		if done {
			return &node{kind: kSet, set: c.out}, true, nil
		}
	}
}

// item reads the next item in brackets; done is true after the last.
func (c *classReader) item() (done bool, err error) {
	r := c.rest()
	switch {
	case r == "":
		return false, errNoClose
	case c.quoted:
		if c.eat(`\E`) {
			c.quoted = false
			return false, nil
		}
		c.first = false
		return false, c.char(c.plain())
	case strings.HasPrefix(r, `\E`), strings.HasPrefix(r, `\Q`):
		c.quoted = r[1] == 'Q'
		c.i += 2
		return false, nil
	case c.f.xx && (r[0] == ' ' || r[0] == '\t'):
		c.i++
		return false, nil
	case r[0] == ']' && !c.first:
		c.i++
		c.end()
		return true, nil
	}
	c.first = false
	switch {
	case r[0] == '[' && posixLen(r) > 0:
		return false, c.posix(posixLen(r))
	case r[0] == '-' && c.lo >= 0 && !c.open:
		c.i++
		c.open = true
		return false, nil
	case r[0] == '\\':
		return false, c.escaped()
	}
	return false, c.char(c.plain())
}

func (c *classReader) plain() rune {
	r, n := utf8.DecodeRuneInString(c.rest())
	c.i += n
	return r
}

// char takes a character: it may begin a range, or end one.
func (c *classReader) char(r rune) error {
	if c.open {
		if r < c.lo {
			return syntax("range out of order in character class")
		}
		c.out.ranges = append(c.out.ranges, c.lo, r)
		c.lo, c.open = -1, false
		return nil
	}
	c.end()
	c.lo = r
	return nil
}

// end adds a character that could have begun a range, and a hyphen that did not make one.
func (c *classReader) end() {
	if c.lo >= 0 {
		c.out.ranges = append(c.out.ranges, c.lo, c.lo)
	}
	if c.open {
		c.out.ranges = append(c.out.ranges, '-', '-')
	}
	c.lo, c.open = -1, false
}

// sub adds a set, which neither ends nor begins a range.
func (c *classReader) sub(s *set) error {
	if c.open {
		return errBadRange
	}
	c.end()
	c.out.subs = append(c.out.subs, s)
	if r := c.rest(); len(r) > 1 && r[0] == '-' && r[1] != ']' {
		return errBadRange
	}
	return nil
}

func (c *classReader) escaped() error {
	r := c.rest()
	switch {
	case len(r) < 2:
		return syntax(`\ at end of pattern`)
	case r[1] == 'b':
		c.i += 2
		return c.char('\b')
	case r[1] == 'p' || r[1] == 'P':
		s, err := c.propertyEscape()
		if err != nil {
			return err
		}
		return c.sub(s)
	}
	if s := c.classOf(r[1]); s != nil {
		c.i += 2
		return c.sub(s)
	}
	ch, err := c.charEscape(true)
	if err != nil {
		return err
	}
	return c.char(ch)
}

// posix reads a [:name:] of so many bytes.
func (c *classReader) posix(size int) error {
	r := c.rest()
	if c.open {
		return errBadRange
	}
	if r[1] != ':' {
		return syntax("POSIX collating elements are not supported")
	}
	name, neg := strings.CutPrefix(r[2:size-2], "^")
	both, known := posixSets[name]
	if !known {
		return syntax("unknown POSIX class name")
	}
	s := both[0]
	if c.set.ucp {
		s = both[1]
	}
	if c.f.i && (name == "upper" || name == "lower") {
		s = &set{subs: []*set{posixSets["upper"][one(c.set.ucp)], posixSets["lower"][one(c.set.ucp)]}}
	}
	if neg {
		s = s.others()
	}
	c.i += size
	return c.sub(s)
}
