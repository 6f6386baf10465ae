package sortkey

import (
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
	for k, v := range value.Elements(spec) {
		if k == "" {
			return nil, mongoerr.New(40352, "FieldPath cannot be constructed with empty string")
		}
		path, err := expr.SplitPath(k)
		if err != nil {
			return nil, err
		}
		if seen[k] {
			return nil, mongoerr.Newf(7472500, "$sort key must not contain duplicate keys (duplicate: '%s')", k)
		}
		seen[k] = true
		part := Part{Path: path, Sign: 1}
		switch {
		case v.T == value.Document:
			if part.Meta, err = metaKind(v); err != nil {
				return nil, err
			}
			part.Sign = -1
			if part.Meta == "geoNearDistance" {
				part.Sign = 1
			}
		case !v.T.Numeric():
			return nil, mongoerr.Newf(15974, "Illegal key in $sort specification: %s: %s", k, expr.Show(v))
		default:
			n, ok := v.AsInt64()
			if !ok || n != 1 && n != -1 {
				return nil, mongoerr.New(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)")
			}
			part.Sign = int(n)
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return nil, mongoerr.New(15976, "$sort stage must have at least one sort key")
	}
	if len(parts) > MaxParts {
		return nil, mongoerr.New(mongoerr.BadValue, "too many compound keys")
	}
	return New(parts, c), nil
}

func metaKind(v value.Value) (string, error) {
	it := value.Walk(v.Doc())
	k, m, ok := it.Next()
	if !ok || string(k) != "$meta" || value.Count(v.Doc()) != 1 {
		return "", mongoerr.New(17312, "$meta is the only expression supported by $sort right now")
	}
	if m.T != value.String || !metaKinds[m.Str()] {
		return "", mongoerr.Newf(31138, "Illegal $meta sort: $meta: %s", expr.Show(m))
	}
	return m.Str(), nil
}
