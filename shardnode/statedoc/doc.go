// Package statedoc keeps the state documents of a primary's own work: what a protocol is about to do is in a document, as
// durable as the set makes it, before any of it is done, and whoever becomes primary reads the documents and goes on.
//
//	Put ──► durable ──► the work, whose steps may be repeated ──► Update ──► … ──► Remove
//	                         ▲
//	   a new primary ── Each ┘
//
// A Collection is the documents of one kind of work. Its users see them as values of a type (Doc) that knows its id and its
// form. Put, Update and Remove are units of work of their own; PutIn, UpdateIn and RemoveIn stage the same in a unit that
// changes more: documents of two kinds, or the data that a document tells of.
//
// Invariants
//
//  1. Put, Update and Remove return once the change is durable: no later primary reads what was there before.
//  2. Update replaces what it has read. Where somebody else changed the document in between, the change is made again, of
//     what is there now; it must therefore not have effects of its own.
//  3. Each reads one snapshot, as Get does: what its callback is given may have been changed or removed since. Who acts on it
//     looks again, by Get, or makes the change by Update.
//  4. What does not parse is reported and passed over by all of them but Put and Remove, which replace and delete it.
package statedoc
