package cluster

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// FailPoint is a named place in the server where a test can inject a failure. While it is off, checking it costs
// one atomic load.
type FailPoint struct {
	Name  string
	state atomic.Pointer[failState] // nil while off

	mu struct {
		sync.Mutex
		entered int64
		changed chan struct{} // closed and replaced whenever entered grows or the mode changes
	}
}

type failMode uint8

const (
	failAlways failMode = iota
	failTimes
	failSkip
	failRandom
)

type failState struct {
	mode  failMode
	left  atomic.Int64 // times left, or skips left
	prob  float64
	data  []byte
	value value.Value // the mode as given, for replies
}

// FailPoints is a node's registry. Points are registered by the code that checks them; the well-known ones are registered from the start.
type FailPoints struct {
	mu struct {
		sync.RWMutex
		byName map[string]*FailPoint
	}
	failCommand *FailPoint
	active      atomic.Int64
}

// The points that every role checks, and those that only data-bearing nodes check. A point that no code checks is
// refused like an unknown name.
var (
	commonFailPoints = []string{"failCommand", "failGetMoreAfterCursorCheckout", "maxTimeAlwaysTimeOut", "maxTimeNeverTimeOut"}
	dataFailPoints   = []string{
		"onPrimaryTransactionalWrite", "disablePipelineOptimization", "suspendRangeDeletion",
		"hangBeforeSendingPrepare", "hangBeforeWritingDecision", "hangBeforeSendingCommit",
		"moveChunkHangAtStep1", "moveChunkHangAtStep2", "moveChunkHangAtStep3", "moveChunkHangAtStep4", "moveChunkHangAtStep5",
		"moveChunkHangAtStep6", "moveChunkHangAtStep7", "migrateThreadHangAtStep4", "hangBeforeRunningShardingDDLPhase",
		"reshardingPauseCoordinatorAtState", "reshardingPauseRecipientAtState", "balancerShouldReturnRandomMigrations", "stopReplProducer",
	}
)

// NewFailPoints makes the registry of a data-bearing node, all points off.
func NewFailPoints() *FailPoints {
	r := NewRouterFailPoints()
	for _, n := range dataFailPoints {
		r.Register(n)
	}
	return r
}

// NewRouterFailPoints makes the registry of a router.
func NewRouterFailPoints() *FailPoints {
	r := &FailPoints{}
	r.mu.byName = make(map[string]*FailPoint)
	for _, n := range commonFailPoints {
		r.Register(n)
	}
	r.failCommand = r.mu.byName["failCommand"]
	return r
}

// Register adds a point, or finds it.
func (r *FailPoints) Register(name string) *FailPoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.mu.byName[name]; f != nil {
		return f
	}
	f := &FailPoint{Name: name}
	f.mu.changed = make(chan struct{})
	r.mu.byName[name] = f
	return f
}

// Lookup finds a point by the name that a client sent.
func (r *FailPoints) Lookup(name string) (*FailPoint, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if f := r.mu.byName[name]; f != nil {
		return f, nil
	}
	return nil, mongoerr.Newf(mongoerr.FailPointSetFailed, "%s not found", name)
}

// On reports whether a registered point is on, without entering it.
func (r *FailPoints) On(name string) bool {
	if r.active.Load() == 0 {
		return false
	}
	f, err := r.Lookup(name)
	return err == nil && f.state.Load() != nil
}

// Hit enters a point by name. It costs one atomic load while no fail point of the node is on.
func (r *FailPoints) Hit(name string) (data []byte, on bool) {
	if r == nil || r.active.Load() == 0 {
		return nil, false
	}
	f, err := r.Lookup(name)
	if err != nil {
		return nil, false
	}
	return f.Enter(nil)
}

// Configure implements configureFailPoint: it returns how often the point had been entered before.
func (r *FailPoints) Configure(name string, mode value.Value, data []byte) (count int64, err error) {
	f, err := r.Lookup(name)
	if err != nil {
		return 0, err
	}
	s, err := parseFailMode(mode)
	if err == nil && f == r.failCommand {
		err = checkCommandFailure(data)
	}
	if err != nil {
		return 0, err
	}
	if s != nil {
		s.data = append([]byte(nil), data...)
	}
	old := f.state.Swap(s)
	switch {
	case s != nil && old == nil:
		r.active.Add(1)
	case s == nil && old != nil:
		r.active.Add(-1)
	}
	f.mu.Lock()
	count = f.mu.entered
	close(f.mu.changed)
	f.mu.changed = make(chan struct{})
	f.mu.Unlock()
	return count, nil
}

