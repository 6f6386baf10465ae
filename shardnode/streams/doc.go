// Package streams reads a node's oplog for its change streams: there is one reader, whose events all streams share.
//
//	commit ──► Feed.follow (one goroutine while a stream is open) ──► window: the newest events, bounded
//	                                                                      │
//	getMore ──► Stream.Next ── position within the window ────────────────┤
//	                        └─ position behind it ──► Feed.scan, a part of the oplog of its own
//	            Stream.Wait sleeps until an entry of its namespace comes, and it is the stream's turn (cluster/turns)
//
// The life of an event: follow decodes an entry once a majority has it (changestream.ParseEntry), puts an item into the
// window, and wakes only the streams of its namespaces. Next filters the items' events, looks for the token after which the
// stream resumes, and adds the invalidate after the event that caused it. A transaction of several entries is one item with
// only its last entry: each stream walks its chain by itself, so that the window remains small.
//
// If follow stalls at an entry (Feed.check), or fails, the streams end with an error and a new reader begins after it; an entry that
// cannot be decoded is an item with an error.
//
// Pre-images and post-images are not part of this package: the reader of a stream looks them up (eventStream.images).
//
// Invariants
//
//  1. A window is immutable once it is published: streams read it without a lock.
//  2. The window has every event with a time in (from, upTo].
//  3. Streams see nothing that a majority of the set does not have.
//  4. The memory of a stream does not grow while it is not read: it has a position, and at most a part of the oplog.
package streams
