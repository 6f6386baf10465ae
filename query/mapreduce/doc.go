// Package mapreduce turns a mapReduce command into the aggregation that computes it.
//
//	Parse(command) ──► Command ──Pipeline──► [$match, $sort, $limit, map, $unwind, group and reduce, finalize, $merge or $out]
//
// The stages are ordinary ones; two operators of their own, $_internalJsEmit and $_internalJsReduce, run the functions. An
// aggregate that carries Constants as its runtimeConstants may use them. So spilling, splitting between shards and
// writing the result need nothing of their own here.
//
// Invariants
//
//  1. A value that is alone under its key is not reduced; reduced values may be reduced again.
//  2. finalize sees each key once.
package mapreduce
