package command

import (
	"slices"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// unstable are the arguments of commands of API Version 1 that are not in it (manual: "Stable API" on the page of each command).
var unstable = map[string][]string{
	"create": {"autoIndexId", "capped", "indexOptionDefaults", "max", "size", "storageEngine"},
	"find":   {"awaitData", "max", "min", "noCursorTimeout", "returnKey", "showRecordId", "tailable"},
}

// unstableIndex are the options of an index that are not in API Version 1 (manual: createIndexes).
var unstableIndex = []string{"background", "bucketSize", "sparse", "storageEngine"}

// checkStrict refuses arguments that are not in API Version 1.
func checkStrict(r *Request) error {
	for _, name := range unstable[r.Spec.Name] {
		if !value.Lookup(r.Body, name).IsNullish() {
			return notStrict(r.Spec.path(name))
		}
	}
	if r.Spec.Name != "createIndexes" {
		return nil
	}
	indexes := value.Lookup(r.Body, "indexes")
	if indexes.T != value.Array {
		return nil // the command reports it
	}
	for _, spec := range value.Values(indexes.Doc()) {
		if spec.T != value.Document {
			continue
		}
		for k, v := range value.Elements(spec.Doc()) {
			switch {
			case slices.Contains(unstableIndex, k):
				return notStrict(r.Spec.path("indexes." + k))
			case k == "key" && v.T == value.Document:
				for _, kind := range value.Elements(v.Doc()) {
					if kind.T == value.String && (kind.Str() == "text" || kind.Str() == "geoHaystack") {
						return mongoerr.Newf(mongoerr.APIStrictError, "%s indexes are not allowed with apiStrict:true.", kind.Str())
					}
				}
			}
		}
	}
	return nil
}

func notStrict(field string) error {
	return mongoerr.Newf(mongoerr.APIStrictError, "BSON field '%s' is not allowed with apiStrict:true.", field)
}
