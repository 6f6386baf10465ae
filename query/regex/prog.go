package regex

import "unicode/utf8"

// opcode is the kind of an instruction.
type opcode uint8

const (
	oText      opcode = iota // text
	oSet                     // one character of class
	oDot                     // a character that does not begin a line end of two
	oByte                    // a byte
	oRun                     // characters of class, min to max
	oSplit                   // x, and if that fails y
	oBranch                  // oSplit of an alternation in which (*THEN) continues: number min; y < 0: the last alternative
	oJump                    // x
	oOpen                    // a group begins: its position goes to register x
	oClose                   // group x ends; it began at register y
	oMark                    // the position goes to register x
	oMoved                   // continues at y if the position is that of register x: an iteration that consumed nothing; how lazy: but not before min iterations
	oZero                    // register x becomes 0
	oTurn                    // counts iterations in register x, min to max; y after the last
	oBack                    // the text of one of nums again
	oCall                    // the group x begins at code y
	oReturn                  // of a call of group x
	oAssert                  // the assertion x about the position
	oKeep                    // the reported match begins here
	oAtomic                  // begins a part without backtracking into it
	oAtomicEnd               // ends such a part
	oLook                    // begins a look-around; y is where execution continues if it fails (neg: if it does not)
	oLookEnd                 // ends the look-around that began at x
	oRewind                  // x characters back
	oRestore                 // the position becomes register x
	oIfSet                   // continues at y unless one of nums is set
	oIfCall                  // continues at y outside a call of group x (-1: of any)
	oVerb                    // x, with the name; min is the alternation of (*THEN)
	oAccept                  // nums are the groups that it ends, with their registers
	oCluster                 // \X
	oNewline                 // \R
	oFail
	oMatch
)

// The ways in which oRun matches.
const (
	greedy uint8 = iota
	lazy
	possessive
)

// inst is one instruction.
type inst struct {
	op       opcode
	how      uint8
	neg      bool // oLook: negative; oOpen: the old value need not be saved
	cond     bool // oLook: of a condition
	fold     bool
	x, y     int32
	min, max int32 // max < 0: any number
	class    *class
	text     []byte
	nums     []int32
	name     string
	next     *byteSet // the bytes with which the text continues if this alternative matches; nil: unknown
	other    *byteSet // oSplit: the same for the other alternative
}

// program is a pattern compiled for the machine.
type program struct {
	code    []inst
	regs    int   // two for each group, then the others
	groups  int   // with group 0
	entries []int // where calls of a group begin
	calls   bool
	plain   bool // the contents of groups are not needed
	set     settings
	search  search
}

// compiler turns a tree into a program.
type compiler struct {
	*program
	tree     *tree
	depth    int     // enclosing repetitions
	alt      int32   // the enclosing alternation in which (*THEN) continues, 0 for none
	alts     int32   // alternations so far
	open     []int32 // enclosing groups and their registers
	called   map[int]bool
	classes  map[*set]*class
	accepts  bool
	accepted *[]int // jumps of (*ACCEPT) to the end of the enclosing look-around, if that allows backtracking
}

func compileTree(t *tree) *program {
	c := &compiler{tree: t, called: map[int]bool{}, classes: map[*set]*class{}, program: &program{set: t.set, groups: len(t.groups), regs: 2 * len(t.groups), entries: make([]int, len(t.groups)), plain: true}}
	c.survey(t.root)
	c.node(t.root, nil)
	c.emit(inst{op: oMatch})
	c.search = newSearch(c, t)
	return c.program
}

// survey finds which groups are called, and whether the contents of groups are needed.
func (c *compiler) survey(n *node) {
	switch n.kind {
	case kCall:
		c.calls, c.plain = true, false
		c.called[n.num] = true
	case kBack, kCond:
		c.plain = false
	case kVerb:
		c.accepts = c.accepts || n.op == verbAccept
	}
	for _, p := range n.parts {
		c.survey(p)
	}
	if n.cond.look != nil {
		c.survey(n.cond.look)
	}
}

// class returns the class of a set; sets that are shared share it.
func (c *compiler) class(s *set) *class {
	cl := c.classes[s]
	if cl == nil {
		cl = newClass(s)
		c.classes[s] = cl
	}
	return cl
}

