// Package version has the versions that travel with the requests between nodes: of a collection's routing table (Chunk) and of a database's
// placement (Database). It is a package of its own because the messages between nodes contain versions, and package cluster sends those messages;
// cluster has the checks and the errors of stale versions, and its own names for these types.
//
//	router  ── shardVersion {e, t, v} ──►  shard: CheckShardVersion  ──►  StaleConfig, or the command runs
//
// Invariants:
//
//  1. Two versions of one incarnation (epoch and timestamp) are ordered by major and minor; of two incarnations the one with the later timestamp
//     is newer. A version that is not sharded cannot be compared with one that is.
//  2. Doc and the parsers are inverse to each other.
package version
