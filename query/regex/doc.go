// Package regex runs regular expressions in PCRE2's syntax, as the server's language has them.
//
//	pattern ──leadingSettings──parse──► tree ──compileTree──► program ──machine.find──► places
//	                                      └──linearOf──► Go's regexp, where it reads the pattern alike
//
// A pattern that is plain text, perhaps anchored, is searched for as such (literalOf). All others are run by the machine,
// which goes back where a way leads to nothing: what it may go back to, and what has to be put back on the way, is a stack of
// entries (machine.back). newSearch says where a match may begin; sets of bytes that may come next (compiler.first) keep ways
// off the stack that lead nowhere. Match leaves a search that takes many tries to Go's engine, where that reads the pattern
// alike, because its time grows with the text alone; Find and FindAll do not, as the two may differ about groups.
//
// Invariants
//
//  1. A Regexp is immutable and may be used by many goroutines; a machine belongs to one search.
//  2. Whatever runs, the answer is PCRE2's: testdata/pcre holds patterns and what PCRE2 10.42 answered.
//  3. Every search ends: an attempt takes no more than maxTries tries and holds no more than maxStack entries, and the work
//     is asked every fuelChunk instructions whether to stop.
package regex
