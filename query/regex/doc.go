// Package regex runs regular expressions in PCRE's syntax, as the server's language has them.
//
//	pattern, options ──Compile──► literal search     where the pattern is plain text, perhaps anchored
//	                        ├───► Go's regexp        where the pattern is in the subset both read alike (linear time)
//	                        ├───► regexp2            most of the rest: look-around, back-references, atomic groups; with a time limit
//	                        └───► tree               what that lacks: calls of groups, branch reset, verbs, \K; with a limit of steps
//
// Compile chooses the engine (literalOf, toGo, toBacktracking, parseTree); Match asks it. CompileFind is for callers that need the
// positions of groups.
//
// Invariants
//
//  1. A Regexp is immutable and may be used by many goroutines.
//  2. Whatever engine runs, the answer is PCRE's: \d, \w, \s and \b are ASCII unless the pattern starts with (*UCP), and
//     $ also matches before a final newline.
package regex
