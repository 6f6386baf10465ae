// Package replset is a node's membership of a replica set: the member's current role, its configuration, and the commands
// with which clients and other members query or change them.
//
//	Initiate, Reconfigure ──► becomeSingle            a set of one: replication.Single, no log but the store's
//	                      └─► beginRaft ─► startRaft  a set of several: replication.Raft ─┐
//	   elected, resigned, setWritable ◄── roleChanged ◄───────────────────────────────────┤
//	                  takeConfig, store ◄── configChanged ◄───────────────────────────────┘
//
// The path of an election: raft calls roleChanged. elected publishes the role, creates the system collections and steps the
// primary-only services up; when the set has committed the new primary's first entry, roleChanged is called again and
// setWritable lets clients write, which raises hello's topology version. On a deposed member, resigned publishes the role,
// interrupts operations that would write (killedOnStepDown), and waits for the services to end.
//
// The path of a command: CheckRole refuses what the member must not serve in its role. hello is Describe and Tail;
// replSetGetStatus prints Status; replSetReconfig checks the new configuration, checks that the new members are ready with
// replSetHeartbeat (askMembers) and passes it to raft in its turn (reconfigureInTurn). Members send raft's messages to each
// other in _replSetRaft (runRaft); a node without a configuration joins when it receives the first of them (joinRaft).
//
// Invariants
//
//  1. The state of a membership is replaced as a whole, so a reader sees a role, term and configuration that belong together.
//  2. Clients may write only in a state that setWritable derived from one that roleChanged or becomeSingle published: if
//     the role changes in between, setWritable does nothing.
//  3. A role other than primary is published before the operations that need a primary are interrupted: none can begin
//     after the interruption.
//  4. Once a store belongs to a set of several, the node opens raft at every start, whatever the configuration.
//  5. change is held across every change of configuration and of the kind of set, and by Leave: nothing joins after it.
package replset
