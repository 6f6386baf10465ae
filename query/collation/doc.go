// Package collation parses collation documents and orders strings by them.
//
//	document ──Parse──► Spec ──Spec.Collator──► value.Collator (nil for the simple collation)
//	                      └──Spec.Document──► the full form listCollections prints
//
// Weights come from golang.org/x/text/collate (the CLDR's tables and the locales' changes to them). This package adds what
// it lacks: the case level, upper or lower case first, maxVariable "space" and the identical level; keys are assembled
// level by level (ordering.appendKey). Strings of ASCII are compared by a table of weights, without keys.
//
// Invariants
//
//  1. A Collator is immutable and may be used by many goroutines; x/text's collators, which may not, come from a pool.
//  2. Compare(a, b) and the bytewise order of Key(a) and Key(b) always agree.
package collation
