package command

import (
	"slices"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// The list of retried statements used to make the reply to a resent command too large, so that a command that had been executed failed.
func TestRetriedStatementsFitIntoTheReply(t *testing.T) {
	ids := slices.Repeat([]value.Value{value.NewInt32(1)}, MaxWriteBatch)
	for _, c := range []struct {
		reply int
		ids   []value.Value
		lists bool
	}{{100, ids[:2], true}, {100, nil, false}, {MaxMessageSize - 2<<20, ids, true}, {MaxMessageSize - 500<<10, ids, false}} {
		got := AppendRetried(make([]byte, c.reply), c.ids)
		if lists := len(got) > c.reply; lists != c.lists || len(got) > MaxMessageSize {
			t.Errorf("a reply of %d bytes with %d statements has %d", c.reply, len(c.ids), len(got))
		}
	}
}
