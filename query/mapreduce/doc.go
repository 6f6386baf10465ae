// Package mapreduce turns a mapReduce command into the aggregation that computes it.
//
//	Parse(command) ──► Command ──Pipeline──► [$match, $sort, $limit, map, $unwind, group and reduce, finalize, $merge or $out]
//
// The stages are ordinary ones; two special operators, $_internalJsEmit and $_internalJsReduce, run the functions. An
// aggregate with Constants as its runtimeConstants may use them. So spilling, splitting between shards and writing the result
// need no code of their own here.
//
// Invariants
//
//  1. The only value of a key is not reduced; reduced values may be reduced again.
//  2. finalize sees each key once.
package mapreduce
