// Package match compiles find filters to an immutable tree and runs it over raw documents.
//
//	filter ──Compile──► parse ──► Node tree ──optimise──► Node tree ──link──► Matcher
//	                                              │                             │
//	                        planner, Serialize ◄──┘        document ──Match──► true, false or an error
//
// Invariants
//
//  1. A Node never changes once Compile has returned it; trees may be read from any goroutine.
//  2. A Matcher without $expr (Matcher.Stateless) may be used from many goroutines at once. One with $expr owns an
//     evaluation frame and belongs to one goroutine at a time.
//  3. Match allocates nothing for filters made of comparisons, and never decodes a document.
//  4. Operands borrow from the filter's bytes: the filter must outlive the Matcher unchanged. Compile copies it once, so
//     callers need not care.
package match
