package regex

import (
	"errors"
	"slices"
	"unicode"
	"unicode/utf8"
)

// tree is a pattern as the machine runs it.
type tree struct {
	root   *node
	groups []*node // by number; groups[0] is the whole
	names  map[string]int
	limit  int // of steps in one run
}

// Bounds of one search, which PCRE has too. A long text may take stepsPerByte more.
const (
	maxSteps     = 5_000_000
	stepsPerByte = 4
	maxDepth     = 200_000
)

var (
	errSteps   = errors.New("match limit exceeded")
	errDepth   = errors.New("heap limit exceeded")
	errForever = errors.New("nested recursion at the same subject position")
)

// What a verb that was gone back over does to the rest of the search.
const (
	noCut byte = iota
	cutThen
	cutPrune
	cutSkip
	cutCommit
)

// cont is what is left to match after a node; it gets the place where the node ends.
type cont func(pos int) bool

// machine is one run of a tree over a text.
type machine struct {
	t      *tree
	s      []byte
	from   int // where the search began: \G
	caps   []int
	open   []span // groups that are being matched
	calls  []span // calls under way: the group, and where it was called
	keep   int
	end    int
	accept cont
	cut    byte
	cutAt  int // of cutSkip: the place; of cutThen: the alternation
	steps  int
	limit  int
	depth  int
	err    error
}

type span struct{ num, at int }

// find gives the first match at or after a place, nil for none.
func (t *tree) find(s []byte, from int) ([]int, error) {
	m := &machine{t: t, s: s, from: from, limit: t.limit + stepsPerByte*len(s)}
	for at := from; at <= len(s); {
		m.caps = m.caps[:0]
		for range t.groups {
			m.caps = append(m.caps, -1, -1)
		}
		m.open, m.calls, m.cut, m.keep = m.open[:0], m.calls[:0], noCut, at
		done := func(p int) bool { m.end = p; return true }
		m.accept = done
		if m.match(t.root, at, done) {
			m.caps[0], m.caps[1] = m.keep, max(m.end, m.keep)
			return m.caps, nil
		}
		switch {
		case m.err != nil:
			return nil, m.err
		case m.cut == cutCommit:
			return nil, nil
		case m.cut == cutSkip && m.cutAt > at:
			at = m.cutAt
			continue
		}
		_, n := utf8.DecodeRune(s[at:])
		at += max(n, 1)
	}
	return nil, nil
}

