// Package lock is the lock manager: intent and full locks over a hierarchy of resources, granted in the order of the
// requests.
//
//	     IS  IX  S   X           ParallelBatchWriter ─ ReplicationState ─ Global ─ Database ─ Collection
//	IS   +   +   +   -
//	IX   +   +   -   -           an operation locks from left to right: an intent on what contains
//	S    +   -   +   -           the thing, the real mode on the thing
//	X    -   -   -   -
//
// An operation gets a Locker from Manager.NewLocker, calls Locker.LockCollection or Locker.Lock, and in the end
// Locker.UnlockAll. An intent lock on a resource without holders or waiters of S or X is one compare-and-swap in
// Locker.lockFast; everything else goes through head.acquire, which keeps the queue.
//
// Invariants
//
//  1. While a head's gate is closed (its bit is set in every stripe), counts change only under the head's mutex; it is
//     open only where no S or X is held or waited for.
//  2. A new request waits if anyone waits before it, even if it is compatible: no request starves. A conversion of a
//     lock already held goes before new requests.
//  3. A Locker belongs to one goroutine at a time. Only its Summary may be read from others.
//  4. A head that is held or waited for is the only one of its resource. One that the manager has removed (Manager.sweep) is
//     retired: its gate never opens again.
//  5. There is no search for deadlocks: the hierarchy is locked in order, and every wait ends at the latest with its
//     context.
package lock
