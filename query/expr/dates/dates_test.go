package dates

import (
	"testing"
	"time"
)

// TestFieldsAgainstRuntime compares the calendar with the runtime's over many years, in zones with odd offsets.
func TestFieldsAgainstRuntime(t *testing.T) {
	for _, name := range []string{"UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Apia", "Australia/Lord_Howe"} {
		zone, ok := ParseZone(name)
		if !ok {
			t.Fatal(name)
		}
		loc, _ := time.LoadLocation(name)
		for ms := int64(-70000000000000); ms < 300000000000000; ms += 86399123 * 997 {
			f, want := zone.Fields(ms), time.UnixMilli(ms).In(loc)
			y, w := f.ISOWeek()
			wy, ww := want.ISOWeek()
			if f.Year != int64(want.Year()) || f.Month != int(want.Month()) || f.Day != want.Day() || f.Hour != want.Hour() ||
				f.Minute != want.Minute() || f.Second != want.Second() || f.YearDay != want.YearDay() ||
				f.Weekday != int(want.Weekday()) || y != int64(wy) || w != ww {
				t.Fatalf("%s %d: %+v, want %v", name, ms, f, want)
			}
			p := Parts{f.Year, int64(f.Month), int64(f.Day), int64(f.Hour), int64(f.Minute), int64(f.Second), int64(f.Milli)}
			if back := zone.Make(p); back != ms && zone.Fields(back).Hour != f.Hour {
				t.Fatalf("%s %d: back %d", name, ms, back)
			}
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"2017-02-08T12:10:40.787Z", "2017-02-08T12:10:40.787Z"},
		{"2017-02-08 12:10", "2017-02-08T12:10:00.000Z"},
		{"20170208T121040", "2017-02-08T12:10:40.000Z"},
		{"2/8/2017", "2017-02-08T00:00:00.000Z"},
		{"8-Feb-2017", "2017-02-08T00:00:00.000Z"},
		{"Feb 8, 2017 3:04:05 PM EST", "2017-02-08T20:04:05.000Z"},
		{"WED jan 31 12:05:28 +03:30 1996", "1996-01-31T08:35:28.000Z"},
		{"2017-039", "2017-02-08T00:00:00.000Z"},
		{"2017-W06-3", "2017-02-08T00:00:00.000Z"},
		{"@86400", "1970-01-02T00:00:00.000Z"},
		{"2017-02-08T12:10:40 Europe/Paris", "2017-02-08T11:10:40.000Z"},
		{"-0001-01-01T00:00:00Z", ""},
		{"2017-02-29", "!"}, {"nonsense", "!"}, {"12:30", "!"}, {"2017-02-08 25:00", "!"}, {"2017-02-08 2017-02-09", "!"}, {"", "!"},
	} {
		ms, err := Parse(c.in, nil)
		if c.want == "!" {
			if err == nil {
				t.Errorf("%q parsed as %d", c.in, ms)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		if out, _, ok := UTC.Format(nil, ms, FormatUTC); ok && c.want != "" && string(out) != c.want {
			t.Errorf("%q: %s, want %s", c.in, out, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"2017-02-08T12:10:40.787Z", "Oct 20 2020", "@1", "2017W01", "1/2/3", "-1", "12:", "5-"} {
		f.Add(s, "%Y-%m-%d")
	}
	f.Fuzz(func(t *testing.T, s, format string) {
		_, _ = Parse(s, nil)
		if CheckFormat(format, true) == nil {
			_, _ = ParseFormat(s, format, nil)
		}
	})
}

func TestTruncAndDiffAgree(t *testing.T) {
	zone, _ := ParseZone("America/New_York")
	start := time.Date(2024, 3, 9, 12, 0, 0, 0, time.UTC).UnixMilli()
	for u := Millisecond; u <= Year; u++ {
		for k := int64(1); k < 40; k++ {
			end, ok := zone.Add(start, u, k)
			if !ok {
				t.Fatal(u, k)
			}
			n, _ := zone.Diff(start, end, u, 0)
			if n != k {
				t.Errorf("%s: %d added, %d counted", u, k, n)
			}
			a, _ := zone.Trunc(end, u, 1, 0)
			b, _ := zone.Trunc(a, u, 1, 0)
			if a > end || a != b {
				t.Errorf("%s: truncating %d gives %d, then %d", u, end, a, b)
			}
		}
	}
}

// FuzzFormats: no format of $dateFromString may do worse than fail.
func FuzzFormats(f *testing.F) {
	for _, s := range []string{"%Y-%m-%dT%H:%M:%S.%LZ", "%G-%V-%u", "%j %z %Z", "%b %d %%", "%"} {
		f.Add("2024-01-31T10:00:00.000Z", s, "UTC")
	}
	f.Fuzz(func(t *testing.T, s, format, zone string) {
		z, ok := ParseZone(zone)
		if !ok {
			return
		}
		if CheckFormat(format, true) == nil {
			_, _ = ParseFormat(s, format, z)
		}
		_, _ = Parse(s, z)
	})
}
