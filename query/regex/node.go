package regex

// kind is the kind of a pattern's node.
type kind uint8

const (
	kEmpty   kind = iota
	kSet          // one character of a set
	kSeq          // its parts in order
	kAlt          // one of its parts
	kGroup        // its part, whose position is stored as group num
	kRepeat       // its part, min to max times
	kAtomic       // its part, without backtracking into it
	kLook         // one of its parts matches, ahead of or behind the position; neg: does not match
	kBack         // the text of one of the groups nums again
	kCall         // group num's pattern again; 0 is the whole pattern
	kCond         // parts[0] if the condition holds, else parts[1]
	kAssert       // the assertion op about the position
	kKeep         // \K: the reported match begins here
	kVerb         // op
	kCluster      // \X: a character and what belongs to it
	kNewline      // \R
	kDot          // a character that does not begin a line end of two
	kByte         // \C
)

// node is a part of a pattern.
type node struct {
	kind     kind
	parts    []*node
	set      *set
	num      int
	nums     []int
	name     string // of a group that is resolved when all are known, or of a verb
	min, max int    // of a repetition; max < 0: any number
	widths   []int  // of the parts of a look-behind
	lazy     bool
	neg      bool
	behind   bool
	open     bool // a look-around that allows backtracking into it
	fold     bool // back-references: ignoring case
	op       byte
	cond     condition
	written  int // branches of a condition
}

// The operations of kVerb.
const (
	verbAccept = 'a'
	verbFail   = 'f'
	verbCommit = 'c'
	verbPrune  = 'p'
	verbSkip   = 's'
	verbThen   = 't'
	verbMark   = 'm'
)

// The operations of kAssert.
const (
	atStart     = 'A'
	atFrom      = 'G'
	atEnd       = 'z'
	atLastLine  = 'Z' // the end, or before a newline that ends the text
	atLineStart = 'm'
	atLineEnd   = 'e'
	atWordEdge  = 'b'
	atNoEdge    = 'B'
)

// condition is the condition of a conditional group.
type condition struct {
	kind byte // 'n' one of the groups nums is set, 'r' inside a call of group num (-1: of any), 'd' never, of a (?(DEFINE)…), 'x' never, 'y' always, 'a' the assertion
	num  int
	nums []int
	name string
	look *node
}

// maxLookbehind is the maximum length of a look-behind, maxWidthWork the maximum work to compute it.
const (
	maxLookbehind = 65535
	maxWidthWork  = 20_000
)

// widthOf measures look-behinds.
type widthOf struct {
	*parser
	asked map[*node]bool // calls being measured
	work  int
	err   error
}

// of returns how many characters a node always takes; ok is false if that varies.
func (m *widthOf) of(n *node) (w int, ok bool) {
	if m.work++; m.work > maxWidthWork {
		return 0, false
	}
	switch n.kind {
	case kSet:
		return 1, true
	case kSeq:
		for _, c := range n.parts {
			cw, ok := m.of(c)
			if !ok {
				return 0, false
			}
			if w += cw; c.kind == kVerb && (c.op == verbAccept || c.op == verbFail) {
				break
			}
		}
		return w, true
	case kAlt:
		return m.same(n.parts)
	case kCond:
		if n.cond.kind == 'd' {
			return 0, true
		}
		return m.same(n.parts[:min(n.written, 2)])
	case kGroup, kAtomic:
		return m.of(n.parts[0])
	case kRepeat:
		cw, ok := m.of(n.parts[0])
		if n.max == 0 || n.parts[0].kind == kLook {
			return 0, ok
		}
		return cw * n.min, ok && n.min == n.max
	case kCluster, kNewline, kDot, kByte:
		return 0, false
	case kBack:
		if nums, err := m.find(n.name, n.num); err != nil {
			m.err = err
		} else if len(nums) == 1 {
			return m.group(n, nums[0])
		}
		return 0, false
	case kCall:
		nums, err := m.find(n.name, n.num)
		if err != nil {
			m.err = err
			return 0, false
		}
		return m.group(n, nums[0])
	}
	return 0, true
}

func (m *widthOf) same(parts []*node) (w int, ok bool) {
	for i, c := range parts {
		cw, ok := m.of(c)
		if !ok || i > 0 && cw != w {
			return 0, false
		}
		w = cw
	}
	return w, true
}

// group measures the group that a reference or a call leads to.
func (m *widthOf) group(from *node, num int) (int, bool) {
	if num <= 0 || m.asked[from] {
		return 0, false
	}
	m.asked[from] = true
	defer delete(m.asked, from)
	return m.of(m.groups[num].parts[0])
}
