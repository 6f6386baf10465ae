// Package streams follows a node's oplog for its change streams: one reader, whose events all streams share.
//
//	commit ──► Feed.follow (one goroutine while a stream is open) ──► window: the newest events, bounded
//	                                                                      │
//	getMore ──► Stream.Next ── position within the window ────────────────┤
//	                        └─ position behind it ──► Feed.scan, a part of the oplog of its own
//	            Stream.Wait sleeps until an entry of its namespace comes
//
// The life of an event: follow decodes an entry once a majority has it (changestream.ParseEntry), puts an item into the
// window, and wakes the streams of its namespaces alone. Next filters the items' events, looks for the token that the stream
// resumes after, and puts the invalidate behind the event that caused it. A transaction of several entries is one item
// that only names its last entry: each stream walks its chain by itself, so that the window stays small.
//
// The states of a document before and after its change are no part of this package: whoever reads a stream looks them up among
// the stored pre-images (eventStream.images).
//
// Invariants
//
//  1. A window is never changed once it is published: streams read it without a lock.
//  2. The window has every event with a time in (from, upTo].
//  3. Streams see nothing that a majority of the set does not have.
//  4. What a stream holds does not grow while nobody reads it: a position, and at most a part of the oplog.
package streams
