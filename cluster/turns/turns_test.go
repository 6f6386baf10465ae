package turns

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// While clients write, streams are given so many answers in a second, in turn; after a pause, or without writers, they wait for
// nothing.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := New()
		u.stalled = func() (time.Duration, bool) { return 0, true }
		if !u.Open() {
			t.Fatal("there is no turn at the start")
		}
		const answer = Look + Answer
		n := int(u.mu.rate)
		u.Wrote(1)
		u.Spend(n) // ten times what is saved up
		if u.Open() {
			t.Fatal("there is a turn when more was spent than there is")
		}
		var order []int
		start := time.Now()
		var last time.Duration
		done := make(chan struct{})
		for i := range 2 * n / answer {
			u.Queue(func() {
				u.Spend(answer)
				u.Wrote(1)
				order = append(order, i)
				if last = time.Since(start); len(order) == 2*n/answer {
					close(done)
				}
			})
		}
		if u.Open() {
			t.Error("who comes goes before those who wait")
		}
		<-done
		for i, got := range order {
			if got != i {
				t.Fatalf("turn %d is of %d", i, got)
			}
		}
		if last < 2800*time.Millisecond || last > 3*time.Second {
			t.Errorf("what costs three seconds took %v", last)
		}

		// Nobody writes.
		u.Spend(10 * n)
		u.Wrote(1)
		var at atomic.Int64
		start = time.Now()
		u.Queue(func() { at.Store(int64(time.Since(start))) })
		time.Sleep(time.Second)
		if d := time.Duration(at.Load()); d < quiet || d > 2*quiet {
			t.Errorf("without writers the turn comes after %v", d)
		}
		if !u.Open() {
			t.Error("without writers there is no turn")
		}
	})
}

// Where writers wait for processors, streams are given half an answer for each event, and never less than a little.
func TestTurnsWhereProcessorsAreScarce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := New()
		var stall time.Duration
		known := true
		u.stalled = func() (time.Duration, bool) { return stall, known }
		write := func(perSecond int, part float64) float64 {
			for range 10 {
				time.Sleep(100 * time.Millisecond)
				stall += time.Duration(part * float64(100*time.Millisecond))
				u.Wrote(perSecond / 10)
			}
			return u.mu.rate
		}
		full := u.processors * most
		for _, c := range []struct {
			events int
			part   float64
			known  bool
			want   float64
		}{
			{10000, 0.1, true, full}, {4000, 0.9, true, 4000 * share}, {10, 0.9, true, u.processors * least}, {1 << 20, 0.9, true, full},
			{100, 0, false, full}, {int(1000 * u.processors), 0, false, 1000 * u.processors * share},
		} {
			known = c.known
			if got := write(c.events, c.part); got < 0.9*c.want || got > 1.1*c.want {
				t.Errorf("%+v: %v", c, got)
			}
		}
		time.Sleep(2 * time.Second)
		u.Wrote(1)
		if u.mu.rate != full || u.Scarce() {
			t.Errorf("after a pause: %v", u.mu.rate)
		}
	})
}
