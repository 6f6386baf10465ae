package shardnode

import (
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// minOplogMB is the smallest oplog that replSetResizeOplog makes.
const minOplogMB = 990

// replAdminSpecs are the commands of replica sets, as the only member of one answers them: it is primary, or stepped
// down for a while.
func (n *Node) replAdminSpecs() []command.Spec {
	row := func(name string, run command.Handler, fields ...command.Field) command.Spec {
		s := adminOnly(name, run, fields...)
		s.Roles = command.Shard | command.Config
		return s
	}
	refuse := func(name, text string) command.Spec {
		s := row(name, func(op *command.Op, dst []byte) ([]byte, error) {
			r, err := n.initiatedSet()
			if err != nil {
				return dst, err
			}
			if r.Writable() {
				return dst, mongoerr.New(mongoerr.NotSecondary, text)
			}
			return dst, nil
		})
		s.Lenient = true
		return s
	}
	down := row("replSetStepDown", n.runStepDown, command.Opt("secondaryCatchUpPeriodSecs", command.TNumber), command.Opt("force", command.TSafeBool))
	note := adminOnly("appendOplogNote", n.runOplogNote, command.Req("data", command.TObject), command.Opt("maxClusterTime", command.TOther))
	note.WriteConcern = true
	return []command.Spec{
		down, note,
		row("replSetStepUp", n.runStepUp, command.Opt("skipDryRun", command.TSafeBool)),
		row("replSetGetRBID", n.runGetRBID),
		row("replSetResizeOplog", n.runResizeOplog, command.Opt("size", command.TNumber), command.Opt("minRetentionHours", command.TNumber)),
		refuse("replSetFreeze", "cannot freeze node when primary or running for election. state: Primary"),
		refuse("replSetMaintenance", "primaries can't modify maintenance mode"),
		refuse("replSetSyncFrom", "primaries don't sync"),
		row("replSetAbortPrimaryCatchUp", func(op *command.Op, dst []byte) ([]byte, error) {
			if _, err := n.initiatedSet(); err != nil {
				return dst, err
			}
			return dst, mongoerr.New(mongoerr.IllegalOperation, "The node is not in catchup mode")
		}),
	}
}

// runStepDown gives up being primary for some seconds. Nobody else can be elected, so only force makes it happen.
func (n *Node) runStepDown(op *command.Op, dst []byte) ([]byte, error) {
	r, err := n.initiatedSet()
	if err != nil {
		return dst, err
	}
	if !op.Req.Cmd.T.Numeric() {
		return dst, command.WrongType("replSetStepDown.replSetStepDown", op.Req.Cmd.T, command.TNumber)
	}
	secs := safeInt64(op.Req.Cmd)
	force := op.Bool("force")
	catchUp := int64(10)
	if force {
		catchUp = 0
	}
	if v := op.Arg("secondaryCatchUpPeriodSecs"); !v.IsMissing() {
		catchUp = safeInt64(v)
	}
	switch {
	case secs < 0:
		return dst, mongoerr.New(mongoerr.BadValue, "stepdown period must be a positive integer")
	case catchUp < 0:
		return dst, mongoerr.New(mongoerr.BadValue, "secondaryCatchUpPeriodSecs period must be a positive or absent")
	case secs < catchUp:
		return dst, mongoerr.New(mongoerr.BadValue, "stepdown period must be longer than secondaryCatchUpPeriodSecs")
	case !r.Writable():
		return dst, mongoerr.New(mongoerr.NotWritablePrimary, "not primary so can't step down")
	}
	if !force {
		t := time.NewTimer(time.Duration(catchUp) * time.Second)
		defer t.Stop()
		select {
		case <-t.C:
		case <-op.Done():
			return dst, op.Err()
		}
		return dst, mongoerr.New(mongoerr.ExceededTimeLimit, "No electable secondaries caught up. Please use the replSetStepDown command with the argument {force: true} to force node to step down.")
	}
	r.stepDown(time.Duration(secs) * time.Second)
	return dst, nil
}

// runStepUp ends a step-down early.
func (n *Node) runStepUp(op *command.Op, dst []byte) ([]byte, error) {
	r, err := n.initiatedSet()
	if err == nil {
		r.stepUp()
	}
	return dst, err
}

func (n *Node) runGetRBID(op *command.Op, dst []byte) ([]byte, error) {
	if _, err := n.initiatedSet(); err != nil {
		return dst, err
	}
	return value.Append(dst, "rbid", value.NewInt32(1)), nil
}

func (n *Node) runResizeOplog(op *command.Op, dst []byte) ([]byte, error) {
	if _, err := n.initiatedSet(); err != nil {
		return dst, err
	}
	size, hours := op.Arg("size"), op.Arg("minRetentionHours")
	if size.IsMissing() && hours.IsMissing() {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "replSetResizeOplog needs a size or minRetentionHours")
	}
	if !size.IsMissing() && size.AsFloat64() < minOplogMB {
		return dst, mongoerr.Newf(mongoerr.BadValue, "BSON field 'size' value must be >= %d, actual value '%s'", minOplogMB, showNumber(size))
	}
	if !hours.IsMissing() && hours.AsFloat64() < 0 {
		return dst, mongoerr.Newf(mongoerr.BadValue, "BSON field 'minRetentionHours' value must be >= 0, actual value '%s'", showNumber(hours))
	}
	if hours.AsFloat64() > 0 {
		return dst, command.NotImplemented("replSetResizeOplog: minRetentionHours")
	}
	if !size.IsMissing() {
		n.Engine.SetOplogSize(int64(size.AsFloat64() * (1 << 20)))
	}
	return dst, nil
}

