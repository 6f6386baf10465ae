package keystring

import "math/bits"

// AppendRecordID appends a non-negative RecordId so that ids sort by number and can be split off from the key's
// end.
func AppendRecordID(key []byte, id int64) []byte {
	u := uint64(id)
	// 4 bits are in the first byte, 5 in the last, the remaining ones in n bytes between.
	n := 0
	if l := bits.Len64(u); l > 9 {
		n = (l - 9 + 7) / 8
	}
	key = append(key, byte(n+1)<<4|byte(u>>(uint(n)*8+5)))
	for i := n - 1; i >= 0; i-- {
		key = append(key, byte(u>>(uint(i)*8+5)))
	}
	return append(key, byte(u&31)<<3|byte(n))
}

// SplitRecordID splits the RecordId off the end of a key.
func SplitRecordID(key []byte) (prefix []byte, id int64, ok bool) {
	if len(key) < 2 {
		return nil, 0, false
	}
	last := key[len(key)-1]
	n := int(last & 7)
	if len(key) < n+2 {
		return nil, 0, false
	}
	at := len(key) - n - 2
	if int(key[at]>>4) != n+1 {
		return nil, 0, false
	}
	u := uint64(key[at] & 15)
	for _, c := range key[at+1 : len(key)-1] {
		u = u<<8 | uint64(c)
	}
	return key[:at:at], int64(u<<5 | uint64(last>>3)), true
}

// AppendRecordIDBytes adds the RecordId of a clustered collection: the encoding of its _id. Its length follows it,
// in groups of seven bits with the lowest group last.
func AppendRecordIDBytes(key, id []byte) []byte {
	key = append(key, id...)
	n := len(id)
	switch {
	case n < 1<<7:
		return append(key, byte(n))
	case n < 1<<14:
		return append(key, byte(n>>7), byte(n&127)|128)
	case n < 1<<21:
		return append(key, byte(n>>14), byte(n>>7&127)|128, byte(n&127)|128)
	}
	return append(key, byte(n>>21), byte(n>>14&127)|128, byte(n>>7&127)|128, byte(n&127)|128)
}

// SplitRecordIDBytes splits a clustered collection's RecordId off the end of a key.
func SplitRecordIDBytes(key []byte) (prefix, id []byte, ok bool) {
	n, shift := 0, 0
	for end := len(key) - 1; end >= 0 && shift <= 21; end-- {
		n |= int(key[end]&127) << shift
		shift += 7
		if key[end] < 128 {
			if n > end {
				return nil, nil, false
			}
			return key[: end-n : end-n], key[end-n : end : end], true
		}
	}
	return nil, nil, false
}
