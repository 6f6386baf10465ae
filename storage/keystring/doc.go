// Package keystring encodes BSON values as bytes whose bytewise order is the order of the values, and decodes
// them.
//
//	key        = field* [RecordId]
//	field      = tag payload                         (every byte inverted where the field is descending)
//	document   = tag (kind name value)* 00
//	array      = tag value* 00
//	string     = tag text' 00                        (text': 00 becomes 01 01, 01 becomes 01 02)
//	number     = tag                                 (NaN, infinities, zero)
//	           | tag n bytes of (integer<<1 | more)  [8 bytes of (fraction·2^63 <<1 | more) [decimal]]
//	           | tag 8 bytes of (double bits<<1 | more) [decimal]      (below 1, and from 2^63 on)
//	decimal    = 2 bytes adjusted exponent, 15 bytes coefficient of 34 digits
//	RecordId   = (n+1)<<4|4 bits, n bytes, 5 bits<<3|n          (splits off from the end)
//
// Tags in order: MinKey, undefined, null, numbers, string, document, array, binary, ObjectId, false, true, date, timestamp,
// regex, DBPointer, code, code with scope, MaxKey.
//
// Values that compare equal without being the same (int 1 and double 1.0, -0.0 and 0, 1.10 and 1.1, symbol and
// string) are distinguished by type bits, stored beside the key: one byte for each number, string, and undefined,
// in order of appearance, trailing zeros omitted. A decimal's byte is followed by its sixteen bytes, that of an
// unusual NaN by its eight.
//
// An insert goes through Append for each field and AppendRecordID; a covered read goes through Decoder.Reset and
// Decoder.Next; the ends of a scan are built by Append, then AtOrBefore or After.
//
// Invariants
//
//  1. No encoded field is a prefix of another, in either direction; so a bound over the first fields of an index is
//     the encoding of those fields, and "everything that starts with it" ends at the same bytes followed by FF.
//  2. No field and no RecordId starts with 00 or FF.
//  3. bytes.Compare of two encodings has the sign of value.Compare of the values.
//  4. Decoding never panics on malformed bytes; it reports them.
package keystring
