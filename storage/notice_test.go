package storage

import (
	"context"
	"slices"
	"sync"
	"testing"
)

// heard is a notice and what was visible when it was delivered.
type heard struct {
	text    string
	ts      Timestamp
	visible Timestamp
}

// Every member receives each notice once, before its unit is visible, including those of units in flight whose primary stepped down.
func TestNotices(t *testing.T) {
	l := newTestLog(t, 3, Options{})
	defer l.close()
	var mu sync.Mutex
	got := make([][]heard, len(l.members))
	for i, m := range l.members {
		m.e.OnNotice(func(ts Timestamp, notice []byte) {
			mu.Lock()
			got[i] = append(got[i], heard{string(notice), ts, m.e.Visible()})
			mu.Unlock()
		})
	}
	l.elect(l.members[0], 0)
	commit := func(text string) <-chan Timestamp {
		e := l.primary.e
		u := e.NewUnitOfWork(nil)
		u.Notice([]byte(text))
		done := make(chan Timestamp, 1)
		go func() {
			ts, _ := e.Commit(context.Background(), u, true)
			done <- ts
		}()
		return done
	}
	inFlight := func(n int) {
		for have := 0; have < n; {
			l.mu.Lock()
			have = len(l.entries)
			l.mu.Unlock()
		}
	}
	one := commit("one")
	inFlight(2)
	l.settle()
	if ts := <-one; ts == 0 || got[0][0].ts != ts {
		t.Errorf("committed at %v, told as %v", ts, got[0])
	}
	two := commit("two")
	inFlight(3)
	l.elect(l.members[1], 1) // its entry survives its primary
	if ts := <-two; ts != 0 {
		t.Errorf("the resigned primary's unit has the time %v", ts)
	}
	three := commit("three")
	inFlight(5)
	l.settle()
	<-three
	mu.Lock()
	defer mu.Unlock()
	for i, list := range got {
		var texts []string
		for j, h := range list {
			texts = append(texts, h.text)
			if h.visible >= h.ts || h.ts != got[0][j].ts {
				t.Errorf("member %d was told of %q at %v when %v was visible", i, h.text, h.ts, h.visible)
			}
		}
		if !slices.Equal(texts, []string{"one", "two", "three"}) {
			t.Errorf("member %d heard %q", i, texts)
		}
	}
}
