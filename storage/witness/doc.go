// Package witness notices files of a store that were damaged, cut short or lost while the store was closed.
//
// The store's journals are written at their end. Whoever reads one after a crash takes a torn end for the end, so a journal
// that lost more than that looks like an older state of the store, which would then go back in time without a word. The
// list of tables is such a journal, too: what was moved from the log into tables since is gone from the log.
//
// The witness is a file of its own, WITNESS, that says of each of these files how much of it was made durable, and the
// checksum of that. Open compares; FS, through which the store works, keeps the record:
//
//	Write ─► checksum      Sync ─► record (name, length, checksum)      Remove, rename ─► record taken back, durably ─► done
//
// Invariants
//
//  1. What the witness says is true at any moment, whatever of its own writes a crash loses: a length is recorded once the
//     file's content and its name are durable, and taken back before the file goes. A lost record only means to know less.
//  2. Nobody waits for the witness's own sync but who removes a file. A killed process loses nothing of it.
package witness
