// Package querytest makes random documents, filters, sorts, projections, updates, pipelines and indexes from a seed, for
// tests that compare two ways to the same answer: an index with a collection scan, a cluster with one node, an optimised
// pipeline with the one that was written.
//
//	seed ──New──► Gen ──Doc, Filter, Sort, …──► commands, run both ways ──Same──► equal, or the first difference
//
// Invariants
//
//  1. The same seed gives the same sequence of calls the same results.
//  2. What is made is valid: a server that refuses it is wrong, save for what depends on the documents (an update that
//     meets a value of another type, parallel arrays in a sort).
//  3. Whether numbers are alike is decided by value: 1, 1.0 and NumberDecimal("1") are the same answer.
package querytest
