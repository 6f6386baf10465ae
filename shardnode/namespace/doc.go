// Package namespace says what stands under a name: a collection with what is compiled of its options, a view with what it
// is defined on, or a time series collection with the collection of its buckets.
//
//	ns ──┬── catalog ───────────────────► collection ── Cache.Of ──► Compiled: collation, validator, plan cache
//	     ├── system.views ── ViewIn ────► View ── Resolve ──► Resolved: the collection below, all pipelines
//	     └── Buckets ── SeriesOf ───────► Series: the collection of its buckets, its options
//
// A read of a name asks Resolve first: nil is a collection or nothing. A write asks SeriesOf, since measurements are
// stored in buckets, and then Compiled.Check whether the collection's validator lets a document in. A command that makes a
// name asks CheckCreate. Options and IndexDoc are the stored forms that the commands on the catalog change.
//
// Invariants
//
//  1. A Compiled belongs to one version of a collection: Cache.Of makes another one when the catalog's entry is another.
//  2. What is found in a storage.Snapshot agrees with the catalog of that snapshot.
//  3. Nothing in here writes.
package namespace
