// Package sdam monitors replica sets for their callers. It implements server discovery and monitoring, and server selection,
// according to the drivers' specifications.
//
//	Monitors.Dial ──► Handle ──► Set ◄── topology ── member.run (one goroutine each: hello, then streamed hellos)
//	                    │
//	                    └─ Call / CallOn ── selectServer(read preference) ──► Network.Call(host) ──► in process or TCP
//
// The life of a call: Set.CallOn asks the topology for the members that the read preference allows and waits for a limited
// time if there is none; Network.Call sends. A reply that shows that the member is not primary, or a failed connection, makes
// the member Unknown and its monitor check it at once, or wait for what it streams. A command that may be repeated (see
// repeatable) is sent again, to the member that is eligible then. A call that was refused before it started is sent again as
// long as calls wait for a primary.
//
// Invariants
//
//  1. A Topology never changes: readers take the current one and hold no lock.
//  2. The primary decides who is a member. A primary of an older election than the newest known is ignored.
//  3. A command that may have run is sent again only if running it twice has the same effect as once.
//  4. Each member has one goroutine, and another one that measures round trips if it is reached over TCP; both end when the
//     member leaves the set or the last Handle is closed. Each has a connection of its own, outside the pool.
//  5. A member that streams is not polled: only a failed connection, or a primary superseded by a newer one, makes the monitor
//     abandon its stream and check again.
package sdam
