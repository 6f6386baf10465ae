package regex

import (
	"bytes"
	"errors"
	"unicode"
	"unicode/utf8"

	"github.com/shoaldb/shoal/query/value"
)

// Limits of one attempt at a match. PCRE has the same limit on tries.
const (
	maxTries  = 10_000_000
	maxStack  = 4 << 20 // entries
	maxSaved  = 16 << 20
	fuelChunk = 1 << 14 // instructions between two checks whether to stop
)

var (
	errTries   = errors.New("match limit exceeded")
	errDepth   = errors.New("matching depth limit exceeded")
	errHeap    = errors.New("heap limit exceeded")
	errForever = errors.New("nested recursion at the same subject position")
)

// entry is an alternative to return to, or a value to restore on the way there.
type entry struct {
	kind uint8
	pc   int32
	a, b int32
}

// Kinds of entries.
const (
	eChoice uint8 = iota // continues at pc, position a
	eRun                 // a greedy run: ends at a, not before b
	eLazy                // a lazy run: ends at a, b more may follow
	eBranch              // a choice with which (*THEN) of alternation b continues; pc < 0: there is none
	eCaps                // the group at register pc was a, b
	eReg                 // register pc was a
	eAtomic              // an atomic group began
	eLook                // the look-around at pc began, at position a
	eCall                // a call began; a is the previous call
	eReturn              // the call a ended; b is where its registers are saved
	eVerb                // the verb at pc, at position a
	eMark                // a position with a name
)

// call is a group being called.
type call struct {
	before int32 // the enclosing call, -1 for none
	group  int32
	back   int32 // where execution continues after it
	at     int32 // the position
	saved  int32 // where the registers of before are saved
}

// The effect of backtracking over a verb on the rest of the search.
const (
	noCut byte = iota
	cutPrune
	cutSkip
	cutCommit
)

// machine is one search of a program in a text.
type machine struct {
	p     *program
	s     []byte
	from  int // where the search began: \G
	start int // where this attempt began
	end   int
	plain bool // groups are not needed
	regs  []int32
	stack []entry
	calls []call
	call  int32 // the current call, -1 for none
	saved []int32
	cut   byte
	cutAt int
	fuel  int
	tries int
	limit int
	depth int // maximum number of entries
	work  value.Work
	err   error
}

// refuel reports whether the search may continue.
func (m *machine) refuel() bool {
	m.fuel = fuelChunk
	if m.err == nil && m.work != nil {
		m.err = m.work.Check()
	}
	return m.err == nil
}

// attempt runs the program from a position.
func (m *machine) attempt(at int) bool {
	for i := range m.regs {
		m.regs[i] = -1
	}
	m.regs[0] = int32(at)
	m.stack, m.calls, m.saved = m.stack[:0], m.calls[:0], m.saved[:0]
	m.start, m.call, m.cut, m.tries = at, -1, noCut, 0
	return m.run(0, at)
}

// choice pushes an alternative to return to.
func (m *machine) choice(kind uint8, pc int32, a, b int) {
	m.tries++
	m.stack = append(m.stack, entry{kind, pc, int32(a), int32(b)})
}

// over records that the attempt exceeds a limit.
func (m *machine) over() bool {
	switch {
	case m.err != nil:
	case m.tries > m.limit:
		m.err = errTries
	case len(m.stack) > m.depth:
		if m.err = errHeap; m.p.set.depth > 0 && len(m.stack) > m.p.set.depth {
			m.err = errDepth
		}
	case len(m.saved) > maxSaved:
		m.err = errHeap
	}
	return m.err != nil
}

func (m *machine) setReg(r, v int32) {
	m.stack = append(m.stack, entry{kind: eReg, pc: r, a: m.regs[r]})
	m.regs[r] = v
}

func (m *machine) setGroup(g, from, to int32) {
	m.stack = append(m.stack, entry{eCaps, 2 * g, m.regs[2*g], m.regs[2*g+1]})
	m.regs[2*g], m.regs[2*g+1] = from, to
}

