package shardnode

import (
	"strings"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func validateDBMetadataSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "validateDBMetadata", Roles: command.All, Kind: command.Read, ArgTypes: command.TAny, Run: n.runValidateDBMetadata,
		Fields: []command.Field{
			command.Opt("apiParameters", command.TObject), command.Opt("db", command.TString), command.Opt("collection", command.TString),
		},
	}
}

var apiFields = []command.Field{
	command.Req("version", command.TString), command.Opt("strict", command.TAny), command.Opt("deprecationErrors", command.TAny),
}

func (n *Node) runValidateDBMetadata(op *command.Op, dst []byte) ([]byte, error) {
	strict, err := apiParameters(op)
	if err != nil {
		return dst, err
	}
	db, coll := op.Arg("db"), op.Arg("collection")
	if !db.IsMissing() {
		if err := checkMetadataDB(db.Str()); err != nil {
			return dst, err
		}
	}
	if !coll.IsMissing() {
		if err := command.CheckCollName(db.Str(), coll.Str()); err != nil {
			return dst, err
		}
	}
	dst, m := value.BeginKey(dst, value.Array, "apiVersionErrors")
	i := 0
	for _, c := range n.Engine.Catalog().All() {
		if !strict || !db.IsMissing() && c.DB() != db.Str() || !coll.IsMissing() && c.Name() != coll.Str() {
			continue
		}
		for _, idx := range c.Indexes {
			if idx.Spec.Kind == indexkey.Text || idx.Spec.Sparse {
				dst = value.AppendIndex(dst, i, value.NewDocument(apiError(c, idx)))
				i++
			}
		}
	}
	return value.End(dst, m), nil
}

func apiError(c *catalog.Collection, idx *catalog.Index) []byte {
	code := mongoerr.APIStrictError
	return value.Doc(value.F("ns", value.NewString(c.NS)), value.F("code", value.NewInt32(int32(code))), value.F("codeName", value.NewString(code.Name())),
		value.F("errmsg", value.NewString("The index with name "+idx.Name+" is not allowed in API version 1.")))
}

// apiParameters reads apiParameters; strict is true if there is something to check.
func apiParameters(op *command.Op) (strict bool, err error) {
	const path = "validateDBMetadata.apiParameters"
	p := op.Arg("apiParameters")
	if p.IsMissing() {
		return false, command.MissingField(path)
	}
	for k, v := range value.Elements(p.Doc()) {
		if (k == "strict" || k == "deprecationErrors") && v.T != value.Boolean {
			return false, command.WrongType(path+"."+k, v.T, command.TBool)
		}
	}
	f, err := command.ParseFields(path, p.Doc(), apiFields)
	if err != nil {
		return false, err
	}
	return f[0].Str() == "1" && f[1].Truthy(), nil
}

func checkMetadataDB(db string) error {
	switch {
	case db == "":
		return mongoerr.New(28539, "Database name must not be empty")
	case strings.ContainsAny(db, ".\x00") || len(db) >= 64:
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid database name: '%s'", db)
	case strings.ContainsAny(db, "/\\ \""):
		return mongoerr.Newf(13280, "Invalid db name: %s", db)
	}
	return nil
}
