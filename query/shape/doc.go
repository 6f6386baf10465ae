// Package shape makes the shape of a command: the command with each literal replaced by the name of its type, so that
// queries that differ only in their literals have the same shape.
//
//	find, aggregate, distinct, count ──Command──► queryShape ──Hash──► queryShapeHash
//	                                                  │
//	                     HMAC of names ──Transform────┘
//
// A form is the kind of one part of a command: a literal, a path, an expression, a filter, a pipeline. The tables
// stages and operators have the forms of the arguments of stages and operators; a part that is in no table keeps the
// names of its fields and loses its literals.
//
// Invariants
//
//  1. A shape has no literals of the command. What is kept are names (of fields, collections, variables), keywords
//     of the language, sort orders, collations and flags.
//  2. Command accepts any input: what the language refuses has a shape, too. Nothing here returns an error.
//  3. The shape of a shape is that shape: Transform walks it with the same forms, and changes only the names.
package shape
