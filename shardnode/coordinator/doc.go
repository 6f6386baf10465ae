// Package coordinator carries out DDL on the primary shard of the database that it is about, over all shards and the config
// server, so that it is done wholly or not at all whoever dies meanwhile.
//
//	router ── _shardsvrDropCollection ──► Coordinators.run
//	                                        │ DDL locks, versions          locks.go
//	                                        │ operation.check              nothing is written yet
//	      one shard alone: Coordinators.local, the client's own command
//	                                        │
//	      run.execute: for each phase       │ checkpoint    config.system.sharding_ddl_coordinators
//	                                        │ phase.do ──► participants, config server
//	      run.finish: the document is removed, the locks are let go, whoever waits is answered
//
// The path of a DDL: the handler takes the DDL locks of its names and compares the database's version under them. The
// operation looks at what is there (check) and either finds that one unit of work on this shard is all there is to do, which is
// then the client's own command with the versions that make it so (local), or becomes a run. A run writes its state document
// before each of its phases, and a member that becomes primary goes on with the phase that it finds (Coordinators.stepUp).
//
// An operation is a value of one type with a table of phases (drop.go is the shortest). To add one: its message in
// cluster/msg, the type, and a line in kinds.
//
// Invariants
//
//  1. Nothing is changed anywhere before the state document tells of the phase that changes it, durably.
//  2. Phases may be repeated, in part or as a whole, by this primary or the next one.
//  3. Before its first final phase an operation that meets an error which will not go away is undone, which the document says
//     before it begins. From there on it is tried until it is through.
//  4. The locks of stored runs are taken at step-up, before clients write: no new operation comes between.
//  5. What a participant is asked for with the id of a run it does only while that run holds the name's critical section
//     there. A message that was overtaken by the end of its run does nothing, or is found to be nobody's (Coordinators.holds).
package coordinator
