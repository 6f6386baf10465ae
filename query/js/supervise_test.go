package js

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A step that nothing interrupts is left to itself: its operation ends, scripts are refused while there are many such steps, and its later
// calls into the operation fail.
func TestStuckCallsAreAbandoned(t *testing.T) {
	defer func(was time.Duration) { patience = was }(patience)
	patience = 10 * time.Millisecond
	killed := mongoerr.New(mongoerr.Interrupted, "killed")
	release := make(chan struct{})
	emitted := make(chan struct{}, 1)
	f, err := Compile("function() { hold(); }")
	if err != nil {
		t.Fatal(err)
	}
	native, err := Compile("function() { [hold, emit].forEach(function(f) { f() }); }")
	if err != nil {
		t.Fatal(err)
	}
	stuck := func(f *Func) *Runtime {
		r := New()
		r.Watch(func() error { return killed })
		r.Set("hold", func([]value.Value) (value.Value, error) { <-release; return value.NewNull(), nil })
		r.Set("emit", func([]value.Value) (value.Value, error) { emitted <- struct{}{}; return value.NewNull(), nil })
		if _, err := r.Call(f, value.Value{}); !errors.Is(err, killed) {
			t.Errorf("a stuck call returns %v", err)
		}
		return r
	}
	last := stuck(native)
	for range mostAbandoned - 1 {
		last = stuck(f)
	}
	if _, err := last.Call(f, value.Value{}); err == nil {
		t.Error("a runtime with a stuck call takes another")
	}
	one, err := Compile("1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New().Call(one, value.Value{}); !errors.Is(err, errTooMany) {
		t.Errorf("beside %d stuck calls: %v", mostAbandoned, err)
	}
	close(release)
	await.True(t, "the calls end", func() bool { return abandonedCalls.Load() == 0 })
	if _, err := New().Call(one, value.Value{}); err != nil {
		t.Error(err)
	}
	select {
	case <-emitted:
		t.Error("an abandoned call has emitted")
	default:
	}
}

// A panic of a call is one of its caller.
func TestPanicsOfCallsArePassedOn(t *testing.T) {
	r := New()
	r.Set("fail", func([]value.Value) (value.Value, error) { panic("broken") })
	f, err := Compile("function() { fail() }")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("the panic is gone")
		}
	}()
	_, _ = r.Call(f, value.Value{})
}

// The conversion of a result runs code of the script, too: what that throws is the script's error, and it can be interrupted.
func TestResultsThatThrow(t *testing.T) {
	for src, want := range map[string]string{
		"({get x() { throw new Error('no x') }})": "no x", "Object.assign(new Date(), {valueOf() { throw 'none' }}) && ({get x() { return {get y() { throw 1 }} }})": "1",
		"3n": "cannot be converted", "[[3n]]": "cannot be converted",
	} {
		if v, err := call(t, "function(){ return "+src+" }"); err == nil || mongoerr.CodeOf(err) != mongoerr.JSInterpreterFailure || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", src, v, err)
		}
	}
	killed := mongoerr.New(mongoerr.Interrupted, "killed")
	f, err := Compile("({get x() { for (;;); }})")
	if err != nil {
		t.Fatal(err)
	}
	r := New()
	r.Watch(func() error { return killed })
	if _, err := r.Call(f, value.Value{}); !errors.Is(err, killed) {
		t.Error(err)
	}
}
