package expr

import (
	"math"

	"github.com/shoaldb/shoal/query/expr/dates"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	addWords := wording{object: 5166400, unknown: 5166401, onObject: "%[1]s expects an object as its argument.found type:%[2]s",
		onUnknown: "Unrecognized argument to %[1]s: %[2]s. Expected arguments are startDate, unit, amount, and optionally timezone.",
		onMiss:    "%[1]s requires startDate, unit, and amount to be present"}
	addFields := []field{{"startDate", 5166402}, {"unit", 5166402}, {"amount", 5166402}, {"timezone", 0}}
	register(
		&operator{name: "$dateAdd", fields: addFields, words: addWords, eval: evalDateAdd(1)},
		&operator{name: "$dateSubtract", fields: addFields, words: addWords, eval: evalDateAdd(-1)},
		&operator{name: "$dateDiff", eval: evalDateDiff,
			fields: []field{{"startDate", 5166303}, {"endDate", 5166304}, {"unit", 5166305}, {"timezone", 0}, {"startOfWeek", 0}},
			words: wording{object: 5166301, unknown: 5166302, onObject: "%[1]s only supports an object as its argument",
				onUnknown: "Unrecognized argument to %[1]s: %[2]s", onMiss: "Missing '%[2]s' parameter to %[1]s"}},
		&operator{name: "$dateTrunc", eval: evalDateTrunc, prepare: prepareDateTrunc,
			fields: []field{{"date", 5439009}, {"unit", 5439010}, {"binSize", 0}, {"timezone", 0}, {"startOfWeek", 0}},
			words: wording{object: 5439007, unknown: 5439008, onObject: "%[1]s only supports an object as its argument",
				onUnknown: "Unrecognized argument to %[1]s: %[2]s", onMiss: "Missing '%[2]s' parameter to %[1]s"}},
	)
}

// namedArgs evaluates all operands; ok is false if a given one is null.
func (f *Frame) namedArgs(c *call, vs []value.Value) (ok bool, err error) {
	ok = true
	for i, n := range c.args {
		if n == nil {
			continue
		}
		if vs[i], err = n.eval(f); err != nil {
			return false, err
		}
		ok = ok && !vs[i].IsNullish()
	}
	return ok, nil
}

func unitOf(name string, v value.Value) (dates.Unit, error) {
	if v.T != value.String {
		return 0, mongoerr.Newf(5439013, "%s requires 'unit' to be a string, but got %s", name, v.T.Name())
	}
	u, ok := dates.ParseUnit(v.Str())
	if !ok {
		return 0, mongoerr.Newf(mongoerr.FailedToParse, "unknown time unit value: %s", v.Str())
	}
	return u, nil
}

// optionalZone returns the zone named by an operand, or UTC.
func optionalZone(c *call, i int, v value.Value) (*dates.Zone, error) {
	if c.args[i] == nil {
		return dates.UTC, nil
	}
	z, _, err := zoneOf(v)
	return z, err
}

func evalDateAdd(sign int64) func(*Frame, *call) (value.Value, error) {
	return func(f *Frame, c *call) (value.Value, error) {
		var vs [4]value.Value
		ok, err := f.namedArgs(c, vs[:])
		if err != nil || !ok {
			return null, err
		}
		if !isDate(vs[0]) {
			return null, mongoerr.Newf(5166403, "%s requires startDate to be convertible to a date", c.op.name)
		}
		ms, _ := toDate(vs[0])
		unit, err := unitOf(c.op.name, vs[1])
		if err != nil {
			return null, err
		}
		amount, ok := vs[2].AsInt64()
		if !ok {
			return null, mongoerr.Newf(5166405, "%s expects integer amount of time units", c.op.name)
		}
		zone, err := optionalZone(c, 3, vs[3])
		if err != nil {
			return null, err
		}
		if sign < 0 {
			if amount == math.MinInt64 {
				return null, mongoerr.Newf(6045000, "invalid %s 'amount' parameter value: %d", c.op.name, amount)
			}
			amount = -amount
		}
		if !dates.AmountInRange(unit, amount) {
			return null, mongoerr.Newf(5976500, "invalid %s 'amount' parameter value: %d %s", c.op.name, amount*sign, unit)
		}
		out, ok := zone.Add(ms, unit, amount)
		if !ok {
			return null, mongoerr.Newf(5166406, "%s overflowed", c.op.name)
		}
		return value.NewDateTime(out), nil
	}
}

