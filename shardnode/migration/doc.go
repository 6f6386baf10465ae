// Package migration is a node's part in the placement of data: its place in a cluster, migrations from and to it, and the
// deletion of ranges that it no longer owns.
//
//	config server ── _shardsvrMoveRange ──► Manager.moveRange                        the donor
//	                                          │ writeDonorState    config.migrationCoordinators, config.rangeDeletions
//	  recipient.run ◄── _recvChunkStart ──────┤ donor.run
//	    clone, transferMods, transferSessions │
//	    finish ◄─────── _recvChunkCommit ─────┤ donor.commit       ShardState.EnterCritical … LeaveCritical
//	    enterReceived                         │
//	                    commit ──► config server
//	    runRecvRelease ◄── _recvChunkReleaseCritSec
//	    runDecision ◄── _shardsvrMigrationDecision ── decide, conclude
//	                                          └──► sweep           the range deleter
//
// The path of a version check: every operation on a namespace passes ShardState.CheckVersion. One that meets a critical
// section waits for its end outside of its locks (WaitCritical). A read takes its ownership filter from ReadFilter and counts
// itself by BeginRead, so that a delayed deletion waits for it.
//
// The path of a placement on a secondary: the units that announce and conclude a migration carry notices.
// Shard.OnCommitNotice processes them, and AskWherePlaced makes a read in between ask the config server.
//
// What the package needs from the node is in Config, Node, Role and Sessions: it does not depend on transactions,
// retries or commands on documents. The state documents are statedoc collections (coordinatorDocs,
// rangeDeletions).
//
// Invariants
//
//  1. Nothing of a migration happens before its coordinator document and both range deletions are durable.
//  2. During a critical section no write begins on its collection, and from BlockReads on no read either: every write
//     that began before has committed when the recipient fetches the last changes.
//  3. A range is deleted only on the shard that does not own it in the end. If the outcome is not known (errOutcomeUnknown)
//     nothing is deleted, and the collection accepts no operations until recover knows it.
//  4. The coordinator document and the range deletion change together when a migration is concluded: repeated, the conclusion
//     finds no document and does nothing.
//  5. A new primary closes the collections of undecided migrations before it accepts writes (holdUndecided).
//  6. From before the commit until its outcome is reported, no operation on the collection begins on any member of the recipient (enterReceived).
//  7. A query keeps the routing table and the snapshot that it began with; a deletion takes nothing from it.
package migration
