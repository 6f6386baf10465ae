package regex

import (
	"bytes"
	"math"
	"unicode/utf8"
)

// runOf executes a repetition of one character.
func (m *machine) runOf(in *inst, pc int32, pos int) (int, bool) {
	s, c := m.s, in.class
	for range in.min {
		end := c.step(s, pos)
		if end < 0 {
			return pos, false
		}
		pos = end
	}
	m.fuel -= int(in.min) >> 4
	left := math.MaxInt32
	if in.max >= 0 {
		left = int(in.max - in.min)
	}
	if in.how == lazy {
		return m.lazily(in, pc, pos, left)
	}
	least := pos
	pos = scan(s, c, pos, left)
	m.fuel -= (pos - least) >> 4
	if in.how == possessive || pos == least {
		return pos, true
	}
	if in.next != nil {
		if pos = m.shorten(in, pos, least); pos < 0 {
			return 0, false
		}
		if pos == least {
			return pos, true
		}
	}
	m.choice(eRun, pc, pos, least)
	return pos, len(m.stack) <= m.depth || !m.over()
}

// scan returns the end of the characters of a class that begin at pos, at most left of them.
func scan(s []byte, c *class, pos, left int) int {
	if left == math.MaxInt32 {
		if c.stop >= 0 {
			if n := bytes.IndexByte(s[pos:], byte(c.stop)); n >= 0 {
				return pos + n
			}
			return len(s)
		}
		if c.all() {
			return len(s)
		}
	}
	for left > 0 && pos < len(s) {
		if b := s[pos]; b < utf8.RuneSelf {
			if !c.ascii.has(b) {
				return pos
			}
			pos++
		} else {
			end := c.step(s, pos)
			if end < 0 {
				return pos
			}
			pos = end
		}
		left--
	}
	return pos
}

// shorten gives back characters until what comes next may follow; -1 if it never may.
func (m *machine) shorten(in *inst, pos, least int) int {
	was := pos
	for pos >= least {
		if in.next.at(m.s, pos) {
			m.fuel -= (was - pos) >> 4
			return pos
		}
		if pos == least {
			break
		}
		pos = stepBack(m.s, pos, least)
	}
	m.fuel -= (was - pos) >> 4
	return -1
}

// stepBack returns where the character before pos begins.
func stepBack(s []byte, pos, least int) int {
	if s[pos-1] < utf8.RuneSelf {
		return pos - 1
	}
	_, n := utf8.DecodeLastRune(s[:pos])
	return max(pos-n, least)
}

// lazily matches no more than it has to; it continues where what comes next may follow.
func (m *machine) lazily(in *inst, pc int32, pos, left int) (int, bool) {
	was := pos
	for !in.next.at(m.s, pos) {
		end := in.class.step(m.s, pos)
		if left == 0 || end < 0 {
			return pos, false
		}
		pos = end
		left--
	}
	m.fuel -= (pos - was) >> 4
	if left > 0 {
		m.choice(eLazy, pc, pos, left)
	}
	return pos, true
}

// back returns to the last choice; false if there is none.
func (m *machine) back() (pc int32, pos int, ok bool) {
	for len(m.stack) > 0 && m.err == nil {
		top := len(m.stack) - 1
		e := &m.stack[top]
		switch e.kind {
		case eChoice:
			m.stack = m.stack[:top]
			return e.pc, int(e.a), true
		case eRun:
			if pos, ok := m.lessRun(e, top); ok {
				return e.pc + 1, pos, true
			}
		case eLazy:
			if pos, ok := m.moreRun(e, top); ok {
				return e.pc + 1, pos, true
			}
		case eBranch:
			m.stack = m.stack[:top]
			if e.pc >= 0 {
				return e.pc, int(e.a), true
			}
		case eLook:
			m.stack = m.stack[:top]
			if in := &m.p.code[e.pc]; in.neg {
				return m.lookFails(in, e.pc), int(e.a), true
			} else if in.cond {
				return in.y, int(e.a), true
			}
		case eVerb:
			if pc, pos, ok := m.cutBack(e); ok {
				return pc, pos, true
			}
			if m.cut != noCut {
				return 0, 0, false
			}
		default:
			m.undo(top)
		}
	}
	return 0, 0, false
}

// lookFails returns where execution continues after a negative look-around whose contents do not match.
func (m *machine) lookFails(in *inst, pc int32) int32 {
	return in.max + 1
}

// lessRun shortens a run by one character.
func (m *machine) lessRun(e *entry, top int) (int, bool) {
	m.tries++
	in := &m.p.code[e.pc]
	pos := stepBack(m.s, int(e.a), int(e.b))
	if in.next != nil {
		if pos = m.shorten(in, pos, int(e.b)); pos < 0 {
			m.stack = m.stack[:top]
			return 0, false
		}
	}
	if e.a = int32(pos); e.a == e.b {
		m.stack = m.stack[:top]
	}
	return pos, true
}

