package dates

// Fields are a local time's calendar fields.
type Fields struct {
	Year          int64
	Month, Day    int // 1…
	Hour, Minute  int
	Second, Milli int
	Weekday       int // 0 is Sunday
	YearDay       int // 1…366
	Offset        int // of the zone, seconds
	days          int64
}

const msPerDay = 24 * 3600 * 1000

// Fields splits an instant.
func (z *Zone) Fields(ms int64) Fields {
	off := z.offset(ms)
	days, rest := floorDiv(ms, msPerDay), floorMod(ms, msPerDay) // before the offset, which must not overflow
	rest += int64(off) * 1000
	days += floorDiv(rest, msPerDay)
	rest = floorMod(rest, msPerDay)
	f := Fields{Offset: off, days: days}
	f.Year, f.Month, f.Day = civil(days)
	f.YearDay = int(days-daysOf(f.Year, 1, 1)) + 1
	f.Weekday = int(floorMod(days+4, 7)) // 1970-01-01 was a Thursday
	f.Hour, rest = int(rest/3600000), rest%3600000
	f.Minute, rest = int(rest/60000), rest%60000
	f.Second, f.Milli = int(rest/1000), int(rest%1000)
	return f
}

// daysOf counts the days from 1970-01-01 to a date; month and day need not be in range.
func daysOf(year int64, month, day int64) int64 {
	m := month - 1
	year += floorDiv(m, 12)
	m = floorMod(m, 12) + 1
	if m <= 2 { // years start in March here, so that the leap day is their last
		year--
		m += 12
	}
	era := floorDiv(year, 400)
	yoe := year - era*400
	doy := (153*(m-3)+2)/5 + day - 1
	return era*146097 + yoe*365 + yoe/4 - yoe/100 + doy - 719468
}

// civil returns the inverse of daysOf.
func civil(days int64) (year int64, month, day int) {
	days += 719468
	era := floorDiv(days, 146097)
	doe := days - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	day = int(doy - (153*mp+2)/5 + 1)
	month = int(mp + 3)
	year = yoe + era*400
	if month > 12 {
		month -= 12
		year++
	}
	return year, month, day
}

// daysIn returns the length of a month.
func daysIn(year int64, month int64) int64 { return daysOf(year, month+1, 1) - daysOf(year, month, 1) }

// ISOWeekday returns 1 for Monday to 7 for Sunday.
func (f Fields) ISOWeekday() int { return (f.Weekday+6)%7 + 1 }

// ISOWeek returns the ISO 8601 week and the year it belongs to.
func (f Fields) ISOWeek() (year int64, week int) {
	thursday := f.days + 4 - int64(f.ISOWeekday())
	year, _, _ = civil(thursday)
	return year, int(thursday-daysOf(year, 1, 1))/7 + 1
}

// Week returns the week of the year, weeks starting on Sunday; days before the first Sunday are week 0.
func (f Fields) Week() int { return (f.YearDay + 6 - f.Weekday) / 7 }

// Parts are the parts of a date; values beyond their usual range carry over.
type Parts struct {
	Year, Month, Day            int64
	Hour, Minute, Second, Milli int64
}

// Make returns the instant of local parts.
func (z *Zone) Make(p Parts) int64 {
	return z.fromLocal(daysOf(p.Year, p.Month, p.Day)*msPerDay + p.Hour*3600000 + p.Minute*60000 + p.Second*1000 + p.Milli)
}

// MakeISO is Make with ISO week year, week and weekday in place of year, month and day.
func (z *Zone) MakeISO(year, week, weekday int64, p Parts) int64 {
	p.Year, p.Month, p.Day = 1970, 1, isoDays(year, week, weekday)+1
	return z.Make(p)
}

func isoDays(year, week, weekday int64) int64 {
	jan4 := daysOf(year, 1, 4)
	monday := jan4 - floorMod(jan4+3, 7)
	return monday + (week-1)*7 + weekday - 1
}
