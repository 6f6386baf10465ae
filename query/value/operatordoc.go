package value

// IsOperatorDoc reports whether a document begins with a name with a dollar sign, as conditions and updates do.
// A DBRef does, too.
func IsOperatorDoc(doc []byte) bool {
	it := Walk(doc)
	k, _, ok := it.Next()
	return ok && len(k) > 0 && k[0] == '$'
}

// IsCondition is IsOperatorDoc for the value of a field in a filter, where a DBRef is a value like any other.
func IsCondition(doc []byte) bool {
	it := Walk(doc)
	k, _, ok := it.Next()
	return ok && len(k) > 0 && k[0] == '$' && !IsDBRefField(string(k))
}

// IsDBRefField reports whether a name is that of a field of a DBRef.
func IsDBRefField(key string) bool { return key == "$ref" || key == "$id" || key == "$db" }
