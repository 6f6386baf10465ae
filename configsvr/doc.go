// Package configsvr owns the sharding catalog: config.shards, databases, collections, chunks, tags, version, settings and
// changelog, the commands that change them, and the balancer. It stands on a data node that it reaches by commands, so it
// knows nothing of storage.
//
//	router, shard ──_configsvr… command──► Manager ──find, insert, update──► its own data node (config.*)
//	                                          └──_shardsvr… commands──► shards
//
// The life of a chunk migration's commit: runCommitMigration takes Manager.chunks, reads the collection's table anew,
// checks that the donor still owns the range, works out the versions (planMove) and writes the pieces in the order that
// keeps the table whole (writeChunks).
//
// Invariants
//
//  1. Versions only grow: each change of a collection's chunks starts from the collection version read under the lock.
//  2. The pieces of a split, merge or move are written in one unit of work (chunkWrites): a table read between them could
//     have the very versions of the finished one with other owners, and pass every check.
//  3. A collection is sharded from the moment its entry is in config.collections; its chunks are there before that.
//  4. A drop first removes the entry, then the chunks, then the data; what is left of an interrupted drop belongs to no
//     entry, and the next create or drop of the name clears it away.
package configsvr
