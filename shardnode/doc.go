// Package shardnode is the data-bearing node: it assembles its rooms over one storage engine and its replica set,
// and implements the commands that read.
//
// The life of a find: runFind parses the command into an exec.Query, Executor.Execute (package exec) plans and
// runs it over a storage.Snapshot, firstBatch writes the reply, and what remains becomes a cursor (cursors.go)
// that getMore continues. A find of one document by its _id replies without all that (findExpress).
//
// Writes are in package write, the commands that change the catalog in ddl, transactions, two-phase commits and
// the history of retries in txn, and versions, critical sections, migrations and the range deleter in migration.
// The interfaces that they need from the node are implemented in writernode.go, ddlnode.go and becomeshard.go.
//
// Invariants
//
//  1. Reads hold no locks: a snapshot and its catalog agree with each other, and a cursor keeps its snapshot.
//  2. A write reads and writes through one snapshot; if a document changed in the meantime, the write is a WriteConflict
//     and starts again.
//  3. No reply is sent before the commit that it reports is as durable as the write concern requires.
//  4. In a cluster every operation on a namespace compares the versions that came with it before it reads (versions.go).
//  5. What readers on any member have to know before they see a unit (prepared transactions, changing placements) is in the
//     unit's notices (onCommitNotice), and read from the store where those were missed (loadNoticed).
//  6. A new primary accepts no operation on a collection whose migration is undecided until the outcome is known.
package shardnode
