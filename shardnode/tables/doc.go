// Package tables keeps a shard's routing tables on disk: config.cache.databases, config.cache.collections and
// config.cache.chunks.<namespace>.
//
//	primary    Catalog ── Loaded ──► queue ──► Tables.bring ──► write ──► the log ──► all members
//	secondary  Catalog ── Follow ──► _flushRoutingTableCacheUpdatesWithWriteConcern to the primary ──► its time is visible ──► read
//	new or restarted primary: Catalog ── Base ──► read ──► later changes from the config server
//
// The primary writes changes of its cache asynchronously, and only the differences: a table that differs in two chunks from the stored
// one costs two documents, however many chunks it has. Routing by the cache never waits for the disk.
//
// Invariants
//
//  1. The chunks that are stored with an entry that is not refreshing are one whole table of the version in the entry. Few changes
//     are one unit of work with the entry; many are written between a unit that sets refreshing and one that clears it.
//  2. A stored table is never used alone. A primary asks the config server for changes before it uses a table that it has read from disk; a secondary
//     asks its primary, which asks the config server, and then reads what the primary has stored. A member that gets no reply asks the config server
//     itself, and then waits until it has the documents of the ranges that the placement gives its shard.
//  3. The documents of a table add up to the checksum in its entry. A table that has been modified by others is read again from the config server and replaced.
//  4. Entries of dropped collections and databases are removed when their critical section ends, when the shard's part in a resharding ends, when a refresh detects the drop, or when the next primary steps up.
package tables
