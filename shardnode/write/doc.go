// Package write implements the commands that change documents: insert, update, delete, findAndModify, bulkWrite,
// applyOps, and the targets of $out and $merge. A Command is the common base of all commands that write, including
// those on the catalog: locks, versions, snapshots, units of work, and the outcome of commits.
//
//	runInsert ────────┐                ┌── startRetry      the session of a retryable write
//	runUpdate ────────┼─ Writer.Begin ─┤   lockDocuments   against catalog changes and critical sections
//	runFindAndModify ─┘   Command      └── checkVersions   under that lock
//	                         │
//	          insertUnit · runStatement ──► Retry: Snapshot, Unit, commitRun ──► replication.Set
//	                                          └── txnContext: plainWrites, or transactionWrites
//
// The path of a statement: compileStatement compiles its filter and update for the current state of the
// collection, newQuery finds its documents in a Snapshot, writeRow stages the new version of each in a Unit, and
// commitRun commits it. Retry starts again after a conflict. A command outside transactions commits each unit
// (plainWrites); one within a transaction adds to the unit of that (transactionWrites). Statements on time series
// become changes of buckets (runOnSeries).
//
// A commit that the client no longer waits for is pending (detach): the next units of the command follow it in a chain, and its locks are
// released once the set has decided (AfterCommit). A retryable write first checks out its session (startRetry), and replies to a statement
// that was executed before from the session's history (replay).
//
// Config and Node are the package's interface to the node: it does not depend on cursors, the log or read commands.
//
// Invariants
//
//  1. A write reads and writes through one snapshot; if a document changed in the meantime, the write is a WriteConflict
//     and starts again.
//  2. Versions are compared under the lock that the write holds until its commit: no critical section begins in between.
//  3. No reply is sent before the commit that it reports is as durable as the write concern requires, or the reason is in
//     writeConcernError.
//  4. A statement of a retryable write is recorded in its session with the commit that executes it, not before.
//  5. The lock of a collection outlives the command if its commit is pending.
package write