func parseFailMode(v value.Value) (*failState, error) {
	s := &failState{value: v.Clone()}
	if v.T == value.String {
		switch v.Str() {
		case "off":
			return nil, nil
		case "alwaysOn":
			return s, nil
		}
		return nil, mongoerr.Newf(mongoerr.BadValue, "unknown mode: %s", v.Str())
	}
	if v.T != value.Document {
		return nil, mongoerr.New(mongoerr.TypeMismatch, "'mode' must be a string or JSON object")
	}
	for k, e := range value.Elements(v.Doc()) {
		n, isInt := e.AsInt64()
		switch k {
		case "times", "skip":
			if !isInt || n < 0 {
				return nil, mongoerr.Newf(mongoerr.BadValue, "'%s' option to 'mode' must be a non-negative integer", k)
			}
			if s.mode = failTimes; k == "skip" {
				s.mode = failSkip
			}
			if k == "times" && n == 0 {
				return nil, nil
			}
			s.left.Store(n)
		case "activationProbability":
			s.mode, s.prob = failRandom, e.AsFloat64()
			if !e.T.Numeric() || s.prob < 0 || s.prob > 1 {
				return nil, mongoerr.New(mongoerr.BadValue, "activationProbability must be between 0.0 and 1.0")
			}
		default:
			return nil, mongoerr.Newf(mongoerr.BadValue, "unknown mode option: %s", k)
		}
		return s, nil
	}
	return nil, mongoerr.New(mongoerr.BadValue, "'mode' must be one of 'off', 'alwaysOn', 'times', 'skip' or 'activationProbability'")
}

// Enter reports whether the point has to act now; data is its configuration. matches (nil: always) may narrow
// that down; a call that it rejects does not count as a hit.
func (f *FailPoint) Enter(matches func(data []byte) bool) (data []byte, on bool) {
	s := f.state.Load()
	if s == nil || matches != nil && !matches(s.data) {
		return nil, false
	}
	switch s.mode {
	case failTimes:
		left := s.left.Add(-1)
		if left == 0 {
			f.state.CompareAndSwap(s, nil)
		}
		if left < 0 {
			return nil, false
		}
	case failSkip:
		if s.left.Load() > 0 && s.left.Add(-1) >= 0 {
			return nil, false
		}
	case failRandom:
		if rand.Float64() >= s.prob {
			return nil, false
		}
	}
	f.mu.Lock()
	f.mu.entered++
	close(f.mu.changed)
	f.mu.changed = make(chan struct{})
	f.mu.Unlock()
	return s.data, true
}

// Pause blocks while the point is on, as hang points do.
func (f *FailPoint) Pause(ctx context.Context) error { return f.PauseWhere(ctx, nil) }

