// Package value is the query language's view of BSON: typed values borrowed from raw documents, walked without
// decoding, compared in the server's canonical order, and appended back to raw bytes.
//
//	raw document ──Elements──► (key, Value) ──Compare/Equal/AppendGroupKey──► answers
//	                               │
//	                               └─Append──► raw document
//
// Invariants
//
//  1. A Value never owns memory: Bytes point into the document it came from (or into the arena of the code that computed it).
//     To keep a Value beyond the life of its document, call Clone.
//  2. The zero Value is Missing: an absent field. Null is a value. They compare as different kinds; operators that treat
//     them alike have to do so explicitly.
//  3. Documents were validated at the wire's edge. Walking a broken one stops early; it never panics or reads beyond it.
package value
