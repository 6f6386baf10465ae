// Package agg parses aggregation pipelines, rewrites them, splits them between shards and a merger, and runs them as
// chains of pull iterators over raw documents.
//
//	Parse ──► Pipeline ──Optimize──► Pushdown (filter, sort, fields for the planner) + rest ──Run(source)──► Source
//	              │
//	              └─Split──► shard part, merge part, merge sort key (for a router)
//
// Invariants
//
//  1. A document returned by Source.Next is valid until the next call of Next on that source; a stage that keeps it copies it.
//  2. A stage does not access storage, clock or network itself: what it needs from the server it gets through Host.
//  3. Rewrites (rules in optimize.go) preserve the result: the same documents, in the same order if one was requested.
//  4. A parsed Pipeline is immutable and may be run many times, one run at a time; state lives in the Sources.
package agg
