package dates

import (
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // so that zones do not depend on the machine's installation
)

// Zone is a time zone: a name of the Olson database, or a fixed offset.
type Zone struct {
	loc   *time.Location // nil: fixed
	fixed int            // seconds east of UTC
	utc   bool
}

// UTC is the zone that is used if none is given.
var UTC = &Zone{utc: true}

// IsUTC reports whether the zone is UTC by name or by having no offset.
func (z *Zone) IsUTC() bool { return z.utc }

var zones sync.Map // name → *Zone; only names that exist, so it cannot grow beyond the database

// ParseZone reads "America/New_York", "+05:30", "-0800", "+03"; ok is false if it is not a zone.
func ParseZone(name string) (z *Zone, ok bool) {
	switch name {
	case "UTC", "GMT":
		return UTC, true
	case "", "Local":
		return nil, false
	}
	if name[0] == '+' || name[0] == '-' {
		secs, ok := parseOffset(name)
		return &Zone{fixed: secs, utc: secs == 0}, ok
	}
	if z, ok := zones.Load(name); ok {
		return z.(*Zone), true
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, false
	}
	z = &Zone{loc: loc}
	zones.Store(name, z)
	return z, true
}

// parseOffset reads ±hh, ±hhmm and ±hh:mm.
func parseOffset(s string) (secs int, ok bool) {
	digits := s[1:]
	if len(digits) == 5 && digits[2] == ':' {
		digits = digits[:2] + digits[3:]
	}
	if len(digits) != 2 && len(digits) != 4 || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	h, _ := strconv.Atoi(digits[:2])
	m := 0
	if len(digits) == 4 {
		m, _ = strconv.Atoi(digits[2:])
	}
	secs = h*3600 + m*60
	if s[0] == '-' {
		secs = -secs
	}
	return secs, true
}

// offset returns the zone's offset at an instant, in seconds.
func (z *Zone) offset(ms int64) int {
	if z.loc == nil {
		return z.fixed
	}
	_, off := time.Unix(floorDiv(ms, 1000), 0).In(z.loc).Zone()
	return off
}

// fromLocal returns the instant of a local time, itself given as milliseconds as if it were UTC.
func (z *Zone) fromLocal(local int64) int64 {
	if z.loc == nil {
		return local - int64(z.fixed)*1000
	}
	const day = 24 * 3600 * 1000
	before, after := int64(z.offset(local-day))*1000, int64(z.offset(local+day))*1000
	if t := local - before; before == after || int64(z.offset(t))*1000 == before {
		return t
	}
	if t := local - after; int64(z.offset(t))*1000 == after {
		return t
	}
	return local - before
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}

func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }
