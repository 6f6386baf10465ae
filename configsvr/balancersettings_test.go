package configsvr

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The balancer applies all of its settings: activeWindow, _secondaryThrottle, writeConcern, _waitForDelete and
// attemptToBalanceJumboChunks used to be stored without effect.
func TestBalancerSettingsAreRead(t *testing.T) {
	parse := func(text string) (balancerSettings, error) {
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
			t.Fatal(err)
		}
		raw, _ := bson.Marshal(d)
		return parseBalancerSettings(raw)
	}
	s, err := parse(`{"_id": "balancer", "mode": "full", "stopped": false, "_secondaryThrottle": true, "writeConcern": {"w": 3}, "_waitForDelete": true, "attemptToBalanceJumboChunks": true, "activeWindow": {"start": "23:00", "stop": "6:30"}}`)
	if err != nil || s.off || !s.throttle || len(s.concern) == 0 || !s.waitForDelete || !s.jumbo || *s.window != (activeWindow{23 * 60, 6*60 + 30}) {
		t.Errorf("%+v %v", s, err)
	}
	if s, err := parse(`{"_secondaryThrottle": {"w": 2}}`); err != nil || !s.throttle || len(s.concern) == 0 {
		t.Errorf("a write concern as _secondaryThrottle: %+v %v", s, err)
	}
	if s, err := parse(`{"stopped": true}`); err != nil || !s.off {
		t.Errorf("stopped: %+v %v", s, err)
	}
	for _, bad := range []string{`{"mode": "half"}`, `{"activeWindow": {"start": "23:00"}}`, `{"activeWindow": {"start": "25:00", "stop": "1:00"}}`,
		`{"activeWindow": "nights"}`, `{"activeWindow": {"start": "1:00", "stop": "1:00"}}`} {
		if s, err := parse(bad); err == nil {
			t.Errorf("%s: %+v", bad, s)
		}
	}
}

func TestBalancerActiveWindow(t *testing.T) {
	at := func(h, m int) time.Time { return time.Date(2026, 1, 2, h, m, 30, 0, time.Local) }
	day, night := &activeWindow{9 * 60, 17 * 60}, &activeWindow{23 * 60, 6 * 60}
	for _, c := range []struct {
		w    *activeWindow
		at   time.Time
		open bool
	}{
		{nil, at(3, 0), true},
		{day, at(8, 59), false}, {day, at(9, 0), true}, {day, at(17, 0), true}, {day, at(17, 1), false},
		{night, at(22, 59), false}, {night, at(23, 0), true}, {night, at(0, 0), true}, {night, at(6, 0), true}, {night, at(6, 1), false},
	} {
		if c.w.open(c.at) != c.open {
			t.Errorf("%+v at %v: %v", c.w, c.at, !c.open)
		}
	}
}
