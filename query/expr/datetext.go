package expr

import (
	"errors"

	"github.com/shoaldb/shoal/query/expr/dates"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		&operator{name: "$dateToString", eval: evalDateToString, prepare: prepareFormat,
			fields: []field{{"date", 18628}, {"format", 0}, {"timezone", 0}, {"onNull", 0}},
			words:  wording{object: 18629, unknown: 18534, onUnknown: "Unrecognized argument to %[1]s: %[2]s", onMiss: "Missing '%[2]s' parameter to %[1]s"}},
		&operator{name: "$dateFromString", eval: evalDateFromString,
			fields: []field{{"dateString", 40542}, {"format", 0}, {"timezone", 0}, {"onError", 0}, {"onNull", 0}},
			words: wording{object: 40540, unknown: 40541, onObject: "%[1]s only supports an object as an argument, found: %[2]s",
				onUnknown: "Unrecognized argument to %[1]s: %[2]s", onMiss: "Missing '%[2]s' parameter to %[1]s"}},
		&operator{name: "$dateToParts", eval: evalDateToParts,
			fields: []field{{"date", 40522}, {"timezone", 0}, {"iso8601", 0}},
			words: wording{object: 40524, unknown: 40520, onUnknown: "Unrecognized argument to %[1]s: %[2]s",
				onMiss: "Missing '%[2]s' parameter to %[1]s"}},
		&operator{name: "$dateFromParts", eval: evalDateFromParts, parse: parseDateFromParts, fields: partFields,
			words: wording{object: 40519, unknown: 40518, onUnknown: "Unrecognized argument to %[1]s: %[2]s"}},
	)
}

// checkFormat reads a format operand.
func checkFormat(name string, v value.Value, typeCode mongoerr.Code, parsing bool) error {
	if v.T != value.String {
		return mongoerr.Newf(typeCode, "%s requires that 'format' be a string, found: %s with value %s", name, v.T.Name(), Show(v))
	}
	if bad := dates.CheckFormat(v.Str(), parsing); bad != nil {
		if bad.Letter == 0 {
			return mongoerr.New(18535, bad.Error())
		}
		return mongoerr.New(18536, bad.Error())
	}
	return nil
}

func prepareFormat(c *call, _ *Scope) error {
	if k, ok := c.args[1].(*constant); ok && !k.v.IsNullish() {
		return checkFormat(c.op.name, k.v, 18533, false)
	}
	return nil
}

func evalDateToString(f *Frame, c *call) (value.Value, error) {
	v, err := c.args[0].eval(f)
	if err != nil {
		return v, err
	}
	var format value.Value
	if c.args[1] != nil {
		if format, err = c.args[1].eval(f); err != nil {
			return format, err
		}
		if !format.IsNullish() {
			if err := checkFormat(c.op.name, format, 18533, false); err != nil {
				return format, err
			}
		}
	}
	if v.IsNullish() {
		if c.args[3] != nil {
			return c.args[3].eval(f)
		}
		return null, nil
	}
	if c.args[1] != nil && format.IsNullish() {
		return null, nil
	}
	zone, ok, err := f.zone(c, 2)
	if err != nil || !ok {
		return null, err
	}
	ms, err := toDate(v)
	if err != nil {
		return v, err
	}
	pattern := format.Str()
	if c.args[1] == nil {
		if pattern = dates.FormatLocal; zone.IsUTC() {
			pattern = dates.FormatUTC
		}
	}
	return f.formatDate(ms, zone, pattern)
}

func (f *Frame) formatDate(ms int64, zone *dates.Zone, pattern string) (value.Value, error) {
	out, year, ok := zone.Format(nil, ms, pattern)
	if !ok {
		return value.Value{}, mongoerr.Newf(18537, "$dateToString is only defined on year 0-9999, tried to use year %d", year)
	}
	return value.NewStringBytes(out), nil
}

func evalDateFromString(f *Frame, c *call) (value.Value, error) {
	var vs [5]value.Value
	for i := range 3 {
		if c.args[i] == nil {
			continue
		}
		v, err := c.args[i].eval(f)
		if err != nil {
			return v, err
		}
		vs[i] = v
	}
	s, format, tz := vs[0], vs[1], vs[2]
	hasFormat, hasZone := c.args[1] != nil, c.args[2] != nil
	if hasFormat && !format.IsNullish() {
		if err := checkFormat(c.op.name, format, 40684, true); err != nil {
			return s, err
		}
	}
	var zone *dates.Zone
	if hasZone && !tz.IsNullish() {
		var err error
		if zone, _, err = zoneOf(tz); err != nil {
			return s, err
		}
	}
	if s.IsNullish() {
		if c.args[4] != nil {
			return c.args[4].eval(f)
		}
		return null, nil
	}
	if hasFormat && format.IsNullish() || hasZone && tz.IsNullish() {
		return null, nil
	}
	ms, err := dateFromText(s, format, zone, hasFormat)
	if err != nil {
		if c.args[3] != nil {
			return c.args[3].eval(f)
		}
		return s, err
	}
	return value.NewDateTime(ms), nil
}

