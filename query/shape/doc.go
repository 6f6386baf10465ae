// Package shape makes the shape of a command: the command with each literal replaced by the name of its type, so that
// queries that differ only in their literals are one.
//
//	find, aggregate, distinct, count ──Command──► queryShape ──Hash──► queryShapeHash
//	                                                  │
//	                     HMAC of names ──Transform────┘
//
// A form says what stands in one place of a command: a literal, a path, an expression, a filter, a pipeline. The tables
// stages and operators give the forms of what stages and operators take; a place that no table knows keeps the names of
// its fields and loses its literals.
//
// Invariants
//
//  1. A shape holds no literal of the command's. What is kept are names (of fields, collections, variables), keywords
//     of the language, sort orders, collations and flags.
//  2. Whatever Command is given it answers: what the language refuses has a shape, too. Nothing here says an error.
//  3. The shape of a shape is that shape: Transform walks it with the same forms, and changes the names alone.
package shape
