package expr

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// coercedText prints a number or point in time in the form that string operators use: doubles with six digits.
func coercedText(v value.Value) string {
	switch v.T {
	case value.Int32, value.Int64:
		return strconv.FormatInt(v.Int64(), 10)
	case value.Double:
		return sixDigits(v.Double())
	case value.Decimal128:
		return v.DecimalString()
	case value.DateTime:
		return isoDate(v.DateTime())
	case value.Timestamp:
		t, i := v.Timestamp()
		return time.Unix(int64(t), 0).UTC().Format("Jan _2 15:04:05") + ":" + strconv.FormatUint(uint64(i), 10)
	}
	return ""
}

func sixDigits(f float64) string {
	if word := value.ShowUnusual(f); word != "" {
		return word
	}
	s := strconv.FormatFloat(f, 'e', 5, 64)
	exp, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	if exp >= -4 && exp < 6 {
		s = strconv.FormatFloat(f, 'f', 5-exp, 64)
		if strings.IndexByte(s, '.') >= 0 {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
	mant, tail, _ := strings.Cut(s, "e")
	if strings.IndexByte(mant, '.') >= 0 {
		mant = strings.TrimRight(strings.TrimRight(mant, "0"), ".")
	}
	return mant + "e" + tail
}

// doubleText returns the shortest text that reads back as the same double; numbers from 1e16 up and below 1e-4
// have an exponent.
func doubleText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	if exp, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:]); exp >= -4 && exp < 16 {
		s = strconv.FormatFloat(f, 'f', -1, 64)
	}
	return s
}

// isoDate prints milliseconds since 1970 as 2006-01-02T15:04:05.000Z.
func isoDate(ms int64) string {
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}
