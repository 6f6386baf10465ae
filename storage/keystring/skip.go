package keystring

import (
	"bytes"
	"encoding/binary"
)

// FieldLen returns the length of the encoded field at the start of key, or -1 if there is none. Bounds are checked
// on the bytes of single fields, without decoding.
func FieldLen(key []byte, desc bool) int {
	var inv byte
	if desc {
		inv = 0xFF
	}
	n := fieldLen(key, inv, 0)
	if n > len(key) {
		return -1
	}
	return n
}

func fieldLen(key []byte, inv byte, depth int) int {
	if len(key) == 0 || depth > maxDepth {
		return -1
	}
	tag := key[0] ^ inv
	if tag >= tagNaN && tag <= tagPosInf {
		n, ok := numberLen(tag, inv, key[1:])
		if !ok {
			return -1
		}
		return n + 1
	}
	switch tag {
	case tagMinKey, tagUndefined, tagNull, tagFalse, tagTrue, tagMaxKey:
		return 1
	case tagObjectID:
		return 13
	case tagDate, tagTimestamp:
		return 9
	case tagString, tagRegex, tagCode:
		return textLen(key, 1, inv)
	case tagBinary:
		if n := lengthLen(key, 1, inv); n >= 0 {
			return n + 1
		}
	case tagDBPointer:
		return lengthLen(key, 1, inv)
	case tagDocument:
		return documentLen(key, 1, inv, depth+1)
	case tagCodeScope:
		if n := textLen(key, 1, inv); n >= 0 {
			return documentLen(key, n, inv, depth+1)
		}
	case tagArray:
		return arrayLen(key, 1, inv, depth+1)
	}
	return -1
}

// The functions below take the offset where a part begins and return the offset after it.

func textLen(key []byte, at int, inv byte) int {
	if at > len(key) {
		return -1
	}
	if end := bytes.IndexByte(key[at:], inv); end >= 0 {
		return at + end + 1
	}
	return -1
}

func lengthLen(key []byte, at int, inv byte) int {
	if at >= len(key) {
		return -1
	}
	if n := key[at] ^ inv; n < 0xFF {
		return at + 1 + int(n)
	}
	if len(key) < at+5 {
		return -1
	}
	n := binary.BigEndian.Uint32(key[at+1:])
	if inv != 0 {
		n = ^n
	}
	return at + 5 + int(n)
}

func documentLen(key []byte, at int, inv byte, depth int) int {
	for at < len(key) {
		if key[at]^inv == tagEnd {
			return at + 1
		}
		name := textLen(key, at+1, inv)
		if name < 0 || name > len(key) {
			return -1
		}
		n := fieldLen(key[name:], inv, depth)
		if n < 0 {
			return -1
		}
		at = name + n
	}
	return -1
}

func arrayLen(key []byte, at int, inv byte, depth int) int {
	for at < len(key) {
		if key[at]^inv == tagEnd {
			return at + 1
		}
		n := fieldLen(key[at:], inv, depth)
		if n < 0 {
			return -1
		}
		at += n
	}
	return -1
}
