package sdam

import (
	"maps"
	"testing"
	"testing/synctest"

	"github.com/shoaldb/shoal/wire"
)

// The members of a set get as many connections as the policy says for their current roles.
func TestMatching(t *testing.T) {
	follow(t, func(t *testing.T, f *fakeSet, s *Handle) {
		how := MatchNothing
		ms := NewMonitors(f, DefaultTiming)
		ms.mu.sets["rs"] = []*followed{{Set: s.Set}}
		ms.Match(func() Matching { return how })
		load := map[string]wire.HostLoad{"a:1": {Open: 7, InUse: 2}, "b:1": {Open: 9, InUse: 5}}
		check := func(want map[string]int) {
			t.Helper()
			synctest.Wait()
			if got := ms.Follow(load); !maps.Equal(got, want) {
				t.Errorf("%s: %v, want %v", how, got, want)
			}
		}
		if _, err := s.Call(t.Context(), command("insert"), nil); err != nil {
			t.Fatal(err)
		}
		check(nil)
		how = MatchPrimary
		check(map[string]int{"b:1": 7, "c:1": 7})
		how = MatchBusiest
		check(map[string]int{"a:1": 5, "b:1": 5, "c:1": 5})
		how = MatchPrimary
		f.change("c:1", func(m *fakeMember) { m.passive = true }) // it cannot be elected
		f.elect("b:1")
		check(map[string]int{"a:1": 9})
	})
}
