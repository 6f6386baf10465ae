// Package exec plans a query on one collection and runs the plan as a tree of nodes over a snapshot.
//
//	Query ── Executor.Plan ──┬── idEquality ─────────────────► idLookup
//	                         └── choose ── plan.Plan ── race ─► builder.build ─► Node ─► Stream or Source
//	                                   └── plan cache ────────► cachedNode
//	a find's _id alone ── Express.Begin ── Express.Read
//
// The path of a query: a command fills in a Query and compiles it (Query.Compile). Executor.Plan recognises an equality
// on _id, else choose asks the planner (plan.Plan) for candidates, under the index filters and query settings of its
// shape. A single candidate is built directly (runOnly). With several, the plan cache's choice runs as long as it
// performs as in its trial (cachedNode); without one, race runs the candidates in turns, and the best continues from
// where it is (replayNode). The branches of a filter that is an $or are planned individually (chooseBranches). The
// caller pulls rows (Node.Next), documents (Stream.NextDoc) or the source of a pipeline (Source).
//
// Executor.Explain plans in the same way, with a clock above each node (timedNode), and prints the figures that
// executed collects from them.
//
// Env is the package's interface to the node that it runs on: it does not depend on commands, versions or sessions.
//
// Invariants
//
//  1. A tree reads one snapshot, which its caller owns and releases after Close. Only Stream.Advance replaces it.
//  2. What Next fills into a Row is borrowed from the node until its next call; a row that is kept must be cloned.
//  3. After Save no node holds resources of the store; the next Next continues from the same position.
//  4. A leaf that has used up its pace returns errPaused and loses nothing: every node above it can be called again.
//  5. A Planning belongs to one version of a collection. Its plan cache is never used for another version.
//  6. Explaining a query leaves the plan cache and the usage counters of indexes as they were.
package exec
