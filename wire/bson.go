package wire

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// BSON element types for the validator (specification: bsonspec.org).
const (
	tDouble    = 0x01
	tString    = 0x02
	tDocument  = 0x03
	tArray     = 0x04
	tBinary    = 0x05
	tUndefined = 0x06
	tObjectID  = 0x07
	tBoolean   = 0x08
	tDateTime  = 0x09
	tNull      = 0x0A
	tRegex     = 0x0B
	tDBPointer = 0x0C
	tCode      = 0x0D
	tSymbol    = 0x0E
	tCodeScope = 0x0F
	tInt32     = 0x10
	tTimestamp = 0x11
	tInt64     = 0x12
	tDecimal   = 0x13
	tMaxKey    = 0x7F
	tMinKey    = 0xFF
)

// fixedLen is the payload length of types that have a fixed one; 0xFE marks a variable length, 0xFF an unknown type.
var fixedLen = func() (t [256]uint8) {
	for i := range t {
		t[i] = 0xFF
	}
	for k, n := range map[int]uint8{
		tDouble: 8, tString: 0xFE, tDocument: 0xFE, tArray: 0xFE, tBinary: 0xFE, tUndefined: 0, tObjectID: 12,
		tBoolean: 0xFE, tDateTime: 8, tNull: 0, tRegex: 0xFE, tDBPointer: 0xFE, tCode: 0xFE, tSymbol: 0xFE,
		tCodeScope: 0xFE, tInt32: 4, tTimestamp: 8, tInt64: 8, tDecimal: 16, tMaxKey: 0, tMinKey: 0,
	} {
		t[k] = n
	}
	return t
}()

func invalidBSON(msg string) error { return mongoerr.New(mongoerr.InvalidBSON, msg) }

// Validation errors are made once, so that a flood of malformed documents allocates nothing.
var (
	errLength     = invalidBSON("incorrect BSON length")
	errTerminator = invalidBSON("BSON object not terminated with EOO")
	errShort      = invalidBSON("unterminated or cut short element in BSON object")
	errType       = invalidBSON("Unrecognized BSON type")
	errString     = invalidBSON("Not null terminated string or bad string size")
	errBool       = invalidBSON("BSON bool is neither false nor true")
	errScope      = invalidBSON("incorrect BSON length of code with scope")
	errBinary     = invalidBSON("incorrect size of binary data")
	errDepth      = mongoerr.New(mongoerr.Overflow, "BSONObj exceeds maximum nested object depth of 200")
	errUTF8       = mongoerr.New(mongoerr.NonConformantBSON, "Found string that doesn't follow UTF-8 encoding.")
)

// Validate checks that doc is exactly one well-formed BSON document: lengths, types, terminators, depth. It makes one
// pass and allocates nothing. Strings are not checked for UTF-8: the real server stores them as they are, and drivers
// have an option to read such strings. ValidateUTF8 checks them.
func Validate(doc []byte) error {
	if len(doc) < 5 || int64(binary.LittleEndian.Uint32(doc)) != int64(len(doc)) {
		return errLength
	}
	if len(doc) > MaxInternalDocument {
		return mongoerr.Newf(mongoerr.BSONObjectTooLarge,
			"BSONObj size: %d (0x%X) is invalid. Size must be between 0 and %d(16MB)", len(doc), len(doc), MaxInternalDocument)
	}
	if doc[len(doc)-1] != 0 {
		return errTerminator
	}
	return validateElements(doc, 4, len(doc)-1, 1)
}

// validateElements checks the elements in b[p:end], where b[end] is known to be the terminator: a zero byte there stops
// every search for the end of a key.
func validateElements(b []byte, p, end, depth int) error {
	if depth > MaxDepth+1 { // the depth does not count the document itself
		return errDepth
	}
	for p < end {
		t := b[p]
		n := fixedLen[t]
		if n == 0xFF {
			return errType
		}
		p = keyEnd(b, p+1)
		if p >= end {
			return errShort
		}
		p++
		if n != 0xFE {
			p += int(n)
			continue
		}
		next, err := validateVariable(b, t, p, end, depth)
		if err != nil {
			return err
		}
		p = next
	}
	if p != end {
		return errShort
	}
	return nil
}

