// Package querytest makes random documents, filters, sorts, projections, updates, pipelines and indexes from a seed, for
// tests that compare two ways to the same result: an index with a collection scan, a cluster with one node, an optimised
// pipeline with the original one.
//
//	seed ──New──► Gen ──Doc, Filter, Sort, …──► commands, run both ways ──Same──► equal, or the first difference
//
// Invariants
//
//  1. With the same seed, the same sequence of calls returns the same results.
//  2. What is made is valid: a server must not refuse it, except for errors that depend on the documents (an update that
//     meets a value of another type, parallel arrays in a sort).
//  3. Numbers are compared by value: 1, 1.0 and NumberDecimal("1") are the same result.
package querytest
