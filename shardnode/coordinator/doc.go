// Package coordinator executes DDL over all shards and the config server, on the primary shard of the database, so that it is
// done completely or not at all even if nodes crash meanwhile.
//
//	router ── _shardsvrDropCollection ──► Coordinators.run
//	                                        │ DDL locks, versions          locks.go
//	                                        │ operation.check              nothing is written yet
//	      one shard alone: Coordinators.local, the client's own command
//	                                        │
//	      run.execute: for each phase       │ checkpoint    config.system.sharding_ddl_coordinators
//	                                        │ phase.do ──► participants, config server
//	      run.finish: the document is removed, the locks are released, waiting clients get the reply
//
// The path of a DDL: the handler takes the DDL locks of its names and compares the database's version under them. The operation
// checks the current state (check). If one unit of work on this shard is all that has to be done, it runs the client's own
// command with the corresponding versions (local); otherwise it becomes a run. A run writes its state document before each of
// its phases, and a new primary continues with the phase that it finds (Coordinators.stepUp).
//
// An operation is a value of one type with a table of phases (drop.go is the shortest). To add one: its message in
// cluster/msg, the type, and a line in kinds.
//
// Invariants
//
//  1. Nothing is changed anywhere before the state document durably has the phase that changes it. Critical sections are an exception: this shard's may be entered
//     in the unit of work that stores the phase, and those of other shards meanwhile (run.enterBlocked). A section changes nothing, and one without a run is ended by
//     the operations that wait for it (ShardState.endLeftOver).
//  2. Phases may be repeated, in part or as a whole, by this primary or the next one.
//  3. Before its first final phase, an operation that meets a permanent error is undone, which is stored in the document
//     before it begins. From there on, every step is repeated until it succeeds.
//  4. The locks of stored runs are taken at step-up, before clients write: no new operation can come in between.
//  5. A participant executes a request with the id of a run only while that run holds the name's critical section there, and has
//     been found to go on after the section was entered (ShardState.HoldsSection). A message that arrives after the end of its run does
//     nothing, or its section is found to belong to no run (Coordinators.runHolds). A client's command that a run sends on is executed only while the run goes on (ShardState.RunGoesOn).
//  6. The sections of a drop or rename end after all shards and the catalog have changed (run.release): those of the other shards first, and this shard's, to which nodes send what has no entry, with the run.
//     Neither end need be durable at once.
package coordinator
