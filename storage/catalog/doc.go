// Package catalog holds the collections and indexes of a node: immutable snapshots in memory, and the durable form of
// each entry, as kept in _mdb_catalog and shown by $listCatalog.
//
//	durable entry ──Decode──► Collection, Index ──With/Without──► Snapshot ──Lookup──► reader
//	Collection ──Encode──► durable entry
//
// Invariants
//
//  1. Snapshots, Collections and Indexes never change once published; readers need no lock.
//  2. Counters and Usage are the exception: they are shared by all snapshots, and atomic.
//  3. A Collection that differs from its predecessor in anything a writer depends on has another Epoch.
package catalog
