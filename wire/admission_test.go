package wire

import (
	"net"
	"testing"
	"time"
)

// The limit on the rate of new connections was a parameter that nothing heeded.
func TestAdmissionBoundsTheRate(t *testing.T) {
	var a admission
	now := time.Now()
	if wait, ok := a.enter(nil, now); wait != 0 || !ok {
		t.Error("it holds without rules")
	}
	local := func(addr net.Addr) bool { return addr != nil }
	a.set(Admission{Enabled: true, PerSecond: 10, Burst: 2, Queue: 3, Exempt: local})
	now = time.Now()
	var at, queued, refused int
	for range 30 {
		switch wait, ok := a.enter(nil, now); {
		case !ok:
			refused++
		case wait > 0:
			queued++
			if want := time.Duration(queued) * 100 * time.Millisecond; wait > want || wait < want-20*time.Millisecond {
				t.Errorf("number %d waits %v", queued, wait)
			}
		default:
			at++
		}
	}
	if at != 20 || queued != 3 || refused != 7 {
		t.Errorf("%d at once, %d in the queue, %d refused", at, queued, refused)
	}
	if wait, ok := a.enter(&net.TCPAddr{}, now); wait != 0 || !ok || a.exempted.Load() != 1 {
		t.Error("an exempt address waits")
	}
	a.waiting.Store(0)
	if wait, ok := a.enter(nil, now.Add(time.Second)); wait != 0 || !ok {
		t.Error("a second later it still holds")
	}
}
