package turns

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// What things cost.
const (
	Look   = 1         // to find nothing
	Answer = 15        // to answer with events, besides the look
	Bytes  = 4 << 10   // of an answer that cost as much as a look
	most   = 2000 * 16 // a processor's part in a second: so many small answers
	least  = 125 * 16  // the same where writers wait for processors
	// share is how much is for streams for each event that is written, where writers wait for processors: half an answer.
	share = (Look + Answer) / 2
	burst = 0.1 // of a second's part is saved up
	// quiet is the time after the last write after which the node counts as idle.
	quiet = 100 * time.Millisecond
	// every is how often the part is reckoned anew.
	every = 200 * time.Millisecond
	// waiting is the part of the time in which somebody waited for a processor, from which on the writers are taken to.
	waiting = 0.25
)

// Turns is the account of one node.
type Turns struct {
	processors float64
	stalled    func() (time.Duration, bool) // for how long somebody has waited for a processor; false where that is not known
	mu         struct {
		sync.Mutex
		rate  float64 // what is given in a second
		saved float64 // below zero for what was overspent
		at    time.Time
		wrote time.Time
		queue []func()
		timer *time.Timer

		events  int // that were written since reckoned
		stall   time.Duration
		scarce  bool // writers wait for processors
		measure time.Time
	}
}

// New returns an account with everything saved up.
func New() *Turns {
	t := &Turns{processors: float64(runtime.GOMAXPROCS(0)), stalled: cpuPressure}
	t.mu.rate = t.processors * most
	t.mu.saved, t.mu.at = t.mu.rate*burst, time.Now()
	return t
}

// Wrote notes events that clients have written.
func (t *Turns) Wrote(events int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.mu.wrote = now
	t.mu.events += events
	if past := now.Sub(t.mu.measure); past >= every {
		t.reckon(now, past)
	}
}

// reckon finds the part that streams are given. t.mu must be held.
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

// cpuPressure reads for how long some task has waited for a processor, where the system tells.
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

// Spend takes what something has cost, whether it is there or not.
func (t *Turns) Spend(cost int) {
	t.mu.Lock()
	t.settle(time.Now())
	t.mu.saved -= float64(cost)
	t.mu.Unlock()
}

// Open reports whether a stream may look now.
func (t *Turns) Open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open(time.Now())
}

// open is Open. Who queues goes before who comes. t.mu must be held.
func (t *Turns) open(now time.Time) bool {
	t.settle(now)
	return len(t.mu.queue) == 0 && t.affordable(now)
}

func (t *Turns) affordable(now time.Time) bool {
	return t.mu.saved > 0 || now.Sub(t.mu.wrote) > quiet
}

func (t *Turns) settle(now time.Time) {
	t.mu.saved = min(t.mu.saved+now.Sub(t.mu.at).Seconds()*t.mu.rate, t.mu.rate*burst)
	t.mu.at = now
}

// Queue has f called when it is its turn.
func (t *Turns) Queue(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.queue = append(t.mu.queue, f)
	if t.mu.timer == nil {
		t.arm()
	}
}

// arm sets the timer for when a look can be afforded again. t.mu must be held.
func (t *Turns) arm() {
	wait := time.Duration(max(-t.mu.saved, 0) / t.mu.rate * float64(time.Second))
	t.mu.timer = time.AfterFunc(min(max(wait, time.Millisecond), quiet), t.serve)
}

// serve calls those whose turn it is.
func (t *Turns) serve() {
	for {
		t.mu.Lock()
		now := time.Now()
		t.settle(now)
		if len(t.mu.queue) == 0 || !t.affordable(now) {
			t.mu.timer = nil
			if len(t.mu.queue) > 0 {
				t.arm()
			} else {
				t.mu.queue = nil
			}
			t.mu.Unlock()
			return
		}
		f := t.mu.queue[0]
		t.mu.queue[0] = nil
		t.mu.queue = t.mu.queue[1:]
		t.mu.Unlock()
		f()
	}
}
