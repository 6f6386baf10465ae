package console

import (
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// AppendAudit appends an event in the format of the audit log: the older form of extended JSON, which shows the types of
// numbers, times and binaries (manual: the examples of setAuditConfig).
func AppendAudit(dst, doc []byte) []byte {
	dst = append(dst, '{')
	it := value.Walk(doc)
	for n := 0; ; n++ {
		key, v, ok := it.Next()
		switch {
		case !ok && n == 0:
			return append(dst, '}')
		case !ok:
			return append(dst, " }"...)
		case n > 0:
			dst = append(dst, ',')
		}
		dst = append(appendJSONString(append(dst, ' '), key), " : "...)
		dst = appendAuditValue(dst, v)
	}
}

func appendAuditValue(dst []byte, v value.Value) []byte {
	switch v.T {
	case value.Document:
		return AppendAudit(dst, v.Doc())
	case value.Array:
		return appendAuditArray(dst, v.Doc())
	case value.Int64:
		return append(strconv.AppendInt(append(dst, `{ "$numberLong" : "`...), v.Int64(), 10), `" }`...)
	case value.DateTime:
		return appendAuditDate(dst, v.DateTime())
	case value.Binary:
		dst = base64.StdEncoding.AppendEncode(append(dst, `{ "$binary" : "`...), v.Bytes())
		return append(hex.AppendEncode(append(dst, `", "$type" : "`...), []byte{v.Subtype()}), `" }`...)
	case value.Regex:
		pattern, options := v.Regex()
		dst = appendJSONString(append(dst, `{ "$regex" : `...), pattern)
		return append(appendJSONString(append(dst, `, "$options" : `...), options), " }"...)
	}
	return AppendValue(dst, v)
}

func appendAuditArray(dst, arr []byte) []byte {
	dst = append(dst, '[')
	it := value.Walk(arr)
	for n := 0; ; n++ {
		_, v, ok := it.Next()
		switch {
		case !ok && n == 0:
			return append(dst, ']')
		case !ok:
			return append(dst, " ]"...)
		case n > 0:
			dst = append(dst, ',')
		}
		dst = appendAuditValue(append(dst, ' '), v)
	}
}

func appendAuditDate(dst []byte, ms int64) []byte {
	t := time.UnixMilli(ms).UTC()
	if y := t.Year(); y < 1970 || y > 9999 {
		return append(strconv.AppendInt(append(dst, `{ "$date" : { "$numberLong" : "`...), ms, 10), `" } }`...)
	}
	return append(t.AppendFormat(append(dst, `{ "$date" : "`...), "2006-01-02T15:04:05.000-07:00"), `" }`...)
}
