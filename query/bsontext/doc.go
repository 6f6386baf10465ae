// Package bsontext prints stored BSON in the format of the server's index messages and explain's bounds: Value for one
// value, Doc for a document, Double for a number with its point.
//
// It differs from expr.Show, which prints computed values: arrays have spaces inside their brackets, dates are
// "new Date(ms)", infinity is "inf.0".
//
// Invariants
//
//  1. The text is for people and for tools that read explain; nothing parses it.
package bsontext
