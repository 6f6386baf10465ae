// Package txn keeps a node's sessions: their transactions, the node's part in two-phase commits, and the history
// of retryable writes.
//
//	a command of a transaction ──► Manager.Begin ── Txn: unit, snapshot, locks ──► commitTxn
//	                                                       │                        ├── commitOpen       alone
//	   Coordinators.runCoordinate ──► coordinator.run ─────┤ runPrepare             └── commitPrepared   decided elsewhere
//	     config.transaction_coordinators                   ▼
//	                                   the oplog: applyOps, prepare: true
//	                                                       │
//	   a new primary ── LoadRetries ──► RestorePrepared ◄──┘
//	     config.transactions, config.system.retryableStatements, oplog
//	   a retryable write ──► Manager.CheckoutRetry ── Session: Executed, NoteOnCommit
//
// The path of a transaction: Begin takes the session's Txn for each command, whose statements read through the unit's own view and stage in
// it; commitTxn commits the unit. Over several shards runPrepare logs the operations (applyOps with prepare: true), and the coordinator
// collects the votes, stores the decision and carries it out. A commit whose client stopped waiting is a Pending one: the session records it,
// and settles when it is decided.
//
// The path of a retry: CheckoutRetry takes the session of a write, Executed finds the statement in its Runs.
// NoteOnCommit records statements in the session at the moment they become visible; FlushRetries stores the
// sessions, and LoadRetries reads what was stored and the later part of the oplog. A statement that a router
// executes as an internal transaction is recorded by runNoteMovedWrite, and becomes the parent session's with the
// commit.
//
// The path of history between shards: HistoryOf reads what was executed on the documents that move, from the sessions and from the oplog;
// Adopt logs it on the new owner and merges it in. A session in use keeps newer history aside (ahead) until catchUp. Migrations, reshardings and
// movePrimary use it.
//
// A client's write to config.transactions is an Invalidation: its Put and Delete check out the session for the unit that writes the record, and
// the session takes on the state of the record when the unit becomes visible.
//
// What the package needs from the node is in Config and Node: it does not depend on plans, cursors or versions.
//
// Invariants
//
//  1. A session runs one command at a time; its transaction is guarded by busy.
//  2. A vote is stored before it is sent, and its transaction is restored before anyone else writes.
//  3. A prepared transaction ends only by its coordinator's decision: neither a time limit nor killSessions nor a newer
//     number ends it.
//  4. The table of retries is complete up to what the second to last flush saw: loading it continues with the oplog from there.
//     The oplog is not truncated past that time, whatever its size (storage.OplogHold).
//  5. A statement that may have been executed is never executed again: if the history was cut off (hole.go), it is refused.
//  6. At most one transaction for a write of a session is open on a shard (joinParent, endChild).
//  7. Adopt waits for no operation that uses a session, and no operation of an adopted number begins before it knows what was adopted.
package txn
