package dates

import (
	"strconv"
	"strings"
)

var (
	weekdays = []string{"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"}
	months   = []string{"January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
		"November", "December"}
)

func lower(s string) string { return strings.ToLower(s) }

// The letters that formats may have.
const (
	printLetters = "bBdGHjLmMSuUVwYzZ%"
	parseLetters = "bBdGHjLmMSuVYzZ%"
)

// BadFormat is the error of a format: a '%' at its end, or one before an unknown letter.
type BadFormat struct {
	Letter byte // 0: the format ends in '%'
}

func (e *BadFormat) Error() string {
	if e.Letter == 0 {
		return "Unmatched '%' at end of format string"
	}
	return "Invalid format character '%" + string(e.Letter) + "' in format string"
}

// CheckFormat returns the error of a format for printing or parsing, nil if it is valid.
func CheckFormat(format string, parsing bool) *BadFormat {
	letters := printLetters
	if parsing {
		letters = parseLetters
	}
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			continue
		}
		if i++; i == len(format) {
			return &BadFormat{}
		}
		if strings.IndexByte(letters, format[i]) < 0 {
			return &BadFormat{format[i]}
		}
	}
	return nil
}

// Default formats of $dateToString.
const (
	FormatUTC   = "%Y-%m-%dT%H:%M:%S.%LZ"
	FormatLocal = "%Y-%m-%dT%H:%M:%S.%L"
)

// Format prints an instant in a format that CheckFormat accepts. bad is a year outside 0…9999 that had to be printed.
func (z *Zone) Format(dst []byte, ms int64, format string) (out []byte, bad int64, ok bool) {
	f := z.Fields(ms)
	for i := 0; i < len(format); i++ {
		c := format[i]
		if c != '%' {
			dst = append(dst, c)
			continue
		}
		i++
		switch format[i] {
		case 'Y', 'G':
			year := f.Year
			if format[i] == 'G' {
				year, _ = f.ISOWeek()
			}
			if year < 0 || year > 9999 {
				return dst, year, false
			}
			dst = pad(dst, int(year), 4)
		default:
			dst = f.appendLetter(dst, format[i])
		}
	}
	return dst, 0, true
}

func (f Fields) appendLetter(dst []byte, c byte) []byte {
	switch c {
	case 'b':
		return append(dst, months[f.Month-1][:3]...)
	case 'B':
		return append(dst, months[f.Month-1]...)
	case 'd':
		return pad(dst, f.Day, 2)
	case 'H':
		return pad(dst, f.Hour, 2)
	case 'j':
		return pad(dst, f.YearDay, 3)
	case 'L':
		return pad(dst, f.Milli, 3)
	case 'm':
		return pad(dst, f.Month, 2)
	case 'M':
		return pad(dst, f.Minute, 2)
	case 'S':
		return pad(dst, f.Second, 2)
	case 'u':
		return pad(dst, f.ISOWeekday(), 1)
	case 'U':
		return pad(dst, f.Week(), 2)
	case 'V':
		_, week := f.ISOWeek()
		return pad(dst, week, 2)
	case 'w':
		return pad(dst, f.Weekday+1, 1)
	case 'z':
		return appendOffset(dst, f.Offset)
	case 'Z':
		return strconv.AppendInt(dst, int64(f.Offset/60), 10)
	}
	return append(dst, '%')
}

func appendOffset(dst []byte, secs int) []byte {
	sign := byte('+')
	if secs < 0 {
		sign, secs = '-', -secs
	}
	dst = append(dst, sign)
	dst = pad(dst, secs/3600, 2)
	return pad(dst, secs/60%60, 2)
}

func pad(dst []byte, n, width int) []byte {
	s := strconv.Itoa(n)
	for i := len(s); i < width; i++ {
		dst = append(dst, '0')
	}
	return append(dst, s...)
}