// findAll calls f with each match in turn. After an empty one the search goes on a character further.
func (t *tree) findAll(s []byte, f func(loc []int) (more bool, err error)) error {
	for from := 0; from <= len(s); {
		loc, err := t.find(s, from)
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

// stop counts the work, and is true where it is too much.
func (m *machine) stop() bool {
	if m.err != nil {
		return true
	}
	if m.steps++; m.steps > m.limit {
		m.err = errSteps
	} else if m.depth > maxDepth {
		m.err = errDepth
	}
	return m.err != nil
}

func (m *machine) match(n *node, pos int, k cont) bool {
	if m.stop() {
		return false
	}
	m.depth++
	ok := m.dispatch(n, pos, k)
	m.depth--
	return ok
}

func (m *machine) dispatch(n *node, pos int, k cont) bool {
	switch n.kind {
	case kEmpty:
		return k(pos)
	case kSet:
		end := m.one(n.set, pos)
		return end >= 0 && k(end)
	case kSeq:
		return m.seq(n.parts, pos, k)
	case kAlt:
		return m.alternatives(n, pos, k)
	case kGroup:
		return m.group(n, pos, k)
	case kRepeat:
		if n.parts[0].kind == kSet {
			return m.run(n, pos, k)
		}
		return m.repeat(n, 0, pos, k)
	case kAtomic, kLook:
		return m.once(n, pos, k)
	case kBack:
		end := m.again(n, pos)
		return end >= 0 && k(end)
	case kCall:
		return m.call(n, pos, k)
	case kCond:
		if m.holds(&n.cond, pos) {
			return m.match(n.parts[0], pos, k)
		}
		return m.match(n.parts[1], pos, k)
	case kAssert:
		return m.at(n.op, pos) && k(pos)
	case kKeep:
		old := m.keep
		m.keep = pos
		if k(pos) {
			return true
		}
		m.keep = old
		return false
	case kVerb:
		return m.verb(n, pos, k)
	case kCluster:
		return m.cluster(pos, k)
	}
	return false
}

// once matches what is never gone back into. The groups that it sets are as before where what follows fails.
func (m *machine) once(n *node, pos int, k cont) bool {
	caps, keep, end := slices.Clone(m.caps), m.keep, pos
	var ok bool
	if n.kind == kLook {
		ok = m.look(n, pos)
	} else {
		accept, open, accepted := m.accept, m.open, false
		m.accept = func(p int) bool { accepted = accept(p); return accepted }
		ok = m.match(n.parts[0], pos, func(p int) bool { end = p; return true })
		m.accept, m.open = accept, open
		if ok && accepted {
			return true
		}
	}
	if ok && k(end) {
		return true
	}
	m.caps, m.keep = caps, keep
	return false
}

// one matches a character of a set; -1 where there is none.
func (m *machine) one(s *set, pos int) int {
	if pos >= len(m.s) {
		return -1
	}
	r, n := utf8.DecodeRune(m.s[pos:])
	if !s.has(r) {
		return -1
	}
	return pos + n
}

func (m *machine) seq(parts []*node, pos int, k cont) bool {
	switch len(parts) {
	case 0:
		return k(pos)
	case 1:
		return m.match(parts[0], pos, k)
	}
	return m.match(parts[0], pos, func(p int) bool { return m.seq(parts[1:], p, k) })
}

func (m *machine) alternatives(n *node, pos int, k cont) bool {
	for _, a := range n.parts {
		if m.match(a, pos, k) {
			return true
		}
		if m.cut == cutThen && m.cutAt == n.alt {
			m.cut = noCut
		}
		if m.cut != noCut || m.err != nil {
			return false
		}
	}
	return false
}

func (m *machine) group(n *node, pos int, k cont) bool {
	m.open = append(m.open, span{n.num, pos})
	open := m.open
	ok := m.match(n.parts[0], pos, func(p int) bool {
		a, b := m.caps[2*n.num], m.caps[2*n.num+1]
		m.caps[2*n.num], m.caps[2*n.num+1] = pos, p
		m.open = open[:len(open)-1]
		if k(p) {
			return true
		}
		m.open = open
		m.caps[2*n.num], m.caps[2*n.num+1] = a, b
		return false
	})
	if !ok {
		m.open = open[:len(open)-1]
	}
	return ok
}

// run repeats a single character, without a frame for each.
func (m *machine) run(n *node, pos int, k cont) bool {
	ends := []int{pos}
	limit := n.max
	if n.lazy {
		limit = n.min
	}
	for at := pos; limit < 0 || len(ends) <= limit; {
		if at = m.one(n.parts[0].set, at); at < 0 {
			break
		}
		ends = append(ends, at)
		if m.steps++; m.steps > m.limit {
			m.err = errSteps
			return false
		}
	}
	if len(ends) <= n.min {
		return false
	}
	if !n.lazy {
		for i := len(ends) - 1; i >= n.min; i-- {
			if k(ends[i]) {
				return true
			}
			if m.stop() || m.cut != noCut {
				return false
			}
		}
		return false
	}
	for count, at := n.min, ends[n.min]; ; count++ {
		if k(at) {
			return true
		}
		if m.stop() || m.cut != noCut || n.max >= 0 && count >= n.max {
			return false
		}
		if at = m.one(n.parts[0].set, at); at < 0 {
			return false
		}
	}
}

func (m *machine) repeat(n *node, count, pos int, k cont) bool {
	once := func() bool {
		if n.max >= 0 && count >= n.max {
			return false
		}
		return m.match(n.parts[0], pos, func(p int) bool {
			if p == pos && count+1 >= n.min {
				return k(p) // a turn that took nothing is the last one
			}
			return m.repeat(n, count+1, p, k)
		})
	}
	if count < n.min {
		return once()
	}
	if n.lazy {
		return k(pos) || m.cut == noCut && m.err == nil && once()
	}
	return once() || m.cut == noCut && m.err == nil && k(pos)
}

// sub matches a part by itself: what a verb in it cuts, and what it accepts, is within it.
func (m *machine) sub(n *node, pos int, k cont) bool {
	accept, open := m.accept, m.open
	m.accept, m.open = k, nil
	ok := m.match(n, pos, k)
	m.accept, m.open = accept, open
	return ok
}

func (m *machine) look(n *node, pos int) bool {
	caps, keep := slices.Clone(m.caps), m.keep
	found := false
	for _, a := range n.parts {
		start := pos
		if n.behind {
			for range a.num { // the width of the alternative
				if start <= 0 {
					start = -1
					break
				}
				_, size := utf8.DecodeLastRune(m.s[:start])
				start -= size
			}
		}
		if start < 0 {
			continue
		}
		if m.sub(a.parts[0], start, func(p int) bool { return !n.behind || p == pos }) {
			found = true
			break
		}
		cut := m.cut
		if m.cut = noCut; cut >= cutPrune || m.err != nil {
			break
		}
	}
	if !found || n.neg {
		m.caps, m.keep = caps, keep
	}
	return m.err == nil && found != n.neg
}

// again matches the text of a group; -1 where it is not there, or the group was not set.
func (m *machine) again(n *node, pos int) int {
	a, b := m.caps[2*n.num], m.caps[2*n.num+1]
	if a < 0 {
		return -1
	}
	if !n.fold {
		if end := pos + b - a; end <= len(m.s) && string(m.s[a:b]) == string(m.s[pos:end]) {
			return end
		}
		return -1
	}
	for a < b {
		if pos >= len(m.s) {
			return -1
		}
		x, xn := utf8.DecodeRune(m.s[a:b])
		y, yn := utf8.DecodeRune(m.s[pos:])
		if !(&set{ranges: []rune{x, x}, fold: true}).has(y) {
			return -1
		}
		a, pos = a+xn, pos+yn
	}
	return pos
}

// call matches a group's pattern again. The groups that it sets are as they were when it is done.
func (m *machine) call(n *node, pos int, k cont) bool {
	for i := len(m.calls) - 1; i >= 0 && m.calls[i].at == pos; i-- {
		if m.calls[i].num == n.num {
			m.err = errForever
			return false
		}
	}
	outer, calls, accept, open := slices.Clone(m.caps), m.calls, m.accept, m.open
	inside := append(slices.Clone(calls), span{n.num, pos})
	back := func(p int) bool {
		inner, innerAccept, innerOpen := m.caps, m.accept, m.open
		m.caps, m.calls, m.accept, m.open = slices.Clone(outer), calls, accept, open
		if k(p) {
			return true
		}
		m.caps, m.calls, m.accept, m.open = inner, inside, innerAccept, innerOpen
		return false
	}
	m.calls, m.accept, m.open = inside, back, nil
	target := m.t.groups[n.num]
	if n.num > 0 {
		target = target.parts[0]
	}
	if m.match(target, pos, back) {
		return true
	}
	m.caps, m.calls, m.accept, m.open = outer, calls, accept, open
	return false
}

func (m *machine) holds(c *condition, pos int) bool {
	switch c.kind {
	case 'n':
		return m.caps[2*c.num] >= 0
	case 'r':
		return len(m.calls) > 0 && (c.num < 0 || m.calls[len(m.calls)-1].num == c.num)
	case 'a':
		return m.look(c.look, pos)
	}
	return false // (?(DEFINE)
}

func (m *machine) verb(n *node, pos int, k cont) bool {
	switch n.op {
	case 'a':
		for _, g := range m.open {
			m.caps[2*g.num], m.caps[2*g.num+1] = g.at, pos
		}
		return m.accept(pos)
	case 'f':
		return false
	}
	if k(pos) {
		return true
	}
	if m.cut != noCut || m.err != nil {
		return false
	}
	switch n.op {
	case 'c':
		m.cut = cutCommit
	case 'p':
		m.cut = cutPrune
	case 's':
		m.cut, m.cutAt = cutSkip, pos
	case 't':
		if m.cut, m.cutAt = cutThen, n.alt; n.alt == 0 {
			m.cut = cutPrune
		}
	}
	return false
}

func (m *machine) cluster(pos int, k cont) bool {
	if pos >= len(m.s) {
		return false
	}
	r, n := utf8.DecodeRune(m.s[pos:])
	end := pos + n
	if r == '\r' && end < len(m.s) && m.s[end] == '\n' {
		return k(end + 1)
	}
	for end < len(m.s) {
		r, n := utf8.DecodeRune(m.s[end:])
		if !unicode.Is(unicode.M, r) && r != 0x200D {
			break
		}
		end += n
	}
	return k(end)
}

// at checks a place.
func (m *machine) at(op byte, pos int) bool {
	switch op {
	case 'A':
		return pos == 0
	case 'G':
		return pos == m.from
	case 'z':
		return pos == len(m.s)
	case 'Z', '$':
		return pos == len(m.s) || pos == len(m.s)-1 && m.s[pos] == '\n'
	case 'm': // ^ with m
		return pos == 0 || m.s[pos-1] == '\n' && pos < len(m.s)
	case 'e': // $ with m
		return pos == len(m.s) || m.s[pos] == '\n'
	case 'b', 'B', 'u', 'U':
		words := classSets['w'][0]
		if op == 'u' || op == 'U' {
			words = classSets['w'][1]
		}
		return (m.wordBefore(words, pos) != m.wordAt(words, pos)) == (op == 'b' || op == 'u')
	}
	return false
}

func (m *machine) wordAt(words *set, pos int) bool {
	return m.one(words, pos) >= 0
}

func (m *machine) wordBefore(words *set, pos int) bool {
	r, n := utf8.DecodeLastRune(m.s[:pos])
	return n > 0 && words.has(r)
}
