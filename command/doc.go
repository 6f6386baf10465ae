// Package command is the service entry point of every role: the table type of commands and the one pipeline that each
// request passes, whether it came from a socket or from a router in the same process.
//
//	wire.Message ──► Service.Run ── look up Spec ── Request.parse (generic arguments, field table) ── authorise
//	                     │           ── advance the clock ── Op (deadline, kill) ── fail points ── Handler
//	                     └── reply: handler's elements, ok, $clusterTime, operationTime, labels
//
// Invariants
//
//  1. One row (Spec) per command has everything generic about it.
//  2. A Handler appends the elements of its reply to dst and returns an error instead of writing one; the pipeline
//     closes the document, or cuts the handler's elements off and writes the error in their place.
//  3. The request's bytes are borrowed until the Handler returns. Whatever outlives the call (cursors, sessions) is copied.
//  4. No field is accepted and ignored: unless its row is Lenient, a command refuses a field that the table does not name with 40415.
package command
