package await

import (
	"fmt"
	"testing"
	"time"
)

// A wait fails after patience and looks, whichever comes later. As a rule, a condition holds within milliseconds: the
// limits only determine how soon a test that fails reports that.
var patience = 2 * time.Minute

const (
	looks = 400
	// The pause between two looks doubles from the first to the last.
	firstPause = 50 * time.Microsecond
	lastPause  = 20 * time.Millisecond
)

// True waits until is returns true. It must be called by the test's goroutine.
func True(t testing.TB, what string, is func() bool) {
	t.Helper()
	State(t, what, func() (struct{}, bool) { return struct{}{}, is() })
}

// State waits until look is done, and returns the state it saw then. It must be called by the test's goroutine.
func State[S any](t testing.TB, what string, look func() (S, bool)) S {
	t.Helper()
	return wait(t, what, look, func(S) bool { return false })
}

// Progress is State for work that may take long: it fails once the state has been the same for as long as other waits take at most.
func Progress[S comparable](t testing.TB, what string, look func() (S, bool)) S {
	t.Helper()
	var last S
	return wait(t, what, look, func(seen S) bool {
		moved := seen != last
		last = seen
		return moved
	})
}

func wait[S any](t testing.TB, what string, look func() (S, bool), moved func(S) bool) S {
	t.Helper()
	began := time.Now()
	pause := firstPause
	for n := 1; ; n++ {
		seen, done := look()
		if done {
			return seen
		}
		if moved(seen) {
			began, n = time.Now(), 0
		}
		if took := time.Since(began); n >= looks && took >= patience {
			last := ""
			if any(seen) != any(struct{}{}) {
				last = fmt.Sprintf("; last seen: %v", seen)
			}
			t.Fatalf("waited in vain for %v (%d looks): %s%s", took.Round(time.Second), n, what, last)
		}
		time.Sleep(pause)
		pause = min(2*pause, lastPause)
	}
}
