package regex

// newlines is the set of line ends.
type newlines uint8

const (
	nlLF newlines = iota
	nlCR
	nlCRLF
	nlAny
	nlAnyCRLF
	nlNUL
)

// chars returns the characters that end a line by themselves.
func (k newlines) chars() []rune {
	switch k {
	case nlCR:
		return []rune{'\r', '\r'}
	case nlAny:
		return vRanges
	case nlAnyCRLF:
		return []rune{'\n', '\n', '\r', '\r'}
	case nlNUL:
		return []rune{0, 0}
	}
	return []rune{'\n', '\n'}
}

// first returns the set of the line ends' first bytes.
func (k newlines) first() *byteSet {
	b := &byteSet{}
	if k == nlCRLF {
		b.add('\r')
		return b
	}
	b = b.union(newClass(&set{ranges: k.chars()}).first())
	return b
}

// at returns the length of the line end at a position, 0 for none.
func (k newlines) at(s []byte, i int) int {
	if i >= len(s) {
		return 0
	}
	pair := s[i] == '\r' && i+1 < len(s) && s[i+1] == '\n'
	switch k {
	case nlLF:
		return one(s[i] == '\n')
	case nlCR:
		return one(s[i] == '\r')
	case nlNUL:
		return one(s[i] == 0)
	case nlCRLF:
		return 2 * one(pair)
	case nlAnyCRLF:
		return one(s[i] == '\n' || s[i] == '\r') + one(pair)
	}
	return lineEnd(s, i, false)
}

// before reports whether there is a line end before a position.
func (k newlines) before(s []byte, i int) bool {
	switch {
	case i == 0:
		return false
	case k == nlCRLF:
		return i > 1 && k.at(s, i-2) == 2
	case s[i-1] < 0x80:
		return k.at(s, i-1) > 0
	}
	return k == nlAny && (i > 1 && lineEnd(s, i-2, false) == 2 || i > 2 && lineEnd(s, i-3, false) == 3)
}

// lineEnd returns the length of what \R matches at a position; few: with (*BSR_ANYCRLF).
func lineEnd(s []byte, i int, few bool) int {
	if i >= len(s) {
		return 0
	}
	switch c := s[i]; {
	case c == '\r':
		return 1 + one(i+1 < len(s) && s[i+1] == '\n')
	case c == '\n' || !few && (c == '\v' || c == '\f'):
		return 1
	case few:
		return 0
	case c == 0xC2:
		return 2 * one(i+1 < len(s) && s[i+1] == 0x85)
	case c == 0xE2 && i+2 < len(s) && s[i+1] == 0x80:
		return 3 * one(s[i+2] == 0xA8 || s[i+2] == 0xA9)
	}
	return 0
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
