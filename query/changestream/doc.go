// Package changestream makes the events of change streams out of oplog entries: pure functions over raw documents.
//
//	oplog document ──Read──► []*Event (one for each change; a transaction's entries give all of its own)
//	                             │
//	                 Filter.Passes (namespace and kind) ──► Event.Document(Form) ──► the host adds looked-up documents
//
// An event is made once and shared by all streams of a node: what depends on a stream's options is a Form, and each form of
// an event is built once. A Token says where in a stream an event stands, as text that orders as the events do:
//
//	_data = hex of time, version, type, index in the transaction, from an invalidate?, UUID, identifier [, fragment], 04
//
// in the KeyString format of the real server (keystring.go). A high-water-mark token stands before all events of its time.
//
// Invariants
//
//  1. An Event never changes once Read has returned it; its documents do not borrow from the oplog's buffers.
//  2. Tokens of different events differ, and their bytes order as their times and their places in the transaction do.
//  3. An invalidate's token sorts right behind that of the event that caused it.
package changestream
