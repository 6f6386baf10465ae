package dates

import (
	"errors"
	"strings"
)

// parsed has the parts of a date that have been read so far.
type parsed struct {
	p          Parts
	zone       *Zone
	isoYear    int64
	week       int64
	weekday    int64
	yearDay    int64
	hasDate    bool
	hasISO     bool
	hasTime    bool
	hasYearDay bool
	month      bool
	day        bool
	year       bool
}

var (
	errIncomplete = errors.New("an incomplete date/time string has been found, with elements missing")
	errInvalid    = errors.New("an invalid date was found")
	// ErrTwoZones is the error for a string that names a zone, if a zone argument is given, too.
	ErrTwoZones = errors.New("you cannot pass in a date/time string with time zone information together with a timezone argument")
)

// instant turns what was read into milliseconds; zone (nil: none was given) applies if the string names none.
func (r *parsed) instant(zone *Zone) (int64, error) {
	z := UTC
	switch {
	case r.zone != nil && zone != nil && !zone.IsUTC():
		return 0, ErrTwoZones
	case r.zone != nil:
		z = r.zone
	case zone != nil:
		z = zone
	}
	switch {
	case r.hasISO:
		if r.week < 1 || r.week > 53 || r.weekday < 1 || r.weekday > 7 {
			return 0, errInvalid
		}
		return z.MakeISO(r.isoYear, r.week, r.weekday, r.p), nil
	case r.hasYearDay:
		if r.yearDay < 1 || r.yearDay > 367 {
			return 0, errInvalid
		}
		r.p.Month, r.p.Day = 1, r.yearDay
	case r.p.Month < 1 || r.p.Month > 12 || r.p.Day < 1 || r.p.Day > daysIn(r.p.Year, r.p.Month):
		return 0, errInvalid
	}
	if r.p.Hour > 24 || r.p.Minute > 59 || r.p.Second > 60 {
		return 0, errInvalid
	}
	return z.Make(r.p), nil
}

// scanner reads a string from left to right.
type scanner struct {
	s  string
	at int
}

func (c *scanner) done() bool { return c.at >= len(c.s) }
func (c *scanner) peek() byte {
	if c.done() {
		return 0
	}
	return c.s[c.at]
}

// number reads up to max digits.
func (c *scanner) number(max int) (n int64, digits int) {
	for digits < max && !c.done() && isDigit(c.s[c.at]) {
		n = n*10 + int64(c.s[c.at]-'0')
		c.at++
		digits++
	}
	return n, digits
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }
func isAlpha(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' }

// word reads letters.
func (c *scanner) word() string {
	start := c.at
	for !c.done() && isAlpha(c.s[c.at]) {
		c.at++
	}
	return lower(c.s[start:c.at])
}

func (c *scanner) skip(set string) {
	for !c.done() && strings.IndexByte(set, c.s[c.at]) >= 0 {
		c.at++
	}
}

// monthNamed finds a month by its name or abbreviation.
func monthNamed(w string) int64 {
	if w == "sept" {
		return 9
	}
	for i, m := range months {
		if w == lower(m) || w == lower(m[:3]) {
			return int64(i + 1)
		}
	}
	return 0
}

// ParseFormat reads a date by a format that CheckFormat accepts.
func ParseFormat(s, format string, zone *Zone) (int64, error) {
	c := &scanner{s: s}
	r := &parsed{p: Parts{Year: 1970, Month: 1, Day: 1}, isoYear: 1970, week: 1, weekday: 1}
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			if c.peek() != format[i] || c.done() {
				return 0, errors.New("the separation symbol could not be found")
			}
			c.at++
			continue
		}
		i++
		if err := r.readLetter(c, format[i]); err != nil {
			return 0, err
		}
	}
	if !c.done() {
		return 0, errors.New("trailing data")
	}
	if !r.year && !r.hasISO || (r.month || r.day) && !r.year {
		return 0, errIncomplete
	}
	if r.hasISO && (r.month || r.day || r.year) {
		return 0, errors.New("mixing of ISO dates with natural dates is not allowed")
	}
	return r.instant(zone)
}

