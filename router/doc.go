// Package router is mongos: it pushes all work below the shard boundary and merges the results.
//
//	client ──► command.Service ──► handler ──► Catalog (placement) ──► target ──► Peer.Call per shard ──► merge ──► reply
//	                                  ▲                                              │
//	                                  └────── Catalog.OnStale ◄── StaleConfig, StaleDbVersion
//
// The life of a find: Router.find asks Router.collection for the placement and target for the shards. With one shard,
// Router.relay sends the request's own bytes followed by the shard's version elements, and the shard writes its reply
// directly into the router's; only the cursor id is changed. With several, openRemotes opens a cursor on each and
// mergeCursor merges them in sort order. Router.routed repeats all of it after a stale answer.
//
// A change stream (clientStream) merges the streams of all shards (shardMerge); streams of one shape share a merge (watchHub).
//
// Invariants
//
//  1. A request to a shard carries the version of the placement that it was targeted by.
//  2. A stale answer is never returned to a client before Router.routed has used up its attempts.
//  3. Documents that a router only passes on remain bytes; they are never re-encoded.
//  4. A cursor's cursors on the shards are closed when it ends, is killed or times out.
package router
