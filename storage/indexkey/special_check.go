package indexkey

import (
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// textLanguages are the names and codes a text index's default_language may have.
var textLanguages = strings.Fields(`none danish da dutch nl english en finnish fi french fr german de hungarian hu italian it norwegian nb
	portuguese pt romanian ro russian ru spanish es swedish sv turkish tr`)

func checkText(s *Spec, raw []byte) error {
	if s.Kind != Text {
		return nil
	}
	if err := checkTextKeys(s); err != nil {
		return err
	}
	if v := value.Lookup(raw, "textIndexVersion"); v.T != value.Missing {
		if n, ok := v.AsInt64(); !ok || n < 1 || n > 3 || v.T == value.Decimal128 {
			return cannot("bad textIndexVersion: %s", bsontext.Value(v))
		}
	}
	if l := value.Lookup(raw, "default_language"); l.T == value.String && !slices.Contains(textLanguages, strings.ToLower(l.Str())) {
		return cannot("default_language is not valid: unsupported language: %q for text index version 3", l.Str())
	}
	if o := value.Lookup(raw, "language_override"); o.T == value.String && (o.Str() == "" || o.Str()[0] == '$') {
		return cannot("language_override is not valid")
	}
	w := value.Lookup(raw, "weights")
	switch {
	case w.T == value.Missing || w.T == value.String && w.Str() == "$**":
		return nil
	case w.T == value.String || w.T == value.Array:
		return cannot("weights must be a document or the string '$**', but got %s", w.T.Name())
	case w.T != value.Document:
		return mongoerr.Newf(mongoerr.TypeMismatch, "The field 'weights' must be an object, but got %s", w.T.Name())
	}
	for k, v := range value.Elements(w.Doc()) {
		if f := v.AsFloat64(); !v.T.Numeric() || f < 1 || f >= 99999 {
			return cannot("text index weight of '%s' must be in the exclusive interval (0, 99999) but found: %s", k, bsontext.Value(v))
		}
	}
	return nil
}

// checkTextKeys requires the text fields of a compound key to be adjacent.
func checkTextKeys(s *Spec) error {
	phase := 0 // before, in, or after the text fields
	for _, f := range s.Fields {
		switch {
		case f.Kind == Text && phase == 2:
			return cannot("'text' fields in index must all be adjacent")
		case f.Kind == Text:
			phase = 1
		case phase == 1:
			phase = 2
		}
	}
	return nil
}

func checkGeo(s *Spec, raw []byte) error {
	switch s.Kind {
	case Sphere:
		if v := value.Lookup(raw, "2dsphereIndexVersion"); v.T != value.Missing {
			if n, ok := v.AsInt64(); !ok || n < 1 || n > 3 {
				return cannot("unsupported geo index version { 2dsphereIndexVersion : %s }, only support versions: [1,2,3]", bsontext.Value(v))
			}
		}
	case Geo2D:
		bits, minimum, maximum := 26.0, -180.0, 180.0
		for k, to := range map[string]*float64{"bits": &bits, "min": &minimum, "max": &maximum} {
			if v := value.Lookup(raw, k); v.T != value.Missing {
				*to = v.AsFloat64()
			}
		}
		if bits < 1 || bits > 32 {
			return mongoerr.Newf(mongoerr.InvalidOptions, "bits for hash must be > 0 and <= 32, but %d bits were specified", int(bits))
		}
		if minimum >= maximum {
			return mongoerr.New(mongoerr.InvalidOptions, "region for hash must be valid and have positive area")
		}
	}
	return nil
}

// StoredKey returns the key pattern under which an index with a specification is stored.
func StoredKey(raw []byte) []byte {
	s, err := ParseSpec(raw)
	if err != nil {
		return nil
	}
	return storedKey(s)
}

// storedKey returns the key pattern as stored: in a text index the text fields are replaced by two special ones.
func storedKey(s *Spec) []byte {
	if s.Kind != Text || value.Lookup(s.KeyPattern, "_fts").T != value.Missing {
		return s.KeyPattern
	}
	dst, mark := value.Begin(nil)
	done := false
	for k, v := range value.Elements(s.KeyPattern) {
		if v.T != value.String || v.Str() != "text" {
			dst = value.Append(dst, k, v)
			continue
		}
		if !done {
			done = true
			dst = value.Append(dst, "_fts", value.NewString("text"))
			dst = value.Append(dst, "_ftsx", value.NewInt32(1))
		}
	}
	return value.End(dst, mark)
}

// appendTextOptions adds the options that every stored text index has.
func appendTextOptions(dst []byte, s *Spec, raw []byte) []byte {
	weights := map[string]value.Value{}
	for k, v := range value.Elements(s.KeyPattern) {
		if v.T == value.String && k != "_fts" {
			weights[k] = value.NewInt32(1)
		}
	}
	if w := value.Lookup(raw, "weights"); w.T == value.Document {
		for k, v := range value.Elements(w.Doc()) {
			weights[k] = v
		}
	} else if w.T == value.String {
		weights[w.Str()] = value.NewInt32(1)
	}
	names := make([]string, 0, len(weights))
	for k := range weights {
		names = append(names, k)
	}
	slices.Sort(names)
	var mark int
	dst, mark = value.BeginKey(dst, value.Document, "weights")
	for _, k := range names {
		dst = value.Append(dst, k, weights[k])
	}
	dst = value.End(dst, mark)
	withDefault := func(name string, v value.Value) {
		if given := value.Lookup(raw, name); given.T != value.Missing {
			v = given
		}
		dst = value.Append(dst, name, v)
	}
	withDefault("default_language", value.NewString("english"))
	withDefault("language_override", value.NewString("language"))
	withDefault("textIndexVersion", value.NewInt32(3))
	return dst
}
