package command

import (
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// A transaction is not active for longer than it is open: its first command begins before it, and waits for its turn.
func TestTransactionsAreNotActiveBeforeTheyBegin(t *testing.T) {
	began := time.Unix(1000, 0)
	now := began.Add(10 * time.Millisecond)
	fields := value.Doc(TxnView{Number: 1, Started: began}.Running(began.Add(-5*time.Millisecond), now).Fields(now, value.F("readTimestamp", value.NewTimestampU64(1)))...)
	for name, want := range map[string]int64{"timeOpenMicros": 10000, "timeActiveMicros": 10000, "timeInactiveMicros": 0} {
		if got := value.SafeInt64(value.Lookup(fields, name)); got != want {
			t.Errorf("%s is %d, not %d", name, got, want)
		}
	}
}
