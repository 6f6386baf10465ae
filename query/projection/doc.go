// Package projection compiles find projections and the field-shaping stages ($project, $addFields, $set, $unset) to one
// tree of field actions and applies it to raw documents.
//
//	spec ──Compile / CompileStage──► tree of nodes ──Apply──► new raw document
//
// A spec's life: parser.element distinguishes inclusion, exclusion, find-only operators and expressions and adds each to
// the tree (tree.add, which finds path collisions); finish determines whether the projection includes or excludes, and
// adds _id. Apply walks the document once (applier.document), copying what no node applies to, then adds new computed
// fields, in the order of the spec.
//
// Invariants
//
//  1. Simple inclusion and exclusion copy elements raw, without decoding them, and such a Projection may be used by many
//     goroutines at once (Stateless). One with expressions or a positional operator owns frames and belongs to one
//     goroutine at a time.
//  2. Included fields keep the order of the document; computed fields that are new to it follow in the order of the spec.
//  3. Expressions see the document before the projection, never its partial result.
package projection
