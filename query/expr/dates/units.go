package dates

import "math"

// Unit is a unit of time.
type Unit int

// The units, small to large.
const (
	Millisecond Unit = iota
	Second
	Minute
	Hour
	Day
	Week
	Month
	Quarter
	Year
)

var unitNames = map[string]Unit{"millisecond": Millisecond, "second": Second, "minute": Minute, "hour": Hour, "day": Day,
	"week": Week, "month": Month, "quarter": Quarter, "year": Year}

// ParseUnit reads a unit's name.
func ParseUnit(s string) (Unit, bool) {
	u, ok := unitNames[s]
	return u, ok
}

func (u Unit) String() string {
	for name, v := range unitNames {
		if v == u {
			return name
		}
	}
	return ""
}

// fixedMS is the length of units up to the hour, and of days and weeks without a change of clocks.
var fixedMS = [...]int64{1, 1000, 60000, 3600000, msPerDay, 7 * msPerDay}

// ParseWeekday reads a day's name or its three letters, in any case; 0 is Sunday.
func ParseWeekday(s string) (int, bool) {
	if len(s) < 3 {
		return 0, false
	}
	low := lower(s)
	for i, name := range weekdays {
		if low == lower(name) || low == lower(name[:3]) {
			return i, true
		}
	}
	return 0, false
}

func mul(a, b int64) (int64, bool) {
	if a == 0 || b == 0 {
		return 0, true
	}
	c := a * b
	return c, c/b == a && !(a == -1 && b == math.MinInt64) && !(b == -1 && a == math.MinInt64)
}

func add(a, b int64) (int64, bool) {
	c := a + b
	return c, (c > a) == (b > 0)
}

// Add moves an instant by an amount of units; ok is false if it leaves the range of dates. Days and longer units
// keep the local time; months clip the day to the month's last.
func (z *Zone) Add(ms int64, u Unit, amount int64) (out int64, ok bool) {
	if u <= Hour {
		d, ok := mul(amount, fixedMS[u])
		if !ok {
			return 0, false
		}
		return add(ms, d)
	}
	f := z.Fields(ms)
	p := Parts{f.Year, int64(f.Month), int64(f.Day), int64(f.Hour), int64(f.Minute), int64(f.Second), int64(f.Milli)}
	const far = 400_000_000_000
	if amount > far || amount < -far {
		return 0, false
	}
	switch u {
	case Day:
		p.Day += amount
	case Week:
		p.Day += 7 * amount
	case Month, Quarter, Year:
		p.Month += amount * monthsIn[u]
		p.Day = min(p.Day, daysIn(p.Year, p.Month))
	}
	days := daysOf(p.Year, p.Month, p.Day)
	local, ok := mul(days, msPerDay)
	if !ok {
		return 0, false
	}
	if local, ok = add(local, p.Hour*3600000+p.Minute*60000+p.Second*1000+p.Milli); !ok {
		return 0, false
	}
	if _, ok = add(local, -int64(f.Offset)*1000); !ok {
		return 0, false
	}
	if days == f.days {
		return ms, true
	}
	return z.fromLocal(local), true
}

var monthsIn = map[Unit]int64{Month: 1, Quarter: 3, Year: 12}

// Diff counts the boundaries of a unit between two instants.
func (z *Zone) Diff(start, end int64, u Unit, startOfWeek int) (int64, bool) {
	if u == Millisecond {
		d := end - start
		return d, (d < end) == (start > 0)
	}
	a, b := z.Fields(start), z.Fields(end)
	shift := int64(a.Offset - b.Offset) // the clock was set between them
	switch u {
	case Year:
		return b.Year - a.Year, true
	case Quarter:
		return (b.Year-a.Year)*4 + int64((b.Month-1)/3-(a.Month-1)/3), true
	case Month:
		return (b.Year-a.Year)*12 + int64(b.Month-a.Month), true
	case Week:
		w := func(f Fields) int64 { return floorDiv(f.days+4-int64(startOfWeek), 7) }
		return w(b) - w(a), true
	case Day:
		return b.days - a.days, true
	case Hour:
		return (b.days-a.days)*24 + int64(b.Hour-a.Hour) + shift/3600, true
	case Minute:
		return (b.days-a.days)*1440 + int64(b.Hour-a.Hour)*60 + int64(b.Minute-a.Minute) + shift/60, true
	}
	return floorDiv(end, 1000) - floorDiv(start, 1000), true
}

// Trunc rounds an instant down to the start of its bin: bins of size units, counted from the start of the year
// 2000 (for weeks, from its first day that starts a week). ok is false if the bin is larger than the range of
// dates.
func (z *Zone) Trunc(ms int64, u Unit, size int64, startOfWeek int) (int64, bool) {
	if u <= Hour {
		width, ok := mul(size, fixedMS[u])
		if !ok {
			return 0, false
		}
		return z.truncFixed(ms, width)
	}
	f := z.Fields(ms)
	if u <= Week {
		ref := daysOf(2000, 1, 1)
		if u == Week {
			var ok bool
			if size, ok = mul(size, 7); !ok {
				return 0, false
			}
			ref += floorMod(int64(startOfWeek)-6, 7) // it was a Saturday
		}
		day := ref + floorDiv(f.days-ref, size)*size
		return z.fromLocalDays(day)
	}
	months, ok := mul(size, monthsIn[u])
	if !ok {
		return 0, false
	}
	m := floorDiv((f.Year-2000)*12+int64(f.Month-1), months) * months
	return z.fromLocalDays(daysOf(2000, 1+m, 1))
}

func (z *Zone) fromLocalDays(days int64) (int64, bool) {
	local, ok := mul(days, msPerDay)
	if !ok {
		return 0, false
	}
	return z.fromLocal(local), true
}

// truncFixed works on the local clock, so that bins of hours start where days do.
func (z *Zone) truncFixed(ms, width int64) (int64, bool) {
	ref := z.Make(Parts{Year: 2000, Month: 1, Day: 1})
	if width%3600000 != 0 && width > 0 {
		ref = daysOf(2000, 1, 1) * msPerDay
		if off := int64(z.offset(ms)) * 1000; off%60000 != 0 || width > 60000 {
			ref -= off
		}
	}
	d, ok := add(ms, -ref)
	if !ok {
		return 0, false
	}
	return ref + floorDiv(d, width)*width, true
}

// longest is the span of dates by unit, with a margin: amounts beyond it are refused.
var longest = map[Unit]int64{Year: 584942417, Quarter: 4 * 584942417, Month: 12 * 584942417, Week: 53 * 584942417, Day: 366 * 584942417,
	Hour: 24 * 366 * 584942417, Minute: 60 * 24 * 366 * 584942417, Second: 3600 * 24 * 366 * 584942417}

// AmountInRange reports whether an amount of units can lie between two dates.
func AmountInRange(u Unit, amount int64) bool {
	l, ok := longest[u]
	return !ok || amount <= l && amount >= -l
}
