// Package profile tells of operations that were slow: in the log, and in system.profile of their database.
//
//	command ends ──► NoteCommand ─┐
//	statement ends ──► Notes? ────┴─► Note ──┬── slowAttrs ──► SlowLog
//	                                         └── profileDoc ──► writeProfile
//	profile (command) ──► level, filter, slowms, sampleRate
//
// The path of an execution: Note looks at the setting of its database. Where it was slow, or the profiler takes
// all, its line is logged and its document written; a filter decides in place of slowms and sampleRate. Update and
// delete are told of statement by statement.
//
// Invariants
//
//  1. An operation that nobody wants to know of costs a few atomic loads.
//  2. What is told of a cursor's plan is taken down before another operation may go on with it (Freeze).
package profile
