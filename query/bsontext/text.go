package bsontext

import (
	"encoding/hex"
	"math"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// Value prints v.
func Value(v value.Value) string { return string(Append(nil, v)) }

// Doc prints a document: { a: 1, b: "x" }.
func Doc(doc []byte) string { return string(Append(nil, value.NewDocument(doc))) }

// Append adds v's text to dst.
func Append(dst []byte, v value.Value) []byte {
	switch v.T {
	case value.Double:
		return append(dst, Double(v.Double())...)
	case value.Int32, value.Int64:
		return strconv.AppendInt(dst, v.Int64(), 10)
	case value.Decimal128:
		return append(dst, v.DecimalString()...)
	case value.String, value.Symbol:
		return append(append(append(dst, '"'), v.Bytes()...), '"')
	case value.Document:
		return appendNested(dst, v.Doc(), '{', '}', true)
	case value.Array:
		return appendNested(dst, v.Doc(), '[', ']', false)
	case value.ObjectID:
		return append(append(append(dst, "ObjectId('"...), hex.EncodeToString(v.Bytes())...), "')"...)
	case value.Boolean:
		return strconv.AppendBool(dst, v.Bool())
	case value.DateTime:
		return append(strconv.AppendInt(append(dst, "new Date("...), v.DateTime(), 10), ')')
	case value.Timestamp:
		t, i := v.Timestamp()
		dst = strconv.AppendUint(append(dst, "Timestamp("...), uint64(t), 10)
		return append(strconv.AppendUint(append(dst, ", "...), uint64(i), 10), ')')
	case value.Null:
		return append(dst, "null"...)
	case value.Undefined:
		return append(dst, "undefined"...)
	case value.Missing:
		return append(dst, "EOO"...)
	case value.MinKey:
		return append(dst, "MinKey"...)
	case value.MaxKey:
		return append(dst, "MaxKey"...)
	}
	return appendOther(dst, v)
}

func appendOther(dst []byte, v value.Value) []byte {
	switch v.T {
	case value.Binary:
		if v.Subtype() == 4 && len(v.Bytes()) == 16 {
			h := hex.EncodeToString(v.Bytes())
			return append(dst, `UUID("`+h[:8]+"-"+h[8:12]+"-"+h[12:16]+"-"+h[16:20]+"-"+h[20:]+`")`...)
		}
		dst = strconv.AppendUint(append(dst, "BinData("...), uint64(v.Subtype()), 10)
		return append(append(append(dst, ", "...), strings.ToUpper(hex.EncodeToString(v.Bytes()))...), ')')
	case value.Regex:
		p, o := v.Regex()
		return append(dst, "/"+p+"/"+o...)
	case value.DBPointer:
		ns, id := v.DBPointer()
		return append(dst, "DBRef('"+ns+"',"+hex.EncodeToString(id[:])+")"...)
	case value.JavaScript:
		return append(dst, v.Bytes()...)
	case value.CodeWithScope:
		code, scope := v.CodeWithScope()
		dst = append(append(append(dst, "CodeWScope( "...), code...), ", "...)
		return append(Append(dst, value.NewDocument(scope)), ')')
	}
	return append(dst, '?')
}

func appendNested(dst, doc []byte, open, end byte, names bool) []byte {
	dst = append(dst, open)
	first := true
	for k, v := range value.Elements(doc) {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, ' ')
		if names {
			dst = append(append(dst, k...), ": "...)
		}
		dst = Append(dst, v)
	}
	if !first {
		dst = append(dst, ' ')
	}
	return append(dst, end)
}

// Double prints a number that is recognisably a double: 5.0, 1.5, 1e+30, inf.0.
func Double(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan.0"
	case math.IsInf(f, 0):
		if f < 0 {
			return "-inf.0"
		}
		return "inf.0"
	}
	exp := 0
	if f != 0 {
		exp = int(math.Floor(math.Log10(math.Abs(f))))
	}
	if exp < -5 || exp >= 17 {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.ContainsRune(s, '.') {
		s += ".0"
	}
	return s
}
