// Package usage counts which stages and operators commands use, for serverStatus.
//
//	command ──Count──► its filter, pipeline, projection, updates ──► one counter a name ──Each──► metrics.aggStageCounters,
//	                                                                                             metrics.operatorCounters
//
// It walks the original command: a router counts what it relays unread, too, as the shard does.
//
// Invariants
//
//  1. Count allocates nothing, and is done with a filter without operators after one pass over its fields.
//  2. A name that is not a stage or operator of the language is not counted: the tables never grow.
package usage
