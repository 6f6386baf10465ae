package turns

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// While clients write, streams get a limited number of answers per second, in turn; after a pause, or without writers, they do not
// wait.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := New()
		u.stalled = func() (time.Duration, bool) { return 0, true }
		if !u.Open(Look + Answer) {
			t.Fatal("there is no turn at the start")
		}
		const answer = Look + Answer
		n := int(u.mu.rate)
		u.Wrote(1)
		u.Spend(n) // ten times the savings
		if u.Open(Look + Answer) {
			t.Fatal("there is a turn although the budget is overspent")
		}
		var order []int
		start := time.Now()
		var last time.Duration
		done := make(chan struct{})
		go func() { // the node is never idle
			for {
				select {
				case <-done:
					return
				case <-time.After(quiet / 2):
					u.Wrote(1)
				}
			}
		}()
		for i := range 2 * n / answer {
			u.Queue(answer, func() {
				u.Spend(answer)
				u.Wrote(1)
				order = append(order, i)
				if last = time.Since(start); len(order) == 2*n/answer {
					close(done)
				}
			})
		}
		if u.Open(Look + Answer) {
			t.Error("a newcomer overtakes those that wait")
		}
		<-done
		for i, got := range order {
			if got != i {
				t.Fatalf("turn %d goes to %d", i, got)
			}
		}
		if last < 2800*time.Millisecond || last > 3*time.Second {
			t.Errorf("a cost of three seconds took %v", last)
		}

		// No client writes.
		u.Spend(10 * n)
		u.Wrote(1)
		var at atomic.Int64
		start = time.Now()
		u.Queue(answer, func() { at.Store(int64(time.Since(start))) })
		time.Sleep(time.Second)
		if d := time.Duration(at.Load()); d < quiet || d > 2*quiet {
			t.Errorf("without writers the turn comes after %v", d)
		}
		if !u.Open(Look + Answer) {
			t.Error("without writers there is no turn")
		}
	})
}

// While writers wait for processors, streams get a third of an answer for each event, and never less than a minimum.
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

// A stream that looks rarely does not wait because of what others have spent before: after a burst it used to look every 100 ms, for as many
// seconds as the burst had cost. Many streams that look at every event repay what they have overspent.
func TestTurnsAfterABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const answer = Look + Answer
		for _, scarce := range []bool{false, true} {
			u := New()
			var stall time.Duration
			u.stalled = func() (time.Duration, bool) { return stall, true }
			write := func(n int) {
				if scarce {
					stall += 20 * time.Millisecond
				}
				u.Wrote(n)
			}
			for range 50 {
				time.Sleep(20 * time.Millisecond)
				write(30)
				u.Spend(int(u.mu.rate) / 5) // ten times the budget
			}
			for range 12 { // the burst has been repaid for long, but the node is not idle
				time.Sleep(quiet / 2)
				write(1)
			}
			late := 0
			for range 30 { // an event, an answer
				write(1)
				if !u.Open(answer) {
					late++
				}
				u.Spend(answer)
				time.Sleep(20 * time.Millisecond)
			}
			if late > 0 {
				t.Errorf("scarce %v: %d of 30 looks after a burst had to wait", scarce, late)
			}
			late = 0
			for range 30 { // an event that wakes a thousand
				write(1)
				if !u.Open(1000 * answer) {
					late++
				}
				u.Spend(1000 * answer)
				time.Sleep(20 * time.Millisecond)
			}
			if late < 25 {
				t.Errorf("scarce %v: only %d of 30 looks of a thousand streams had to wait", scarce, late)
			}
		}
	})
}

// Streams of an idle node start afresh: after a burst, and the answers that followed it, the first events after a pause used to be 100 ms late.
func TestTurnsAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const answer = Look + Answer
		u := New()
		u.stalled = func() (time.Duration, bool) { return 0, true }
		u.Wrote(1)
		u.Spend(int(u.mu.rate))
		time.Sleep(quiet + time.Millisecond)
		u.Spend(int(u.mu.rate)) // the answers to the remaining events
		u.Wrote(1)
		if !u.Open(answer) {
			t.Error("the first event after a pause has to wait")
		}
		u.Spend(int(u.mu.rate))
		time.Sleep(quiet / 2)
		u.Wrote(1)
		if u.Open(answer) {
			t.Error("there is a turn without a pause, although the budget is overspent")
		}
	})
}
