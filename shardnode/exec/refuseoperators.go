package exec

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// RefuseOperators refuses operators that only the filter of a query on a collection may use.
func RefuseOperators(doc []byte, where string) error {
	for k, v := range value.Elements(doc) {
		switch k {
		case "$where", "$text":
			return mongoerr.Newf(mongoerr.BadValue, "%s is not allowed in this context", k)
		case "$near", "$nearSphere", "$geoNear":
			return mongoerr.Newf(5626500, "%s is not allowed in %s", k, where)
		case "$expr", "$jsonSchema", "$literal":
			continue
		}
		if v.T == value.Document || v.T == value.Array {
			if err := RefuseOperators(v.Doc(), where); err != nil {
				return err
			}
		}
	}
	return nil
}