func (c *compiler) emit(i inst) int {
	c.code = append(c.code, i)
	return len(c.code) - 1
}

func (c *compiler) here() int32 { return int32(len(c.code)) }

func (c *compiler) register() int32 {
	c.regs++
	return int32(c.regs - 1)
}

// node emits code for a node. follow is what the text must continue with after it; nil if that is unknown.
func (c *compiler) node(n *node, follow *byteSet) {
	switch n.kind {
	case kSet:
		c.one(n)
	case kDot:
		c.emit(inst{op: oDot})
	case kByte:
		c.emit(inst{op: oByte})
	case kCluster:
		c.emit(inst{op: oCluster})
	case kNewline:
		c.emit(inst{op: oNewline})
	case kKeep:
		c.emit(inst{op: oKeep})
	case kAssert:
		c.emit(inst{op: oAssert, x: int32(n.op)})
	case kSeq:
		c.seq(n.parts, follow)
	case kAlt:
		c.alternation(n, follow)
	case kGroup:
		c.group(n, follow)
	case kRepeat:
		c.repeat(n, follow)
	case kAtomic:
		c.atomic(n, follow)
	case kLook:
		c.look(n, false)
	case kBack:
		c.emit(inst{op: oBack, nums: numbers(n.nums), fold: n.fold})
	case kCall:
		c.emit(inst{op: oCall, x: int32(n.num)})
	case kCond:
		c.conditional(n, follow)
	case kVerb:
		c.verb(n)
	}
}

func numbers(nums []int) []int32 {
	out := make([]int32, len(nums))
	for i, n := range nums {
		out[i] = int32(n)
	}
	return out
}

func (c *compiler) one(n *node) {
	if r, ok := n.set.only(); ok {
		c.emit(inst{op: oText, text: utf8.AppendRune(nil, r)})
		return
	}
	c.emit(inst{op: oSet, class: c.class(n.set)})
}

// seq emits parts in order; adjacent characters become one text.
func (c *compiler) seq(parts []*node, follow *byteSet) {
	behind := make([]*byteSet, len(parts)) // what follows each part
	for i := len(parts) - 1; i >= 0; i-- {
		behind[i] = follow
		follow = c.first(parts[i], follow)
	}
	for i := 0; i < len(parts); i++ {
		if text, n := literalRun(parts[i:]); n > 1 {
			c.emit(inst{op: oText, text: text})
			i += n - 1
			continue
		}
		c.node(parts[i], behind[i])
	}
}

// literalRun returns the text that nodes begin with, and how many nodes make it up.
func literalRun(parts []*node) (text []byte, n int) {
	for _, p := range parts {
		if p.kind != kSet {
			break
		}
		r, ok := p.set.only()
		if !ok {
			break
		}
		text = utf8.AppendRune(text, r)
		n++
	}
	return text, n
}

func (c *compiler) alternation(n *node, follow *byteSet) {
	outer := c.alt
	then := holdsThen(n)
	if then {
		c.alts++
		c.alt = c.alts
	}
	firsts := make([]*byteSet, len(n.parts))
	rest := make([]*byteSet, len(n.parts)+1) // of the alternatives from there on
	rest[len(n.parts)] = &byteSet{}
	for i := len(n.parts) - 1; i >= 0; i-- {
		firsts[i] = c.first(n.parts[i], follow)
		if firsts[i] != nil && rest[i+1] != nil {
			rest[i] = firsts[i].union(rest[i+1])
		}
	}
	var ends []int
	for i, p := range n.parts {
		last := i == len(n.parts)-1
		split := -1
		switch {
		case then:
			split = c.emit(inst{op: oBranch, min: c.alt, y: -1})
		case !last:
			split = c.emit(inst{op: oSplit, next: firsts[i], other: rest[i+1]})
			c.code[split].x = c.here()
		}
		c.node(p, follow)
		if !last {
			ends = append(ends, c.emit(inst{op: oJump}))
			c.code[split].y = c.here()
		}
	}
	for _, e := range ends {
		c.code[e].x = c.here()
	}
	c.alt = outer
}

