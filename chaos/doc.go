// Package chaos injects faults into a cluster while an application's own tests run against it: ranges are split, merged and moved, members
// step down, commands wait, connections break before a command and after it. What it does follows from a seed, and the log of
// what was done can be run again. The server that Shoal is compatible with has nothing like it; docs/chaos.md tells how it is
// used.
//
// An Engine draws steps from a Plan and carries them out through a router that serves no client: the routers that clients use hear
// of a moved range only when a shard refuses them, as in a cluster of several processes. A Disturber stands in the way of clients'
// commands.
package chaos
