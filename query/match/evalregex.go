package match

import (
	"bytes"
	"errors"
	"strings"

	"github.com/shoaldb/shoal/query/regex"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func (c *context) regex(n *Node, v value.Value) bool { return c.runRegex(n, n.Regexes[0], v) }

// regexError returns the error of a pattern that exceeds a limit; errors of the operation are unchanged.
func regexError(err error) error {
	var own *mongoerr.Error
	if errors.As(err, &own) {
		return err
	}
	return mongoerr.Newf(51156, "Error occurred while executing the regular expression in $regex: %s", err)
}

// runRegex matches strings and symbols; a stored regular expression matches if it is the same one.
func (c *context) runRegex(n *Node, r *regex.Regexp, v value.Value) bool {
	switch v.T {
	case value.String, value.Symbol:
		ok, err := r.Match(v.Bytes(), c.pace.Work)
		if err != nil {
			c.fail(regexError(err))
		}
		return ok
	case value.Regex:
		b := v.Bytes()
		end := bytes.IndexByte(b, 0)
		return end >= 0 && string(b[:end]) == r.Pattern && strings.TrimRight(string(b[end+1:]), "\x00") == r.Options
	}
	return false
}
