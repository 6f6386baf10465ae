// Package js runs the JavaScript in queries: $function, $where, $accumulator, map and reduce.
//
//	source ──Compile──► Func (immutable)      Runtime.Call(func, this, args) ──► value.Value
//	                                             │  toJS: BSON to JavaScript
//	                                             └─ fromJS: and back
//
// Invariants
//
//  1. A Func may be shared; a Runtime belongs to one goroutine, and is made anew for each operation.
//  2. A call is bounded in time (Limit), in memory and in depth of calls; it has no files, no network and no module to load. It runs on a
//     goroutine of its own: an operation does not wait for a native step that cannot be interrupted (supervised).
//  3. BSON types that JavaScript lacks (NumberLong, ObjectId, …) are objects that remember the value they stand for, and
//     are that value again on the way back. A number becomes a double on the way back, unless it is a field of a document
//     that had an int with that name.
//  4. Returned values own their memory.
//  5. A BigInt has at most maxBits bits. Functions that use BigInt run in a virtual machine of their own, with other operators (bigint.go).
package js
