package shardnode

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fsyncLock is the lock that fsync {lock: true} acquires on the whole server and fsyncUnlock releases; it is
// counted. While it is held, writers wait, and so does everything else that would change the store's files:
// flushes and compactions, the collector of old versions, the replicated log.
type fsyncLock struct {
	mu    sync.Mutex
	held  *lock.Locker
	count int64
}

// fsyncLockTimeout is the time that fsync waits for running writers if the command sets no limit.
const fsyncLockTimeout = 90 * time.Second

func (n *Node) fsyncSpecs() []command.Spec {
	unlock := command.AdminOnly("fsyncUnlock", n.runFsyncUnlock)
	unlock.Lenient = true
	return []command.Spec{
		command.AdminOnly("fsync", n.runFsync, command.Opt("lock", command.TSafeBool), command.Opt("fsyncLockAcquisitionTimeoutMillis", command.TAny),
			command.Opt("forBackup", command.TSafeBool)),
		unlock,
	}
}

func (n *Node) runFsync(op *command.Op, dst []byte) ([]byte, error) {
	timeout := op.Arg("fsyncLockAcquisitionTimeoutMillis")
	if !timeout.IsNullish() && timeout.T != value.Int32 {
		return dst, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'fsync.fsyncLockAcquisitionTimeoutMillis' is the wrong type '%s', expected type 'int'", timeout.T.Name())
	}
	if n.admin.fsync.locked() {
		// Everything written so far is in the files.
	} else if err := n.Engine.Sync(op); err != nil {
		return dst, err
	}
	if !op.Bool("lock") {
		return value.Append(dst, "numFiles", value.NewInt32(1)), nil
	}
	limit := fsyncLockTimeout
	if timeout.T == value.Int32 && timeout.Int32() > 0 {
		limit = time.Duration(timeout.Int32()) * time.Millisecond
	}
	count, err := n.admin.fsync.lock(op, n, limit)
	if err != nil {
		return dst, err
	}
	dst = value.Append(dst, "info", value.NewString("now locked against writes, use db.fsyncUnlock() to unlock"))
	dst = value.Append(dst, "lockCount", value.NewInt64(count))
	return value.Append(dst, "seeAlso", value.NewString("http://dochub.mongodb.org/core/fsynccommand")), nil
}

func (n *Node) runFsyncUnlock(op *command.Op, dst []byte) ([]byte, error) {
	count, err := n.admin.fsync.unlock(n.Engine)
	if err != nil {
		return dst, err
	}
	dst = value.Append(dst, "info", value.NewString("fsyncUnlock completed"))
	return value.Append(dst, "lockCount", value.NewInt64(count)), nil
}

func (f *fsyncLock) lock(ctx context.Context, n *Node, limit time.Duration) (count int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		l := n.locks.NewLocker()
		l.SetTimeout(limit)
		err := l.LockGlobal(ctx, lock.S)
		if err == nil {
			// Writers that were running when the command's first sync began are done: what they wrote belongs to
			// the backup.
			err = n.Engine.Sync(ctx)
		}
		if err != nil {
			l.UnlockAll()
			return 0, err
		}
		n.Engine.HoldFiles()
		f.held = l
	}
	f.count++
	return f.count, nil
}

func (f *fsyncLock) unlock(e *storage.Engine) (count int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count == 0 {
		return 0, mongoerr.New(mongoerr.IllegalOperation, "fsyncUnlock called when not locked")
	}
	if f.count--; f.count == 0 {
		e.ReleaseFiles()
		f.held.UnlockAll()
		f.held = nil
	}
	return f.count, nil
}

// locked reports whether the server is locked by fsync.
func (f *fsyncLock) locked() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count > 0
}