// keyEnd finds the zero byte at or after p; there is one, the document's terminator at the latest.
func keyEnd(b []byte, p int) int {
	for p+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[p:])
		if z := (w - 0x0101010101010101) &^ w & 0x8080808080808080; z != 0 {
			return p + bits.TrailingZeros64(z)>>3
		}
		p += 8
	}
	for b[p] != 0 {
		p++
	}
	return p
}

// validateVariable checks a payload without a fixed length, or a boolean, and returns its end.
func validateVariable(b []byte, t byte, p, end, depth int) (int, error) {
	if t == tBoolean {
		if p < end && b[p] > 1 {
			return 0, errBool
		}
		return p + 1, nil
	}
	if t == tRegex {
		p = keyEnd(b, p) + 1
		if p >= end {
			return 0, errShort
		}
		return keyEnd(b, p) + 1, nil
	}
	if end-p < 5 {
		return 0, errShort
	}
	n := int(int32(binary.LittleEndian.Uint32(b[p:])))
	switch t {
	case tString, tCode, tSymbol:
		return stringEnd(b, p, n, end)
	case tDocument, tArray:
		if n < 5 || n > end-p {
			return 0, errLength
		}
		if b[p+n-1] != 0 {
			return 0, errTerminator
		}
		return p + n, validateElements(b, p+4, p+n-1, depth+1)
	case tBinary:
		if n < 0 || n > end-p-5 {
			return 0, errBinary
		}
		return p + 5 + n, nil
	case tDBPointer:
		q, err := stringEnd(b, p, n, end)
		if err == nil && end-q < 12 {
			err = errShort
		}
		return q + 12, err
	}
	return codeScopeEnd(b, p, n, end, depth)
}

func stringEnd(b []byte, p, n, end int) (int, error) {
	if n < 1 || n > end-p-4 || b[p+4+n-1] != 0 {
		return 0, errString
	}
	return p + 4 + n, nil
}

// codeScopeEnd checks code with scope: its whole length, a string, a document.
func codeScopeEnd(b []byte, p, n, end, depth int) (int, error) {
	if n < 14 || n > end-p {
		return 0, errScope
	}
	end = p + n
	q, err := stringEnd(b, p+4, int(int32(binary.LittleEndian.Uint32(b[p+4:]))), end)
	if err != nil {
		return 0, err
	}
	if end-q < 5 || int(int32(binary.LittleEndian.Uint32(b[q:]))) != end-q {
		return 0, errScope
	}
	if b[end-1] != 0 {
		return 0, errTerminator
	}
	return end, validateElements(b, q+4, end-1, depth+1)
}

// skipElement returns the key and the length of the element at the beginning of b; b must have been validated.
func skipElement(b []byte) (key []byte, n int) {
	z := bytes.IndexByte(b[1:], 0)
	key = b[1 : 1+z]
	p := 1 + z + 1
	if f := fixedLen[b[0]]; f != 0xFE {
		return key, p + int(f)
	}
	switch b[0] {
	case tBoolean:
		return key, p + 1
	case tRegex:
		p += bytes.IndexByte(b[p:], 0) + 1
		return key, p + bytes.IndexByte(b[p:], 0) + 1
	}
	l := int(int32(binary.LittleEndian.Uint32(b[p:])))
	switch b[0] {
	case tString, tCode, tSymbol:
		l += 4
	case tBinary:
		l += 5
	case tDBPointer:
		l += 16
	}
	return key, p + l
}

// ValidateUTF8 checks the keys and strings of a valid document, at any depth, for UTF-8.
func ValidateUTF8(doc []byte) error {
	for b := doc[4 : len(doc)-1]; len(b) > 0; {
		key, n := skipElement(b)
		if !utf8.Valid(key) {
			return errUTF8
		}
		p := b[len(key)+2 : n]
		switch b[0] {
		case tString, tCode, tSymbol:
			if !utf8.Valid(p[4 : len(p)-1]) {
				return errUTF8
			}
		case tDocument, tArray:
			if err := ValidateUTF8(p); err != nil {
				return err
			}
		}
		b = b[n:]
	}
	return nil
}
