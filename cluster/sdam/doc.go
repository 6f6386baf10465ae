// Package sdam monitors replica sets for their callers: server discovery and monitoring, and server selection,
// after the drivers' specifications of these names.
//
//	Monitors.Dial ──► Handle ──► Set ◄── topology ── member.run (one goroutine each: hello, then streamed hellos)
//	                    │
//	                    └─ Call / CallOn ── selectServer(read preference) ──► Network.Call(host) ──► in process or TCP
//
// The life of a call: Set.CallOn asks the topology for the members that the read preference allows and waits,
// within bounds, where there is none; Network.Call sends. A reply that shows that the member is not primary, or a
// failed connection, makes the member Unknown and its monitor check it at once, or wait for what it streams. What
// may be sent again without harm (see repeatable) is sent again, to the member that is eligible by then. A call
// that was refused before it started is sent again for as long as a call waits for a primary.
//
// Invariants
//
//  1. A Topology never changes: readers take the current one and hold no lock.
//  2. The primary decides who is a member. A primary of an older election than the newest known is ignored.
//  3. A command that may have run is sent again only where running it twice is the same as once.
//  4. Each member has one goroutine, and one that measures round trips where it is reached over TCP; both end when the
//     member leaves the set or the last Handle is closed. Each has a connection of its own, outside the pool.
//  5. A member that streams is not polled: only a failed connection, or a primary superseded by a newer one, makes the monitor
//     abandon its stream and check again.
package sdam
