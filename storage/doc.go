// Package storage is the execution layer on pebble: records and indexes kept by version, the catalog, units of work, the
// oplog, and the one ordered commit.
//
//	reader ──Engine.Snapshot──► Get · FindByID · Scan · IndexScan          (a timestamp and the catalog of that moment)
//	writer ──NewUnitOfWork──► Insert · Update · Delete · CreateCollection… (staged, claimed, checked)
//	            └─replication.Set.Commit─► Engine.Commit ─► lead ─► prepareGroup ─► publish ─► finishGroup
//
// A read calls Engine.Snapshot, which loads one pointer: the visible timestamp with its catalog. Scan returns a
// cursor on a tableCursor, whose versions yields, for each key, the newest version not later than the snapshot. Pebble
// iterators come from iterPool.
//
// A write goes through UnitOfWork.Insert: the generators of package indexkey generate the keys, claimTable
// reserves its record and unique keys for the unit, checkID and checkUnique look for duplicates, put stages
// versions under the timestamp `pending`. Engine.Commit queues the unit; the first in the queue leads:
// stageCatalog checks the unit against the newest catalog and applies its changes, stamp replaces the pending
// timestamps, all units of the group become one pebble batch with their oplog blocks and counters, publish makes
// them visible and runs the hooks, finishGroup waits for the disk.
//
// # Members of a replica set
//
//	primary   lead ─► leadReplicated ─► prepareGroup ─► seal ─► propose ┄ the log commits ┄► ApplyGroup ─► applyHead ─► publish
//	others                                                              ┄ the log commits ┄► ApplyEntry ─► readEffects ─► showEntry
//
// After BecomePrimary a group is an entry of the replicated log: its batch, as it will be applied everywhere.
// Several groups can be in flight; the next is prepared on the tip, the state that those in flight will produce,
// and its claims are held until it is applied. While little is in flight, units gather for a moment (gathers).
// Resign abandons what is in flight: the log may still commit it, and then it is applied like an entry of another
// member. Followers learn from the batch's own keys what changes in memory: catalog entries, counters, drops. The
// applied index is written in the entry's batch, so that data and index cannot diverge. WriteSnapshot and
// InstallSnapshot move everything replicated to a member that the log can no longer bring up to date.
//
// A unit of many megabytes sends its versions ahead, in chunks that go through the log like other units
// (stageUnit). They stay invisible until the unit's own entry says from when they are visible (lateUnit): views
// carry the timestamps hidden from them. The versions of a unit that failed are deleted using the lists of its
// keys. A transaction sends chunks while it is under way, and reads them through its own view.
//
// A copy of many megabytes in a set of one member is written as tables, which pebble ingests (tablecopy.go). It is a late unit, too.
//
// A transaction over several shards is visible on each of them from the time that they agreed upon, before its commit here
// (VisibleFrom). Snapshots of a cluster time (SnapshotAtClusterTime) carry the later timestamps that they show (agreedCommits).
//
// A change of a collection with changeStreamPreAndPostImages stores the document's previous state in the same unit
// (keepImage). The image's key has the timestamp of the oplog entry, which stamp fills in; a unit sent ahead
// reserves one instead.
//
// Collections of the local database form a line of commits of their own (see line): commitLocal writes them on any
// member.
//
// # Room on the disk
//
// Options.MinFreeDisk is reserved for pebble's own work: while less is free, units are refused (checkSpace),
// except those that make room. The collector then keeps no more history than open snapshots need, truncates the
// oplog to lowOplog, and reclaims what was dropped (giveBack), what was deleted (compactDead), and obsolete
// journals that pebble keeps (journalFS.trim). Large dropped collections are reclaimed at any time (discardEarly);
// goneTables remembers them until history has passed their drops.
//
// # Damaged files
//
// Open refuses a store whose files have changed or are damaged (openFiles, checkTables): package witness records
// how much of each journal was durable. Damage that is found later, or a failing disk, makes the engine fail: it
// writes nothing more, and calls Options.OnFailure.
//
// # The keys, in order
//
// Every key starts with the number of its table (ident, four bytes), and ends as package cockroachkvs requires: a
// zero byte and, for versioned keys, eight bytes of timestamp and a nine. Newer versions sort first; `pending`
// sorts before all.
//
//	1  meta        a → index, term, timestamp               newest entry of the replicated log that is applied
//	               c ident → records, data size            counters, exact as of the last commit
//	               d timestamp ident → nothing              a table to delete once history has passed the timestamp
//	               i timestamp → timestamp                  versions of a copy by tables: the time of its oplog blocks, see tablecopy.go
//	               l → timestamp                            entries of the oplog up to it have been truncated
//	               m timestamp → timestamp                  the time from which a commit is visible, if several shards agreed on one
//	               n → ident, catalog id                    the next to be allocated
//	               o → timestamp                            versions before it may be gone
//	               p timestamp → timestamp                  a prepared transaction: of its vote, of its first oplog entry
//	               r ident timestamp → timestamp            a period in which blocks of the oplog refer to documents of the table, see oplogrefs.go
//	               s → timestamp                            blocks that refer to documents may have lost them up to it on this member, see oplogrefs.go
//	               t → timestamp                            newest commit, if the oplog alone does not show it
//	2  catalog     catalog id, 8 bytes @version → entry     _mdb_catalog
//	3  superseded  timestamp → keys with length             keys of which the unit at that time wrote a newer version
//	4  oplog       timestamp of its last entry → block      local.oplog.rs, packed where it is large, see opBlock and oplogrefs.go
//	5  staged      term, number, kind, n → bytes             units too large for one entry of the log, see staged.go
//	16… records    RecordId @version → document             8 bytes, or the _id's keystring where clustered
//	    _id index  keystring @version → RecordId, type bits
//	    indexes    keystring, RecordId @version → 1, type bits
//	80000001 raft log      index → entry                    of this node alone from here on; written by package replication
//	80000002 raft meta
//	80000003 meta, 80000004 catalog, 80000005 superseded    of the local database's collections
//	80000010… records and indexes of those
//
// A snapshot for another member is the span from 1 to 80000000.
//
// A version with an empty value is a deletion.
//
// # Invariants
//
//  1. Commits have ascending timestamps; a timestamp becomes visible when every commit up to it is applied.
//  2. Nothing in memory changes before the commit: catalog, counters and hooks change in publish.
//  3. A view is a timestamp and a catalog that belong together.
//  4. At most one unit of work that has not ended writes a record or unique key, except for units that follow each
//     other (CommitChain), which hold it stacked, in the order of the log.
//  5. A version may be dropped once a newer one is at or before oldest; oldest never passes a registered snapshot. Tables that
//     are discarded earlier are recorded first; reading them at a time before their drop is refused.
//  6. The oplog has no holes: entries are written in one batch with the changes that they describe.
//  7. No timestamp is allocated twice, not even across crashes.
//  8. After an error of the disk under the log nothing more is written; reads continue.
//  9. Replicated tables change only by groups and snapshots, except that each member's collector deletes what no reader can
//     read, having put into the oplog what that refers to (blockKeeper); no ident is allocated twice, because a member may delete a dropped table late.
//  10. An entry holds values, not changes: applied twice it does no harm. What is applied is never rolled back; what a unit
//     sent ahead and did not commit is deleted by further entries.
//  11. A unit of work ends in the role it began in (replicaState.gen): RecordIds and duplicates it looked up may be stale.
//  12. While an index has not all its keys, no member's oldest moves: the build inserts them with the version of its start.
//  13. An iterator of one era (iterPool) never serves a view of another.
//
// Locks, in the order they may be taken: Counters.Trim, collecting, replica.mu, commit.mu, claim shards, snapshot shards,
// history, drops, goneTables, deadBytes, journals, iterator pool, Tail, watch. Counters.Trim is held while waiting for the disk, collecting and replica.mu
// while a snapshot is installed. Hooks of units run under replica.mu.
package storage
