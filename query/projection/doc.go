// Package projection compiles find projections and the field-shaping stages ($project, $addFields, $set, $unset) to one
// tree of field actions and applies it to raw documents.
//
//	spec ──Compile / CompileStage──► tree of actions ──Apply──► new raw document
//
// Invariants
//
//  1. A projection is immutable after compiling; Apply keeps its state in the Projection's own frame only where the
//     spec holds expressions, so such a projection belongs to one goroutine at a time.
//  2. Simple inclusion and exclusion copy elements raw, without decoding them.
package projection
