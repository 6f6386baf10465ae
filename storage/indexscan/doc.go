// Package indexscan translates the bounds of a plan to the bytes of an index: where a scan starts, which keys are
// inside, and where to continue after those that are not.
//
//	plan.Node ──Compile──► Bounds      Bounds.Start ──► cursor.Seek
//	                                   key ──Check──► Inside | Skip (cursor.Seek(Bounds.Next())) | Done
//	key, type bits ──KeyDoc.Doc──► document of the key's fields: covered results and filters on keys
//
// Seeks are those of the engine's index cursor: forward to the first key at or above, backward to the last key below.
//
// Invariants
//
//  1. Check allocates nothing and decodes nothing: it compares the bytes of single fields with encoded ends.
//  2. Each interval is a half-open range of bytes, in the direction of the field.
//  3. Skip always makes progress: the key sought lies strictly after the one checked, in the direction of the scan.
package indexscan
