// Package chaos injects faults into a cluster while an application's tests run against it: ranges are split, merged and moved, members
// step down, commands are delayed, and connections break before a command is run or after it. A seed determines the sequence of faults,
// and the log of a run can be replayed. MongoDB has no such feature; docs/chaos.md explains its use.
//
// An Engine draws steps from a Plan and executes them through a router that serves no client, so that the routers that clients use learn of
// a moved range only from a shard's StaleConfig error, as in a cluster of several processes. A Disturber delays clients' commands and
// breaks their connections.
package chaos
