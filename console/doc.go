// Package console is the structured log, in the form of the real server's, and its ring buffers.
//
// The path of one line, by function name:
//
//	Info/Warning/Error/Debug → nil if the component's verbosity is below the level, and then every method does nothing
//	→ Entry.Str, Entry.Int, Entry.Doc … append attributes to a pooled buffer
//	→ Entry.Write → Log.emit → the sink (stdout, a file, syslog) and the ring buffers that getLog reads
//
// Invariants:
//
//  1. An entry below its level costs one atomic load and allocates nothing.
//  2. A line is written whole, by one write call, and lines never interleave.
//  3. A line is in the ring buffer before the call that wrote it returns.
//  4. The fields come in the order t, s, c, id, svc, ctx, msg, attr, tags (manual: "Log Messages").
package console
