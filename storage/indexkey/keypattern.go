package indexkey

import (
	"strings"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxKeyFields is the largest number of fields in a compound index.
const maxKeyFields = 32

// tooManyFields is the error code for a key pattern with more.
const tooManyFields mongoerr.Code = 13103

// checkKeyPattern checks the fields of a key pattern and their values.
func checkKeyPattern(key []byte) error {
	n := value.Count(key)
	if n == 0 {
		return cannot("Index keys cannot be empty.")
	}
	if n > maxKeyFields {
		return mongoerr.New(tooManyFields, "too many compound keys")
	}
	plugin, hashed, wild := "", 0, 0
	seen := map[string]bool{}
	for path, v := range value.Elements(key) {
		if seen[path] {
			return mongoerr.Newf(mongoerr.BadValue, "The field '%s' appears multiple times in the index key pattern %s", path, bsontext.Doc(key))
		}
		seen[path] = true
		if err := checkDirection(path, v); err != nil {
			return err
		}
		if err := checkPath(path, v); err != nil {
			return err
		}
		if isWildcard(path) && v.T != value.String {
			wild++
		}
		if v.T == value.String {
			if plugin != "" && plugin != v.Str() {
				return cannot("Can't use more than one index plugin for a single index.")
			}
			if plugin = v.Str(); plugin == "hashed" {
				hashed++
			}
		}
	}
	if wild > 1 {
		return mongoerr.Newf(7246201, "Index key contains more than one wildcard field: %s", bsontext.Doc(key))
	}
	if hashed > 1 {
		return mongoerr.Newf(31303, "A maximum of one index field is allowed to be hashed but found %d for 'key' %s", hashed, bsontext.Doc(key))
	}
	return nil
}

func checkDirection(path string, v value.Value) error {
	switch {
	case v.T.Numeric():
		switch f := v.AsFloat64(); {
		case f != f:
			return cannot("Values in the index key pattern cannot be NaN.")
		case f == 0:
			return cannot("Values in the index key pattern cannot be 0.")
		}
		return nil
	case v.T != value.String:
		return cannot("Values in v:2 index key pattern cannot be of type %s. Only numbers > 0, numbers < 0, and strings are allowed.", v.T.Name())
	}
	switch s := v.Str(); s {
	case "text", "2dsphere", "2d", "hashed":
		if isWildcard(path) && s != "text" {
			return cannot("Index key contains an illegal field name: field name '%s' cannot be of type '%s'", path, s)
		}
		return nil
	case "wildcard":
		if !isWildcard(path) {
			return mongoerr.New(7246202, "Index type 'wildcard' is not allowed as a value in the index key pattern; use '$**' as the field name")
		}
	}
	return cannot("Unknown index plugin '%s'", v.Str())
}

func checkPath(path string, v value.Value) error {
	if path == "" {
		return cannot("Index keys cannot be an empty field.")
	}
	if v.T == value.String && v.Str() == "text" && path == "$**" || path == "_fts" && v.T == value.String {
		return nil
	}
	parts := strings.Split(path, ".")
	for i, p := range parts {
		switch {
		case p == "":
			return cannot("Index keys cannot contain an empty field.")
		case p == "$**" && i == len(parts)-1:
		case p == "$id" || p == "$db" || p == "$ref":
			if i == 0 {
				return cannot("Index key contains an illegal field name: field name starts with '$'.")
			}
		case p[0] == '$':
			return cannot("Index key contains an illegal field name: field name starts with '$'.")
		}
	}
	return nil
}
