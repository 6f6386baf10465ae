package dates

import (
	"errors"
	"strings"
)

// Parse reads a date in one of the usual notations: ISO 8601 calendar, week and ordinal dates, month names, American
// month/day/year and day-month-year, with or without time and zone.
func Parse(s string, zone *Zone) (int64, error) {
	c := &scanner{s: strings.Trim(s, " \t\n\v\f\r\x00\u00a0")}
	r := &parsed{}
	if c.done() {
		return 0, errors.New("Empty string")
	}
	for !c.done() {
		before := c.at
		c.skip(" ,\t")
		if c.done() {
			break
		}
		if err := r.readToken(c); err != nil {
			return 0, err
		}
		if c.at == before {
			return 0, errUnexpected
		}
	}
	if r.month && r.day && r.year {
		r.hasDate = true
	}
	if !r.hasDate {
		return 0, errIncomplete
	}
	return r.instant(zone)
}

var errUnexpected = errors.New("Unexpected character")

func (r *parsed) readToken(c *scanner) error {
	b := c.peek()
	switch {
	case isDigit(b):
		return r.readDigits(c)
	case b == '@':
		return r.readEpoch(c)
	case (b == '+' || b == '-') && (r.hasTime || r.hasDate):
		return r.readZone(c)
	case b == '-' || b == '+':
		return r.readSignedYear(c)
	case isAlpha(b):
		return r.readWord(c)
	}
	return errUnexpected
}

// readSignedYear reads -0001-01-01.
func (r *parsed) readSignedYear(c *scanner) error {
	sign := int64(1)
	if c.peek() == '-' {
		sign = -1
	}
	c.at++
	if len(c.s) < c.at+5 || c.s[c.at+4] != '-' || r.hasAnyDate() {
		return errUnexpected
	}
	err := r.readYearFirst(c, '-')
	r.p.Year *= sign
	return err
}

// readEpoch reads seconds since 1970 after an at sign.
func (r *parsed) readEpoch(c *scanner) error {
	c.at++
	sign := int64(1)
	if c.peek() == '-' {
		sign = -1
		c.at++
	}
	n, digits := c.number(12)
	if digits == 0 {
		return errUnexpected
	}
	r.hasDate, r.zone = true, UTC
	f := UTC.Fields(sign * n * 1000)
	r.p = Parts{f.Year, int64(f.Month), int64(f.Day), int64(f.Hour), int64(f.Minute), int64(f.Second), 0}
	return nil
}

func (r *parsed) readWord(c *scanner) error {
	start := c.at
	w := c.word()
	if m := monthNamed(w); m > 0 && !r.hasDate {
		if r.month {
			return errors.New("Double date specification")
		}
		r.p.Month, r.month = m, true
		c.skip(".-")
		return nil
	}
	if _, ok := ParseWeekday(w); ok {
		c.skip(".,")
		return nil
	}
	switch w {
	case "t":
		if r.hasDate && isDigit(c.peek()) {
			return r.readTime(c)
		}
	case "a", "p", "am", "pm":
		c.at = start
		if n, pm := meridiem(c.s[start:]); n > 0 {
			c.at += n
			return r.setMeridiem(pm)
		}
	case "st", "nd", "rd", "th":
		if r.day {
			return nil
		}
	}
	c.at = start
	return r.readZone(c)
}

// meridiem recognizes am, pm, a.m. and p.m. (the dots are optional) and returns its length, 0 for none.
func meridiem(s string) (n int, pm bool) {
	s = lower(s[:min(len(s), 5)])
	if s == "" || s[0] != 'a' && s[0] != 'p' {
		return 0, false
	}
	rest := strings.TrimPrefix(s[1:], ".")
	if rest == "" || rest[0] != 'm' {
		return 0, false
	}
	rest = strings.TrimPrefix(rest[1:], ".")
	if rest != "" && isAlpha(rest[0]) {
		return 0, false
	}
	return len(s) - len(rest), s[0] == 'p'
}

func beforeMeridiem(s string) bool {
	n, _ := meridiem(strings.TrimLeft(s, " \t"))
	return n > 0
}

func (r *parsed) setMeridiem(pm bool) error {
	if !r.hasTime || r.p.Hour < 1 || r.p.Hour > 12 {
		return errors.New("Meridian can only come after an hour has been found")
	}
	r.p.Hour %= 12
	if pm {
		r.p.Hour += 12
	}
	return nil
}

// readDigits decides by the form of what follows: 12:30 is a time, 2017-02-08, 2/8/2017 and 20170208 are dates.
func (r *parsed) readDigits(c *scanner) error {
	end := c.at
	for end < len(c.s) && isDigit(c.s[end]) {
		end++
	}
	n := end - c.at
	next := byte(0)
	if end < len(c.s) {
		next = c.s[end]
	}
	switch {
	case n <= 2 && next == ':':
		return r.readTime(c)
	case n <= 2 && !r.hasTime && r.hasAnyDate() && beforeMeridiem(c.s[end:]):
		r.p.Hour, _ = c.number(2)
		r.hasTime = true
		return nil
	case r.hasDate || r.month:
		return r.readLoose(c, n)
	case n == 4 && (next == '-' || next == '/' || next == '.'):
		return r.readYearFirst(c, next)
	case n == 4 && lower(string(next)) == "w":
		return r.readISOWeek(c)
	case n == 8:
		return r.readCompact(c)
	case n == 14:
		if err := r.readCompact(c); err != nil {
			return err
		}
		return r.compactTime(c)
	case n == 7:
		r.p.Year, _ = c.number(4)
		r.yearDay, _ = c.number(3)
		r.hasYearDay, r.hasDate = true, true
		return nil
	case n <= 2 && next == '/':
		return r.readAmerican(c)
	case n <= 2 && (next == '-' || next == '.'):
		return r.readDayFirst(c, next)
	case n <= 2:
		return r.readLoose(c, n)
	}
	return errUnexpected
}