func dateFromText(s, format value.Value, zone *dates.Zone, hasFormat bool) (ms int64, err error) {
	if s.T != value.String {
		return 0, mongoerr.Newf(mongoerr.ConversionFailure, "$dateFromString requires that 'dateString' be a string, found: %s with value %s",
			s.T.Name(), Show(s))
	}
	if hasFormat {
		ms, err = dates.ParseFormat(s.Str(), format.Str(), zone)
	} else {
		ms, err = dates.Parse(s.Str(), zone)
	}
	if errors.Is(err, dates.ErrTwoZones) {
		return 0, mongoerr.Newf(mongoerr.ConversionFailure, "%s", err)
	}
	if err != nil {
		return 0, mongoerr.Newf(mongoerr.ConversionFailure, "Error parsing date string '%s'; %s", s.Str(), err)
	}
	return ms, nil
}

func evalDateToParts(f *Frame, c *call) (value.Value, error) {
	v, zone, ok, err := f.dateAndZone(c)
	if err != nil || !ok {
		return null, err
	}
	iso, err := c.arg(f, 2)
	if err != nil {
		return iso, err
	}
	if c.args[2] != nil {
		if iso.IsNullish() {
			return null, nil
		}
		if iso.T != value.Boolean {
			return iso, mongoerr.Newf(40521, "iso8601 must evaluate to a bool, found %s", iso.T.Name())
		}
	}
	ms, err := toDate(v)
	if err != nil {
		return v, err
	}
	d := zone.Fields(ms)
	b := f.beginDoc()
	set := func(name string, n int) { b.set(name, value.NewInt32(int32(n))) }
	if iso.Bool() {
		year, week := d.ISOWeek()
		set("isoWeekYear", int(year))
		set("isoWeek", week)
		set("isoDayOfWeek", d.ISOWeekday())
	} else {
		set("year", int(d.Year))
		set("month", d.Month)
		set("day", d.Day)
	}
	set("hour", d.Hour)
	set("minute", d.Minute)
	set("second", d.Second)
	set("millisecond", d.Milli)
	return b.finish(), nil
}

var partFields = []field{{"year", 0}, {"month", 0}, {"day", 0}, {"isoWeekYear", 0}, {"isoWeek", 0}, {"isoDayOfWeek", 0},
	{"hour", 0}, {"minute", 0}, {"second", 0}, {"millisecond", 0}, {"timezone", 0}}

func parseDateFromParts(op *operator, arg value.Value, s *Scope) (node, error) {
	n, err := parseNamed(op, arg, s)
	if err != nil {
		return nil, err
	}
	a := n.(*call).args
	switch {
	case a[0] == nil && a[3] == nil:
		return nil, mongoerr.New(40516, "$dateFromParts requires either 'year' or 'isoWeekYear' to be present")
	case a[0] != nil && (a[3] != nil || a[4] != nil || a[5] != nil):
		return nil, mongoerr.New(40489, "$dateFromParts does not allow mixing natural dates with ISO dates")
	case a[3] != nil && (a[1] != nil || a[2] != nil):
		return nil, mongoerr.New(40525, "$dateFromParts does not allow mixing ISO dates with natural dates")
	}
	return n, nil
}

func evalDateFromParts(f *Frame, c *call) (value.Value, error) {
	var parts [10]int64
	isNull := false
	for i := range parts {
		if i >= 1 && i <= 5 && i != 3 {
			parts[i] = 1
		}
		if c.args[i] == nil {
			continue
		}
		v, err := c.args[i].eval(f)
		if err != nil {
			return v, err
		}
		if v.IsNullish() {
			isNull = true
			continue
		}
		name := c.op.fields[i].name
		n, ok := v.AsInt64()
		if !ok {
			return v, mongoerr.Newf(40515, "'%s' must evaluate to an integer, found %s with value %s", name, v.T.Name(), Show(v))
		}
		if err := checkPart(i, name, n); err != nil {
			return v, err
		}
		parts[i] = n
	}
	zone, ok, err := f.zone(c, 10)
	if err != nil || !ok || isNull {
		return null, err
	}
	p := dates.Parts{Year: parts[0], Month: parts[1], Day: parts[2], Hour: parts[6], Minute: parts[7], Second: parts[8], Milli: parts[9]}
	if c.args[3] != nil {
		return value.NewDateTime(zone.MakeISO(parts[3], parts[4], parts[5], p)), nil
	}
	return value.NewDateTime(zone.Make(p)), nil
}

func checkPart(i int, name string, n int64) error {
	switch {
	case (i == 0 || i == 3) && (n < 1 || n > 9999):
		return mongoerr.Newf(40523, "'%s' must evaluate to an integer in the range 1 to 9999, found %d", name, n)
	case i < 8 && (n < -32768 || n > 32767):
		return mongoerr.Newf(31034, "'%s' must evaluate to a value in the range [-32768, 32767]; value %d is not in range", name, n)
	}
	return nil
}
