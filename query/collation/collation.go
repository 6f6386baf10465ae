package collation

import (
	"math"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// version is the version of the collation rules that the server line reports.
const version = "57.1"

// Spec is a validated collation; nil means the simple collation, which compares bytes.
type Spec struct {
	Locale          string
	CaseLevel       bool
	CaseFirst       string // off, upper, lower
	Strength        int    // 1..5
	NumericOrdering bool
	Alternate       string // non-ignorable, shifted
	MaxVariable     string // punct, space
	Normalization   bool
	Backwards       bool
}

// Parse validates a collation document. For {locale: "simple"} it returns nil.
func Parse(doc []byte) (*Spec, error) {
	s := &Spec{}
	given := map[string]bool{}
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		if v.T == value.Null && string(k) != "backwards" {
			if _, known := fields[string(k)]; known {
				continue
			}
		}
		read, known := fields[string(k)]
		if !known {
			return nil, mongoerr.UnknownField("collation." + string(k))
		}
		if err := read(s, v); err != nil {
			return nil, err
		}
		given[string(k)] = true
	}
	if !given["locale"] {
		return nil, mongoerr.MissingField("collation.locale")
	}
	if s.Locale == "simple" {
		return nil, nil
	}
	if !knownLocale(s.Locale) {
		return nil, mongoerr.Newf(mongoerr.BadValue, "Field 'locale' is invalid in: %s", value.ShowDoc(doc))
	}
	s.setDefaults(given)
	return s, s.check(doc)
}

// check refuses meaningless combinations.
func (s *Spec) check(doc []byte) error {
	if s.CaseFirst != "off" && !s.CaseLevel && s.Strength < 3 {
		return mongoerr.Newf(mongoerr.BadValue, "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2 in: %s", value.ShowDoc(doc))
	}
	if s.Backwards && s.Strength == 1 {
		return mongoerr.Newf(mongoerr.BadValue, "'backwards' is invalid with 'strength' of 1 in: %s", value.ShowDoc(doc))
	}
	return nil
}

// fields reads each field of a collation document.
var fields = map[string]func(*Spec, value.Value) error{
	"locale": func(s *Spec, v value.Value) (err error) {
		s.Locale, err = stringField("locale", v)
		return err
	},
	"caseLevel": func(s *Spec, v value.Value) error { return boolField("caseLevel", v, &s.CaseLevel) },
	"caseFirst": func(s *Spec, v value.Value) error {
		return enumField("caseFirst", v, &s.CaseFirst, "off", "upper", "lower")
	},
	"strength":        strengthField,
	"numericOrdering": func(s *Spec, v value.Value) error { return boolField("numericOrdering", v, &s.NumericOrdering) },
	"alternate": func(s *Spec, v value.Value) error {
		return enumField("alternate", v, &s.Alternate, "non-ignorable", "shifted")
	},
	"maxVariable": func(s *Spec, v value.Value) error {
		return enumField("maxVariable", v, &s.MaxVariable, "punct", "space")
	},
	"normalization": func(s *Spec, v value.Value) error { return boolField("normalization", v, &s.Normalization) },
	"backwards": func(s *Spec, v value.Value) error {
		if v.T != value.Boolean {
			return mongoerr.Newf(mongoerr.TypeMismatch, "Field 'backwards' should be a boolean value, but found: %s", v.T.Name())
		}
		s.Backwards = v.Bool()
		return nil
	},
	"version": versionField,
}

func wrongType(name string, v value.Value, want string) error {
	return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'collation.%s' is the wrong type '%s', expected %s", name, v.T.Name(), want)
}

func notInEnum(name, got string) error {
	return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'collation.%s' is not a valid value.", got, name)
}

func stringField(name string, v value.Value) (string, error) {
	if v.T != value.String {
		return "", wrongType(name, v, "type 'string'")
	}
	return v.Str(), nil
}

func boolField(name string, v value.Value, to *bool) error {
	if v.T != value.Boolean {
		return wrongType(name, v, "type 'bool'")
	}
	*to = v.Bool()
	return nil
}

func enumField(name string, v value.Value, to *string, allowed ...string) error {
	s, err := stringField(name, v)
	if err != nil {
		return err
	}
	for _, a := range allowed {
		if s == a {
			*to = s
			return nil
		}
	}
	return notInEnum(name, s)
}

// strengthField reads the strength as the server converts numbers: doubles are truncated, decimals are rounded half to
// even, NaN is 0.
func strengthField(s *Spec, v value.Value) error {
	var n int64
	switch {
	case !v.T.Numeric():
		return wrongType("strength", v, "types '[long, int, decimal, double]'")
	case v.T == value.Decimal128 && !v.IsNaN():
		f := math.RoundToEven(v.AsFloat64())
		n = int64(max(-1e9, min(f, 1e9)))
	default:
		if i, ok := v.Truncate(); ok {
			n = i
		} else if v.AsFloat64() > 0 {
			n = math.MaxInt32
		}
	}
	switch {
	case n < 0:
		return mongoerr.Newf(mongoerr.BadValue, "BSON field 'strength' value must be >= 0, actual value '%d'", n)
	case n > 5:
		return mongoerr.Newf(mongoerr.BadValue, "BSON field 'strength' value must be <= 5, actual value '%d'", n)
	case n == 0:
		return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%d' for field 'collation.strength' is not a valid value.", n)
	}
	s.Strength = int(n)
	return nil
}

func versionField(_ *Spec, v value.Value) error {
	got, err := stringField("version", v)
	if err != nil {
		return err
	}
	if got != version {
		return mongoerr.Newf(mongoerr.IncompatibleCollationVersion, "Requested collation version %s but the only available collator version was %s. Requested collation spec: { version: %q }", got, version, got)
	}
	return nil
}

// Document returns the full form of the specification; nil for the simple collation.
func (s *Spec) Document() []byte {
	if s == nil {
		return nil
	}
	return value.Doc(
		value.F("locale", value.NewString(s.Locale)),
		value.F("caseLevel", value.NewBool(s.CaseLevel)),
		value.F("caseFirst", value.NewString(s.CaseFirst)),
		value.F("strength", value.NewInt32(int32(s.Strength))),
		value.F("numericOrdering", value.NewBool(s.NumericOrdering)),
		value.F("alternate", value.NewString(s.Alternate)),
		value.F("maxVariable", value.NewString(s.MaxVariable)),
		value.F("normalization", value.NewBool(s.Normalization)),
		value.F("backwards", value.NewBool(s.Backwards)),
		value.F("version", value.NewString(version)),
	)
}

// Equal reports whether two specifications are the same collation; nil stands for simple.
func (s *Spec) Equal(t *Spec) bool { return s == t || s != nil && t != nil && *s == *t }

// Same compares an index's collation document, nil for simple, with an operation's collation.
func Same(doc []byte, spec *Spec) bool {
	if doc == nil {
		return spec == nil
	}
	own, err := Parse(doc)
	return err == nil && own.Equal(spec)
}
