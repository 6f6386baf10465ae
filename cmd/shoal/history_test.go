package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// regOp is one operation on a register: a document whose value clients read, write, and compare and set.
type regOp struct {
	kind     byte // 'r', 'w', 'c'
	key      int
	old, new int
}

// regModel is a register: a read returns what the last write, or the last successful compare-and-set, stored. An
// operation with unknown outcome may have happened at any time since it began, or never.
var regModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[int][]porcupine.Operation{}
		for _, o := range history {
			k := o.Input.(regOp).key
			byKey[k] = append(byKey[k], o)
		}
		var out [][]porcupine.Operation
		for _, h := range byKey {
			out = append(out, h)
		}
		return out
	},
	Init: func() any { return 0 },
	Step: func(state, input, output any) (bool, any) {
		in, now := input.(regOp), state.(int)
		known := output.(regOut)
		switch in.kind {
		case 'r':
			return known.value == now, now
		case 'w':
			return true, in.new
		}
		if now == in.old {
			return true, in.new
		}
		return known.unknown, now
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(regOp), output.(regOut)
		switch {
		case in.kind == 'r':
			return fmt.Sprintf("read(%d) = %d", in.key, out.value)
		case in.kind == 'w':
			return fmt.Sprintf("write(%d, %d) unknown: %v", in.key, in.new, out.unknown)
		}
		return fmt.Sprintf("cas(%d, %d, %d) unknown: %v", in.key, in.old, in.new, out.unknown)
	},
}

type regOut struct {
	value   int
	unknown bool
}

// known is an acknowledged operation and the version that it read or created.
type known struct {
	regOp
	call, ret int64
	version   int
}

// history collects the operations of clients and their results.
type history struct {
	mu      sync.Mutex
	start   time.Time
	ops     []porcupine.Operation
	known   []known
	unknown int
	// versions has the known values of each register's versions: every write increments the version, so that a
	// version has the same value for every reader.
	versions map[[2]int]seenValue
	wrong    []string
	errors   map[string]int
	split    []splitVersion // versions that were seen with two values
}

// splitVersion is a version of a register that was seen with two values, and when.
type splitVersion struct {
	key, version int
	at           time.Time
}

// fewOperations is the bound below which a history proves little. How long it takes to reach depends on the machine:
// a test that collects one continues until it is no longer isShort, for at most longestRounds times the usual time.
const (
	fewOperations = 100
	longestRounds = 10
)

func (h *history) isShort() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops) < fewOperations
}

func newHistory() *history {
	return &history{start: time.Now(), versions: map[[2]int]seenValue{}, errors: map[string]int{}}
}

func (h *history) now() int64 { return int64(time.Since(h.start)) }

// done records an acknowledged operation, and the register that it read or wrote.
func (h *history) done(client int, op regOp, call int64, r register) {
	h.mu.Lock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: op, Call: call, Output: regOut{value: r.V}, Return: h.now()})
	h.known = append(h.known, known{op, call, h.now(), r.N})
	h.mu.Unlock()
	h.saw(op.key, r.N, r.V)
}

// lost records a write whose outcome is unknown.
func (h *history) lost(client int, op regOp, call int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errors[err.Error()]++
	if op.kind != 'r' {
		h.unknown++
		h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: op, Call: call, Output: regOut{unknown: true}, Return: math.MaxInt64})
	}
}

// saw records the value of a register's version.
func (h *history) saw(key, version, value int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := [2]int{key, version}
	now := time.Since(h.start)
	if had, ok := h.versions[at]; ok && had.value != value {
		h.wrong = append(h.wrong, fmt.Sprintf("version %d of register %d was seen as %d (at %v) and as %d (at %v)", version, key, had.value, had.at, value, now))
		h.split = append(h.split, splitVersion{key, version, time.Now()})
	}
	h.versions[at] = seenValue{value, now}
}

// seenValue is a value and when a client last saw it.
type seenValue struct {
	value int
	at    time.Duration
}

func (h *history) violation(format string, args ...any) {
	h.mu.Lock()
	h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
	h.mu.Unlock()
}

// check fails the test if no order of the operations explains what clients saw.
func (h *history) check(t *testing.T, limit time.Duration) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	t.Logf("%d operations, %d of them with unknown outcome", len(h.ops), h.unknown)
	for e, n := range h.errors {
		t.Logf("%d times: %s", n, e)
	}
	for _, w := range h.wrong {
		t.Error(w)
	}
	for _, w := range outOfOrder(h.known) {
		t.Error(w)
	}
	result, info := porcupine.CheckOperationsVerbose(regModel, h.ops, limit)
	switch result {
	case porcupine.Illegal:
		file := t.TempDir() + "/history.html"
		if dir := keepDir(); dir != "" {
			file = dir + "/history.html"
		}
		_ = porcupine.VisualizePath(regModel, info, file)
		t.Errorf("the history is not linearizable: %s", file)
	case porcupine.Unknown:
		t.Logf("the history could not be checked within %v", limit)
	}
	if len(h.ops) < fewOperations {
		t.Errorf("only %d operations: the test proves little", len(h.ops))
	}
}

