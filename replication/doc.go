// Package replication is a replica set as writers see it: Set.Commit gives a unit of work its place in the order of all
// writes and waits for the write concern.
//
//	UnitOfWork ──Set.Commit──► storage.Engine.Commit (group, timestamp, oplog, sync) ──► visible ──► write concern met
//
// Invariants
//
//  1. A unit's timestamp is later than that of every unit visible before it.
//  2. What Commit acknowledged with w: "majority" or j: true survives a crash.
package replication