// run executes from pc on; it is true if the whole pattern matched.
func (m *machine) run(pc int32, pos int) bool {
	code, s := m.p.code, m.s
	for {
		if m.fuel--; m.fuel < 0 && !m.refuel() || m.tries > m.limit && m.over() {
			return false
		}
		in := &code[pc]
		ok := true
		switch in.op {
		case oText:
			if len(s)-pos < len(in.text) || s[pos] != in.text[0] || string(s[pos:pos+len(in.text)]) != string(in.text) {
				ok = false
				break
			}
			pos += len(in.text)
			pc++
		case oSet:
			end := in.class.step(s, pos)
			if ok = end >= 0; ok {
				pos = end
				pc++
			}
		case oRun:
			pos, ok = m.runOf(in, pc, pos)
			pc++
		case oSplit:
			pc, ok = m.split(in, pos)
		case oJump:
			pc = in.x
		case oOpen:
			if !m.plain {
				if in.neg {
					m.regs[in.x] = int32(pos)
				} else {
					m.setReg(in.x, int32(pos))
				}
			}
			pc++
		case oClose:
			if !m.plain {
				m.setGroup(in.x, m.regs[in.y], int32(pos))
			}
			pc++
		case oMatch:
			if m.call >= 0 {
				pc, ok = m.returns(0, pc)
				break
			}
			if ok = m.valid(pos); ok {
				m.end = pos
				return true
			}
		case oAssert:
			ok = m.holds(byte(in.x), pos)
			pc++
		case oFail:
			ok = false
		default:
			pc, pos, ok = m.rare(in, pc, pos)
		}
		if !ok {
			if pc, pos, ok = m.back(); !ok {
				return false
			}
		}
	}
}

// split takes the first of two alternatives, and pushes the other one unless the next byte of the text rules one out.
func (m *machine) split(in *inst, pos int) (pc int32, ok bool) {
	x, y := in.next.at(m.s, pos), in.other.at(m.s, pos)
	switch {
	case x && y:
		m.choice(eChoice, in.y, pos, 0)
		if len(m.stack) > m.depth && m.over() {
			return 0, false
		}
		return in.x, true
	case x:
		return in.x, true
	}
	return in.y, y
}

// rare executes the less frequent instructions.
func (m *machine) rare(in *inst, pc int32, pos int) (int32, int, bool) {
	switch in.op {
	case oBranch:
		m.choice(eBranch, in.y, pos, int(in.min))
	case oMark:
		m.setReg(in.x, int32(pos))
	case oMoved:
		if m.regs[in.x] == int32(pos) && !(in.how == lazy && m.regs[in.max] < in.min) {
			return in.y, pos, true
		}
	case oZero:
		m.setReg(in.x, 0)
	case oTurn:
		return m.turn(in, pc, pos)
	case oRestore:
		pos = int(m.regs[in.x])
	case oKeep:
		m.setReg(0, int32(pos))
	case oAtomic:
		m.stack = append(m.stack, entry{kind: eAtomic})
	case oAtomicEnd:
		m.cutDown(eAtomic)
	case oLook:
		m.stack = append(m.stack, entry{kind: eLook, pc: pc, a: int32(pos)})
	case oLookEnd:
		return m.lookEnds(pos)
	case oIfSet:
		if !m.anySet(in.nums) {
			return in.y, pos, true
		}
	case oIfCall:
		if m.call < 0 || in.x >= 0 && m.calls[m.call].group != in.x {
			return in.y, pos, true
		}
	case oCall:
		return m.enter(in, pc, pos)
	case oReturn:
		if m.call >= 0 && m.calls[m.call].group == in.x {
			pc, ok := m.returns(in.x, pc)
			return pc, pos, ok
		}
	case oVerb:
		kind := eVerb
		if in.x == verbMark {
			kind = eMark
		}
		m.stack = append(m.stack, entry{kind: kind, pc: pc, a: int32(pos)})
	case oAccept:
		return m.accept(in, pos)
	default:
		end := m.take(in, pos)
		return pc + 1, end, end >= 0
	}
	if len(m.stack) > m.depth && m.over() {
		return pc, pos, false
	}
	return pc + 1, pos, true
}

// take executes the instructions that match text; -1 if they do not match.
func (m *machine) take(in *inst, pos int) int {
	switch in.op {
	case oDot:
		if m.p.set.newline.at(m.s, pos) > 0 {
			return -1
		}
		return anyClass.step(m.s, pos)
	case oByte:
		if pos >= len(m.s) {
			return -1
		}
		return pos + 1
	case oBack:
		for _, g := range in.nums {
			if m.regs[2*g] >= 0 {
				return m.matchBackreference(int(m.regs[2*g]), int(m.regs[2*g+1]), pos, in.fold)
			}
		}
		return -1
	case oRewind:
		for range in.x {
			if pos <= 0 {
				return -1
			}
			_, n := utf8.DecodeLastRune(m.s[:pos])
			pos -= n
		}
		return pos
	case oCluster:
		return cluster(m.s, pos)
	case oNewline:
		if n := lineEnd(m.s, pos, m.p.set.bsr); n > 0 {
			return pos + n
		}
	}
	return -1
}

