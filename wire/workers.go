package wire

import (
	"sync"
	"time"
)

// workers is an unbounded pool of goroutines. They persist because a goroutine that has once run a query keeps its grown
// stack: starting one per request pays for growing it each time. The one that became idle last is used first, since its
// stack is still in cache; those that have been idle for long end.
type workers struct {
	run func(*job)

	mu     sync.Mutex
	idle   []*worker // the last is the one most recently used
	low    int       // the minimum of idle ones since the last trim: those were not needed
	closed bool
	live   sync.WaitGroup
	stop   chan struct{}
}

type worker struct{ jobs chan *job }

const workerIdle = 10 * time.Second

func newWorkers(run func(*job)) *workers {
	w := &workers{run: run, stop: make(chan struct{})}
	w.live.Add(1)
	go w.trim()
	return w
}

// submit passes j to an idle worker or a new one; it never waits.
func (w *workers) submit(j *job) {
	w.mu.Lock()
	n := len(w.idle)
	if n == 0 {
		w.mu.Unlock()
		wk := &worker{jobs: make(chan *job, 1)}
		w.live.Add(1)
		go w.loop(wk, j)
		return
	}
	wk := w.idle[n-1]
	w.idle[n-1] = nil
	w.idle = w.idle[:n-1]
	w.low = min(w.low, n-1)
	w.mu.Unlock()
	wk.jobs <- j
}

func (w *workers) loop(wk *worker, j *job) {
	defer w.live.Done()
	for j != nil {
		w.run(j)
		w.mu.Lock()
		if w.closed {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, wk)
		w.mu.Unlock()
		j = <-wk.jobs
	}
}

// trim ends the workers that were not needed for a whole period.
func (w *workers) trim() {
	defer w.live.Done()
	t := time.NewTicker(workerIdle)
	defer t.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-t.C:
		}
		w.mu.Lock()
		out := append([]*worker(nil), w.idle[:w.low]...)
		w.idle = append(w.idle[:0], w.idle[w.low:]...)
		w.low = len(w.idle)
		w.mu.Unlock()
		for _, wk := range out {
			wk.jobs <- nil
		}
	}
}

// close ends idle workers now and the others when their request is done; it does not wait.
func (w *workers) close() {
	w.mu.Lock()
	idle := w.idle
	w.idle, w.low, w.closed = nil, 0, true
	w.mu.Unlock()
	close(w.stop)
	for _, wk := range idle {
		wk.jobs <- nil
	}
}
