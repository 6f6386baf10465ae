// Package indexkey defines indexes: which specifications are valid, and which keys a document has in an index.
//
// createIndexes passes each specification to ValidateSpec and compares the result with the existing indexes using
// Conflict. The engine compiles a Spec with NewGenerator once; each insert, update and delete asks Generator.Keys
// for the document's keys and takes them from the KeySet.
//
// Invariants
//
//  1. Keys of a KeySet are sorted bytewise and distinct. They carry no RecordId.
//  2. A document's keys depend on the specification and the document alone, so that a delete finds what the insert wrote.
//  3. A missing field is indexed as null; an empty array as undefined.
//  4. At most one array is expanded per key: parallel arrays are refused.
package indexkey
