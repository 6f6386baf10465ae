package mongoerr

// UnknownField returns the error for a field that a command, or a document within it, does not know. path
// includes both names.
func UnknownField(path string) *Error {
	return Newf(IDLUnknownField, "BSON field '%s' is an unknown field.", path)
}

// MissingField returns the error for a required field that is missing.
func MissingField(path string) *Error {
	return Newf(IDLFailedToParse, "BSON field '%s' is missing but a required field", path)
}

// DuplicateField returns the error for a field that was sent twice.
func DuplicateField(path string) *Error {
	return Newf(IDLDuplicateField, "BSON field '%s' is a duplicate field", path)
}
