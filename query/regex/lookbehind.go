package regex

import "strings"

// variableLookbehind reports whether a look-behind holds a repetition of no fixed length: PCRE refuses those, the
// backtracking engine would run them.
func variableLookbehind(p string) bool {
	depth, inside := 0, 0 // inside: the depth of the outermost look-behind being read, 0 outside of any
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '[':
			if i = classEnd(p, i); i < 0 {
				return false // the engine will say what is wrong
			}
		case '(':
			depth++
			if rest := p[i+1:]; strings.HasPrefix(rest, "?") {
				if inside == 0 && (strings.HasPrefix(rest, "?<=") || strings.HasPrefix(rest, "?<!")) {
					inside = depth
				}
				i++ // its question mark is no quantifier
			}
		case ')':
			if depth == inside {
				inside = 0
			}
			depth--
		case '*', '+', '?':
			if inside > 0 {
				return true
			}
		case '{':
			if body, _, ok := strings.Cut(p[i+1:], "}"); ok && inside > 0 && isRange(body) {
				return true
			}
		}
	}
	return false
}

// isRange recognises "n," and "n,m" with different bounds.
func isRange(body string) bool {
	lo, hi, ok := strings.Cut(body, ",")
	return ok && lo != hi && strings.Trim(lo+hi, "0123456789") == "" && lo+hi != ""
}
