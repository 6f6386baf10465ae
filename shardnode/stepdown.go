package shardnode

import (
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A set of one member can be told to step down, as operators and drivers' tests do. It then takes no writes until the
// time it was told is over, or until it is unfrozen; nobody else can be elected meanwhile.

// primary reports whether the member is one now.
func (r *ReplSet) primary() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mu.config != nil && r.mu.down == nil
}

// stepDown makes the member a secondary for d.
func (r *ReplSet) stepDown(d time.Duration) {
	r.mu.Lock()
	if r.mu.down != nil {
		r.mu.down.Stop()
	}
	r.mu.down = time.AfterFunc(d, r.stepUp)
	r.mu.Unlock()
	r.topo.Changed()
}

// stepUp makes the member primary again.
func (r *ReplSet) stepUp() {
	r.mu.Lock()
	if r.mu.down != nil {
		r.mu.down.Stop()
		r.mu.down = nil
		r.mu.since = r.node.now()
	}
	r.mu.Unlock()
	r.topo.Changed()
}

// stepDownSeconds reads a command's number of seconds.
func stepDownSeconds(op *command.Op, def int64) (time.Duration, error) {
	n := def
	if v := op.Req.Cmd; v.T.Numeric() {
		n = int64(v.AsFloat64())
	} else if v.T != value.Null && v.T != value.Boolean {
		return 0, command.WrongType(op.Req.Spec.Name, v.T, command.TNumber)
	}
	if n < 0 {
		return 0, mongoerr.New(mongoerr.BadValue, "stepdown period must be a positive integer")
	}
	return time.Duration(min(n, 1<<31)) * time.Second, nil
}

func (n *Node) runReplSetStepDown(op *command.Op, dst []byte) ([]byte, error) {
	r, err := n.initiatedSet()
	if err != nil {
		return dst, err
	}
	d, err := stepDownSeconds(op, 60)
	if err != nil {
		return dst, err
	}
	catchUp := time.Duration(op.Req.Int("secondaryCatchUpPeriodSecs", 10)) * time.Second
	if op.Bool("force") {
		catchUp = min(catchUp, d)
	}
	switch {
	case catchUp > d && !op.Arg("secondaryCatchUpPeriodSecs").IsMissing():
		return dst, mongoerr.New(mongoerr.BadValue, "stepdown period must be longer than secondaryCatchUpPeriodSecs")
	case !r.primary():
		return dst, mongoerr.New(mongoerr.NotWritablePrimary, "not primary so can't step down")
	case !op.Bool("force"):
		return dst, mongoerr.Newf(mongoerr.ExceededTimeLimit, "No electable secondaries caught up as of %s. Please use the replSetStepDown command with the argument {force: true} to force node to step down.",
			n.now().UTC().Format("2006-01-02T15:04:05.000+00:00"))
	}
	r.stepDown(d)
	n.Service.EachOp(func(other *command.Op) {
		if other != op && other.Req.Spec != nil && other.Req.Spec.Kind == command.Write {
			other.Kill(mongoerr.InterruptedDueToReplStateChange)
		}
	})
	return dst, nil
}

func (n *Node) runReplSetFreeze(op *command.Op, dst []byte) ([]byte, error) {
	r, err := n.initiatedSet()
	if err != nil {
		return dst, err
	}
	d, err := stepDownSeconds(op, 0)
	if err != nil {
		return dst, err
	}
	if r.primary() {
		return dst, mongoerr.New(mongoerr.NotSecondary, "cannot freeze node when primary or running for election. state: Primary")
	}
	if d == 0 {
		r.stepUp()
		return value.Append(dst, "info", value.NewString("unfreezing")), nil
	}
	r.stepDown(d)
	return dst, nil
}
