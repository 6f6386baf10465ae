// Package plan chooses how a query reads a collection: a filter, a sort, a projection and the descriptions of indexes go
// in, a tree of stages comes out. It reads no data.
//
//	filter tree ──flatten──► predicates ──assign, per index──► bounds and what is left to check
//	                                                              │
//	      candidates, best first ◄──finish── sort, projection ◄───┘
//
// Plan answers _id lookups by itself (express), then takes hint, min and max, then tries each index that some predicate or
// the sort can use (overIndexes, sortedByIndex), unions of indexes for an $or (unions), two indexes whose records are
// intersected (intersections), and, where nothing fits, the collection scan. A filter that is an $or is planned by its
// branches: Query.Branches takes it apart, and Assemble joins what each of them chose.
// finish puts fetch, sort, skip, projection and limit on top. rank orders the candidates by estimated cost; the executor
// may try several and tell Cache which one did best. Node.Explain prints a plan in the server's shape.
//
// Invariants
//
//  1. A plan's result is the same as that of a collection scan with the filter and a sort: bounds may be too wide, never too
//     narrow, and whatever they do not decide exactly is in a filter above.
//  2. Intervals are held in ascending order of values, disjoint; only Explain and the scan turn them round.
//  3. On a path that holds arrays, two predicates are met by two different elements, so their bounds are not intersected,
//     unless one $elemMatch holds both.
//  4. Where an index has a collation, strings in bounds are collation keys.
package plan
