// Package accum holds the accumulators of $group, $bucket, $bucketAuto and $setWindowFields: parsed once (Parse → Spec),
// one State per group.
//
//	Spec.New(frame) ──► State ──Add(value)…──► Result
//	                      │
//	                      └─Partial ──(another node or a spilled run)──► Merge
//
// Invariants
//
//  1. Add borrows its value for the call only; a state that keeps it copies it.
//  2. Merge(Partial()) of states built from two halves of the input yields the result of one state for the whole, up to the
//     order in which values without an order arrive.
//  3. Add returns by how many bytes the state grew, so that $group can limit its memory; numbers do not grow.
package accum
