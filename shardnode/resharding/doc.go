// Package resharding is a shard's part in giving a collection another shard key or other shards: reshardCollection, moveCollection
// and unshardCollection, which the config server's primary coordinates.
//
//	config server ── _shardsvrReshardingDonorStart ────────► Manager.runDonate        donor: keeps its oplog from now on
//	              ── _shardsvrReshardingRecipientStart ────► Manager.runReceive       recipient.run
//	                   donor ◄── runFetchDocuments ── recipient.cloneFrom   a snapshot of all donors at one time, into the temporary collection
//	                   donor ◄── runFetchChanges ──── recipient.gatherFrom  meanwhile, the _ids of what is written since, read from the donors' oplogs, into a buffer
//	                   donor ◄── runFetchChanges ──── recipient.follow      the documents of these _ids (follower.drain), then what was written after that
//	              ── _shardsvrParticipantBlock ────────────► a critical section on the donors
//	              ── _shardsvrReshardingRecipientFinish ───► Manager.runFinish        the rest
//	              ── _shardsvrRenameCollectionParticipant ─► the temporary collection takes the place of the old one, on each shard
//	              ── _shardsvrReshardingEnd ───────────────► Manager.runEnd
//
// The path of a change: a donor finds the _ids that were written to in its oplog and sends the documents as they are now, to each
// recipient those that it will own, and of the others the _id alone. A recipient applies each donor's changes in the order in which
// they arrive, and stores the position that it has reached with them.
//
// A clone may take longer than donors keep their oplogs, in which a donor that is a recipient, too, also stores what it clones. While it clones, a recipient therefore stores the _ids of
// what is written (config.localReshardingOplogBuffer…), each once, and afterwards fetches those documents as they are then (follower.drain). A capped collection is cloned without that.
//
// Two donors may have documents of the same _id for a moment: one that moved from one to the other by an update of its old shard key.
// What a recipient has belongs to the donor that owns it by the old key. A document of another donor waits in that donor's stash
// (config.localReshardingConflictStash…) until the first is deleted; if one is left at the end the operation fails.
//
// What a donor sends is its current state, in the order of the first changes: a document may have the key that another one of the same donor had in a unique index,
// and whose change has not arrived yet. That one is removed meanwhile (applier.give).
//
// Invariants
//
//  1. Nothing is fetched before the state document is durable. Changes and the position that they reach are written together, so
//     that a new primary continues where its predecessor stopped.
//  2. A donor never answers from an oplog that has been truncated past the time that the request names.
//  3. The last changes are fetched from a donor that holds the critical section of the operation: writes are blocked by then.
//  4. A participant starts only operations that the config server still runs, and ends those it is told to end: a late message
//     begins nothing. It asks once more when its part has begun (Manager.confirm), and now and then after that (Manager.sweep).
//  5. A donor sends only what no crash can undo (MajoritySnapshot): its next primary has the same past as its recipients.
package resharding
