// Package namespace resolves names: to a collection with its compiled options, a view with its definition, or a time
// series collection with the collection of its buckets.
//
//	ns ──┬── catalog ───────────────────► collection ── Cache.Of ──► Compiled: collation, validator, plan cache
//	     ├── system.views ── ViewIn ────► View ── Resolve ──► Resolved: the collection below, all pipelines
//	     └── Buckets ── SeriesIn ───────► Series: the collection of its buckets, its options
//
// A read of a name calls Resolve first: nil means a collection or nothing. A write calls Buckets and SeriesIn, since measurements
// are stored in buckets, and then Compiled.Check, which runs the collection's validator on a document. A command that creates
// a namespace calls CheckCreate. Options and IndexDoc are the stored forms that the commands on the catalog change.
//
// Invariants
//
//  1. A Compiled belongs to one version of a collection: Cache.Of makes a new one when the catalog's entry has changed.
//  2. Lookups in a storage.Snapshot agree with the catalog of that snapshot.
//  3. Nothing in this package writes. (AddOutcome, which is here because two packages share it, calls a function that does.)
package namespace