// PauseWhere is Pause if matches returns true for the point's data; nil means always.
func (f *FailPoint) PauseWhere(ctx context.Context, matches func(data []byte) bool) error {
	if _, on := f.Enter(matches); !on {
		return nil
	}
	for {
		f.mu.Lock()
		ch := f.mu.changed
		f.mu.Unlock()
		if f.state.Load() == nil {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WaitEntered implements waitForFailPoint: it returns once the point has been entered that many times in total.
func (f *FailPoint) WaitEntered(ctx context.Context, times int64) error {
	for {
		f.mu.Lock()
		n, ch := f.mu.entered, f.mu.changed
		f.mu.Unlock()
		if n >= times {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit")
		}
	}
}

// Status returns the point as getParameter shows it ("failpoint.NAME"): {mode, data, timesEntered}.
func (f *FailPoint) Status() []byte {
	f.mu.Lock()
	n := f.mu.entered
	f.mu.Unlock()
	mode, data := value.NewInt32(0), value.Doc()
	if s := f.state.Load(); s != nil {
		mode, data = value.NewInt32(int32(s.mode)+1), s.data
		if data == nil {
			data = value.Doc()
		}
	}
	return value.Doc(value.F("mode", mode), value.F("data", value.NewDocument(data)), value.F("timesEntered", value.NewInt64(n)))
}

// CommandFailure describes the failure that failCommand injects into a command.
type CommandFailure struct {
	CloseConnection   bool
	Block             time.Duration
	Err               *mongoerr.Error // instead of running the command
	WriteConcernError []byte          // added to the reply after running it
	Labels            []string        // errorLabels to set (with HasLabels), replacing the usual ones
	HasLabels         bool
}

// CommandSite describes the command that failCommand is checked for.
type CommandSite struct {
	Name, NS, AppName string
	InternalClient    bool
	ThreadName        string
}

// Any reports whether any fail point is on, without which no command can fail.
func (r *FailPoints) Any() bool { return r.active.Load() != 0 }

// FailCommand evaluates failCommand for a command; nil if it does not apply. It costs one atomic load while no
// fail point of the node is on.
func (r *FailPoints) FailCommand(c *CommandSite) *CommandFailure {
	if r.active.Load() == 0 {
		return nil
	}
	data, on := r.failCommand.Enter(func(data []byte) bool { return failCommandMatches(data, c) })
	if !on {
		return nil
	}
	return parseCommandFailure(data)
}

func failCommandMatches(data []byte, c *CommandSite) bool {
	if c.Name == "configureFailPoint" { // never fail the command that would switch it off
		return false
	}
	elder := c.Name == "isMaster" || c.Name == "ismaster" // two spellings of one command
	named := false
	for k, v := range value.Elements(data) {
		switch k {
		case "failCommands":
			for _, n := range value.Values(v.Doc()) {
				named = named || n.Str() == c.Name || elder && (n.Str() == "isMaster" || n.Str() == "ismaster")
			}
		case "failAllCommands":
			named = named || v.Truthy()
		case "appName":
			if v.Str() != c.AppName {
				return false
			}
		case "namespace":
			if v.Str() != c.NS {
				return false
			}
		case "threadName":
			if v.Str() != c.ThreadName {
				return false
			}
		case "failInternalCommands":
			if v.Truthy() != c.InternalClient && c.InternalClient {
				return false
			}
		}
	}
	if c.InternalClient && !value.Lookup(data, "failInternalCommands").Truthy() {
		return false
	}
	return named
}

// commandFailureTypes checks the types of failCommand's data: a value of another type would never match, or have no effect.
var commandFailureTypes = map[string]func(value.Value) bool{
	"failCommands": isStrings, "errorLabels": isStrings,
	"errorCode": isNumber, "blockTimeMS": isNumber,
	"blockConnection": isFlag, "closeConnection": isFlag, "failInternalCommands": isFlag, "failAllCommands": isFlag,
	"appName": isString, "namespace": isString, "threadName": isString,
	"writeConcernError": isDocument, "errorExtraInfo": isDocument,
}

func isNumber(v value.Value) bool   { _, ok := v.AsInt64(); return ok }
func isFlag(v value.Value) bool     { return v.T == value.Boolean || v.T.Numeric() }
func isString(v value.Value) bool   { return v.T == value.String }
func isDocument(v value.Value) bool { return v.T == value.Document }
func isStrings(v value.Value) bool {
	return v.T == value.Array && !slices.ContainsFunc(value.Values(v.Doc()), func(e value.Value) bool { return e.T != value.String })
}

// checkCommandFailure checks failCommand's data.
func checkCommandFailure(data []byte) error {
	for k, v := range value.Elements(data) {
		if fits := commandFailureTypes[k]; fits != nil && !fits(v) {
			return mongoerr.Newf(mongoerr.TypeMismatch, "failCommand: '%s' has the wrong type or value: %s", k, v.T.Name())
		}
	}
	return nil
}

func parseCommandFailure(data []byte) *CommandFailure {
	out := &CommandFailure{}
	blocks := value.Lookup(data, "blockConnection").Truthy()
	for k, v := range value.Elements(data) {
		switch k {
		case "closeConnection":
			out.CloseConnection = v.Truthy()
		case "blockTimeMS":
			if ms, ok := v.AsInt64(); ok && blocks {
				out.Block = time.Duration(ms) * time.Millisecond
			}
		case "errorCode":
			code, _ := v.AsInt64()
			out.Err = mongoerr.New(mongoerr.Code(code), "Failing command via 'failCommand' failpoint")
		case "writeConcernError":
			out.WriteConcernError = v.Doc()
		case "errorLabels":
			out.HasLabels = true
			for _, l := range value.Values(v.Doc()) {
				out.Labels = append(out.Labels, l.Str())
			}
		}
	}
	if out.Err != nil {
		if extra := value.Lookup(data, "errorExtraInfo"); extra.T == value.Document {
			out.Err = out.Err.WithDetails(extra.Doc())
		}
	}
	return out
}
