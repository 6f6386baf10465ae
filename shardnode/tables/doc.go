// Package tables keeps a shard's routing tables on disk: config.cache.databases, config.cache.collections and
// config.cache.chunks.<namespace>.
//
//	primary    Catalog ── Loaded ──► queue ──► Tables.bring ──► write ──► the log ──► all members
//	secondary  Catalog ── Follow ──► _flushRoutingTableCacheUpdatesWithWriteConcern to the primary ──► its time is visible ──► read
//	new primary, or one that has started again: Catalog ── Base ──► read ──► the config server is asked what has changed since
//
// The primary writes behind its cache, as much as has changed: a table that differs in two chunks from the stored one costs
// two documents, however many chunks it has. Routing by the cache never waits for the disk.
//
// Invariants
//
//  1. The chunks that are stored with an entry that is not refreshing are one whole table of the version in the entry. Few changes
//     are one unit of work with the entry; many are written between a unit that sets refreshing and one that clears it.
//  2. What is stored decides nothing alone. A primary asks the config server before it answers by a table that it has read from
//     disk; a secondary asks its primary, which asks the config server, and reads what the primary has then. A member that gets no
//     answer asks the config server itself.
//  3. The documents of a table add up to the checksum in its entry. A table that somebody else has written to is read anew from the config
//     server and replaced.
//  4. Entries of collections and databases that are gone are removed when their critical section ends, when a refresh notices, or when
//     the next primary steps up.
package tables
