// Package querystats keeps a node's statistics of the queries that clients ran, for $queryStats: for each key (a
// query's shape, its client, and the options that are part of neither), figures over all executions.
//
//	find, aggregate, distinct ──Admit──► (runs, getMore after getMore) ──Record──► partition ──Docs──► $queryStats
//	                              │                                              │
//	                        rate limit: none, all, n a second             least recently used are dropped
//
// Invariants
//
//  1. While the limit is 0 a command costs one atomic load, and nothing is allocated.
//  2. The entries' estimated size never exceeds the maximum. An entry that alone would exceed it is not kept, but counted.
//  3. A key has no literals of a query; names are replaced when an entry is read, so that one store serves users who may
//     see them and users who may not.
package querystats
