package settings

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// writeBlock reports whether users may write to their databases (setUserWriteBlockMode); the document of
// config.user_writes_critical_sections survives a restart.
type writeBlock struct {
	on     atomic.Bool
	reason atomic.Pointer[string]
	begun  [3]atomic.Int64 // how often it was switched on since the start, by the index of the reason
}

const (
	writeBlockNS       = "config.user_writes_critical_sections"
	reasonUnspecified  = "Unspecified"
	writeBlockedReason = "blockUserWritesReason"
)

// writeBlockReasons are the allowed values of setUserWriteBlockMode's reason, in the order of the numbers that serverStatus has for them.
var writeBlockReasons = [...]string{reasonUnspecified, "ClusterToClusterMigrationInProgress", "DiskUseThresholdExceeded"}

// set notes whether writes are blocked, and why.
func (b *writeBlock) set(on bool, reason string) {
	b.reason.Store(&reason)
	if !b.on.Swap(on) && on {
		if i := slices.Index(writeBlockReasons[:], reason); i >= 0 {
			b.begun[i].Add(1)
		}
	}
}

// WriteBlockStatus appends the fields about blocked writes of serverStatus' section repl: the mode is 1 if users may write and 2 if not, the counters have how often
// writes were blocked for each reason.
func (st *Settings) WriteBlockStatus(dst []byte) []byte {
	b := &st.block
	mode, reason := int32(1), 0
	if b.on.Load() {
		mode = 2
	}
	if why := b.reason.Load(); why != nil {
		reason = max(0, slices.Index(writeBlockReasons[:], *why))
	}
	dst = value.Append(dst, "userWriteBlockMode", value.NewInt32(mode))
	dst = value.Append(dst, "userWriteBlockReason", value.NewInt32(int32(reason)))
	dst, m := value.BeginKey(dst, value.Document, "userWriteBlockModeCounters")
	for i, name := range writeBlockReasons {
		dst = value.Append(dst, name, value.NewInt64(b.begun[i].Load()))
	}
	return value.End(dst, m)
}

func (st *Settings) writeBlockSpecs() []command.Spec {
	return []command.Spec{
		command.AdminOnly("setUserWriteBlockMode", st.runSetUserWriteBlockMode, command.Req("global", command.TBool), command.Opt("reason", command.TString)),
	}
}

func (b *writeBlock) load(st *Settings) error {
	doc, err := st.Docs.Get(writeBlockNS, value.NewString(""))
	if err != nil {
		return err
	}
	reason := reasonUnspecified
	if v := value.Lookup(doc, writeBlockedReason); v.T == value.String {
		reason = v.Str()
	}
	b.set(value.Lookup(doc, "blockUserWrites").Truthy(), reason)
	return nil
}

// usersDDL are the commands with which a router makes the config server change the catalog for a client.
var usersDDL = map[string]bool{
	"_configsvrCreateDatabase": true, "_configsvrDropCollection": true,
}

// byUser reports whether an operation is executed for a client.
func byUser(op *command.Op) bool { return op.ForClient() || usersDDL[op.Req.Spec.Name] }

// check returns an error for a client's writes and catalog changes while users' writes are blocked.
func (b *writeBlock) check(op *command.Op) error {
	if !b.on.Load() || !byUser(op) {
		return nil
	}
	switch op.Req.Spec.Kind {
	case command.Write, command.DDL:
		db := op.Req.DB
		if op.Req.Spec.AdminOnly && op.Req.Cmd.T == value.String {
			db = catalog.DBOf(op.Req.Cmd.Str()) // renameCollection and similar commands have the namespace in their first field
		}
		return b.refuse(db)
	}
	return nil
}

// refuse returns the error of a blocked write to a database; nil for the server's own databases.
func (b *writeBlock) refuse(db string) error {
	if !b.on.Load() || db == "admin" || db == "local" || db == "config" {
		return nil
	}
	return mongoerr.New(mongoerr.UserWritesBlocked, "User writes blocked")
}

// checkTarget is check for the target of $out and $merge, and for a namespace of a bulkWrite.
func (b *writeBlock) checkTarget(op *command.Op, ns string) error {
	if !b.on.Load() || !byUser(op) {
		return nil
	}
	return b.refuse(catalog.DBOf(ns))
}

func (st *Settings) runSetUserWriteBlockMode(op *command.Op, dst []byte) ([]byte, error) {
	if st.Lone() {
		return dst, mongoerr.New(mongoerr.IllegalOperation, "setUserWriteBlockMode cannot be run on standalones")
	}
	if err := st.checkNotOnShard(op, true, mongoerr.IllegalOperation, "setUserWriteBlockMode cannot be run on shardsvrs"); err != nil {
		return dst, err
	}
	reason := reasonUnspecified
	if v := op.Arg("reason"); v.T == value.String {
		if reason = v.Str(); !slices.Contains(writeBlockReasons[:], reason) {
			return dst, mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'setUserWriteBlockMode.reason' is not a valid value.", reason)
		}
	}
	b := &st.block
	on := op.Bool("global")
	if b.on.Load() && *b.reason.Load() != reason {
		return dst, mongoerr.Newf(mongoerr.IllegalOperation, "Cannot change user write blocking with reason %s while it is on with reason %s", reason, *b.reason.Load())
	}
	if is, err := st.coordinated(op, &msg.SetUserWriteBlock{Global: on, Reason: reason}); is {
		return dst, err
	}
	if on == b.on.Load() {
		return dst, st.awaitWriters(op, on)
	}
	var err error
	if on {
		err = st.Docs.Put(op, writeBlockNS, value.Doc(value.F("_id", value.NewString("")), value.F("blockNewUserShardedDDL", value.NewBool(true)),
			value.F("blockUserWrites", value.NewBool(true)), value.F(writeBlockedReason, value.NewString(reason))))
	} else {
		err = st.Docs.Remove(op, writeBlockNS, value.NewString(""))
	}
	if err != nil {
		return dst, err
	}
	b.set(on, reason)
	return dst, st.awaitWriters(op, on)
}

// awaitWriters waits for the writers and transactions that began before users' writes were blocked. Later ones are refused once they have their locks.
//
// Rejected: waiting in the queue of the lock, which holds up every other writer: a transaction cannot commit while the node cannot store its decision.
func (st *Settings) awaitWriters(ctx context.Context, on bool) error {
	for wait := 10 * time.Millisecond; on; wait = min(2*wait, time.Second) {
		l := st.Locks.NewLocker()
		l.SetTimeout(wait)
		err := l.LockGlobal(ctx, lock.S)
		l.UnlockAll()
		if mongoerr.CodeOf(err) != mongoerr.LockTimeout {
			return err
		}
		if err := cluster.Sleep(ctx, wait); err != nil {
			return err
		}
	}
	return nil
}
