// Package statedoc stores the state documents of protocols that a primary runs: a protocol stores its next step in a
// document, as durably as the set makes it, before it begins the step, and a new primary reads the documents and
// continues.
//
//	Put ──► durable ──► the work, whose steps may be repeated ──► Update ──► … ──► Remove
//	                         ▲
//	   a new primary ── Each ┘
//
// A Collection holds the documents of one kind of work. Its users see them as values of a type (Doc) that knows its id and
// its form. Put, Update and Remove are units of work of their own; PutIn, UpdateIn and RemoveIn stage the same in a unit that
// changes more: documents of two kinds, or the data that a document describes.
//
// Invariants
//
//  1. Put, Update and Remove return once the change is durable: no later primary reads the previous state.
//  2. Update replaces the document that it has read. If the document changed in between, the change function is called again with the new one; it
//     must therefore have no side effects.
//  3. Each reads one snapshot, as Get does: the documents passed to its callback may have been changed or removed since. A
//     caller that acts on one reads it again with Get, or changes it with Update.
//  4. A document that cannot be parsed is reported and skipped, except by Put and Remove, which replace and delete it, and by EachOr: a document that has what those of
//     all versions have is taken for that of another version, whose work is under way.
package statedoc
