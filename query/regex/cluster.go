package regex

import (
	"unicode"
	"unicode/utf8"
)

// cluster returns the end of the extended grapheme cluster that begins at pos; -1 at the end.
func cluster(s []byte, pos int) int {
	if pos >= len(s) {
		return -1
	}
	r, n := utf8.DecodeRune(s[pos:])
	pos += n
	if r == '\r' && pos < len(s) && s[pos] == '\n' {
		return pos + 1
	}
	if breaks(r) {
		return pos
	}
	flags := one(regional(r))
	for pos < len(s) {
		next, n := utf8.DecodeRune(s[pos:])
		switch {
		case extends(next):
		case breaks(next):
			return pos
		case regional(r) && regional(next) && flags%2 == 1:
			flags++
		case r == joiner && pictographic(next):
		case hangulJoins(r, next):
		default:
			return pos
		}
		r = next
		pos += n
	}
	return pos
}

const joiner = 0x200D

// breaks reports whether a cluster always ends before and after a character.
func breaks(r rune) bool {
	return r != joiner && r != 0x200C && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Cs) && !(r >= 0xE0020 && r <= 0xE007F)
}

func extends(r rune) bool {
	return r == joiner || r == 0x200C || unicode.Is(unicode.M, r) || r >= 0x1F3FB && r <= 0x1F3FF || r >= 0xE0020 && r <= 0xE007F
}

func regional(r rune) bool { return r >= 0x1F1E6 && r <= 0x1F1FF }

func pictographic(r rune) bool {
	return unicode.Is(unicode.So, r) && r > 0x2000 || r >= 0x1F000 && r <= 0x1FAFF
}

// hangulJoins reports whether two Korean letters make one syllable.
func hangulJoins(a, b rune) bool {
	lead := func(r rune) bool { return r >= 0x1100 && r <= 0x115F || r >= 0xA960 && r <= 0xA97C }
	vowel := func(r rune) bool { return r >= 0x1160 && r <= 0x11A7 || r >= 0xD7B0 && r <= 0xD7C6 }
	tail := func(r rune) bool { return r >= 0x11A8 && r <= 0x11FF || r >= 0xD7CB && r <= 0xD7FB }
	syllable := a >= 0xAC00 && a <= 0xD7A3
	open := syllable && (a-0xAC00)%28 == 0
	switch {
	case lead(a):
		return lead(b) || vowel(b) || b >= 0xAC00 && b <= 0xD7A3
	case vowel(a) || open:
		return vowel(b) || tail(b)
	}
	return (syllable || tail(a)) && tail(b)
}
