// Package witness detects files of a store that were damaged, truncated or lost while the store was closed.
//
// The store's journals are append-only. Recovery after a crash takes a torn tail for the end, so a journal
// that lost more than that looks like an older state of the store, which would silently go back in time. The list
// of tables is such a journal too, and what has been flushed from the log into tables since is gone from the log.
//
// The witness is a file of its own, WITNESS, that records for each of these files how much of it was made durable,
// and the checksum of that part. Open compares; FS, through which the store works, maintains the records:
//
//	Write ─► checksum      Sync ─► record (name, length, checksum)      Remove, rename ─► record taken back, durably ─► done
//
// Invariants
//
//  1. What the witness says is true at any moment, whatever of its own writes a crash loses: a length is recorded once the
//     file's content and its name are durable, and withdrawn before the file goes. A lost record only means less protection.
//  2. Only the removal of a file waits for the witness's own sync. A killed process loses nothing of it.
package witness
