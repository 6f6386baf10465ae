// Package sdam follows replica sets for those who call them: server discovery and monitoring, and server selection, after
// the drivers' specifications of these names.
//
//	Monitors.Dial ──► Handle ──► Set ◄── topology ── member.run (one goroutine each: hello, then streamed hellos)
//	                    │
//	                    └─ Call / CallOn ── selectServer(read preference) ──► Network.Call(host) ──► in process or TCP
//
// The life of a call: Set.CallOn asks the topology for the members that the read preference allows and waits, within
// bounds, where there is none; Network.Call sends. A reply that says that the member is no primary, or a connection
// that fails, makes the member Unknown and has its monitor look at it at once, or wait for what it streams; what may be sent again without harm (see
// repeatable) is sent again, to whoever is right by then. A call that was refused before it began is sent again for as long
// as a call waits for a primary at all.
//
// Invariants
//
//  1. A Topology never changes: readers take the current one and hold no lock.
//  2. The primary decides who is a member. One of an older election than the newest known is no primary.
//  3. A command that may have run is sent again only where running it twice is the same as once.
//  4. Each member has one goroutine, and one that measures round trips where it is reached over TCP; both end when the
//     member leaves the set or the last Handle is closed. Each has a connection of its own, outside the pool.
//  5. A member that streams is not asked: only a failed connection, or a primary that a newer one made old, has the monitor
//     give its stream up and look anew.
package sdam