func (r *parsed) hasAnyDate() bool { return r.hasDate || r.month || r.day || r.year }

// readLoose reads a number that is a day or a year, depending on its position around a month's name, or a time after a date.
func (r *parsed) readLoose(c *scanner, n int) error {
	switch {
	case (r.hasDate || r.year && r.day) && !r.hasTime && (n == 4 || n == 6):
		return r.compactTime(c)
	case n <= 2 && !r.day:
		r.p.Day, _ = c.number(2)
		r.day = true
		c.skip("-")
		return nil
	case n == 4 && !r.year:
		r.p.Year, _ = c.number(4)
		r.year = true
		c.skip("-")
		return nil
	}
	return errors.New("Double date specification")
}

func (r *parsed) setDate(y, m, d int64) error {
	if r.hasDate {
		return errors.New("Double date specification")
	}
	r.p.Year, r.p.Month, r.p.Day = y, m, d
	r.hasDate = true
	return nil
}

// readYearFirst reads 2017-02-08, 2017-02, 2017/2/8, 2017-Feb-08, 2017-W06-3 and 2017-039.
func (r *parsed) readYearFirst(c *scanner, sep byte) error {
	start := c.at
	y, digits := c.number(4)
	if digits < 4 {
		return errUnexpected
	}
	c.at++
	if b := c.peek(); b == 'W' || b == 'w' {
		c.at = start
		return r.readISOWeek(c)
	}
	m, digits := c.number(3)
	if digits == 0 {
		if m = monthNamed(c.word()); m == 0 {
			return errUnexpected
		}
	}
	if digits == 3 {
		r.p.Year, r.yearDay, r.hasYearDay, r.hasDate = y, m, true, true
		return nil
	}
	if c.peek() != sep {
		if sep != '-' {
			return errUnexpected
		}
		return r.setDate(y, m, 1)
	}
	c.at++
	d, digits := c.number(2)
	if digits == 0 {
		return errUnexpected
	}
	if m < 1 || m > 12 {
		return errUnexpected
	}
	return r.setDate(y, m, d)
}

// readISOWeek reads 2017-W06, 2017W063 and 2017-W06-3.
func (r *parsed) readISOWeek(c *scanner) error {
	r.isoYear, _ = c.number(4)
	c.skip("-")
	c.at++ // the W
	var digits int
	if r.week, digits = c.number(2); digits == 0 {
		return errUnexpected
	}
	r.weekday = 1
	at := c.at
	c.skip("-")
	if n, digits := c.number(1); digits == 1 {
		r.weekday = n
	} else {
		c.at = at
	}
	r.hasISO, r.hasDate = true, true
	return nil
}

func (r *parsed) readCompact(c *scanner) error {
	y, _ := c.number(4)
	m, _ := c.number(2)
	d, _ := c.number(2)
	return r.setDate(y, m, d)
}

// compactTime reads hhmm and hhmmss.
func (r *parsed) compactTime(c *scanner) error {
	r.hasTime = true
	r.p.Hour, _ = c.number(2)
	r.p.Minute, _ = c.number(2)
	r.p.Second, _ = c.number(2)
	return r.fraction(c)
}

// readAmerican reads month/day/year and month/day.
func (r *parsed) readAmerican(c *scanner) error {
	m, _ := c.number(2)
	c.at++
	d, digits := c.number(2)
	if digits == 0 || c.peek() != '/' {
		return errUnexpected
	}
	c.at++
	y, digits := c.number(4)
	if digits == 2 {
		y = century(y)
	} else if digits != 4 {
		return errUnexpected
	}
	return r.setDate(y, m, d)
}

func century(y int64) int64 {
	if y < 70 {
		return y + 2000
	}
	return y + 1900
}

// readDayFirst reads day-month-year, day.month.year and day-Feb-year.
func (r *parsed) readDayFirst(c *scanner, sep byte) error {
	d, _ := c.number(2)
	c.at++
	m, digits := c.number(2)
	if digits == 0 {
		if m = monthNamed(c.word()); m == 0 {
			return errUnexpected
		}
	}
	if c.peek() != sep {
		return errUnexpected
	}
	c.at++
	y, digits := c.number(4)
	if digits != 4 {
		return errUnexpected
	}
	return r.setDate(y, m, d)
}

// readTime reads 12:30, 12:30:45 and 12:30:45.678.
func (r *parsed) readTime(c *scanner) error {
	if r.hasTime {
		return errors.New("Double time specification")
	}
	r.hasTime = true
	var digits int
	r.p.Hour, _ = c.number(2)
	if c.peek() != ':' {
		if b := c.peek(); isDigit(b) {
			r.p.Minute, _ = c.number(2)
			r.p.Second, _ = c.number(2)
			return r.fraction(c)
		}
		return nil
	}
	c.at++
	if r.p.Minute, digits = c.number(2); digits == 0 {
		return errUnexpected
	}
	if c.peek() != ':' {
		return nil
	}
	c.at++
	if r.p.Second, digits = c.number(2); digits == 0 {
		return errUnexpected
	}
	return r.fraction(c)
}

// fraction reads a fraction of a second, truncated to milliseconds.
func (r *parsed) fraction(c *scanner) error {
	if b := c.peek(); b != '.' && b != ',' {
		return nil
	}
	c.at++
	n, digits := c.number(3)
	if digits == 0 {
		return errUnexpected
	}
	for ; digits < 3; digits++ {
		n *= 10
	}
	r.p.Milli = n
	c.number(9)
	return nil
}
