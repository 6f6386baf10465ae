// Package replset is a node's membership of a replica set: what the member is at the moment, which configuration it goes
// by, and the commands by which clients and other members ask for that or change it.
//
//	Initiate, Reconfigure ──► becomeSingle            a set of one: replication.Single, no log but the store's
//	                      └─► beginRaft ─► startRaft  a set of several: replication.Raft ─┐
//	   elected, resigned, setWritable ◄── roleChanged ◄───────────────────────────────────┤
//	                  takeConfig, store ◄── configChanged ◄───────────────────────────────┘
//
// The path of an election: raft calls roleChanged. elected publishes the role, makes the system collections and steps the
// primary-only services up; when the set has taken the new primary's first entry, roleChanged comes again and setWritable
// lets clients write, which raises hello's topology version. A member that is deposed goes through resigned: it publishes
// the role, interrupts what would write (killedOnStepDown), and waits for the services to end.
//
// The path of a command: CheckRole refuses what the member must not serve in its role. hello is Describe and Tail;
// replSetGetStatus prints Status; replSetReconfig checks the new configuration, asks the new members by replSetHeartbeat
// (askMembers) and hands it to raft in its turn (reconfigureInTurn). Members carry raft's messages to each other in
// _replSetRaft (runRaft); a node without a configuration joins by the first of them (joinRaft).
//
// Invariants
//
//  1. The state of a membership is replaced as a whole: whoever loads it sees a role, term and configuration that belong
//     together.
//  2. Clients may write only in a state that setWritable made from one that roleChanged or becomeSingle published: a role
//     that changes in between keeps it from happening.
//  3. A role that is not primary is published before the operations that need a primary are interrupted: none begins behind
//     the interruption.
//  4. Once a store belongs to a set of several, the node opens raft at every start, whatever the configuration says.
//  5. change is held across every change of configuration and of the kind of set, and by Leave: nothing joins behind it.
package replset
