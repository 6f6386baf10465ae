package command

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ParseFields reads a document inside a command's arguments by a table of its fields. The values come in the table's
// order; null counts as not sent.
func ParseFields(path string, doc []byte, fields []Field) ([]value.Value, error) {
	out := make([]value.Value, len(fields))
	for k, v := range value.Elements(doc) {
		i := fieldIndex(fields, k)
		switch {
		case i < 0:
			return nil, UnknownField(path + "." + k)
		case v.IsNullish():
		case !fields[i].Types.Accepts(v.T):
			return nil, WrongType(path+"."+k, v.T, fields[i].Types)
		default:
			out[i] = v
		}
	}
	for i, f := range fields {
		if f.Required && out[i].IsMissing() {
			return nil, MissingField(path + "." + f.Name)
		}
	}
	return out, nil
}

func fieldIndex(fields []Field, name string) int {
	for i := range fields {
		if fields[i].Name == name {
			return i
		}
	}
	return -1
}

// OneOf checks an enumeration.
func OneOf(path string, v value.Value, allowed ...string) error {
	if v.IsMissing() {
		return nil
	}
	for _, a := range allowed {
		if v.Str() == a {
			return nil
		}
	}
	return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '%s' is not a valid value.", v.Str(), path)
}

// InRange checks an integer argument; the errors name the field without its path.
func InRange(name string, v value.Value, low, high int64) (int64, error) {
	i := value.SafeInt64(v)
	if i < low {
		return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' value must be >= %d, actual value '%d'", name, low, i)
	}
	if i > high {
		return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' value must be <= %d, actual value '%d'", name, high, i)
	}
	return i, nil
}

func BadOption(format string, args ...any) error {
	return mongoerr.Newf(mongoerr.InvalidOptions, format, args...)
}
