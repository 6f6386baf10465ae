// Package ddl has the commands that change the catalog of a node: create, drop, rename, collMod, indexes and others.
//
//	runCreate, runDrop, runCollMod … ── parse ──► newNamespace, rename, collMod, newIndexes
//	                                                  │
//	participantWrites ── a message from ─────────┐    │
//	                     the config server       ▼    ▼
//	              operation: LockVersioned ─ Retry ─ a storage.UnitOfWork ─ Commit
//
// The path of a command: it is parsed into a value that describes the request (parseCreate, parseRename, parseCollMod),
// independently of the node. Commands.begin makes an operation of it, a write.Command. The operation locks its namespaces
// exclusively and compares the versions that came with the command under those locks (LockVersioned). The change is then
// staged in one unit of work (stageNamespace, stageDrop, modify) and committed; Retry starts again after a conflict. Copies
// (copyInto) and index builds (runBuild) commit in several steps.
//
// A command over several shards consists of such operations: its coordinator sends a message to each participant, which
// executes the same staged change as the client's command (participant.go).
//
// Node is the package's interface to the node: it does not depend on cursors, statistics or the sharding catalog.
//
// Invariants
//
//  1. A change of the catalog is one unit of work. A copy that will replace another collection is temporary until then: a
//     new primary drops it.
//  2. Versions are compared under the locks that the change holds, after earlier writes have committed.
//  3. A node's cached state of a collection is dropped when the commit becomes visible (Node.Forget), not before.
//  4. For commands that allow it, a change that has been made already is not an error when the command is sent again (alreadyMade).
package ddl
