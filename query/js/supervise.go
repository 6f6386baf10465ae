package js

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/dop251/goja"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A call that takes longer than watchEvery is checked at that interval. It is interrupted when what the process's heap holds has grown by
// maxGrowth in the meantime: the memory of a script cannot be measured separately.
const (
	watchEvery = 50 * time.Millisecond
	maxGrowth  = 512 << 20
)

// A property is looked up natively along a chain of prototypes, with 180 to 260 bytes of stack for each, which has as many bytes of heap. Go's own
// limit, which lets a stack have half a GB, would end the process before maxGrowth ends the script that makes the chain.
func init() { debug.SetMaxStack(1 << 30) }

// The interpreter notices an interrupt between two steps of a script. What a step runs natively is bounded in prelude.js as far as it is known; where
// it is not, the call is abandoned after patience: its operation ends, and the step continues by itself until it ends. There are
// at most mostAbandoned such calls; while there are as many, no script is started.
const mostAbandoned = 4

var (
	patience       = patternLimit + time.Second // shorter in tests
	abandonedCalls atomic.Int64
	errAbandoned   = mongoerr.New(mongoerr.JSInterpreterFailure, "the operation of this function has ended")
	errTooMany     = mongoerr.New(mongoerr.JSInterpreterFailure, "JavaScript is not available: functions that were interrupted have not ended yet")
)

// running is a call.
type running struct {
	state atomic.Int32 // 0; callEnded or callAbandoned, whichever is first
	done  chan outcome
}

const (
	callEnded     = 1
	callAbandoned = 2
)

func (c *running) abandoned() bool { return c.state.Load() == callAbandoned }

// abandon reports whether the call is left to itself; false: it has just ended.
func (c *running) abandon() bool {
	abandonedCalls.Add(1)
	if c.state.CompareAndSwap(0, callAbandoned) {
		return true
	}
	abandonedCalls.Add(-1)
	return false
}

// outcome is the result of a call, or the value that it has panicked with.
type outcome struct {
	v     value.Value
	err   error
	panic any
}

// supervised runs call on a goroutine of its own, and interrupts it when its time is up.
func (r *Runtime) supervised(call func() (value.Value, error)) (value.Value, error) {
	switch {
	case abandonedCalls.Load() >= mostAbandoned:
		return value.Value{}, errTooMany
	case r.run != nil && r.run.abandoned():
		return value.Value{}, errAbandoned
	}
	c := &running{done: make(chan outcome, 1)}
	r.run = c
	go func() {
		var out outcome
		defer func() {
			out.panic = recover()
			if stopped, ok := out.panic.(*goja.InterruptedError); ok { // in what the conversion of the result has called
				out.panic, out.err = nil, scriptError(stopped)
			}
			c.done <- out
			if !c.state.CompareAndSwap(0, callEnded) {
				abandonedCalls.Add(-1)
			}
		}()
		if thrown := r.vm.Try(func() { out.v, out.err = call() }); thrown != nil {
			out.err = scriptError(thrown)
		}
	}()
	out := r.await(c)
	if out.panic != nil {
		panic(out.panic) // as if the call had been made here
	}
	if !c.abandoned() {
		r.vm.ClearInterrupt()
	}
	return out.v, out.err
}

// await returns the outcome of a call, or the reason for which it was abandoned.
func (r *Runtime) await(c *running) outcome {
	tick := time.NewTimer(watchEvery)
	defer tick.Stop()
	begin := time.Now()
	var before uint64
	for {
		select {
		case out := <-c.done:
			return out
		case <-tick.C:
		}
		tick.Reset(watchEvery)
		now := heapSize()
		if before == 0 {
			before = now
		}
		if now > before+maxGrowth { // perhaps with what nobody uses any more, of this script or of others
			runtime.GC()
			now = heapSize()
		}
		if err := r.stops(begin, before, now); err != nil {
			return r.interrupt(c, err)
		}
	}
}

// stops returns the reason why a call has to end, nil if it may continue.
func (r *Runtime) stops(begin time.Time, before, now uint64) error {
	if r.check != nil {
		if err := r.check(); err != nil {
			return err
		}
	}
	switch {
	case time.Since(begin) > Limit:
		return mongoerr.New(mongoerr.Interrupted, "time limit of JavaScript functions exceeded")
	case now > before+maxGrowth:
		return mongoerr.New(mongoerr.ExceededMemoryLimit, "JavaScript execution failed: out of memory")
	}
	return nil
}

// interrupt ends a call for the reason why.
func (r *Runtime) interrupt(c *running, why error) outcome {
	r.vm.Interrupt(why)
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case out := <-c.done:
		return out
	case <-t.C:
	}
	if c.abandon() {
		return outcome{err: why}
	}
	return <-c.done
}

func heapSize() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
