package configsvr

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A pause ends when its router ends it, or by itself if that router is gone; then migrations no longer wait.
func TestPausesEndAndLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		const lease = 10 * time.Second
		gone, done := [16]byte{1}, [16]byte{2}
		start := time.Now()
		p.begin("d.c", gone, start.Add(lease))
		p.begin("d.c", done, start.Add(lease))
		if p.paused("d.other", start) || !p.paused("d.c", start) {
			t.Error("a pause does not apply to its collection alone")
		}
		renewed := make(chan struct{})
		go func() {
			defer close(renewed)
			time.Sleep(lease / 2)
			p.begin("d.c", done, time.Now().Add(lease))
			time.Sleep(lease)
			p.begin("d.c", done, time.Now().Add(lease))
			p.end("d.c", done)
		}()
		soon, cancel := context.WithTimeout(t.Context(), lease/4)
		defer cancel()
		if err := p.wait(soon, "d.c", time.Now); err == nil {
			t.Error("nothing was waited for")
		}
		if err := p.wait(t.Context(), "d.c", time.Now); err != nil {
			t.Error(err)
		}
		if waited := time.Since(start); waited != lease*3/2 {
			t.Errorf("waited for %v: the lease that is not renewed expires, the other one is ended after %v", waited, lease*3/2)
		}
		<-renewed
		if len(p.held) != 0 {
			t.Errorf("%v is left", p.held)
		}
	})
}
