// Package storage is the execution layer on pebble: records and indexes kept by version, the catalog, units of work, the
// oplog, and the one ordered commit.
//
//	reader ──Engine.Snapshot──► Get · FindByID · Scan · IndexScan          (a timestamp and the catalog of that moment)
//	writer ──NewUnitOfWork──► Insert · Update · Delete · CreateCollection… (staged, claimed, checked)
//	            └─replication.Set.Commit─► Engine.Commit ─► lead ─► prepareGroup ─► publish ─► finishGroup
//
// A read takes Engine.Snapshot, which loads one pointer: the visible timestamp with its catalog. Scan makes a tableCursor,
// whose versions shows of each key the newest version not later than the snapshot. Pebble iterators come from iterPool.
//
// A write goes through UnitOfWork.Insert: the generators of package indexkey make the keys, claimTable gives the unit
// sole right to its record and unique keys, checkID and checkUnique look for duplicates, put stages versions under the
// timestamp `pending`. Engine.Commit queues the unit; the first in the queue leads: stageCatalog checks the unit against
// the newest catalog and applies its changes, stamp puts the timestamp over the pending ones, all units of the group
// become one pebble batch with their oplog blocks and counters, publish makes them visible and runs the hooks,
// finishGroup waits for the disk.
//
// # The keys, in order
//
// Every key starts with the number of its table (ident, four bytes), and ends as package cockroachkvs asks: a zero byte
// and, for versioned keys, eight bytes of timestamp and a nine. Newer versions sort first; `pending` sorts before all.
//
//	1  meta        c ident → records, data size            counters, exact as of the last commit
//	               d timestamp ident → nothing              a table to delete once history has passed the timestamp
//	               o → timestamp                            versions before it may be gone
//	               t → timestamp                            newest commit, where the oplog alone does not tell
//	2  catalog     catalog id, 8 bytes @version → entry     _mdb_catalog
//	3  superseded  timestamp → keys with length             what the unit at that time gave a newer version
//	4  oplog       timestamp of its last entry → block      local.oplog.rs, see opBlock
//	16… records    RecordId @version → document             8 bytes, or the _id's keystring where clustered
//	    _id index  keystring @version → RecordId, type bits
//	    indexes    keystring, RecordId @version → 1, type bits
//
// A version with an empty value is a deletion.
//
// # Invariants
//
//  1. Commits have ascending timestamps; a timestamp becomes visible when every commit up to it is applied.
//  2. Nothing in memory changes before the commit: catalog, counters and hooks change in publish.
//  3. A view is a timestamp and a catalog that belong together.
//  4. A record or unique key has at most one unit of work that writes it and has not ended.
//  5. A version may be dropped once a newer one is at or before oldest; oldest never passes a registered snapshot.
//  6. The oplog has no holes: entries are written with what they tell, in one batch.
//  7. No timestamp is given out twice, across crashes too.
//  8. After an error of the disk under the log nothing more is written; reads go on.
//
// Locks, in the order they may be taken: Counters.Trim, commit.mu, claim shards, snapshot shards, history, drops,
// iterator pool, Tail, watch. None is held while waiting for the disk except Counters.Trim.
package storage
