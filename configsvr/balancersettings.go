package configsvr

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// balancerSettings is the document "balancer" of config.settings.
type balancerSettings struct {
	off           bool
	window        *activeWindow
	throttle      bool   // _secondaryThrottle
	concern       []byte // writeConcern, of each batch under _secondaryThrottle; nil for the default
	waitForDelete bool   // _waitForDelete
	jumbo         bool   // attemptToBalanceJumboChunks
}

// splitOnly is the mode of earlier versions in which chunks were split, but not moved.
const splitOnly = "autoSplitOnly"

// activeWindow is the part of the day in which the balancer may move chunks, in minutes of the config server's local
// time; a window that ends before it starts spans midnight.
type activeWindow struct{ start, stop int }

func (w *activeWindow) open(now time.Time) bool {
	at := now.Hour()*60 + now.Minute()
	if w == nil || w.start <= w.stop {
		return w == nil || w.start <= at && at <= w.stop
	}
	return at >= w.start || at <= w.stop
}

// balancerSettings reads config.settings. Anything that it does not understand is an error: doing nothing is safer than
// moving data according to misread settings.
func (m *Manager) balancerSettings(ctx context.Context) (balancerSettings, error) {
	docs, err := m.find(ctx, "settings", doc(fld("_id", str("balancer"))))
	if err != nil || len(docs) == 0 {
		return balancerSettings{}, err
	}
	return parseBalancerSettings(docs[0])
}

func parseBalancerSettings(raw []byte) (s balancerSettings, err error) {
	mode := value.Lookup(raw, "mode")
	switch {
	case mode.IsMissing(), mode.T == value.String && (mode.Str() == "full" || mode.Str() == "off" || mode.Str() == splitOnly):
	default:
		return s, mongoerr.Newf(mongoerr.BadValue, "Invalid balancer mode %s", value.Show(mode))
	}
	s.off = value.Lookup(raw, "stopped").Truthy() || mode.Str() == "off" || mode.Str() == splitOnly
	s.waitForDelete = value.Lookup(raw, "_waitForDelete").Truthy()
	s.jumbo = value.Lookup(raw, "attemptToBalanceJumboChunks").Truthy()
	switch t := value.Lookup(raw, "_secondaryThrottle"); t.T {
	case value.Document: // the legacy form: the write concern itself
		s.throttle, s.concern = true, t.Doc()
	default:
		s.throttle = t.Truthy()
	}
	if wc := value.Lookup(raw, "writeConcern"); s.throttle && wc.T == value.Document {
		s.concern = wc.Doc()
	}
	w := value.Lookup(raw, "activeWindow")
	if w.IsMissing() {
		return s, nil
	}
	start, ok := minuteOfDay(value.Lookup(w.Doc(), "start"))
	stop, ok2 := minuteOfDay(value.Lookup(w.Doc(), "stop"))
	if w.T != value.Document || !ok || !ok2 || start == stop {
		return s, mongoerr.New(mongoerr.BadValue, "must specify both start and end of balancing window: { start: \"hh:mm\", stop: \"hh:mm\" }, and they must differ")
	}
	s.window = &activeWindow{start, stop}
	return s, nil
}

// minuteOfDay reads hours and minutes. Some administrators add seconds, which are ignored.
func minuteOfDay(v value.Value) (int, bool) {
	if v.T != value.String {
		return 0, false
	}
	t, err := time.Parse("15:04", v.Str())
	if err != nil {
		t, err = time.Parse("15:04:05", v.Str())
	}
	return t.Hour()*60 + t.Minute(), err == nil
}
