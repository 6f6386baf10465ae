// Package update compiles update documents, replacement documents and update pipelines once, applies them to raw
// documents, and expresses the changes as an oplog delta.
//
//	Compile ──► Update ──Apply──► new document ──OplogEntry──► {$v: 2, diff: {…}} ──ApplyDiff──► the same new document
//	               │
//	               └─NewUpsertDocument (filter equalities, then Apply as an insert)
//
// An operator update becomes a tree of path components (node); apply walks the tree and the document together and
// writes the new document in one pass (run.object, run.array), so fields that no operator names are copied
// unchanged. Leaves are operators (leaf): they receive the old value, which may be Missing, and return the new one.
// The walk also records what each operator changed (record), of which OplogEntry makes the delta. The delta of a pipeline, which
// only makes a new document, is the difference of the two documents (Diff).
//
// Invariants
//
//  1. Two operators never share a path or a prefix of one: Compile refuses that with ConflictingUpdateOperators, and so
//     does Apply if array filters make two paths meet in one element.
//  2. New fields are added after the old ones, in the order of the tree: numbers by value, other names by bytes.
//  3. _id never changes: Apply returns ImmutableField instead.
//  4. Compile and Apply read no clock: the time is in Context.
//  5. A delta makes the new document of the old one and of the new one, byte for byte; so entries may be applied again.
package update
