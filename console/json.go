package console

import (
	"encoding/base64"
	"encoding/hex"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
)

const hexDigits = "0123456789abcdef"

// appendJSONString appends s in quotes. Bytes that are not UTF-8 become the replacement character, so that a line is
// always valid JSON. Characters by which a name could make a line look like two, or like another, are escaped (see forges).
func appendJSONString[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			dst = append(dst, s[start:i]...)
			dst = appendEscape(dst, c)
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
		if r == utf8.RuneError && n == 1 {
			dst = append(append(dst, s[start:i]...), `\ufffd`...)
			i++
			start = i
			continue
		}
		if forges(r) {
			dst = append(append(dst, s[start:i]...), '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
			start = i + n
		}
		i += n
	}
	return append(append(dst, s[start:]...), '"')
}

// forges reports whether terminals or tools take a character beyond ASCII for more than a character: controls (next line and the beginning of an escape
// sequence are among them), the separators of lines and paragraphs, and those that change the direction of the text after them.
func forges(r rune) bool {
	return r <= 0x9f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// appendJSONFloat appends a double as relaxed extended JSON does.
func appendJSONFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, `{"$numberDouble":"NaN"}`...)
	case math.IsInf(f, 1):
		return append(dst, `{"$numberDouble":"Infinity"}`...)
	case math.IsInf(f, -1):
		return append(dst, `{"$numberDouble":"-Infinity"}`...)
	}
	at := len(dst)
	dst = strconv.AppendFloat(dst, f, 'g', -1, 64)
	for _, c := range dst[at:] {
		if c == '.' || c == 'e' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

// AppendDocument appends a BSON document as relaxed extended JSON.
func AppendDocument(dst, doc []byte) []byte {
	dst = append(dst, '{')
	it := value.Walk(doc)
	for n := 0; ; n++ {
		key, v, ok := it.Next()
		if !ok {
			return append(dst, '}')
		}
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendJSONString(dst, key), ':')
		dst = AppendValue(dst, v)
	}
}

func appendArray(dst, arr []byte) []byte {
	dst = append(dst, '[')
	it := value.Walk(arr)
	for n := 0; ; n++ {
		_, v, ok := it.Next()
		if !ok {
			return append(dst, ']')
		}
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = AppendValue(dst, v)
	}
}

// AppendValue appends a value as relaxed extended JSON.
func AppendValue(dst []byte, v value.Value) []byte {
	switch v.T {
	case value.Double:
		return appendJSONFloat(dst, v.Double())
	case value.String:
		return appendJSONString(dst, v.Bytes())
	case value.Document:
		return AppendDocument(dst, v.Bytes())
	case value.Array:
		return appendArray(dst, v.Bytes())
	case value.Int32:
		return strconv.AppendInt(dst, int64(v.Int32()), 10)
	case value.Int64:
		return strconv.AppendInt(dst, v.Int64(), 10)
	case value.Boolean:
		return strconv.AppendBool(dst, v.Bool())
	case value.Null:
		return append(dst, "null"...)
	case value.DateTime:
		return appendDate(dst, v.DateTime())
	case value.ObjectID:
		return append(hex.AppendEncode(append(dst, `{"$oid":"`...), v.Bytes()), `"}`...)
	}
	return appendRareValue(dst, v)
}

func appendRareValue(dst []byte, v value.Value) []byte {
	switch v.T {
	case value.Binary:
		return appendBinary(dst, v)
	case value.Timestamp:
		t, i := v.Timestamp()
		dst = strconv.AppendUint(append(dst, `{"$timestamp":{"t":`...), uint64(t), 10)
		return append(strconv.AppendUint(append(dst, `,"i":`...), uint64(i), 10), "}}"...)
	case value.Decimal128:
		high, low := v.Decimal128()
		return append(appendJSONString(append(dst, `{"$numberDecimal":`...), bson.NewDecimal128(high, low).String()), '}')
	case value.JavaScript:
		return append(appendJSONString(append(dst, `{"$code":`...), v.Bytes()), '}')
	case value.Symbol:
		return append(appendJSONString(append(dst, `{"$symbol":`...), v.Bytes()), '}')
	case value.Regex:
		pattern, options := v.Regex()
		dst = appendJSONString(append(dst, `{"$regularExpression":{"pattern":`...), pattern)
		return append(appendJSONString(append(dst, `,"options":`...), options), "}}"...)
	case value.MinKey:
		return append(dst, `{"$minKey":1}`...)
	case value.MaxKey:
		return append(dst, `{"$maxKey":1}`...)
	case value.Undefined:
		return append(dst, `{"$undefined":true}`...)
	}
	return appendCodeOrPointer(dst, v)
}

func appendCodeOrPointer(dst []byte, v value.Value) []byte {
	switch v.T {
	case value.CodeWithScope:
		code, scope := v.CodeWithScope()
		dst = appendJSONString(append(dst, `{"$code":`...), code)
		return append(AppendDocument(append(dst, `,"$scope":`...), scope), '}')
	case value.DBPointer:
		ns, id := v.DBPointer()
		dst = appendJSONString(append(dst, `{"$dbPointer":{"$ref":`...), ns)
		return append(hex.AppendEncode(append(dst, `,"$id":{"$oid":"`...), id[:]), `"}}}`...)
	}
	return append(dst, "null"...) // Missing, which cannot occur in a document
}

func appendBinary(dst []byte, v value.Value) []byte {
	sub, b := v.Subtype(), v.Bytes()
	if sub == 4 && len(b) == 16 {
		dst = append(dst, `{"$uuid":"`...)
		for i, end := range []int{4, 6, 8, 10, 16} {
			if i > 0 {
				dst = append(dst, '-')
			}
			start := []int{0, 4, 6, 8, 10}[i]
			dst = hex.AppendEncode(dst, b[start:end])
		}
		return append(dst, `"}`...)
	}
	dst = base64.StdEncoding.AppendEncode(append(dst, `{"$binary":{"base64":"`...), b)
	return append(dst, `","subType":"`+string([]byte{hexDigits[sub>>4], hexDigits[sub&15]})+`"}}`...)
}

func appendDate(dst []byte, ms int64) []byte {
	t := time.UnixMilli(ms).UTC()
	if y := t.Year(); y < 1970 || y > 9999 {
		return append(strconv.AppendInt(append(dst, `{"$date":{"$numberLong":"`...), ms, 10), `"}}`...)
	}
	return append(t.AppendFormat(append(dst, `{"$date":"`...), "2006-01-02T15:04:05.000Z"), `"}`...)
}
