// Package targeting computes which shard key values the documents that match a filter may have. Routers choose shards by it,
// and analyzeShardKey counts the ranges of a proposed key.
package targeting
