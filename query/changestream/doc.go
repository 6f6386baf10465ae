// Package changestream makes the events of change streams from oplog entries, with pure functions over raw documents.
//
//	oplog document ──Read──► []*Event (one for each change; a transaction's entries give all of its own)
//	                             │
//	                 Filter.Passes (namespace and kind) ──► Event.Document(Form) ──► the host adds looked-up documents
//
// An event is made once and shared by all streams of a node: what depends on a stream's options is a Form, and each form of
// an event is built once. A Token is an event's position in a stream, as text that sorts in the order of events:
//
//	_data = hex of time, version, type, index in the transaction, from an invalidate?, UUID, identifier [, fragment], 04
//
// in the KeyString format of the real server (keystring.go). A high-water-mark token sorts before all events of its time.
//
// Invariants
//
//  1. An Event never changes once Read has returned it; its documents do not borrow from the oplog's buffers.
//  2. Tokens of different events differ, and their bytes sort by time and by position in the transaction.
//  3. An invalidate's token sorts directly after that of the event that caused it.
package changestream
