package indexkey

// KnownOption reports whether a specification may have a field of that name.
func KnownOption(name string) bool { return options[name] != 0 }
