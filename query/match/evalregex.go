package match

import (
	"bytes"
	"strings"

	"github.com/shoaldb/shoal/query/regex"
	"github.com/shoaldb/shoal/query/value"
)

func (c *context) regex(n *Node, v value.Value) bool { return c.runRegex(n, n.Regexes[0], v) }

// runRegex matches strings and symbols; a regular expression that is stored matches where it is the same one.
func (c *context) runRegex(n *Node, r *regex.Regexp, v value.Value) bool {
	switch v.T {
	case value.String, value.Symbol:
		ok, err := r.Match(v.Bytes())
		if err != nil {
			c.fail(errRegexTime)
		}
		return ok
	case value.Regex:
		b := v.Bytes()
		end := bytes.IndexByte(b, 0)
		return end >= 0 && string(b[:end]) == r.Pattern && strings.TrimRight(string(b[end+1:]), "\x00") == r.Options
	}
	return false
}
