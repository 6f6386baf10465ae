// Package replication is a replica set as writers see it: Set.Commit assigns a unit of work its place in the order
// of all writes and waits for the write concern. There are two kinds of sets. Single has one member and no log
// other than the store's own. Raft has several, which agree on the order by raft (go.etcd.io/raft/v3). A Member is
// the node's membership in either, and can be switched from one to the other.
//
//	Single:  UnitOfWork ──Set.Commit──► storage.Engine.Commit (group, timestamp, oplog, sync) ──► visible ──► write concern met
//
//	Raft, on the primary                                            on the others
//	  Engine.Commit ─► group ─► enqueue ─┐                            Handle ─► meet ─┐
//	                                     ▼                                            ▼
//	        loop (turn: step, propose, handle) ── peers (runPeer) ═══════════════► loop
//	          │ append            │ apply                                │ append       │ apply
//	          ▼                   ▼                                      ▼              ▼
//	        appender            applier ─► ApplyGroup ─► visible       appender       applier ─► ApplyEntry ─► visible
//	        (one sync for       └► afterApply ─► Await                 (sync, then    └► report to the primary
//	         what queued up)                                            the answer)
//
// The goroutines of a Raft: only the loop touches raft's state, and it never waits for a disk, the network or
// another of these goroutines; the appender writes log and hard state; the applier applies what is committed, in
// order; a sender for each other member has one call under way and batches what queues up; observers run OnRole
// and OnConfig; housekeeping does periodic work. Each snapshot that is being sent has a goroutine of its own
// (snapshots.go, install.go).
//
// An entry is the group of units that the engine made (storage/entry.go), or a change of raft's configuration that has
// the set's configuration document as its context (membership.go). A member's raft id is its _id plus one.
//
// Invariants
//
//  1. A unit's timestamp is later than that of every unit visible before it.
//  2. What Commit acknowledged survives the loss of any minority of the voting members, and a crash of all. On Raft
//     nothing is visible anywhere before a majority has it in its log, durably; nothing applied is ever taken back.
//  3. The engine takes writes only between the first own entry of a term (ascend) and the end of the leadership
//     (deposed, resign), and in this order: engine, entry "new primary", services (OnRole), clients (IsPrimary).
//  4. The log is never cut beyond what the engine has applied, nor while a member that receives a snapshot needs it. The store
//     writes log and data in one journal, in order, so a crash leaves them consistent; openLog and check refuse what is
//     not, and say how to resync.
//     A delayed member's engine is behind what raft has handed out: delay.go.
//  5. A member that lost its store neither votes nor acknowledges anything before it has a snapshot at least as new as
//     what it had acknowledged.
//  6. A new voter is a learner until it has caught up: a set that grows never waits for it.
//  7. What a member acknowledges after it has forced a reconfiguration survives the members that have not heard of it, whatever
//     they have committed: forced.go.
//
// chaos_test.go checks the first five over simulated histories, forced_test.go the last; SHOAL_SIM_SEEDS asks for more of
// them, SHOAL_SIM_SEED for one, SHOAL_SIM_LOG shows what happens.
package replication
