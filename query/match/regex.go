package match

// Regex is a compiled regular expression with the server's (PCRE) meaning.
type Regex struct {
	Pattern, Options string
}