// outOfOrder finds, by the versions alone, stale reads and writes out of order: an operation that began after another had
// ended must not have an older version. That needs no search, so it works for histories of any length; porcupine, which
// knows nothing of versions, checks the values.
func outOfOrder(ops []known) (wrong []string) {
	began, ended := slices.Clone(ops), ops
	slices.SortFunc(began, func(a, b known) int { return cmp.Compare(a.call, b.call) })
	slices.SortFunc(ended, func(a, b known) int { return cmp.Compare(a.ret, b.ret) })
	newest := map[int]known{} // of those that have ended, by register
	for _, op := range began {
		for len(ended) > 0 && ended[0].ret < op.call {
			if e := ended[0]; e.version >= newest[e.key].version {
				newest[e.key] = e
			}
			ended = ended[1:]
		}
		before, ok := newest[op.key]
		if ok && (op.version < before.version || op.version == before.version && op.kind != 'r') {
			wrong = append(wrong, fmt.Sprintf("register %d: %c from %v to %v is at version %d, after %c from %v to %v at version %d", op.key,
				op.kind, time.Duration(op.call), time.Duration(op.ret), op.version,
				before.kind, time.Duration(before.call), time.Duration(before.ret), before.version))
		}
	}
	return wrong
}

// The check by versions finds stale reads, and nothing if operations overlap.
func TestOrderOfVersions(t *testing.T) {
	op := func(kind byte, call, ret int64, version int) known {
		return known{regOp{kind: kind}, call, ret, version}
	}
	for name, c := range map[string]struct {
		ops   []known
		wrong int
	}{
		"in order":       {[]known{op('w', 0, 1, 1), op('r', 2, 3, 1), op('w', 4, 5, 2)}, 0},
		"overlapping":    {[]known{op('w', 0, 9, 2), op('r', 1, 2, 2), op('r', 3, 4, 2), op('w', 1, 8, 1)}, 0},
		"stale read":     {[]known{op('w', 0, 1, 1), op('w', 2, 3, 2), op('r', 4, 5, 1)}, 1},
		"back and forth": {[]known{op('w', 0, 9, 2), op('r', 1, 2, 2), op('r', 3, 4, 1)}, 1},
		"one of another": {[]known{op('w', 0, 1, 1), op('w', 2, 3, 1)}, 1},
	} {
		if got := outOfOrder(c.ops); len(got) != c.wrong {
			t.Errorf("%s: %v, want %d", name, got, c.wrong)
		}
	}
}

// The checker itself accepts legal histories and rejects illegal ones.
func TestRegisterHistories(t *testing.T) {
	op := func(in regOp, call, ret int64, out regOut) porcupine.Operation {
		return porcupine.Operation{Input: in, Call: call, Return: ret, Output: out}
	}
	w := func(v int) regOp { return regOp{kind: 'w', new: v} }
	cas := func(a, b int) regOp { return regOp{kind: 'c', old: a, new: b} }
	read := regOp{kind: 'r'}
	for name, c := range map[string]struct {
		ops  []porcupine.Operation
		want bool
	}{
		"in order":         {[]porcupine.Operation{op(w(1), 0, 1, regOut{}), op(read, 2, 3, regOut{value: 1})}, true},
		"stale read":       {[]porcupine.Operation{op(w(1), 0, 1, regOut{}), op(w(2), 2, 3, regOut{}), op(read, 4, 5, regOut{value: 1})}, false},
		"lost write":       {[]porcupine.Operation{op(w(1), 0, 1, regOut{}), op(read, 2, 3, regOut{value: 0})}, false},
		"unknown, later":   {[]porcupine.Operation{op(w(1), 0, math.MaxInt64, regOut{unknown: true}), op(read, 2, 3, regOut{value: 0}), op(read, 4, 5, regOut{value: 1})}, true},
		"unknown, undone":  {[]porcupine.Operation{op(w(1), 0, math.MaxInt64, regOut{unknown: true}), op(read, 2, 3, regOut{value: 1}), op(read, 4, 5, regOut{value: 0})}, false},
		"cas":              {[]porcupine.Operation{op(cas(0, 5), 0, 1, regOut{}), op(read, 2, 3, regOut{value: 5})}, true},
		"two cas of one":   {[]porcupine.Operation{op(cas(0, 5), 0, 3, regOut{}), op(cas(0, 6), 1, 2, regOut{})}, false},
		"unknown cas":      {[]porcupine.Operation{op(w(1), 0, 1, regOut{}), op(cas(0, 5), 2, math.MaxInt64, regOut{unknown: true}), op(read, 3, 4, regOut{value: 1})}, true},
		"unknown cas done": {[]porcupine.Operation{op(cas(0, 5), 0, math.MaxInt64, regOut{unknown: true}), op(read, 3, 4, regOut{value: 5})}, true},
	} {
		if got := porcupine.CheckOperations(regModel, c.ops); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
