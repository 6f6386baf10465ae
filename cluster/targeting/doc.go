// Package targeting tells which shard key values the documents that match a filter may have. Routers choose shards by it, and
// analyzeShardKey counts the ranges of a key that is only considered.
package targeting
