package expr

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// Show returns a value as text for errors of evaluations: {a: 1, b: "x"}, BinData(0, "FF"). Errors of parsers look
// different, see value.Show.
func Show(v value.Value) string {
	var b strings.Builder
	show(&b, v)
	return b.String()
}

func show(b *strings.Builder, v value.Value) {
	switch v.T {
	case value.Missing:
		b.WriteString("MISSING")
	case value.Double:
		b.WriteString(ShowDouble(v.Double()))
	case value.Int32, value.Int64:
		b.WriteString(strconv.FormatInt(v.Int64(), 10))
	case value.Decimal128:
		b.WriteString(v.DecimalString())
	case value.String:
		b.WriteString(`"` + v.Str() + `"`)
	case value.Symbol, value.JavaScript:
		b.WriteString(v.Str())
	case value.Boolean:
		b.WriteString(strconv.FormatBool(v.Bool()))
	case value.DateTime:
		b.WriteString(v.Time().Format("2006-01-02T15:04:05.000Z"))
	case value.Timestamp:
		t, i := v.Timestamp()
		fmt.Fprintf(b, "Timestamp(%d, %d)", t, i)
	case value.ObjectID:
		b.WriteString(hex.EncodeToString(v.Bytes()))
	case value.Binary:
		fmt.Fprintf(b, "BinData(%d, \"%s\")", v.Subtype(), strings.ToUpper(hex.EncodeToString(v.Bytes())))
	case value.Regex:
		p, o := v.Regex()
		b.WriteString("/" + p + "/" + o)
	case value.Document, value.Array:
		showNested(b, v)
	default:
		b.WriteString(v.T.Name())
	}
}

func showNested(b *strings.Builder, v value.Value) {
	open, end := "{", "}"
	if v.T == value.Array {
		open, end = "[", "]"
	}
	b.WriteString(open)
	n := 0
	for it := value.Walk(v.Doc()); ; n++ {
		k, e, ok := it.Next()
		if !ok {
			break
		}
		if n > 0 {
			b.WriteString(", ")
		}
		if v.T == value.Document {
			b.Write(k)
			b.WriteString(": ")
		}
		show(b, e)
	}
	b.WriteString(end)
}

// ShowDouble returns a double as text for errors of evaluations, with six digits: 100, 1.23457e+06, -0, inf.
func ShowDouble(f float64) string {
	if word := value.ShowUnusual(f); word != "" {
		return word
	}
	return strconv.FormatFloat(f, 'g', 6, 64)
}