// holdsThen reports whether a (*THEN) in a node may continue in this alternation; a false positive does no harm.
func holdsThen(n *node) bool {
	if n.kind == kVerb && n.op == verbThen {
		return true
	}
	for _, p := range n.parts {
		if holdsThen(p) {
			return true
		}
	}
	return false
}

func (c *compiler) group(n *node, follow *byteSet) {
	reg := c.register()
	c.emit(inst{op: oOpen, x: reg, neg: c.depth == 0 && !c.calls})
	called := c.called[n.num] && c.tree.groups[n.num] == n
	if called {
		c.entries[n.num] = len(c.code)
		follow = nil
	}
	c.open = append(c.open, int32(n.num), reg)
	depth := c.depth
	if called {
		c.depth++
	}
	c.node(n.parts[0], follow)
	c.depth = depth
	c.open = c.open[:len(c.open)-2]
	if called {
		c.emit(inst{op: oReturn, x: int32(n.num)})
	}
	c.emit(inst{op: oClose, x: int32(n.num), y: reg})
}

func (c *compiler) repeat(n *node, follow *byteSet) {
	body := n.parts[0]
	switch {
	case n.max == 0:
		jump := c.emit(inst{op: oJump})
		c.node(body, nil) // calls may lead there
		c.code[jump].x = c.here()
		return
	case n.min == 1 && n.max == 1:
		c.node(body, follow)
		return
	case body.kind == kSet:
		c.run(n, follow)
		return
	}
	begin := c.first(body, follow)
	if c.nullable(body) {
		begin = nil
	}
	inner := follow // what follows an iteration
	if inner != nil && begin != nil && n.max != 1 {
		inner = inner.union(begin)
	} else if n.max != 1 {
		inner = nil
	}
	c.depth++
	defer func() { c.depth-- }()
	switch {
	case n.min == 0 && n.max == 1:
		split := c.split(n.lazy, begin, follow)
		c.node(body, follow)
		c.enter(split, n.lazy)
	case n.min <= 1 && n.max < 0:
		c.loop(n, begin, inner, follow)
	default:
		c.counted(n, begin, inner, follow)
	}
}

// split emits the choice between an iteration, which comes next, and continuing, whose target enter sets.
func (c *compiler) split(isLazy bool, begin, follow *byteSet) int {
	if isLazy {
		at := c.emit(inst{op: oSplit, next: follow, other: begin})
		c.code[at].y = c.here()
		return at
	}
	at := c.emit(inst{op: oSplit, next: begin, other: follow})
	c.code[at].x = c.here()
	return at
}

func (c *compiler) enter(split int, isLazy bool) {
	if isLazy {
		c.code[split].x = c.here()
	} else {
		c.code[split].y = c.here()
	}
}

// loop emits x* and x+.
func (c *compiler) loop(n *node, begin, inner, follow *byteSet) {
	body := n.parts[0]
	top, split := c.here(), -1
	if n.min == 0 {
		split = c.split(n.lazy, begin, follow)
	}
	reg, moved := int32(-1), -1
	if c.nullable(body) {
		reg = c.register()
		c.emit(inst{op: oMark, x: reg})
	}
	c.node(body, inner)
	if reg >= 0 {
		moved = c.emit(inst{op: oMoved, x: reg})
	}
	if n.min == 0 {
		c.emit(inst{op: oJump, x: top})
		c.enter(split, n.lazy)
	} else {
		split = c.split(n.lazy, begin, follow)
		c.emit(inst{op: oJump, x: top})
		c.enter(split, n.lazy)
	}
	if moved >= 0 {
		c.code[moved].y = c.here()
	}
}

