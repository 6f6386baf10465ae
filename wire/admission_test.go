package wire

import (
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// newcomer adds a connection to the queue that records its number in turns when it is admitted.
func newcomer(t *testing.T, a *admission, turns *[]int, number int) *waiter {
	t.Helper()
	w, ok := a.enter(nil, time.Now(), func() { *turns = append(*turns, number) })
	if !ok {
		t.Fatalf("number %d is refused", number)
	}
	return w
}

// The limit on the rate of new connections was a parameter that had no effect.
func TestAdmissionBoundsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a admission
		if w, ok := a.enter(nil, time.Now(), nil); w != nil || !ok {
			t.Error("it holds without rules")
		}
		local := func(addr net.Addr) bool { return addr != nil }
		a.set(Admission{Enabled: true, PerSecond: 10, Burst: 2, Queue: 3, Exempt: local})
		var at, refused int
		var turns []time.Duration
		began := time.Now()
		for range 30 {
			switch w, ok := a.enter(nil, time.Now(), func() { turns = append(turns, time.Since(began)) }); {
			case !ok:
				refused++
			case w == nil:
				at++
			}
		}
		if at != 20 || a.waiting() != 3 || refused != 7 {
			t.Errorf("%d at once, %d in the queue, %d refused", at, a.waiting(), refused)
		}
		if w, ok := a.enter(&net.TCPAddr{}, time.Now(), nil); w != nil || !ok || a.exempted.Load() != 1 {
			t.Error("an exempt address waits")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for i, d := range turns {
			if want := time.Duration(i+1) * 100 * time.Millisecond; d < want || d > want+time.Millisecond {
				t.Errorf("number %d waits %v", i, d)
			}
		}
		st := a.stats()
		if len(turns) != 3 || st.Waiting != 0 || st.Queued != 3 || st.Dequeued != 3 || st.Admitted != 23 || st.Rejected != 7 || st.Attempts != 31 ||
			st.QueuedMicros < 600_000 || st.QueuedMicros > 610_000 {
			t.Errorf("%d turns, %+v", len(turns), st)
		}
		if w, ok := a.enter(nil, time.Now(), nil); w != nil || !ok {
			t.Error("later it still holds")
		}
	})
}

// A client that goes away frees its place: those after it move up, and new ones may join. The queue used to stay full
// of connections that had been closed long ago.
func TestWhoLeavesTheQueueHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a admission
		a.set(Admission{Enabled: true, PerSecond: 1, Burst: 1, Queue: 3})
		var turns []int
		var waits []*waiter
		for i := range 4 {
			waits = append(waits, newcomer(t, &a, &turns, i))
		}
		if _, ok := a.enter(nil, time.Now(), nil); ok {
			t.Error("more than three wait")
		}
		if !a.leave(waits[1]) || !a.leave(waits[2]) || a.leave(waits[1]) || a.leave(waits[0]) {
			t.Error("who leaves the queue is told wrong")
		}
		newcomer(t, &a, &turns, 4)
		time.Sleep(1010 * time.Millisecond)
		synctest.Wait()
		if len(turns) != 1 || turns[0] != 3 {
			t.Errorf("after a second %v had their turn", turns)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(turns) != 2 || turns[1] != 4 || a.interrupted.Load() != 2 {
			t.Errorf("after two seconds %v had their turn, %d left", turns, a.interrupted.Load())
		}
	})
}

// New rules apply to waiting connections, too: without a limit they proceed at once.
func TestNewRulesReachTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a admission
		slow := Admission{Enabled: true, PerSecond: 0.0001, Burst: 1, Queue: 10}
		a.set(slow)
		var turns []int
		for i := range 6 {
			newcomer(t, &a, &turns, i)
		}
		a.set(slow) // setting the same rules again adds no token
		if len(turns) != 0 {
			t.Errorf("%v had their turn", turns)
		}
		fast := slow
		fast.PerSecond = 1
		a.set(fast)
		time.Sleep(2010 * time.Millisecond)
		synctest.Wait()
		if len(turns) != 2 {
			t.Errorf("by a faster rate %v had their turn", turns)
		}
		fast.Enabled = false
		a.set(fast)
		if len(turns) != 5 || a.waiting() != 0 {
			t.Errorf("without a limit %v had their turn", turns)
		}
		a.set(Admission{Enabled: true, PerSecond: math.MaxFloat64, Burst: math.MaxFloat64})
		for range 1000 {
			if w, ok := a.enter(nil, time.Now(), nil); w != nil || !ok {
				t.Fatal("the largest rate holds")
			}
		}
	})
}
