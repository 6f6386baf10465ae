// Package querystats keeps what a node remembers of the queries that clients ran: for each key (a query's shape, its
// client, and the options that are part of neither) figures over all its executions, for $queryStats.
//
//	find, aggregate, distinct ──Admit──► (runs, getMore after getMore) ──Record──► partition ──Docs──► $queryStats
//	                              │                                              │
//	                        rate limit: none, all, n a second             least recently used go
//
// Invariants
//
//  1. While the limit is 0 a command pays one atomic load, and nothing is allocated.
//  2. The entries' estimated size never exceeds the maximum. Where one entry alone would, it is not kept, and counted.
//  3. A key holds no literal of a query's; names are replaced when an entry is read, so that one store serves those who
//     may see them and those who may not.
package querystats