// counted emits x{n,m}.
func (c *compiler) counted(n *node, begin, inner, follow *byteSet) {
	body := n.parts[0]
	count := c.register()
	c.emit(inst{op: oZero, x: count})
	how := greedy
	if n.lazy {
		how = lazy
	}
	turn := c.emit(inst{op: oTurn, x: count, min: int32(n.min), max: int32(n.max), how: how, next: begin, other: follow})
	reg := int32(-1)
	if (n.max < 0 || n.max > fewTurns) && c.nullable(body) {
		reg = c.register()
		c.emit(inst{op: oMark, x: reg})
	}
	c.node(body, inner)
	moved := -1
	if reg >= 0 {
		// In the mandatory iterations an empty match is allowed.
		moved = c.emit(inst{op: oMoved, x: reg, min: int32(n.min), max: count, how: lazy})
	}
	c.emit(inst{op: oJump, x: int32(turn)})
	c.code[turn].y = c.here()
	if moved >= 0 {
		c.code[moved].y = c.here()
	}
}

// run emits the repetition of a single character.
func (c *compiler) run(n *node, follow *byteSet) {
	cl := c.class(n.parts[0].set)
	in := inst{op: oRun, class: cl, min: int32(n.min), max: int32(n.max), how: greedy, next: follow}
	switch {
	case n.lazy:
		in.how = lazy
	case follow != nil && !follow.meets(cl.first()) || n.min == n.max:
		in.how = possessive // what follows never matches what it would give back
	}
	c.emit(in)
}

func (c *compiler) atomic(n *node, follow *byteSet) {
	body := n.parts[0]
	if body.kind == kRepeat && body.parts[0].kind == kSet && !body.lazy && body.max != 0 {
		c.emit(inst{op: oRun, class: c.class(body.parts[0].set), min: int32(body.min), max: int32(body.max), how: possessive})
		return
	}
	outer := c.depth
	c.depth++
	c.emit(inst{op: oAtomic})
	c.node(body, nil)
	c.emit(inst{op: oAtomicEnd})
	c.depth = outer
}

// look emits a look-around; as a condition, execution continues after it if it holds, and at the returned position if not.
func (c *compiler) look(n *node, cond bool) (start int) {
	outer, open := c.alt, c.open
	c.alt, c.open = 0, nil
	defer func() { c.alt, c.open = outer, open }()
	if n.open && !cond {
		reg := c.register()
		c.emit(inst{op: oMark, x: reg})
		outer := c.accepted
		c.accepted = &[]int{}
		c.lookParts(n)
		for _, jump := range *c.accepted {
			c.code[jump].x = c.here()
		}
		c.accepted = outer
		c.emit(inst{op: oRestore, x: reg})
		return 0
	}
	accepted := c.accepted
	c.accepted = nil
	defer func() { c.accepted = accepted }()
	start = c.emit(inst{op: oLook, neg: n.neg, cond: cond})
	c.lookParts(n)
	c.emit(inst{op: oLookEnd, x: int32(start)})
	c.code[start].max = c.here() - 1
	c.code[start].y = c.here()
	return start
}

func (c *compiler) lookParts(n *node) {
	if !n.behind {
		alt := &node{kind: kAlt, parts: n.parts}
		if len(n.parts) == 1 {
			alt = n.parts[0]
		}
		c.node(alt, nil)
		return
	}
	then := false
	for _, p := range n.parts {
		then = then || holdsThen(p)
	}
	if then && len(n.parts) > 1 {
		c.alts++
		c.alt = c.alts
	}
	var ends []int
	for i, p := range n.parts {
		last := i == len(n.parts)-1
		split := -1
		if then && len(n.parts) > 1 {
			split = c.emit(inst{op: oBranch, min: c.alt, y: -1})
		} else if !last {
			split = c.emit(inst{op: oSplit, x: c.here() + 1})
		}
		if n.widths[i] > 0 {
			c.emit(inst{op: oRewind, x: int32(n.widths[i])})
		}
		c.node(p, nil)
		if !last {
			ends = append(ends, c.emit(inst{op: oJump}))
			c.code[split].y = c.here()
		}
	}
	for _, e := range ends {
		c.code[e].x = c.here()
	}
}

func (c *compiler) conditional(n *node, follow *byteSet) {
	var at int
	switch n.cond.kind {
	case 'd':
		jump := c.emit(inst{op: oJump})
		c.node(n.parts[0], nil)
		c.code[jump].x = c.here()
		c.node(n.parts[1], follow)
		return
	case 'x', 'y':
		c.node(n.parts[one(n.cond.kind == 'x')], follow)
		return
	case 'n':
		at = c.emit(inst{op: oIfSet, nums: numbers(n.cond.nums)})
	case 'r':
		at = c.emit(inst{op: oIfCall, x: int32(n.cond.num)})
	case 'a':
		at = c.look(n.cond.look, true)
	}
	c.node(n.parts[0], follow)
	jump := c.emit(inst{op: oJump})
	c.code[at].y = c.here()
	c.node(n.parts[1], follow)
	c.code[jump].x = c.here()
}

