// Package ddl holds the commands that change the catalog of a node: create, drop, rename, collMod, indexes and their kin.
//
//	runCreate, runDrop, runCollMod … ── parse ──► newNamespace, rename, collMod, newIndexes
//	                                                  │
//	participantWrites ── a message from ─────────┐    │
//	                     the config server       ▼    ▼
//	              operation: LockVersioned ─ Retry ─ a storage.UnitOfWork ─ Commit
//
// The path of a command: it is read into a value that says what is asked (parseCreate, parseRename, parseCollMod), without a
// look at the node. Commands.begin makes an operation of it, a write.Command. The operation takes its namespaces
// exclusively and compares the versions that came with the command under those locks (LockVersioned). What is asked is then
// staged in one unit of work (stageNamespace, stageDrop, modify) and committed; Retry begins again at a conflict. Copies
// (copyInto) and index builds (runBuild) commit in several steps.
//
// A command over several shards consists of such operations: its coordinator sends a message to each participant, which
// carries out the same staged change as the client's command does (participant.go).
//
// What the package needs of the node is in Node: it knows nothing of cursors, statistics or the sharding catalog.
//
// Invariants
//
//  1. A change of the catalog is one unit of work. A copy that is to take another collection's place is temporary until then:
//     who becomes primary drops it.
//  2. Versions are compared under the locks that the change holds, after what came before it was committed.
//  3. What a node keeps of a collection is forgotten when the commit becomes visible (Node.Forget), not before.
//  4. A change that is there already is no error of a command that is sent again, where the command says so (alreadyMade).
package ddl
