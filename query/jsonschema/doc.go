// Package jsonschema compiles $jsonSchema documents (draft 4, with bsonType) and validates raw documents against them.
//
//	schema document ──Compile──► Schema tree ──Match──► true or false
//	                                   └──────Explain──► why not, as errInfo.details shows it
//
// Invariants
//
//  1. A Schema is immutable and may be used by many goroutines.
//  2. A keyword applies only to values of its type: minLength does not constrain a number. Missing fields satisfy every
//     keyword but required.
//  3. Equality (enum, uniqueItems) ignores the order of fields, and collations.
package jsonschema
