// Package usage counts which stages and operators commands use, for serverStatus.
//
//	command ──Count──► its filter, pipeline, projection, updates ──► one counter a name ──Each──► metrics.aggStageCounters,
//	                                                                                             metrics.operatorCounters
//
// It walks the original command: what a router relays unread is counted there as well as on the shard.
//
// Invariants
//
//  1. Count allocates nothing, and is done with a filter without operators after one pass over its fields.
//  2. A name that is not a stage or operator of the language is not counted: the tables never grow.
package usage
