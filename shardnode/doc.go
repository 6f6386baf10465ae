// Package shardnode is the data-bearing node: reads and writes, aggregation, indexes and catalog commands over one
// storage engine and its replica set, and the node's part in the sharding protocols.
//
// The life of a find: runFind parses the command, Node.newQuery compiles filter, sort and projection, Node.plan chooses
// how to read, the executor's nodes (exec.go) pull records through a storage.Snapshot, batch writes the reply, and what
// is left becomes a cursor (cursors.go) that getMore continues.
//
// The life of a write: runInsert, runUpdate, runDelete or runFindAndModify make a statement, Node.writeLoop runs it in a
// unit of work against a fresh snapshot, retries write conflicts, and commits through replication.Set.
//
// Invariants
//
//  1. Reads hold no locks: a snapshot and its catalog agree with each other, and a cursor keeps its snapshot.
//  2. A write reads and writes through one snapshot; what changed underneath is a WriteConflict, tried again from the start.
//  3. Nothing is answered before the commit that it tells of is as durable as the write concern asks.
//  4. In a cluster every operation on a namespace compares the versions that came with it before it reads (versions.go).
package shardnode
