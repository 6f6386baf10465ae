// Package extsort sorts more records than memory holds: index builds and the spilling $sort and $group use it.
//
//	Sorter.Add ──► arena and entries ──memory full──► sorted run in a file
//	Sorter.Sort ─► entries sorted; runs merged, at most 64 at a time ──► Iterator.Next
//
// A run is a sequence of records: length of key, length of value (uvarints), key, value.
//
// Invariants
//
//  1. Records with equal keys come out in the order in which they were added.
//  2. With a limit, no more than about twice the limit is ever held.
//  3. Files are removed by Iterator.Close, or by Sorter.Close where Sort was not reached.
package extsort
