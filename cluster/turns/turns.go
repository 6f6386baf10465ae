package turns

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The costs of a stream's work, and the rates at which they are granted.
const (
	Look   = 1         // a look that finds nothing
	Answer = 15        // an answer with events, in addition to its look
	Bytes  = 4 << 10   // the bytes of an answer that cost as much as a look
	most   = 2000 * 16 // granted per processor and second: 2000 small answers
	least  = 125 * 16  // the same while writers wait for processors
	// share is the amount that streams are granted for each event written while writers wait for processors: a third of
	// an answer.
	share = (Look + Answer) / 3.0
	burst = 0.1 // seconds of the rate that can be saved up
	// quiet is the time after the last write after which the node counts as idle.
	quiet = 100 * time.Millisecond
	// every is the interval at which the rate is recomputed, and the period over which the demand of streams is added up.
	every = 200 * time.Millisecond
	// waiting is the fraction of time with some task waiting for a processor above which processors count as scarce.
	waiting = 0.25
)

// Turns is the account of one node.
type Turns struct {
	processors float64
	stalled    func() (time.Duration, bool) // the total time in which some task waited for a processor; false if unknown
	mu         struct {
		sync.Mutex
		rate  float64 // granted per second
		saved float64 // negative if overspent
		at    time.Time
		wrote time.Time
		queue []turn
		timer *time.Timer

		// spent and spentBefore are the costs of the current and the previous period, queued that of the queue.
		spent, spentBefore, queued float64
		period                     time.Time

		events  int // written since the rate was last computed
		stall   time.Duration
		scarce  bool // writers wait for processors
		measure time.Time
	}
}

// turn is a queued callback and its cost.
type turn struct {
	f    func()
	cost float64
}

// New returns an account with a full burst saved up.
func New() *Turns {
	t := &Turns{processors: float64(runtime.GOMAXPROCS(0)), stalled: cpuPressure}
	t.mu.rate = t.processors * most
	t.mu.saved, t.mu.at = t.mu.rate*burst, time.Now()
	return t
}

// Wrote records that clients have written events.
func (t *Turns) Wrote(events int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.settle(now) // according to the writes before this one
	t.mu.wrote = now
	t.mu.events += events
	if past := now.Sub(t.mu.measure); past >= every {
		t.reckon(now, past)
	}
}

// reckon recomputes the rate granted to streams. t.mu must be held.
func (t *Turns) reckon(now time.Time, past time.Duration) {
	t.settle(now)
	stall, known := t.stalled()
	events := float64(t.mu.events) / past.Seconds()
	if past > 5*every { // after a pause
		t.mu.scarce = false
	} else if known {
		t.mu.scarce = float64(stall-t.mu.stall) > waiting*float64(past)
	} else {
		t.mu.scarce = events > 200*t.processors
	}
	t.mu.rate = t.processors * most
	if t.mu.scarce {
		t.mu.rate = min(t.mu.rate, max(events*share, t.processors*least))
	}
	t.mu.events, t.mu.stall, t.mu.measure = 0, stall, now
}

// cpuPressure reads the total time in which some task waited for a processor; false if the system does not report it.
func cpuPressure() (time.Duration, bool) {
	raw, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0, false
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	_, total, ok := strings.Cut(line, "total=")
	us, err := strconv.ParseInt(strings.TrimSpace(total), 10, 64)
	return time.Duration(us) * time.Microsecond, ok && err == nil
}

// Scarce reports whether writers wait for processors.
func (t *Turns) Scarce() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.scarce
}

// Spend charges a cost, even if that overdraws the account.
func (t *Turns) Spend(cost int) {
	t.mu.Lock()
	t.settle(time.Now())
	t.mu.saved -= float64(cost)
	t.mu.spent += float64(cost)
	t.mu.Unlock()
}

// Open reports whether a stream may look and answer now, at the given cost.
func (t *Turns) Open(cost int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open(time.Now(), float64(cost))
}

// open is Open; queued callbacks take precedence. t.mu must be held.
func (t *Turns) open(now time.Time, cost float64) bool {
	t.settle(now)
	return len(t.mu.queue) == 0 && t.affordable(now, cost)
}

// affordable reports whether a cost may be incurred now. An overdraft delays streams only while their total demand exceeds the rate: if it
// always did, a stream would be seconds late after a burst, on an idle node.
func (t *Turns) affordable(now time.Time, cost float64) bool {
	return t.mu.saved > 0 || now.Sub(t.mu.wrote) > quiet || t.mu.spent+t.mu.spentBefore+t.mu.queued+cost < t.mu.rate*burst
}

// settle adds the amount granted since the last call. On an idle node streams compete with nobody, so they start again with a full
// account: otherwise an overdraft from an earlier burst would delay the first events after the pause.
func (t *Turns) settle(now time.Time) {
	if now.Sub(t.mu.wrote) > quiet {
		t.mu.saved, t.mu.at = t.mu.rate*burst, now
		t.mu.spent, t.mu.spentBefore, t.mu.period = 0, 0, now
		return
	}
	t.mu.saved = min(t.mu.saved+now.Sub(t.mu.at).Seconds()*t.mu.rate, t.mu.rate*burst)
	t.mu.at = now
	if past := now.Sub(t.mu.period); past >= every {
		t.mu.spentBefore, t.mu.spent, t.mu.period = t.mu.spent, 0, now
		if past >= 2*every {
			t.mu.spentBefore = 0
		}
	}
}

// Queue calls f, whose work has the given cost, when its turn comes.
func (t *Turns) Queue(cost int, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.queue = append(t.mu.queue, turn{f, float64(cost)})
	t.mu.queued += float64(cost)
	if t.mu.timer == nil {
		t.arm()
	}
}

// arm sets the timer for when a look can be afforded again. t.mu must be held.
func (t *Turns) arm() {
	wait := time.Duration(max(-t.mu.saved, 0) / t.mu.rate * float64(time.Second))
	t.mu.timer = time.AfterFunc(min(max(wait, time.Millisecond), quiet), t.serve)
}

// serve calls the queued functions whose turn has come.
func (t *Turns) serve() {
	for {
		t.mu.Lock()
		now := time.Now()
		t.settle(now)
		if len(t.mu.queue) == 0 || !t.affordable(now, 0) {
			t.mu.timer = nil
			if len(t.mu.queue) > 0 {
				t.arm()
			} else {
				t.mu.queue = nil
			}
			t.mu.Unlock()
			return
		}
		next := t.mu.queue[0]
		t.mu.queue[0] = turn{}
		t.mu.queue = t.mu.queue[1:]
		t.mu.queued -= next.cost
		t.mu.Unlock()
		next.f()
	}
}