var anyClass = newClass(&set{ranges: []rune{0, utf8.MaxRune}})

// valid reports whether a match that ends here counts.
func (m *machine) valid(pos int) bool {
	if pos != m.start {
		return true
	}
	return !m.p.set.notEmpty && !(m.p.set.notEmptyAt && pos == m.from)
}

// turn counts an iteration of x{n,m}.
func (m *machine) turn(in *inst, pc int32, pos int) (int32, int, bool) {
	n := m.regs[in.x]
	if m.tries++; m.over() {
		return pc, pos, false
	}
	switch {
	case n < in.min:
		m.setReg(in.x, n+1)
		return pc + 1, pos, true
	case in.max >= 0 && n >= in.max:
		return in.y, pos, true
	}
	enter, leave := in.next.at(m.s, pos), in.other.at(m.s, pos)
	switch {
	case !enter:
		return in.y, pos, leave
	case in.how == lazy && leave:
		// The alternative that is not taken yet begins with its count.
		m.stack = append(m.stack, entry{kind: eReg, pc: in.x, a: n})
		m.regs[in.x] = n + 1
		m.choice(eChoice, pc+1, pos, 0)
		return in.y, pos, true
	case leave:
		m.choice(eChoice, in.y, pos, 0)
	}
	m.setReg(in.x, n+1)
	return pc + 1, pos, true
}

func (m *machine) anySet(groups []int32) bool {
	for _, g := range groups {
		if m.regs[2*g] >= 0 {
			return true
		}
	}
	return false
}

// enter begins a call.
func (m *machine) enter(in *inst, pc int32, pos int) (int32, int, bool) {
	for c := m.call; c >= 0 && m.calls[c].at == int32(pos); c = m.calls[c].before {
		if m.calls[c].group == in.x {
			m.err = errForever
			return pc, pos, false
		}
	}
	m.stack = append(m.stack, entry{kind: eCall, a: m.call})
	m.calls = append(m.calls, call{before: m.call, group: in.x, back: pc + 1, at: int32(pos), saved: int32(len(m.saved))})
	m.call = int32(len(m.calls) - 1)
	m.saved = append(m.saved, m.regs...)
	if m.tries++; m.over() {
		return pc, pos, false
	}
	return int32(m.p.entries[in.x]), pos, true
}

// returns ends the current call. Registers are restored, except for \K.
func (m *machine) returns(group, pc int32) (int32, bool) {
	c := m.calls[m.call]
	m.stack = append(m.stack, entry{kind: eReturn, a: m.call, b: int32(len(m.saved))})
	m.saved = append(m.saved, m.regs...)
	copy(m.regs[1:], m.saved[c.saved+1:int(c.saved)+len(m.regs)])
	m.call = c.before
	return c.back, !m.over()
}

// matchBackreference matches a text that was matched before; -1 if it does not match.
func (m *machine) matchBackreference(a, b, pos int, fold bool) int {
	if !fold {
		if end := pos + b - a; end <= len(m.s) && bytes.Equal(m.s[a:b], m.s[pos:end]) {
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
		if !sameFold(x, y) {
			return -1
		}
		a, pos = a+xn, pos+yn
	}
	return pos
}

func sameFold(x, y rune) bool {
	if x == y {
		return true
	}
	for f := unicode.SimpleFold(x); f != x; f = unicode.SimpleFold(f) {
		if f == y {
			return true
		}
	}
	return false
}

// holds checks an assertion at a position.
func (m *machine) holds(op byte, pos int) bool {
	switch op {
	case atStart:
		return pos == 0
	case atFrom:
		return pos == m.from
	case atEnd:
		return pos == len(m.s)
	case atLastLine:
		if pos == len(m.s) {
			return true
		}
		n := m.p.set.newline.at(m.s, pos)
		return n > 0 && pos+n == len(m.s)
	case atLineStart:
		return pos == 0 || pos < len(m.s) && m.p.set.newline.before(m.s, pos)
	case atLineEnd:
		return pos == len(m.s) || m.p.set.newline.at(m.s, pos) > 0
	}
	words := wordClasses[one(m.p.set.ucp)]
	before := false
	if pos > 0 {
		r, _ := utf8.DecodeLastRune(m.s[:pos])
		before = r < utf8.RuneSelf && words.ascii.has(byte(r)) || r >= utf8.RuneSelf && words.hasWide(r)
	}
	return (before != (words.step(m.s, pos) >= 0)) == (op == atWordEdge)
}
