// Package jsonschema compiles $jsonSchema documents (draft 4, with bsonType) and validates raw documents against them.
//
//	schema document ──Compile──► Schema tree ──Match──► true or false
//	                                   └──────Explain──► why not, as errInfo.details shows it
//
// Invariants
//
//  1. A Schema is immutable and may be used by many goroutines.
//  2. A keyword speaks only of values of its type: minLength says nothing about a number. Missing fields satisfy every
//     keyword but required.
//  3. Equality (enum, uniqueItems) takes no account of the order of fields or of any collation.
package jsonschema
