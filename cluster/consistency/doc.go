// Package consistency compares what the sharding catalog says of a collection with itself and with what the shards have. Its functions
// take documents as they are stored, and return the inconsistencies that checkMetadataConsistency reports; they read nothing themselves.
//
//	Coordinators.runCheckConsistency ── config.collections, chunks, tags ──► Collection.RoutingTable, Zones
//	                                 └─ listCollections, listIndexes ──────► Collection.Locals, Indexes, Misplaced
package consistency
