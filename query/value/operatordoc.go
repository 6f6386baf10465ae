package value

// IsOperatorDoc reports whether a document begins with a name with a dollar sign, as conditions and updates do.
// A DBRef does, too.
func IsOperatorDoc(doc []byte) bool {
	it := Walk(doc)
	k, _, ok := it.Next()
	return ok && len(k) > 0 && k[0] == '$'
}
