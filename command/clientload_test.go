package command

import (
	"testing"
	"time"
)

// A clone yields to clients only while there are any; a client that has been idle for some milliseconds still counts.
func TestClientLoad(t *testing.T) {
	var counts Opcounters
	var load ClientLoad
	counts.Inserts.Add(7) // by clients that may be gone
	load.Begin(&counts)
	now, nothing := time.Now(), func() {}
	for i, x := range []struct {
		do    func()
		after time.Duration
		busy  bool
	}{
		{nothing, 0, false}, {func() { counts.Inserts.Add(1) }, 0, true}, {nothing, time.Millisecond, true}, {nothing, BusyFor - 2*time.Millisecond, true},
		{nothing, 2 * time.Millisecond, false}, {func() { counts.Queries.Add(1) }, 0, true}, {func() { counts.Commands.Add(1) }, BusyFor, false},
		{func() { counts.Getmores.Add(1) }, 0, true}, {func() { counts.Updates.Add(1) }, BusyFor / 2, true}, {nothing, BusyFor / 2, true},
	} {
		x.do()
		now = now.Add(x.after)
		if got := load.Busy(&counts, now); got != x.busy {
			t.Errorf("%d: busy %v, want %v", i, got, x.busy)
		}
	}
}
