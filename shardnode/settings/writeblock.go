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

// blocks says what users may not do in their databases any more (setUserWriteBlockMode). What blocks writes blocks DDL, too.
type blocks int32

const (
	nothing blocks = iota
	newDDL         // DDL that has not begun
	writes
)

// writeBlock is what users may not do; the document of config.user_writes_critical_sections survives a restart.
type writeBlock struct {
	state  atomic.Int32 // a blocks
	reason atomic.Pointer[string]
	begun  [3]atomic.Int64 // how often writes were blocked since the start, by the index of the reason
}

const (
	writeBlockNS       = "config.user_writes_critical_sections"
	reasonUnspecified  = "Unspecified"
	writeBlockedReason = "blockUserWritesReason"
)

// writeBlockReasons are the allowed values of setUserWriteBlockMode's reason, in the order of the numbers that serverStatus has for them.
var writeBlockReasons = [...]string{reasonUnspecified, "ClusterToClusterMigrationInProgress", "DiskUseThresholdExceeded"}

func (b *writeBlock) now() blocks { return blocks(b.state.Load()) }

// set notes what is blocked, and why.
func (b *writeBlock) set(to blocks, reason string) {
	b.reason.Store(&reason)
	if was := blocks(b.state.Swap(int32(to))); was < writes && to == writes {
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
	if b.now() == writes {
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
	part := command.Internal(st.runBlockOfCluster)
	part.Roles, part.PrimaryOnly, part.WriteConcern = command.Shard|command.Config, true, true
	return []command.Spec{
		command.AdminOnly("setUserWriteBlockMode", st.runSetUserWriteBlockMode, command.Req("global", command.TBool), command.Opt("reason", command.TString)), part,
	}
}

func (b *writeBlock) load(st *Settings) error {
	doc, err := st.Docs.Get(writeBlockNS, value.NewString(""))
	if err != nil {
		return err
	}
	b.set(parseBlock(doc))
	return nil
}

// parseBlock reads a stored document; there is none if nothing is blocked.
func parseBlock(doc []byte) (is blocks, reason string) {
	reason = reasonUnspecified
	if v := value.Lookup(doc, writeBlockedReason); v.T == value.String {
		reason = v.Str()
	}
	switch {
	case value.Lookup(doc, "blockUserWrites").Truthy():
		is = writes
	case value.Lookup(doc, "blockNewUserShardedDDL").Truthy():
		is = newDDL
	}
	return is, reason
}

// doc is the inverse of parseBlock.
func (x blocks) doc(reason string) []byte {
	return value.Doc(value.F("_id", value.NewString("")), value.F("blockNewUserShardedDDL", value.NewBool(x >= newDDL)),
		value.F("blockUserWrites", value.NewBool(x == writes)), value.F(writeBlockedReason, value.NewString(reason)))
}

// usersDDL are the commands with which a router makes the config server change the catalog for a client.
var usersDDL = map[string]bool{
	"_configsvrCreateDatabase": true, "_configsvrDropCollection": true,
}

// byUser reports whether an operation is executed for a client that is blocked.
func byUser(op *command.Op) bool {
	return (op.ForClient() || usersDDL[op.Req.Spec.Name]) && !op.BypassesWriteBlock()
}

// forbids reports whether a command of a user is refused.
func (x blocks) forbids(op *command.Op) bool {
	if op.Req.Spec.Kind == command.DDL {
		return x >= newDDL
	}
	return x == writes
}

// check returns an error for a client's writes and catalog changes that are blocked.
func (b *writeBlock) check(op *command.Op) error {
	if is := b.now(); is == nothing || !is.forbids(op) || !byUser(op) {
		return nil
	}
	switch op.Req.Spec.Kind {
	case command.Write, command.DDL:
		db := op.Req.DB
		if op.Req.Spec.AdminOnly && op.Req.Cmd.T == value.String {
			db = catalog.DBOf(op.Req.Cmd.Str()) // renameCollection and similar commands have the namespace in their first field
		}
		return refuse(db)
	}
	return nil
}

// refuse returns the error of what is blocked in a database; nil for the server's own databases.
func refuse(db string) error {
	if !OfUsers(db) {
		return nil
	}
	return mongoerr.New(mongoerr.UserWritesBlocked, "User writes blocked")
}

// OfUsers reports whether a database belongs to users, who may be blocked there.
func OfUsers(db string) bool { return db != "admin" && db != "local" && db != "config" }

// checkTarget is check for the target of $out and $merge, for a namespace of a bulkWrite, and for what a command has locked.
func (b *writeBlock) checkTarget(op *command.Op, ns string) error {
	if is := b.now(); is == nothing || !is.forbids(op) || !byUser(op) {
		return nil
	}
	return refuse(catalog.DBOf(ns))
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
	if err := st.block.checkReason(reason); err != nil {
		return dst, err
	}
	on := op.Bool("global")
	if is, err := st.coordinated(op, &msg.SetUserWriteBlock{Global: on, Reason: reason}); is {
		return dst, err
	}
	if !on {
		return dst, st.setBlock(op, nothing, reason)
	}
	if err := st.setBlock(op, writes, reason); err != nil {
		return dst, err
	}
	for _, wait := range []func(context.Context) error{st.drain, st.awaitWriters, st.drain} { // an index build may have begun under a lock that awaitWriters has waited for
		if err := wait(op); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// checkReason returns an error if users are blocked for another reason, which has to end first.
func (b *writeBlock) checkReason(reason string) error {
	if b.now() == nothing || *b.reason.Load() == reason {
		return nil
	}
	return mongoerr.Newf(mongoerr.IllegalOperation, "Cannot change user write blocking with reason %s while it is on with reason %s", reason, *b.reason.Load())
}

// runBlockOfCluster executes a node's part in setUserWriteBlockMode on a cluster. DDL is blocked on all nodes, and has ended there, before writes are blocked on any: it may have to write.
func (st *Settings) runBlockOfCluster(op *command.Op, req *msg.ShardSetUserWriteBlock, dst []byte) ([]byte, error) {
	switch {
	case req.Phase != msg.PrepareBlock && req.Phase != msg.CompleteBlock:
		return dst, mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '_shardsvrSetUserWriteBlockMode.phase' is not a valid value.", req.Phase)
	case !req.Global:
		return dst, st.setBlock(op, nothing, req.Reason)
	case req.Phase == msg.PrepareBlock:
		if err := st.setBlock(op, newDDL, req.Reason); err != nil {
			return dst, err
		}
		return dst, st.drain(op)
	}
	if err := st.setBlock(op, writes, req.Reason); err != nil {
		return dst, err
	}
	if err := st.awaitWriters(op); err != nil {
		return dst, err
	}
	return dst, st.drain(op) // of an index build that has begun under a lock that awaitWriters has waited for
}

// setBlock stores what users may not do any more. To block DDL does not allow writes that are blocked.
func (st *Settings) setBlock(op *command.Op, to blocks, reason string) error {
	b := &st.block
	decided := func(doc []byte) bool {
		is, why := parseBlock(doc)
		return to == nothing && is == nothing || to != nothing && is >= to && why == reason
	}
	return st.asDecided(op, cluster.Find{NS: writeBlockNS, Filter: value.Doc(value.F("_id", value.NewString("")))}, decided, func(asked bool) error {
		is := b.now()
		if !asked {
			if err := b.checkReason(reason); err != nil { // another command may have been faster
				return err
			}
		}
		if to == newDDL {
			to = max(is, newDDL)
		}
		var err error
		switch {
		case to == is && (is == nothing || reason == *b.reason.Load()):
			return nil
		case to == nothing:
			err = st.Docs.Remove(op, writeBlockNS, value.NewString(""))
		default:
			err = st.Docs.Put(op, writeBlockNS, to.doc(reason))
		}
		if err == nil {
			b.set(to, reason)
		}
		return err
	})
}

// errBlocked ends index builds.
var errBlocked = mongoerr.New(mongoerr.IndexBuildAborted, "Index build aborted: user writes are blocked (setUserWriteBlockMode)")

// drain aborts the index builds of users' databases, and waits for their end and that of the DDL that has begun.
func (st *Settings) drain(ctx context.Context) error { return st.Drain(ctx, errBlocked) }

// awaitWriters waits for the writers and transactions that began before users' writes were blocked. Later ones are refused once they have their locks.
//
// Rejected: waiting in the queue of the lock, which holds up every other writer: a transaction cannot commit while the node cannot store its decision.
func (st *Settings) awaitWriters(ctx context.Context) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		l := st.Locks.NewLocker()
		l.SetTimeout(wait)
		err := l.LockGlobal(ctx, lock.S)
		l.UnlockAll()
		if mongoerr.CodeOf(err) != mongoerr.LockTimeout {
			return err
		}
		if err := cluster.Sleep(ctx, 2*wait); err != nil {
			return err
		}
	}
}
