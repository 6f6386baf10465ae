// Package consistency checks that a collection's entries in the sharding catalog agree with each other and with the shards. Check reads
// both; the other functions take stored documents, and return the inconsistencies that checkMetadataConsistency reports.
//
//	Coordinators.runCheckConsistency ─┬─► Check.Run ─┬─ config.collections, chunks, tags ──► Collection.RoutingTable, Zones
//	Router.checkFixed ────────────────┘              └─ listCollections, listIndexes ──────► Collection.Locals, Indexes, Misplaced
package consistency
