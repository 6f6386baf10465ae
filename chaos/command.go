package chaos

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Spec returns the row of the command shoalChaos, which exists with enableTestCommands only:
//
//	{shoalChaos: "start", profile: "all", seed: 7, paceMS: 500}   begins a run; seed and paceMS are optional
//	{shoalChaos: "replay", steps: [{atMS: 10, kind: "move", do: {…}}]}   executes the steps of a log again
//	{shoalChaos: "stop"}   ends the run, and replies like status
//	{shoalChaos: "status"}   returns the state of the run, with the last thousand steps
func (e *Engine) Spec() command.Spec {
	return command.Spec{
		Name: "shoalChaos", Roles: command.Router, AdminOnly: true, TestOnly: true, ArgTypes: command.TString, Run: e.run,
		Fields: []command.Field{
			command.Opt("profile", command.TString), command.Opt("seed", command.TNumber), command.Opt("paceMS", command.TNumber), command.Opt("steps", command.TArray),
		},
	}
}

// RandomSeed returns a random seed, small enough for the number types of all clients.
func RandomSeed() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]) >> 33
}

func (e *Engine) run(op *command.Op, dst []byte) ([]byte, error) {
	switch what := op.Req.Cmd.Str(); what {
	case "start":
		p, err := planOf(op)
		if err == nil {
			err = e.Start(p)
		}
		if err != nil {
			return dst, err
		}
	case "replay":
		steps, err := stepsOf(value.Values(op.Req.Doc("steps")))
		if err == nil {
			err = e.Replay(steps)
		}
		if err != nil {
			return dst, err
		}
	case "stop":
		e.Stop()
	case "status":
	default:
		return dst, mongoerr.Newf(mongoerr.BadValue, "shoalChaos takes 'start', 'replay', 'stop' or 'status', not '%s'", what)
	}
	return e.Status().append(dst), nil
}

func planOf(op *command.Op) (*Plan, error) {
	name := op.Req.Str("profile")
	if name == "" {
		name = "all"
	}
	profile, ok := FindProfile(name)
	if !ok {
		return nil, mongoerr.Newf(mongoerr.BadValue, "unknown profile '%s'; the profiles are %s", name, ProfileNames())
	}
	seed, pace := RandomSeed(), time.Duration(0)
	if v := op.Arg("seed"); !v.IsMissing() {
		n, whole := v.AsInt64()
		if !whole || n < 0 {
			return nil, mongoerr.New(mongoerr.BadValue, "seed must be a non-negative integer")
		}
		seed = uint64(n)
	}
	if v := op.Arg("paceMS"); !v.IsMissing() {
		n, whole := v.AsInt64()
		if !whole || n < 1 || n > 3_600_000 {
			return nil, mongoerr.New(mongoerr.BadValue, "paceMS must be an integer between 1 and 3600000")
		}
		pace = time.Duration(n) * time.Millisecond
	}
	return NewPlan(profile, seed, pace), nil
}

// stepsOf parses the steps of a log, which must be in order of time.
func stepsOf(docs []value.Value) (out []*Step, err error) {
	if len(docs) == 0 {
		return nil, mongoerr.New(mongoerr.BadValue, "steps must not be empty")
	}
	for _, d := range docs {
		if d.T != value.Document {
			return nil, mongoerr.Newf(mongoerr.BadValue, "a step must be a document, not %s", value.Show(d))
		}
		s, err := ParseStep(d.Doc())
		if err != nil {
			return nil, err
		}
		if n := len(out); n > 0 && s.At < out[n-1].At {
			return nil, mongoerr.New(mongoerr.BadValue, "steps must be in order of atMS")
		}
		out = append(out, s)
	}
	return out, nil
}

func (s Status) append(dst []byte) []byte {
	dst = value.Append(dst, "running", value.NewBool(s.Running))
	if s.Began.IsZero() {
		return dst
	}
	if s.Plan != nil {
		dst = value.Append(dst, "profile", value.NewString(s.Plan.Profile.Name))
		dst = value.Append(dst, "seed", value.NewInt64(int64(s.Plan.Seed)))
		dst = value.Append(dst, "paceMS", value.NewInt64(s.Plan.Pace.Milliseconds()))
	}
	dst = value.Append(dst, "began", value.NewTime(s.Began))
	dst = value.Append(dst, "steps", value.NewInt64(s.Steps))
	dst = value.Append(dst, "failed", value.NewInt64(s.Failed))
	dst = value.Append(dst, "nothingToDo", value.NewInt64(s.Idle))
	dst, m := value.BeginKey(dst, value.Array, "last")
	for i, step := range s.Last {
		dst = value.AppendIndex(dst, i, value.NewDocument(step.Doc()))
	}
	return value.End(dst, m)
}
