// Package write carries out what changes documents: insert, update, delete, findAndModify, bulkWrite, applyOps, and the
// target of $out and $merge. A Command is what all commands that write have in common, those on the catalog too: locks,
// versions, snapshots, units of work, and what became of its commits.
//
//	runInsert ────────┐                ┌── startRetry      the session of a retryable write
//	runUpdate ────────┼─ Writer.Begin ─┤   lockDocuments   against catalog changes and critical sections
//	runFindAndModify ─┘   Command      └── checkVersions   under that lock
//	                         │
//	          insertUnit · runStatement ──► Retry: Snapshot, Unit, commitRun ──► replication.Set
//	                                          └── txnContext: plainWrites, or transactionWrites
//
// The path of a statement: compileStatement makes its filter and update for the collection as it stands, newQuery finds its
// documents in a Snapshot, writeRow stages the new version of each in a Unit, and commitRun commits it. Retry begins again
// at a conflict. A command outside transactions commits each unit (plainWrites); one within a transaction adds to the unit
// of that (transactionWrites). Statements on time series become changes of buckets (runOnSeries).
//
// A commit that the client does not wait for any longer is pending (detach): the next units of the command follow it in
// a chain, and what it holds is let go once the set has decided (AfterCommit). A retryable write takes its session first
// (startRetry) and answers a statement that it knows (replay).
//
// What the package needs of the node is in Config and Node: it knows nothing of cursors, the log or commands that read.
//
// Invariants
//
//  1. A write reads and writes through one snapshot; what changed underneath is a WriteConflict, tried again from the start.
//  2. Versions are compared under the lock that the write holds until its commit: no critical section begins in between.
//  3. Nothing is answered before the commit that it tells of is as durable as the write concern asks, or has its reason in
//     writeConcernError.
//  4. A statement of a retryable write becomes known to its session with the commit that carries it out, not before.
//  5. The lock of a collection outlives the command where its commit is pending.
package write