func (c *compiler) verb(n *node) {
	switch n.op {
	case verbFail:
		c.emit(inst{op: oFail})
	case verbAccept:
		if c.accepted != nil {
			*c.accepted = append(*c.accepted, c.emit(inst{op: oJump}))
			return
		}
		c.emit(inst{op: oAccept, nums: append([]int32(nil), c.open...)})
	default:
		c.emit(inst{op: oVerb, x: int32(n.op), min: c.alt, name: n.name})
	}
}

// first returns the bytes with which a match of a node begins, or what follows the node if it matches nothing;
// nil if that is unknown.
func (c *compiler) first(n *node, follow *byteSet) *byteSet {
	switch n.kind {
	case kSet:
		return c.class(n.set).first()
	case kSeq:
		for i := len(n.parts) - 1; i >= 0; i-- {
			follow = c.first(n.parts[i], follow)
		}
		return follow
	case kAlt:
		u := &byteSet{}
		for _, p := range n.parts {
			f := c.first(p, follow)
			if f == nil {
				return nil
			}
			u = u.union(f)
		}
		return u
	case kGroup, kAtomic:
		return c.first(n.parts[0], follow)
	case kRepeat:
		switch {
		case n.max == 0:
			return follow
		case n.min > 0:
			return c.first(n.parts[0], follow)
		case follow == nil:
			return nil
		}
		if f := c.first(n.parts[0], follow); f != nil {
			return f.union(follow)
		}
		return nil
	case kLook:
		if n.open {
			return nil
		}
		if n.neg || n.behind {
			return follow
		}
		if f := c.first(&node{kind: kAlt, parts: n.parts}, nil); f != nil {
			return f.both(follow)
		}
		return follow
	case kAssert:
		switch n.op {
		case atEnd, atLastLine, atLineEnd:
			f := &byteSet{}
			if f.addEnd(); n.op != atEnd {
				f = f.union(c.set.newline.first())
			}
			return f.both(follow)
		}
		return follow
	case kEmpty, kKeep:
		return follow
	case kCond:
		if n.cond.kind == 'd' {
			return follow
		}
	}
	return nil
}

// least returns the minimum number of characters that a node matches.
func (c *compiler) least(n *node, asked map[int]bool) int {
	sum := 0
	switch n.kind {
	case kSet, kDot, kByte, kCluster, kNewline:
		return one(n.kind != kByte)
	case kSeq:
		for _, p := range n.parts {
			sum += c.least(p, asked)
			if c.accepts {
				break
			}
		}
	case kAlt, kCond:
		for i, p := range n.parts {
			if l := c.least(p, asked); i == 0 || l < sum {
				sum = l
			}
		}
		if n.cond.kind == 'd' {
			return 0
		}
	case kGroup, kAtomic:
		return c.least(n.parts[0], asked)
	case kRepeat:
		if n.min > 0 {
			sum = n.min * c.least(n.parts[0], asked)
		}
	}
	return min(sum, maxRepeat)
}

// nullable reports whether a node may match nothing; a false positive does no harm.
func (c *compiler) nullable(n *node) bool {
	switch n.kind {
	case kSet, kDot, kByte, kCluster, kNewline:
		return false
	case kSeq:
		for _, p := range n.parts {
			if !c.nullable(p) {
				return c.accepts
			}
		}
		return true
	case kAlt:
		for _, p := range n.parts {
			if c.nullable(p) {
				return true
			}
		}
		return false
	case kGroup, kAtomic:
		return c.nullable(n.parts[0])
	case kRepeat:
		return n.min == 0 || c.nullable(n.parts[0])
	}
	return true
}

// fewTurns is the maximum number of empty iterations if there is a bound.
const fewTurns = 32
