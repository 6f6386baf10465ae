package value

// SameFields compares two documents regardless of the order of their fields.
func SameFields(a, b []byte) bool {
	if Count(a) != Count(b) {
		return false
	}
	for k, v := range Elements(a) {
		if !Equal(v, Lookup(b, k)) {
			return false
		}
	}
	return true
}
