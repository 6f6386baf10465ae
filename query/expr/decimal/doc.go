// Package decimal does Decimal128 arithmetic: IEEE 754-2008 decimals of 34 digits, rounded half to even, without traps.
//
//	value.Value ──Of──► *apd.Decimal ──Add, Quo, Exp, Sin, …──► *apd.Decimal ──Value──► value.Value
//
// Invariants
//
//  1. A result has at most 34 digits and an exponent in [-6176, 6111]; Value ensures that.
//  2. Overflow returns an infinity, an invalid operation NaN; nothing here returns an error.
//  3. An exact result has the exponent that the standard prefers (1.10 + 2.2 is 3.30), an inexact one has 34 digits.
package decimal
