package sortkey

import (
	"math"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

var metaKinds = map[string]bool{
	"textScore": true, "randVal": true, "searchScore": true, "vectorSearchScore": true, "geoNearDistance": true, "score": true,
}

// Parse compiles the sort specification of a pipeline.
func Parse(spec []byte, c value.Collator) (*Pattern, error) {
	var parts []Part
	seen := map[string]bool{}
	plain := 0
	for k, v := range value.Elements(spec) {
		if k == "" {
			return nil, mongoerr.New(40352, "FieldPath cannot be constructed with empty string")
		}
		part, err := parsePart(k, v)
		if err != nil {
			return nil, err
		}
		if part.Path, err = expr.SplitPath(k); err != nil {
			return nil, err
		}
		if len(part.Path) > maxDepth {
			return nil, mongoerr.Newf(mongoerr.Overflow, "FieldPath is too long: a path has at most %d components", maxDepth)
		}
		if seen[k] {
			return nil, mongoerr.Newf(7472500, "$sort key must not contain duplicate keys (duplicate: '%s')", k)
		}
		seen[k] = true
		if part.Meta == "" {
			plain++
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return nil, mongoerr.New(15976, "$sort stage must have at least one sort key")
	}
	if plain > MaxParts {
		return nil, mongoerr.New(13103, "too many compound keys")
	}
	return New(parts, c), nil
}

// maxDepth limits the number of components of a path.
const maxDepth = 200

// parsePart reads a direction: a number that is 1 or -1 as an integer, or {$meta: …}.
func parsePart(k string, v value.Value) (part Part, err error) {
	part.Sign = 1
	switch {
	case v.T == value.Document:
		part.Meta, err = metaKind(v)
		part.Sign = -1 // the best first; for distances the greatest
		return part, err
	case !v.T.Numeric():
		return part, mongoerr.Newf(15974, "Illegal key in $sort specification: %s: %s", k, value.Show(v))
	}
	n := math.Trunc(v.AsFloat64())
	if v.T == value.Decimal128 {
		n = math.RoundToEven(v.AsFloat64())
	}
	if n != 1 && n != -1 {
		return part, mongoerr.New(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)")
	}
	part.Sign = int(n)
	return part, nil
}

func metaKind(v value.Value) (string, error) {
	it := value.Walk(v.Doc())
	k, m, ok := it.Next()
	if ok && string(k) == "$meta" && value.Count(v.Doc()) != 1 {
		return "", mongoerr.New(mongoerr.FailedToParse, "Cannot have additional keys in a $meta sort specification")
	}
	if !ok || string(k) != "$meta" {
		return "", mongoerr.New(17312, "$meta is the only expression supported by $sort right now")
	}
	if m.T != value.String || !metaKinds[m.Str()] {
		return "", mongoerr.Newf(31138, "Illegal $meta sort: $meta: %s", value.Show(m))
	}
	return m.Str(), nil
}
