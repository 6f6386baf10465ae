// Package txn keeps a node's sessions: their transactions, the part of the node in two-phase commits, and what is known of
// retryable writes.
//
//	a command of a transaction ──► Manager.Begin ── Txn: unit, snapshot, locks ──► commitTxn
//	                                                       │                        ├── commitOpen       alone
//	   Coordinators.runCoordinate ──► coordinator.run ─────┤ runPrepare             └── commitPrepared   decided elsewhere
//	     config.transaction_coordinators                   ▼
//	                                   the oplog: applyOps, prepare: true
//	                                                       │
//	   a new primary ── LoadRetries ──► RestorePrepared ◄──┘
//	     config.transactions, oplog
//	   a retryable write ──► Manager.CheckoutRetry ── Session: Executed, NoteOnCommit
//
// The path of a transaction: Begin takes the session's Txn for each command, whose statements read through the unit's own
// view and stage in it; commitTxn commits the unit. Over several shards runPrepare logs the operations (applyOps with prepare: true), and the
// coordinator collects the votes, stores the decision and carries it out. A unit whose client does not wait any longer is a
// Pending commit: the session knows of it, and settles when it is decided.
//
// The path of a retry: CheckoutRetry takes the session of a write, Executed finds the statement in its Runs. NoteOnCommit has
// the session learn of statements in the moment in which they become visible; FlushRetries writes the sessions down, and
// LoadRetries reads what was written and the oplog behind it. A statement that a router carries out as an internal transaction
// is noted by runNoteMovedWrite, and becomes the parent session's with the commit. With a chunk goes the History of the
// donor's sessions, which the recipient Adopts.
//
// What the package needs of the node is in Config and Node: it knows nothing of plans, cursors or versions.
//
// Invariants
//
//  1. A session has one command at work at a time; who holds its busy may use its transaction.
//  2. What was voted for is stored before it is said, and restored before anyone else writes.
//  3. A prepared transaction ends by its coordinator's decision alone: neither time nor killSessions nor a newer number ends it.
//  4. The table of retries is complete up to what the last flush but one saw: whoever loads it reads the oplog from there.
//  5. A statement that may have been executed is never executed again: where the history was cut off, it is refused.
//  6. At most one transaction for a write of a session is open on a shard (joinParent, endChild).
package txn
