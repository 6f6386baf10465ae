// Package plan chooses how a query reads a collection: its input is a filter, a sort, a projection and the descriptions of
// indexes, its result a tree of stages. It reads no data.
//
//	filter tree ──flatten──► predicates ──assign, per index──► bounds and what is left to check
//	                                                              │
//	      candidates, best first ◄──finish── sort, projection ◄───┘
//
// Plan handles _id lookups first (express), then hint, min and max, then tries each index that some predicate or the sort
// can use (overIndexes, sortedByIndex), unions of indexes for an $or (unions), two indexes whose records are intersected
// (intersections), and, if nothing fits, the collection scan. A filter that is an $or is planned by its branches:
// Query.Branches splits it, and Assemble joins the plans chosen for them. finish adds fetch, sort, skip, projection and
// limit on top. rank orders the candidates by estimated cost; the executor may try several and store the best in the Cache.
// Node.Explain prints a plan in the server's format.
//
// Invariants
//
//  1. A plan's result is the same as that of a collection scan with the filter and a sort: bounds may be too wide, never
//     too narrow, and what they do not decide exactly is in a filter above.
//  2. Intervals are kept in ascending order of values, disjoint; only Explain and the scan reverse them.
//  3. On a path with arrays, two predicates may be satisfied by two different elements, so their bounds are not
//     intersected, unless one $elemMatch has both.
//  4. If an index has a collation, strings in bounds are collation keys.
package plan
