package value

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Show returns a BSON value as text in the format of the server's parse errors: { a: 1.5, b: "x" }, new Date(0), BinData(0, FF).
func Show(v Value) string {
	var b strings.Builder
	show(&b, v)
	return b.String()
}

// UUIDText returns the notation of RFC 9562.
func UUIDText(id [16]byte) string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// ShowElement is Show with the field's name before it.
func ShowElement(key string, v Value) string { return key + ": " + Show(v) }

// ShowDoc prints a document.
func ShowDoc(doc []byte) string { return Show(NewDocument(doc)) }

func show(b *strings.Builder, v Value) {
	switch v.T {
	case Double:
		b.WriteString(showDouble(v.Double()))
	case Int32, Int64:
		b.WriteString(strconv.FormatInt(v.Int64(), 10))
	case Decimal128:
		b.WriteString(v.DecimalString())
	case String, Symbol:
		b.WriteString(`"` + v.Str() + `"`)
	case JavaScript:
		b.WriteString(v.Str())
	case Boolean:
		b.WriteString(strconv.FormatBool(v.Bool()))
	case DateTime:
		fmt.Fprintf(b, "new Date(%d)", v.DateTime())
	case Timestamp:
		t, i := v.Timestamp()
		fmt.Fprintf(b, "Timestamp(%d, %d)", t, i)
	case ObjectID:
		b.WriteString("ObjectId('" + hex.EncodeToString(v.Bytes()) + "')")
	case Binary:
		fmt.Fprintf(b, "BinData(%d, %s)", v.Subtype(), strings.ToUpper(hex.EncodeToString(v.Bytes())))
	case Regex:
		p, o := v.Regex()
		b.WriteString("/" + p + "/" + o)
	case DBPointer:
		ns, id := v.DBPointer()
		b.WriteString(`DBRef("` + ns + `", ` + hex.EncodeToString(id[:]) + ")")
	case CodeWithScope:
		code, scope := v.CodeWithScope()
		b.WriteString("CodeWScope( " + code + ", " + ShowDoc(scope) + ")")
	case Document:
		showNested(b, v, "{", "}")
	case Array:
		showNested(b, v, "[", "]")
	case Missing:
		b.WriteString("EOO")
	case MinKey:
		b.WriteString("MinKey")
	case MaxKey:
		b.WriteString("MaxKey")
	default:
		b.WriteString(v.T.Name())
	}
}

func showNested(b *strings.Builder, v Value, open, end string) {
	b.WriteString(open)
	first := true
	for it := Walk(v.Doc()); ; first = false {
		k, e, ok := it.Next()
		if !ok {
			break
		}
		if !first {
			b.WriteByte(',')
		}
		b.WriteByte(' ')
		if v.T == Document {
			b.Write(k)
			b.WriteString(": ")
		}
		show(b, e)
	}
	if !first || v.T == Array {
		b.WriteByte(' ')
	}
	b.WriteString(end)
}

func showDouble(f float64) string {
	if word := ShowUnusual(f); word != "" {
		return word
	}
	s := strconv.FormatFloat(f, 'g', 16, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// ShowUnusual returns the text for a double that is not finite; "" for one that is.
func ShowUnusual(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	return ""
}
