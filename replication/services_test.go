package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// Services step up in order and before any of them runs, start again in each term, and have all ended when StepDown returns.
func TestServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Services
		var mu sync.Mutex
		var log []string
		note := func(format string, args ...any) {
			mu.Lock()
			log = append(log, fmt.Sprintf(format, args...))
			mu.Unlock()
		}
		expect := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(log, want) {
				t.Errorf("%s: %q, want %q", what, log, want)
			}
			log = nil
		}
		add := func(name string, fail error) error {
			return s.Add(Service{
				Name:   name,
				StepUp: func(ctx context.Context, term int64) error { note("%s up %d", name, term); return fail },
				Run: func(ctx context.Context, term int64) {
					<-ctx.Done()
					note("%s over", name)
				},
			})
		}
		_ = add("a", nil)
		_ = add("broken", errors.New("no state"))
		expect("added while secondary")
		if err := s.StepUp(context.Background(), 3); err == nil || err.Error() != "broken: no state" {
			t.Errorf("step-up: %v", err)
		}
		expect("stepped up", "a up 3", "broken up 3")
		if err := add("late", nil); err != nil {
			t.Error(err)
		}
		expect("added while primary", "late up 3")
		if at := s.AtWork(); !slices.Equal(at, []string{"a", "late"}) {
			t.Errorf("at work: %q", at)
		}
		s.Each(func(name, state string) { note("%s %s", name, state) })
		expect("states", "a running", "broken rebuildFailed", "late running")
		s.StepDown()
		slices.Sort(log)
		expect("stepped down", "a over", "late over")
		s.StepDown()
		_ = s.StepUp(context.Background(), 4)
		expect("again", "a up 4", "broken up 4", "late up 4")
		s.StepDown()
		if at := s.AtWork(); len(at) != 0 {
			t.Errorf("at work after stepping down: %q", at)
		}
	})
}
