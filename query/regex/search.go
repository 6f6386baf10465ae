package regex

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"github.com/shoaldb/shoal/query/value"
)

// search determines where in a text a match may begin.
type search struct {
	atStart  bool     // only at the beginning of the text
	atFrom   bool     // only at the beginning of the search
	atLine   bool     // only there and after a line end
	prefix   []byte   // what a match begins with, if known
	first    *byteSet // the bytes with which a match may begin; nil: any, or it may be empty
	required []byte   // what any match contains
	least    int      // minimum number of characters in a match
	pairs    bool     // a match does not begin within a line end of two
}

// newSearch analyses the beginning of a pattern.
func newSearch(c *compiler, t *tree) search {
	var se search
	se.anchors(c, t)
	se.pairs = !mentionsLineEnd(t.root) && (t.set.newline == nlCRLF || t.set.newline == nlAny || t.set.newline == nlAnyCRLF)
	if t.set.noStart {
		return se
	}
	se.least = c.least(t.root, map[int]bool{})
	if holdsVerb(t.root) { // no position may be skipped at which a verb could end the search
		if n, _ := firstChar(t.root); n != nil {
			se.first = newClass(n.set).first()
		}
		return se
	}
	se.first = c.first(t.root, nil)
	if p, _ := prefixOf(t.root); len(p) > 0 {
		se.prefix = p
	} else if !c.accepts {
		se.required = requiredOf(t.root)
	}
	return se
}

// anchors recognises patterns that match only at few positions.
func (se *search) anchors(c *compiler, t *tree) {
	parts := []*node{t.root}
	if t.root.kind == kAlt {
		parts = t.root.parts
	}
	all := func(is func(*node) bool) bool {
		return !slices.ContainsFunc(parts, func(n *node) bool { return !is(leading(n)) })
	}
	se.atStart = all(func(n *node) bool { return n.kind == kAssert && n.op == atStart })
	se.atFrom = all(func(n *node) bool { return n.kind == kAssert && n.op == atFrom })
	if len(parts) > 1 || !c.plain || holdsVerb(t.root) {
		return
	}
	// If .* does not lead to a match, it does not from the next character either.
	if n := leading(t.root); n.kind == kRepeat && n.min == 0 && n.max < 0 && n.parts[0].kind == kSet {
		switch cl := newClass(n.parts[0].set); {
		case cl.all():
			se.atFrom = true
		case cl.stop == '\n' && t.set.newline == nlLF:
			se.atLine = true
		}
	}
}

func holdsVerb(n *node) bool { return n.kind == kVerb || slices.ContainsFunc(n.parts, holdsVerb) }

// leading returns what a node begins with.
func leading(n *node) *node {
	for {
		switch n.kind {
		case kSeq, kGroup:
			n = n.parts[0]
		default:
			return n
		}
	}
}

// mentionsLineEnd reports whether a pattern names \r or \n.
func mentionsLineEnd(n *node) bool {
	if n.kind == kNewline || n.kind == kSet && (n.set.listed('\r') || n.set.listed('\n')) && len(n.set.ranges) < 6 && !n.set.neg {
		return true
	}
	return slices.ContainsFunc(n.parts, mentionsLineEnd)
}

// firstChar returns the one character, in any case, that all matches of a node begin with; nil for none, and then
// passed means that the node matches nothing.
func firstChar(n *node) (char *node, passed bool) {
	switch n.kind {
	case kSet:
		if s := n.set; !s.neg && len(s.subs)+len(s.tables) == 0 && len(s.ranges) == 2 && s.ranges[0] == s.ranges[1] {
			return n, false
		}
	case kSeq:
		for _, p := range n.parts {
			if char, passed = firstChar(p); char != nil || !passed {
				return char, false
			}
		}
		return nil, true
	case kGroup, kAtomic:
		return firstChar(n.parts[0])
	case kRepeat:
		if n.min > 0 {
			char, _ = firstChar(n.parts[0])
		}
		return char, n.max == 0
	case kEmpty, kKeep:
		return nil, true
	case kLook:
		return nil, !n.open
	case kVerb:
		return nil, n.op != verbAccept && n.op != verbFail
	}
	return nil, false
}

