// Package consistency checks that a collection's entries in the sharding catalog agree with each other and with the shards. Its
// functions take stored documents, and return the inconsistencies that checkMetadataConsistency reports; they read nothing themselves.
//
//	Coordinators.runCheckConsistency ── config.collections, chunks, tags ──► Collection.RoutingTable, Zones
//	                                 └─ listCollections, listIndexes ──────► Collection.Locals, Indexes, Misplaced
package consistency
