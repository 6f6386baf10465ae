package await

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failing records what a wait reports, and ends its goroutine as a test does.
type failing struct {
	testing.TB
	said string
}

type ended struct{}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(ended{})
}

// vain runs a wait that must fail, and returns its message and the number of its looks.
func vain(t *testing.T, look func()) (string, int) {
	t.Helper()
	f, n := &failing{TB: t}, 0
	func() {
		defer func() {
			if r := recover(); r != (ended{}) {
				t.Errorf("the wait ended with %v", r)
			}
		}()
		State(f, "the tide turns", func() (string, bool) { n++; look(); return fmt.Sprint("look ", n), false })
	}()
	return f.said, n
}

func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, n := time.Now(), 0
		if got := State(t, "ten looks", func() (int, bool) { n++; return n, n == 10 }); got != 10 {
			t.Errorf("saw %d", got)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("ten looks took %v", took)
		}
		True(t, "at once", func() bool { return true })
	})
}

// A wait that fails reports what it waited for and what it saw last; slow looks get their number, and quick ones their time.
func TestWaitsInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		said, n := vain(t, func() {})
		if took := time.Since(began); took < patience || took > patience+time.Second || n < looks {
			t.Errorf("%d quick looks in %v", n, took)
		}
		if want := fmt.Sprint("the tide turns; last seen: look ", n); !strings.HasSuffix(said, want) {
			t.Errorf("said %q, want %q at the end", said, want)
		}
		if _, n := vain(t, func() { time.Sleep(time.Minute) }); n != looks {
			t.Errorf("%d slow looks, want %d", n, looks)
		}
	})
}

// A wait lasts while there is progress, however long it takes; the limits count from the last change.
func TestWaitsForProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, at := time.Now(), 0
		got := Progress(t, "an hour's work", func() (int, bool) {
			if time.Since(began) > time.Duration(at)*patience*9/10 {
				at++
			}
			return at, at == 30
		})
		if got != 30 || time.Since(began) < 20*patience {
			t.Errorf("saw %d after %v", got, time.Since(began))
		}
		f := &failing{TB: t}
		began = time.Now()
		func() {
			defer func() { _ = recover() }()
			Progress(f, "what stands still", func() (int, bool) { return min(7, int(time.Since(began)/time.Minute)), false })
		}()
		if took := time.Since(began); !strings.HasSuffix(f.said, "last seen: 7") || took < 7*time.Minute+patience || took > 8*time.Minute+patience {
			t.Errorf("said %q after %v", f.said, took)
		}
	})
}