func (r *parsed) readLetter(c *scanner, letter byte) error {
	want := func(max int, dst *int64) error {
		n, digits := c.number(max)
		if digits == 0 {
			return errors.New("a number could not be found")
		}
		*dst = n
		return nil
	}
	switch letter {
	case 'Y':
		r.year = true
		n, digits := c.number(4)
		if digits != 4 {
			return errors.New("a four digit year could not be found")
		}
		r.p.Year = n
		return nil
	case 'G':
		r.hasISO = true
		return want(4, &r.isoYear)
	case 'V':
		r.hasISO = true
		return want(2, &r.week)
	case 'u':
		r.hasISO = true
		return want(1, &r.weekday)
	case 'm':
		r.month = true
		return want(2, &r.p.Month)
	case 'd':
		r.day = true
		return want(2, &r.p.Day)
	case 'j':
		r.hasYearDay = true
		err := want(3, &r.yearDay)
		r.yearDay++ // the server counts from zero here
		return err
	case 'H':
		return want(2, &r.p.Hour)
	case 'M':
		return want(2, &r.p.Minute)
	case 'S':
		return want(2, &r.p.Second)
	case 'L':
		n, digits := c.number(3)
		if digits == 0 {
			return errors.New("milliseconds could not be found")
		}
		for ; digits < 3; digits++ {
			n *= 10
		}
		r.p.Milli = n
		return nil
	case 'b', 'B':
		r.month = true
		if r.p.Month = monthNamed(c.word()); r.p.Month == 0 {
			return errors.New("a textual month could not be found")
		}
		return nil
	case 'z':
		return r.readZone(c)
	case 'Z':
		return r.readMinutesOffset(c)
	}
	if c.peek() != '%' {
		return errors.New("the separation symbol could not be found")
	}
	c.at++
	return nil
}

func (r *parsed) readMinutesOffset(c *scanner) error {
	sign := int64(1)
	switch c.peek() {
	case '-':
		sign = -1
		c.at++
	case '+':
		c.at++
	}
	n, digits := c.number(4)
	if digits == 0 {
		return errors.New("a time zone offset in minutes could not be found")
	}
	r.zone = &Zone{fixed: int(sign * n * 60)}
	return nil
}

// readZone reads Z, an offset, an abbreviation or a zone's name.
func (r *parsed) readZone(c *scanner) error {
	if r.zone != nil {
		return errors.New("double timezone specification")
	}
	if b := c.peek(); b == '+' || b == '-' {
		start := c.at
		c.at++
		for !c.done() && (isDigit(c.peek()) || c.peek() == ':') {
			c.at++
		}
		return r.setOffset(c.s[start:c.at])
	}
	start := c.at
	for !c.done() && (isAlpha(c.peek()) || c.peek() == '/' || c.peek() == '_' || c.at > start && (isDigit(c.peek()) || c.peek() == '-' || c.peek() == '+')) {
		c.at++
	}
	name := c.s[start:c.at]
	if off, ok := abbreviations[lower(name)]; ok {
		r.zone = &Zone{fixed: off * 60, utc: off == 0}
		return nil
	}
	if hours, ok := militaryZone(lower(name)); ok {
		r.zone = &Zone{fixed: hours * 3600}
		return nil
	}
	for _, prefix := range []string{"gmt", "utc"} {
		if rest, ok := strings.CutPrefix(lower(name), prefix); ok && rest != "" && (rest[0] == '+' || rest[0] == '-') {
			c.skip(":")
			return r.setOffset(rest)
		}
	}
	z, ok := ParseZone(name)
	if !ok {
		return errors.New("the timezone could not be found in the database")
	}
	r.zone = z
	return nil
}

// militaryZone returns the hours east of Greenwich of a zone named by one letter: a to m without j are east, n to y
// are west (z stands among the abbreviations).
func militaryZone(name string) (hours int, ok bool) {
	if len(name) != 1 {
		return 0, false
	}
	switch b := int(name[0]); {
	case b >= 'a' && b <= 'i':
		return b - 'a' + 1, true
	case b >= 'k' && b <= 'm':
		return b - 'a', true
	case b >= 'n' && b <= 'y':
		return 'm' - b, true
	}
	return 0, false
}

// setOffset also accepts one and three digits, which occur in real dates.
func (r *parsed) setOffset(s string) error {
	digits := s[1:]
	if h, m, ok := strings.Cut(digits, ":"); ok {
		if len(h) == 1 {
			h = "0" + h
		}
		digits = h + m
	} else if len(digits)%2 == 1 {
		digits = "0" + digits
	}
	secs, ok := parseOffset(s[:1] + digits)
	if !ok {
		return errors.New("the timezone could not be found in the database")
	}
	r.zone = &Zone{fixed: secs, utc: secs == 0}
	return nil
}

// abbreviations are zones' abbreviations, in minutes east.
var abbreviations = map[string]int{"z": 0, "utc": 0, "gmt": 0, "est": -300, "edt": -240, "cst": -360, "cdt": -300, "mst": -420,
	"mdt": -360, "pst": -480, "pdt": -420, "cet": 60, "cest": 120, "eet": 120, "eest": 180, "wet": 0, "west": 60, "bst": 60,
	"msk": 180, "jst": 540, "ist": 330, "akst": -540, "akdt": -480, "hst": -600, "aest": 600, "aedt": 660, "acst": 570, "awst": 480,
	"nzst": 720, "nzdt": 780}
