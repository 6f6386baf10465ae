// Package sampling samples the queries of a service for analyzeShardKey. The pipeline calls Sampler.Sample for each query, which
// costs one atomic load while no collection is sampled. Routers sample in a cluster, and members in a replica set.
//
//	Rates.Share ── samples per second ──► Run: refresh ──► Sampler.Install
//	                                                        │
//	a query ──► Sampler.Sample ── buffer ──► Run: flush ──► Store: config.sampledQueries, on a shard or the primary
//	an update with a sampleId ──► Sampler.NoteDiff ──────►          config.sampledQueriesDiff, on the shard that ran it
//
// Invariants
//
//  1. A sample is stored under an id of its own, so that storing a batch again after an error does no harm.
//  2. The buffer is bounded (queryAnalysisWriterMaxMemoryUsageBytes); what does not fit is not sampled.
//  3. A sample identifies the collection by UUID, so that samples of a dropped collection are never attributed to another.
package sampling