// runOplogNote writes a noop entry.
func (n *Node) runOplogNote(op *command.Op, dst []byte) ([]byte, error) {
	if _, err := n.initiatedSet(); err != nil {
		return dst, err
	}
	w, err := n.newWriteOp(op)
	if err != nil {
		return dst, err
	}
	if max := op.Arg("maxClusterTime"); max.T == value.Timestamp && uint64(n.Engine.Visible()) >= max.TimestampU64() {
		return dst, mongoerr.New(mongoerr.StaleClusterTime, "Requested maxClusterTime is older than the last write")
	}
	u := w.unit(nil)
	defer u.Rollback()
	u.Oplog(storage.OplogEntry{Op: 'n', StmtID: -1, O: append([]byte(nil), op.Req.Doc("data")...)})
	return dst, w.commit(u, w.wc)
}

// stepDown makes the member a secondary for some time; then it takes up being primary again.
func (r *ReplSet) stepDown(d time.Duration) {
	r.mu.Lock()
	r.down.Store(true)
	if r.mu.back != nil {
		r.mu.back.Stop()
	}
	r.mu.back = time.AfterFunc(d, r.stepUp)
	r.mu.Unlock()
	r.topo.Changed()
	r.node.Service.EachOp(func(op *command.Op) {
		if op.Req.Spec != nil && op.Req.Spec.Kind == command.Write && !op.Client.InProcess {
			op.Kill(mongoerr.InterruptedDueToReplStateChange)
		}
	})
}

// stepUp makes the member primary again.
func (r *ReplSet) stepUp() {
	r.mu.Lock()
	was := r.down.Swap(false)
	if r.mu.back != nil {
		r.mu.back.Stop()
	}
	r.mu.Unlock()
	if was {
		r.topo.Changed()
	}
}

// checkReadable refuses reads that ask for a primary while the member is none.
func (r *ReplSet) checkReadable(op *command.Op) error {
	if !r.down.Load() || op.Req.Spec.Kind != command.Read || op.Req.Spec.Name == "getMore" || op.Client.InProcess {
		return nil
	}
	if op.Req.ReadPreference.OrPrimary() != cluster.ReadPrimary {
		return nil
	}
	return mongoerr.New(mongoerr.NotPrimaryNoSecondaryOk, "not primary and secondaryOk=false")
}
