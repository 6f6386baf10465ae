// Package profile reports slow operations: in the log, and in system.profile of their database.
//
//	command ends ──► NoteCommand ─┐
//	statement ends ──► Notes? ────┴─► Note ──┬── slowAttrs ──► SlowLog
//	                                         └── profileDoc ──► writeProfile
//	profile (command) ──► level, filter, slowms, sampleRate
//
// The path of an execution: Note reads the setting of its database. If the execution was slow, or the profiler
// takes all, its line is logged and its document written; a filter decides in place of slowms and sampleRate.
// Updates and deletes are reported statement by statement.
//
// Invariants
//
//  1. An operation that is not reported costs a few atomic loads.
//  2. The statistics of a cursor's plan are copied before another operation may continue the cursor (Freeze).
package profile