// prefixOf returns the text that a node's matches begin with; whole means that they consist of it.
func prefixOf(n *node) (text []byte, whole bool) {
	switch n.kind {
	case kSet:
		if r, ok := n.set.only(); ok {
			return utf8.AppendRune(nil, r), true
		}
	case kSeq:
		for _, p := range n.parts {
			t, whole := prefixOf(p)
			if text = append(text, t...); !whole {
				return text, false
			}
		}
		return text, true
	case kGroup, kAtomic:
		return prefixOf(n.parts[0])
	case kRepeat:
		if n.min > 0 {
			text, _ = prefixOf(n.parts[0])
		}
	case kEmpty, kKeep:
		return nil, true
	case kLook:
		return nil, !n.open
	}
	return text, false
}

// requiredOf returns the longest text that is in every match.
func requiredOf(n *node) []byte {
	var best, run []byte
	take := func(b []byte) {
		if len(b) > len(best) {
			best = b
		}
	}
	switch n.kind {
	case kSet:
		if r, ok := n.set.only(); ok {
			return utf8.AppendRune(nil, r)
		}
	case kSeq:
		for _, p := range n.parts {
			if p.kind == kSet {
				if r, ok := p.set.only(); ok {
					run = utf8.AppendRune(run, r)
					take(run)
					continue
				}
			}
			run = nil
			take(requiredOf(p))
		}
		return best
	case kGroup, kAtomic:
		return requiredOf(n.parts[0])
	case kRepeat:
		if n.min > 0 {
			return requiredOf(n.parts[0])
		}
	}
	return nil
}

// from returns the first position at or after pos where a match may begin; -1 for none.
func (se *search) from(s []byte, pos, begin int) int {
	switch {
	case se.atStart && pos > 0, se.atFrom && pos > begin:
		return -1
	case se.atLine && pos > begin && s[pos-1] != '\n':
		n := bytes.IndexByte(s[pos:], '\n')
		if n < 0 {
			return -1
		}
		return pos + n + 1
	case len(se.prefix) > 0:
		n := bytes.Index(s[pos:], se.prefix)
		if n < 0 {
			return -1
		}
		return pos + n
	case se.first != nil:
		for pos < len(s) && !se.first.has(s[pos]) {
			pos++
		}
		if pos == len(s) && !se.first.at(s, pos) {
			return -1
		}
	}
	return pos
}

// slowError is the error of a search that has to be passed to the linear engine.
type slowError struct{}

func (slowError) Error() string { return "too many tries" }

// find returns the first match at or after a position, nil for none. With a limit it returns slowError after that
// many tries and a few more for each byte.
func (m *machine) find(s []byte, from int, work value.Work, limit int) ([]int32, error) {
	p := m.p
	m.s, m.from, m.work, m.err, m.fuel = s, from, work, nil, fuelChunk
	m.limit, m.depth = maxTries, maxStack
	if p.set.tries > 0 {
		m.limit = min(m.limit, p.set.tries)
	}
	if p.set.depth > 0 {
		m.depth = min(m.depth, p.set.depth)
	}
	if p.set.kb > 0 {
		m.depth = min(m.depth, p.set.kb<<6)
	}
	if limit > 0 {
		limit += 4 * len(s)
		m.limit = min(m.limit, limit)
	}
	if len(p.search.required) > 0 && !bytes.Contains(s[from:], p.search.required) {
		return nil, nil
	}
	total := 0
	for at := from; at <= len(s)-p.search.least; {
		if at = p.search.from(s, at, from); at < 0 {
			return nil, nil
		}
		if m.attempt(at) {
			m.regs[1] = int32(max(m.end, int(m.regs[0])))
			return m.regs[:2*p.groups], nil
		}
		total += m.tries
		switch {
		case m.err != nil && limit > 0 && (m.err == errTries || m.err == errHeap), limit > 0 && total > limit:
			return nil, slowError{}
		case m.err != nil:
			return nil, m.err
		case m.cut == cutCommit:
			return nil, nil
		case m.cut == cutSkip && m.cutAt > at:
			at = m.cutAt
			continue
		}
		at = m.next(at)
	}
	return nil, nil
}

// next returns where the next attempt begins.
func (m *machine) next(at int) int {
	_, n := utf8.DecodeRune(m.s[at:])
	at += max(n, 1)
	if m.p.search.pairs && at < len(m.s) && m.s[at] == '\n' && m.s[at-1] == '\r' {
		at++
	}
	return at
}
