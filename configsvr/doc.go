// Package configsvr owns the sharding catalog: config.shards, databases, collections, chunks, tags, version, settings and
// changelog, the commands that change them, and the balancer. It accesses its own data node by commands, so it does not depend on
// storage.
//
//	router, shard ──_configsvr… command──► Manager ──find, insert, update──► its own data node (config.*)
//	                                          └──_shardsvr… commands──► shards
//
// The life of a chunk migration's commit: Manager.commitMigration locks the collection's table (lockTable), reads it again, checks
// that the donor still owns the range, and Manager.writeMove computes the versions and writes the pieces together
// (chunkWrites.commit).
//
// Invariants
//
//  1. Versions only grow: each change of a collection's chunks starts from the collection version read under the lock.
//  2. The pieces of a split, merge or move are written in one unit of work (chunkWrites): a table read between them could
//     have the versions of the finished one with other owners, and pass every check.
//  3. A collection is sharded from the moment its entry is in config.collections; its chunks are there before that.
//  4. DDL is coordinated by the primary shard of its database. The changes of the catalog that it requests (ddlcommits.go) identify collections by
//     UUID and databases by version, so repeated or late requests do no harm.
//  5. Critical sections of drops in its own databases are held by the config server that began them (sections); it takes over a
//     section that it finds on a name that it has locked. A shard ends a section without a holder (endLeftOver).
//  6. Data is placed on a shard only while it is in config.shards, and databases' names differ in more than case: what such a decision depends on is read again, and its
//     outcome written, under the locks of decisions, which are not held while a server is asked that may be frozen.
package configsvr
