package storage

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// The messages of duplicate keys are cut by bytes. Drivers' suites insert characters of several bytes to receive invalid UTF-8.
func TestLongValuesAreCutByBytes(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{strings.Repeat("ab", 80), strings.Repeat("ab", 80)},
		{strings.Repeat("ab", 81), strings.Repeat("ab", 75) + "..."},
		{strings.Repeat("\U0001F92A", 100), strings.Repeat("\U0001F92A", 37) + "\xf0\x9f..."},
	} {
		if got := shellValue(value.NewString(c.text), true); got != `"`+c.want+`"` {
			t.Errorf("%.20s: %q", c.text, got)
		}
	}
}
