// Package cluster holds what every role of a cluster shares: the versions carried by requests between nodes, the
// routing table of a sharded collection, shard keys, the vector clock with the keys that sign it, logical
// sessions, peers and the shard registry, server parameters and fail points.
//
//	router ── Peer.Call(request + shardVersion/databaseVersion) ──► shard ── Peer.Call ──► config server
//	   ▲                                                              │
//	   └────────── StaleConfig{vReceived, vWanted} ◄── CheckPlacement
//
// The life of a routed request: ShardKeyPattern.FromDocument or targeting.ExactKey extracts the key, ChunkMap.Find the
// owning chunk, ChunkMap.ShardVersion the version that the shard must agree to, AppendShardVersion encodes it, and
// Registry.Shard returns the Peer to call.
//
// Invariants
//
//  1. A ChunkMap never changes once built: Update returns another one. Readers hold no lock.
//  2. The chunks of a map cover the whole shard key space, from MinKey to MaxKey, without gap or overlap; NewChunkMap and
//     Update refuse anything else.
//  3. Versions of different epochs or timestamps are never compared by major and minor: in between, the collection was
//     dropped or its key refined.
//  4. Every component of the vector clock only grows, and ClusterTime >= ConfigTime >= TopologyTime.
//  5. No time from outside is adopted before its signature and its distance from the wall clock have been checked.
package cluster
