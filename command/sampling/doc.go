// Package sampling samples the queries of a service for analyzeShardKey. The pipeline asks for each query whether it is to be sampled
// (Sampler.Sample): one atomic load while no collection is. Routers sample in a cluster, and members in a replica set.
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
//  3. A sample names the collection by UUID: those of a collection that was dropped are never taken for another's.
package sampling
