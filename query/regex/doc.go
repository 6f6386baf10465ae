// Package regex runs regular expressions in PCRE2's syntax, as the query language requires.
//
//	pattern ──leadingSettings──parse──► tree ──compileTree──► program ──machine.find──► places
//	                                      └──linearOf──► Go's regexp, if it interprets the pattern in the same way
//
// A pattern that is plain text, perhaps anchored, is searched for as such (literalOf). All others are run by the machine,
// which backtracks: the alternatives to return to, and what has to be restored on the way, are a stack of entries
// (machine.back). newSearch determines where a match may begin; sets of bytes that may come next (compiler.first) keep
// alternatives that cannot match off the stack. Match passes a search with many attempts to Go's engine, if that interprets
// the pattern in the same way, because its time is linear in the text; Find and FindAll do not, since the two may differ in
// groups.
//
// Invariants
//
//  1. A Regexp is immutable and may be used by many goroutines; a machine belongs to one search.
//  2. Whichever engine runs, the result is PCRE2's: testdata/pcre has patterns with the results of PCRE2 10.42.
//  3. Every search ends: an attempt takes no more than maxTries tries and maxStack entries, and checks every fuelChunk
//     instructions whether it has to stop.
package regex
