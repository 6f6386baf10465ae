// Package dates is the calendar of the expression language: time zones by name or offset, calendar and ISO week fields,
// adding, counting and truncating by units, formatting and parsing.
//
//	milliseconds ──Zone.Fields──► Fields ──(*Fields).…──► parts, text
//	parts ──Zone.Make──► milliseconds        text ──Parse, ParseFormat──► milliseconds
//
// Invariants
//
//  1. Instants are milliseconds since 1970 in UTC, as BSON stores them; nothing here reads a clock.
//  2. Years are proleptic Gregorian and may be negative or beyond 9999; functions that are not defined there say so.
//  3. A local time that a change of clocks skipped is interpreted with the offset before the change; one that occurs twice
//     is its first occurrence.
package dates
