package expr

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// scalarText prints a number or point in time as the conversions to string do.
func scalarText(v value.Value) string {
	switch v.T {
	case value.Int32, value.Int64:
		return strconv.FormatInt(v.Int64(), 10)
	case value.Double:
		return doubleText(v.Double())
	case value.Decimal128:
		return v.DecimalString()
	case value.DateTime:
		return isoDate(v.DateTime())
	case value.Timestamp:
		t, i := v.Timestamp()
		return fmt.Sprintf("Timestamp(%d, %d)", t, i)
	}
	return ""
}

// doubleText is the shortest text that reads back as the same double; exponents as C++ prints them.
func doubleText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	s := strconv.FormatFloat(f, 'g', -1, 64)
	if i := strings.IndexByte(s, 'e'); i < 0 || len(s) > 0 && math.Abs(f) < 1e21 && math.Abs(f) >= 1e-5 {
		s = strconv.FormatFloat(f, 'f', -1, 64)
	}
	return s
}

// isoDate prints milliseconds since 1970 as 2006-01-02T15:04:05.000Z.
func isoDate(ms int64) string {
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}
