package expr

import (
	bin "encoding/binary"

	"github.com/shoaldb/shoal/query/expr/dates"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	part("$year", func(f dates.Fields) value.Value { return fitInt(f.Year, true) })
	part("$month", intPart(func(f dates.Fields) int { return f.Month }))
	part("$dayOfMonth", intPart(func(f dates.Fields) int { return f.Day }))
	part("$dayOfYear", intPart(func(f dates.Fields) int { return f.YearDay }))
	part("$dayOfWeek", intPart(func(f dates.Fields) int { return f.Weekday + 1 }))
	part("$hour", intPart(func(f dates.Fields) int { return f.Hour }))
	part("$minute", intPart(func(f dates.Fields) int { return f.Minute }))
	part("$second", intPart(func(f dates.Fields) int { return f.Second }))
	part("$millisecond", intPart(func(f dates.Fields) int { return f.Milli }))
	part("$week", intPart(dates.Fields.Week))
	part("$isoWeek", intPart(func(f dates.Fields) int { _, w := f.ISOWeek(); return w }))
	part("$isoWeekYear", func(f dates.Fields) value.Value { y, _ := f.ISOWeek(); return value.NewInt64(y) })
	part("$isoDayOfWeek", intPart(dates.Fields.ISOWeekday))
}

func intPart(get func(dates.Fields) int) func(dates.Fields) value.Value {
	return func(f dates.Fields) value.Value { return value.NewInt32(int32(get(f))) }
}

// part makes a row for an operator that reads one field of a date: args are the date and, or nil, the zone.
func part(name string, get func(dates.Fields) value.Value) {
	register(&operator{name: name, parse: parseDatePart, fields: []field{{"date", 40539}, {"timezone", 0}},
		words: wording{unknown: 40535, onUnknown: "unrecognized option to %[1]s: \"%[2]s\"", onMiss: "missing 'date' argument to %[1]s, provided: %[1]s: %[3]s"},
		eval: func(f *Frame, c *call) (value.Value, error) {
			v, zone, ok, err := f.dateAndZone(c)
			if err != nil || !ok {
				return null, err
			}
			ms, err := toDate(v)
			if err != nil {
				return v, err
			}
			return get(zone.Fields(ms)), nil
		}})
}

// parseDatePart reads an expression, an array holding one, or a document of date and timezone.
func parseDatePart(op *operator, arg value.Value, s *Scope) (node, error) {
	switch arg.T {
	case value.Document:
		if !isExpressionObject(arg) {
			return parseNamed(op, arg, s)
		}
	case value.Array:
		if n := value.Count(arg.Doc()); n != 1 {
			return nil, mongoerr.Newf(40536, "%s accepts exactly one argument if given an array, but was given %d", op.name, n)
		}
		arg = element(arg.Doc(), 0)
	}
	n, err := parseValue(arg, s)
	if err != nil {
		return nil, err
	}
	return &call{op: op, args: []node{n, nil}}, nil
}

// toDate converts the operand of a date operator: dates, timestamps and object ids are points in time.
func toDate(v value.Value) (ms int64, err error) {
	switch v.T {
	case value.DateTime:
		return v.DateTime(), nil
	case value.Timestamp:
		t, _ := v.Timestamp()
		return int64(t) * 1000, nil
	case value.ObjectID:
		return int64(int32(bin.BigEndian.Uint32(v.Bytes()))) * 1000, nil
	}
	return 0, mongoerr.Newf(16006, "can't convert from BSON type %s to Date", v.T.Name())
}

func isDate(v value.Value) bool {
	return v.T == value.DateTime || v.T == value.Timestamp || v.T == value.ObjectID
}

// zone evaluates the operand that names a time zone: UTC if it is omitted; ok is false if it is null.
func (f *Frame) zone(c *call, i int) (z *dates.Zone, ok bool, err error) {
	if c.args[i] == nil {
		return dates.UTC, true, nil
	}
	v, err := c.args[i].eval(f)
	if err != nil || v.IsNullish() {
		return nil, false, err
	}
	return zoneOf(v)
}

// dateAndZone evaluates the first two arguments of a call, a date and perhaps a zone; ok is false if one of them is null or missing.
func (f *Frame) dateAndZone(c *call) (date value.Value, z *dates.Zone, ok bool, err error) {
	if date, err = c.args[0].eval(f); err != nil || date.IsNullish() {
		return date, nil, false, err
	}
	z, ok, err = f.zone(c, 1)
	return date, z, ok, err
}

func zoneOf(v value.Value) (z *dates.Zone, ok bool, err error) {
	if v.T != value.String {
		return nil, false, mongoerr.Newf(40517, "timezone must evaluate to a string, found %s", v.T.Name())
	}
	if z, ok = dates.ParseZone(v.Str()); !ok {
		return nil, false, mongoerr.Newf(40485, "unrecognized time zone identifier: \"%s\"", v.Str())
	}
	return z, true, nil
}
