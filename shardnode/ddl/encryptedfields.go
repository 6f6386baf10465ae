package ddl

import (
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

var (
	efFields = []command.Field{
		command.Opt("escCollection", command.TString), command.Opt("eccCollection", command.TString), command.Opt("ecocCollection", command.TString),
		command.Req("fields", command.TArray), command.Opt("strEncodeVersion", command.TNumber), command.Opt("cleanupStrategy", command.TString),
	}
	efField = []command.Field{
		command.Req("keyId", command.TAny), command.Req("path", command.TString), command.Opt("bsonType", command.TString),
		command.Opt("queries", command.TAny),
	}
	efQuery = []command.Field{
		command.Req("queryType", command.TString), command.Opt("contention", command.TNumber), command.Opt("min", command.TAny),
		command.Opt("max", command.TAny), command.Opt("sparsity", command.TNumber), command.Opt("precision", command.TNumber),
		command.Opt("trimFactor", command.TNumber), command.Opt("strMaxQueryLength", command.TNumber), command.Opt("strMinQueryLength", command.TNumber),
		command.Opt("caseSensitive", command.TBool), command.Opt("diacriticSensitive", command.TBool),
	}
)

// efUnsupported are types that cannot be encrypted at all.
var efUnsupported = map[string]bool{"null": true, "undefined": true, "minKey": true, "maxKey": true}

// checkEncryptedFields checks create's encryptedFields.
func checkEncryptedFields(doc []byte) error {
	const path = "create.encryptedFields"
	f, err := command.ParseFields(path, doc, efFields)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for i, v := range value.Values(f[3].Doc()) {
		if v.T == value.Null {
			continue
		}
		at := path + ".fields." + strconv.Itoa(i)
		if v.T != value.Document {
			return command.WrongType(at, v.T, command.TObject)
		}
		name, err := checkEncryptedField(at, v.Doc())
		if err != nil {
			return err
		}
		if seen[name] {
			return mongoerr.Newf(6338402, "Duplicate paths are not allowed: %s", name)
		}
		seen[name] = true
	}
	return nil
}

func checkEncryptedField(path string, doc []byte) (name string, err error) {
	if q := value.Lookup(doc, "queries"); q.T == value.Null {
		return "", command.WrongType(path+".queries", q.T, command.TObjOrArr)
	}
	f, err := command.ParseFields(path, doc, efField)
	if err != nil {
		return "", err
	}
	if id := f[0]; id.T != value.Binary || id.Subtype() != 4 {
		return "", mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.keyId' is the wrong type '%s', expected type 'UUID'", path, id.T.Name())
	} else if len(id.Bytes()) != 16 {
		return "", mongoerr.New(mongoerr.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
	}
	name = f[1].Str()
	switch {
	case name == "":
		return "", mongoerr.New(6316402, "Encrypted field must have a non-empty path")
	case strings.IndexByte(name, 0) >= 0:
		return "", mongoerr.New(9867600, "Encrypted field path must not contain null bytes")
	case name == "_id" || strings.HasPrefix(name, "_id."):
		return "", mongoerr.New(6316403, "Cannot encrypt _id or its subfields")
	}
	kind := f[2].Str()
	if efUnsupported[kind] {
		return "", mongoerr.Newf(6338406, "BSON type '%s' is not supported for encrypted fields", kind)
	}
	if _, ok := value.TypeByName(kind); !ok && !f[2].IsMissing() {
		return "", mongoerr.Newf(mongoerr.BadValue, "Unknown BSON type '%s'", kind)
	}
	return name, checkEncryptedQueries(path+".queries", f[3], kind)
}

func checkEncryptedQueries(path string, v value.Value, kind string) error {
	var list []value.Value
	switch v.T {
	case value.Missing:
		return nil
	case value.Document:
		list = []value.Value{v}
	case value.Array:
		if list = value.Values(v.Doc()); len(list) == 0 {
			return mongoerr.New(9783412, "At least one query type must be specified per encrypted field")
		}
	default:
		return command.WrongType(path, v.T, command.TObjOrArr)
	}
	if len(list) > 2 {
		return mongoerr.New(9783413, "At most two query types may be specified per encrypted field")
	}
	types := map[string]bool{}
	for _, q := range list {
		if q.T != value.Document {
			return command.WrongType(path, q.T, command.TObject)
		}
		t, err := checkEncryptedQuery(path, q.Doc(), kind)
		if err != nil {
			return err
		}
		types[t] = true
	}
	if len(list) > 1 && !(types["suffixPreview"] && types["prefixPreview"]) {
		return mongoerr.New(9783414, "Multiple query types may only be the combination of the suffix and prefix query types")
	}
	return nil
}

func checkEncryptedQuery(path string, doc []byte, kind string) (queryType string, err error) {
	f, err := command.ParseFields(path, doc, efQuery)
	if err != nil {
		return "", err
	}
	queryType = f[0].Str()
	if err := command.OneOf(path+".queryType", f[0], "equality", "range", "rangePreview", "substringPreview", "suffixPreview", "prefixPreview"); err != nil {
		return "", err
	}
	for i, low := range map[int]int64{1: 0, 4: 1, 5: 0, 6: 0, 7: 1, 8: 1} {
		if f[i].IsMissing() {
			continue
		}
		if _, exact := f[i].AsInt64(); !exact {
			return "", mongoerr.Newf(mongoerr.FailedToParse, "Expected an integer, but found a number with a fraction in: %s: %s", efQuery[i].Name, value.Show(f[i]))
		}
		if _, err := command.InRange(efQuery[i].Name, f[i], low, 1<<62); err != nil {
			return "", err
		}
	}
	switch queryType {
	case "range":
		if bits := rangeBits[kind]; bits != 0 && value.SafeInt64(f[6]) >= bits {
			return "", mongoerr.Newf(8574000, "The field trimFactor must be less than the number of bits of the field's type, %d", bits)
		}
		return queryType, checkEncryptedRange(f[2], f[3], kind)
	case "suffixPreview", "prefixPreview", "substringPreview":
		return queryType, checkEncryptedText(f, kind)
	}
	return queryType, nil
}

// rangeBits is the width of the types that support range queries.
var rangeBits = map[string]int64{"int": 32, "long": 64, "date": 64, "double": 64, "decimal": 128}

func checkEncryptedRange(low, high value.Value, kind string) error {
	switch kind {
	case "int", "long", "double", "decimal", "date":
	default:
		return mongoerr.Newf(6775201, "Type '%s' is not a supported range indexed type", kind)
	}
	for _, v := range []value.Value{low, high} {
		if !v.IsMissing() && v.T.Name() != kind {
			return mongoerr.Newf(7018200, "Range index min and max must be of the field's type %s", kind)
		}
	}
	if !low.IsMissing() && !high.IsMissing() && value.Compare(low, high) >= 0 {
		return mongoerr.New(6720005, "Range index min must be less than max")
	}
	return nil
}

func checkEncryptedText(f []value.Value, kind string) error {
	if kind != "string" {
		return mongoerr.New(9783400, "Text search query types are only supported on fields of type string")
	}
	for _, need := range []struct {
		i    int
		code mongoerr.Code
	}{{8, 9783402}, {7, 9783403}, {9, 9783404}, {10, 9783405}} {
		if f[need.i].IsMissing() {
			return mongoerr.Newf(need.code, "%s parameter is required for this query type", efQuery[need.i].Name)
		}
	}
	if value.SafeInt64(f[8]) > value.SafeInt64(f[7]) {
		return mongoerr.New(9783406, "strMinQueryLength cannot be greater than strMaxQueryLength")
	}
	return nil
}