// moreRun extends a run by one character.
func (m *machine) moreRun(e *entry, top int) (int, bool) {
	m.tries++
	in := &m.p.code[e.pc]
	pos, left := int(e.a), int(e.b)
	was := pos
	for first := true; first || !in.next.at(m.s, pos); first = false {
		end := in.class.step(m.s, pos)
		if left == 0 || end < 0 {
			m.stack = m.stack[:top]
			return 0, false
		}
		pos = end
		left--
	}
	m.fuel -= (pos - was) >> 4
	e.a, e.b = int32(pos), int32(left)
	return pos, true
}

// undo removes the top entry, which is not a choice, and restores what it has saved.
func (m *machine) undo(top int) {
	e := m.stack[top]
	m.stack = m.stack[:top]
	switch e.kind {
	case eCaps:
		m.regs[e.pc], m.regs[e.pc+1] = e.a, e.b
	case eReg:
		m.regs[e.pc] = e.a
	case eCall:
		m.saved = m.saved[:m.calls[m.call].saved]
		m.calls = m.calls[:m.call]
		m.call = e.a
	case eReturn:
		copy(m.regs, m.saved[e.b:])
		m.saved = m.saved[:e.b]
		m.call = e.a
	}
}

// cutDown drops the choices since the last entry of a kind, and that entry; values to restore are kept.
func (m *machine) cutDown(kind uint8) (at int32) {
	i := len(m.stack) - 1
	for m.stack[i].kind != kind {
		i--
	}
	at = m.stack[i].a
	keep := m.stack[:i]
	for _, e := range m.stack[i+1:] {
		switch e.kind {
		case eCaps, eReg, eCall, eReturn:
			keep = append(keep, e)
		}
	}
	m.fuel -= (len(m.stack) - i) >> 3
	m.stack = keep
	return at
}

// lookEnds ends a look-around whose contents match.
func (m *machine) lookEnds(pos int) (int32, int, bool) {
	i := len(m.stack) - 1
	for m.stack[i].kind != eLook {
		i--
	}
	e := m.stack[i]
	in := &m.p.code[e.pc]
	if !in.neg {
		m.cutDown(eLook)
		return in.max + 1, int(e.a), true
	}
	for len(m.stack) > i {
		m.undo(len(m.stack) - 1)
	}
	return in.y, int(e.a), in.cond
}

// cutBack executes a verb on backtracking over it; ok means that execution continues at pc.
func (m *machine) cutBack(e *entry) (pc int32, pos int, ok bool) {
	in, at := &m.p.code[e.pc], int(e.a)
	top := len(m.stack) - 1
	m.stack = m.stack[:top]
	if in.x == verbSkip && in.name != "" {
		if at = m.marked(in.name); at < 0 {
			return 0, 0, false // without the mark the verb has no effect
		}
	}
	for returned := 0; len(m.stack) > 0; {
		top := len(m.stack) - 1
		e := m.stack[top]
		switch {
		case e.kind == eReturn:
			returned++
		case e.kind == eCall && returned > 0:
			returned--
		case e.kind == eCall:
			m.undo(top)
			return 0, 0, false // the called group does not match
		case returned > 0:
		case e.kind == eLook && (in.x == verbThen || m.p.code[e.pc].neg && !m.p.code[e.pc].cond):
			return 0, 0, false // back continues with that
		case e.kind == eBranch && in.x == verbThen && e.b == in.min:
			return 0, 0, false
		}
		m.undo(top)
	}
	switch in.x {
	case verbCommit:
		m.cut = cutCommit
	case verbSkip:
		m.cut, m.cutAt = cutSkip, at
	default:
		m.cut = cutPrune
	}
	return 0, 0, false
}

// marked returns the last position marked with a name; -1 for none.
func (m *machine) marked(name string) int {
	for i := len(m.stack) - 1; i >= 0; i-- {
		if e := &m.stack[i]; e.kind == eMark && m.p.code[e.pc].name == name {
			return int(e.a)
		}
	}
	return -1
}

// accept ends the enclosing look-around or call, or the match.
func (m *machine) accept(in *inst, pos int) (int32, int, bool) {
	for i := 0; i < len(in.nums); i += 2 {
		if from := m.regs[in.nums[i+1]]; from >= 0 && !m.plain {
			m.setGroup(in.nums[i], from, int32(pos))
		}
	}
	returned := 0
	for i := len(m.stack) - 1; i >= 0; i-- {
		switch e := &m.stack[i]; {
		case e.kind == eReturn:
			returned++
		case e.kind == eCall && returned > 0:
			returned--
		case e.kind == eCall:
			m.forgetAtomic(i)
			pc, ok := m.returns(m.calls[m.call].group, 0)
			return pc, pos, ok
		case e.kind == eLook && returned == 0:
			pc, pos, ok := m.lookEnds(pos)
			return pc, pos, ok
		}
	}
	return int32(len(m.p.code) - 1), pos, true
}

// forgetAtomic drops the entries of atomic groups above an entry.
func (m *machine) forgetAtomic(i int) {
	keep := m.stack[:i]
	for _, e := range m.stack[i:] {
		if e.kind != eAtomic {
			keep = append(keep, e)
		}
	}
	m.stack = keep
}
