package collation

// plainASCII are the languages whose rules do not change the root order of strings of ASCII letters: they have no contractions of them.
var plainASCII = map[string]bool{
	"en": true, "fr": true, "de": true, "it": true, "pt": true, "nl": true, "es": true, "ru": true, "uk": true, "ja": true,
	"ko": true, "zh": true, "sv": true, "fi": true, "el": true, "he": true, "ar": true, "id": true, "ms": true, "ca": true,
}

// asciiTable holds the weights of printable ASCII characters.
type asciiTable struct {
	primary   [128]uint16 // 0: not in the table, or ignored if ignored is set
	ignored   [128]bool   // variable, under "shifted"
	upper     [128]bool
	caseOrder int // +1 lower first, -1 upper first, 0 case is not compared
}

func newASCIITable(o *ordering) *asciiTable {
	s := &o.spec
	if s.NumericOrdering || s.Strength > 3 {
		return nil
	}
	t := &asciiTable{}
	w := o.pool.Get().(*weigher)
	defer o.pool.Put(w)
	for c := byte(' '); c < 127; c++ {
		if s.Alternate == "shifted" && o.variable(rune(c)) {
			t.ignored[c] = true
			continue
		}
		w.buf.Reset()
		key := w.c.Key(&w.buf, []byte{c})
		if len(key) < 2 {
			return nil
		}
		t.primary[c] = uint16(key[0])<<8 | uint16(key[1])
		t.upper[c] = c >= 'A' && c <= 'Z'
	}
	switch {
	case s.Strength < 3 && !s.CaseLevel:
	case s.CaseFirst == "upper":
		t.caseOrder = -1
	default:
		t.caseOrder = 1
	}
	return t
}

// compare orders two strings of printable ASCII; ok is false for others.
func (t *asciiTable) compare(a, b []byte) (r int, ok bool) {
	i, j, case1 := 0, 0, 0
	for {
		for i < len(a) && a[i] < 127 && t.ignored[a[i]] {
			i++
		}
		for j < len(b) && b[j] < 127 && t.ignored[b[j]] {
			j++
		}
		if i == len(a) || j == len(b) {
			break
		}
		if a[i] >= 127 || b[j] >= 127 {
			return 0, false
		}
		pa, pb := t.primary[a[i]], t.primary[b[j]]
		if pa == 0 || pb == 0 {
			return 0, false
		}
		if pa != pb {
			// What follows changes nothing, except for a mark that combines with the last character.
			return sign(int(pa) - int(pb)), plainTail(a[i+1:]) && plainTail(b[j+1:])
		}
		if case1 == 0 && t.upper[a[i]] != t.upper[b[j]] {
			case1 = 1
			if t.upper[b[j]] {
				case1 = -1
			}
		}
		i++
		j++
	}
	if !plainRest(t, a[i:]) || !plainRest(t, b[j:]) {
		return 0, false
	}
	if i < len(a) || j < len(b) {
		return sign((len(a) - i) - (len(b) - j)), true
	}
	return case1 * t.caseOrder, true
}

// plainTail reports whether the next character is ASCII, so that the one before it stands alone.
func plainTail(s []byte) bool { return len(s) == 0 || s[0] < 127 }

// plainRest reports whether the rest of the longer string certainly has a weight.
func plainRest(t *asciiTable, s []byte) bool {
	return len(s) == 0 || s[0] < 127 && t.primary[s[0]] != 0 && plainTail(s[1:])
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}