func startOfWeek(name string, v value.Value) (int, error) {
	if v.T != value.String {
		return 0, mongoerr.Newf(5439015, "%s requires 'startOfWeek' to be a string, but got %s", name, v.T.Name())
	}
	day, ok := dates.ParseWeekday(v.Str())
	if !ok {
		return 0, mongoerr.Newf(5439016, "%s parameter 'startOfWeek' value cannot be recognized as a day of a week: %s", name, v.Str())
	}
	return day, nil
}

// unitAndZone reads the operands that $dateDiff and $dateTrunc share; day is the first of the week, for the unit week only.
func unitAndZone(c *call, unitArg, zoneArg, dayArg value.Value) (unit dates.Unit, zone *dates.Zone, day int, err error) {
	if unit, err = unitOf(c.op.name, unitArg); err != nil {
		return 0, nil, 0, err
	}
	if zone, err = optionalZone(c, 3, zoneArg); err == nil && unit == dates.Week && c.args[4] != nil {
		day, err = startOfWeek(c.op.name, dayArg)
	}
	return unit, zone, day, err
}

func evalDateDiff(f *Frame, c *call) (value.Value, error) {
	var vs [5]value.Value
	ok, err := f.namedArgs(c, vs[:])
	if err != nil || !ok && !f.ignoredWeek(c, vs[:], vs[2]) {
		return null, err
	}
	for i, name := range []string{"startDate", "endDate"} {
		if !isDate(vs[i]) {
			return null, mongoerr.Newf(5166307, "$dateDiff requires '%s' to be a date, but got %s", name, vs[i].T.Name())
		}
	}
	unit, zone, day, err := unitAndZone(c, vs[2], vs[3], vs[4])
	if err != nil {
		return null, err
	}
	start, _ := toDate(vs[0])
	end, _ := toDate(vs[1])
	n, ok := zone.Diff(start, end, unit, day)
	if !ok {
		return null, mongoerr.New(5166308, "dateDiff overflowed")
	}
	return value.NewInt64(n), nil
}

// ignoredWeek reports whether the only null operand is a startOfWeek (the last) that the unit does not use.
func (f *Frame) ignoredWeek(c *call, vs []value.Value, unit value.Value) bool {
	last := len(vs) - 1
	for i, v := range vs[:last] {
		if c.args[i] != nil && v.IsNullish() {
			return false
		}
	}
	return unit.T == value.String && unit.Str() != "week"
}

// prepareDateTrunc records a constant null startOfWeek: it makes the result null whatever the unit, unless the date is
// a constant, too.
func prepareDateTrunc(c *call, _ *Scope) error {
	_, constDate := c.args[0].(*constant)
	if k, ok := c.args[4].(*constant); ok && k.v.IsNullish() && !constDate {
		c.state = true
	}
	return nil
}

func evalDateTrunc(f *Frame, c *call) (value.Value, error) {
	if c.state != nil {
		return null, nil
	}
	var vs [5]value.Value
	ok, err := f.namedArgs(c, vs[:])
	if err != nil || !ok && !f.ignoredWeek(c, vs[:], vs[1]) {
		return null, err
	}
	if !isDate(vs[0]) {
		return null, mongoerr.Newf(5166307, "$dateTrunc requires 'date' to be a date, but got %s", vs[0].T.Name())
	}
	size := int64(1)
	if c.args[2] != nil {
		if size, ok = vs[2].AsInt64(); !ok {
			return null, mongoerr.Newf(5439017, "$dateTrunc requires 'binSize' to be a 64-bit integer, but got value '%s' of type %s",
				Show(vs[2]), vs[2].T.Name())
		}
		if size <= 0 {
			return null, mongoerr.Newf(5439018, "$dateTrunc requires 'binSize' to be greater than 0, but got value %d", size)
		}
	}
	unit, zone, day, err := unitAndZone(c, vs[1], vs[3], vs[4])
	if err != nil {
		return null, err
	}
	ms, _ := toDate(vs[0])
	if unit >= dates.Day && size > 100_000_000_000 {
		return null, mongoerr.New(5439006, "$dateTrunc unsupported binSize value")
	}
	out, ok := zone.Trunc(ms, unit, size, day)
	if !ok {
		return null, mongoerr.New(5439002, "$dateTrunc unsupported binSize value")
	}
	return value.NewDateTime(out), nil
}
