package command

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// BulkWriteSpec returns bulkWrite's row, the same for members and routers.
func BulkWriteSpec(roles Role, run Handler) Spec {
	return Spec{
		Name: "bulkWrite", Roles: roles, Kind: Write, AdminOnly: true, WriteConcern: true, ReadConcern: true,
		Txn: true, Retryable: true, API: true, Run: run,
		Fields: []Field{
			Req("ops", TArray), Req("nsInfo", TArray), Opt("ordered", TBool),
			Opt("errorsOnly", TBool), Opt("let", TObject), Opt("cursor", TObject),
			Opt("bypassDocumentValidation", TSafeBool), Opt("bypassEmptyTsReplacement", TSafeBool),
		},
	}
}

// BulkWrite is what has been checked of a bulkWrite's form.
type BulkWrite struct {
	BatchSize int64    // how many results the first batch may have
	Names     []string // the namespaces of nsInfo
}

// ReadBulkWrite checks the form of a bulkWrite, whose errors fail the whole command, whatever its collections are. It calls entry with each entry of nsInfo, and
// operation with the kind of each operation and its index in nsInfo.
func ReadBulkWrite(op *Op, entry func(d []byte), operation func(kind string, at int64, d []byte)) (b BulkWrite, err error) {
	r := &op.Req
	if b.BatchSize, err = bulkBatchSize(op.Arg("cursor")); err != nil {
		return b, err
	}
	err = r.DocList("nsInfo").Each("bulkWrite.nsInfo", func(_ int, d []byte) error {
		ns, err := bulkNamespace(d)
		b.Names = append(b.Names, ns)
		entry(d)
		return err
	})
	if err != nil {
		return b, err
	}
	list := r.DocList("ops")
	if err := r.CheckBatch(list.Count()); err != nil {
		return b, err
	}
	err = list.Each("bulkWrite.ops", func(i int, d []byte) error {
		kind, at, err := bulkOperation(d)
		if err != nil {
			return err
		}
		if at >= int64(len(b.Names)) {
			return mongoerr.Newf(mongoerr.BadValue, "BulkWrite ops entry %d has an invalid nsInfo index.", i)
		}
		operation(kind, at, d)
		return nil
	})
	if err != nil {
		return b, err
	}
	for _, ns := range b.Names {
		if err := checkBulkName(ns); err != nil {
			return b, err
		}
		if db, coll, _ := strings.Cut(ns, "."); op.InTransaction() {
			if err := CheckTxnCollection(db, coll); err != nil {
				return b, err
			}
		}
	}
	return b, nil
}

// bulkBatchSize returns how many results the first batch of a bulkWrite with the argument cursor may have.
func bulkBatchSize(cursor value.Value) (int64, error) {
	size := int64(1<<31 - 1)
	for k, v := range value.Elements(cursor.Doc()) {
		if k != "batchSize" {
			return 0, UnknownField("bulkWrite.cursor." + k)
		}
		if !v.T.Numeric() {
			return 0, WrongType("bulkWrite.cursor.batchSize", v.T, TNumber)
		}
		if size = value.SafeInt64(v); size < 0 {
			return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field 'batchSize' value must be >= 0, actual value '%d'", size)
		}
	}
	return size, nil
}

// bulkNamespace reads an entry of nsInfo.
func bulkNamespace(d []byte) (ns string, err error) {
	found := false
	for k, v := range value.Elements(d) {
		switch k {
		case "ns":
			if v.T == value.Null {
				continue
			}
			if v.T != value.String {
				return "", WrongType("bulkWrite.nsInfo.ns", v.T, TString)
			}
			ns, found = v.Str(), true
		case "collectionUUID":
			if _, err := uuidOf("bulkWrite.nsInfo."+k, v); err != nil {
				return "", err
			}
		case "encryptionInformation", "shardVersion", "databaseVersion", "isTimeseriesNamespace":
		default:
			return "", UnknownField("bulkWrite.nsInfo." + k)
		}
	}
	if !found {
		return "", MissingField("bulkWrite.nsInfo.ns")
	}
	return ns, nil
}

func checkBulkName(ns string) error {
	db, coll, ok := strings.Cut(ns, ".")
	if !ok {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified for bulkWrite: '%s'", ns)
	}
	if CheckDBName(db) != nil {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified for bulkWrite: '%s'", db)
	}
	return CheckCollName(db, coll)
}

// bulkNeeds has the fields that operations must have.
var bulkNeeds = map[string][]string{"insert": {"document"}, "update": {"filter", "updateMods"}, "delete": {"filter"}}

// bulkOperation reads the first field of an operation, its kind and the index of its namespace, and checks the others.
func bulkOperation(d []byte) (kind string, at int64, err error) {
	it := value.Walk(d)
	first, v, _ := it.Next()
	kind = string(first)
	needs, known := bulkNeeds[kind]
	if !known {
		return kind, 0, UnknownField("bulkWrite." + kind)
	}
	if at, err = BulkIndex(kind, v); err != nil {
		return kind, 0, err
	}
	for {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		if BulkUnset(string(k), v) {
			continue
		}
		if err := checkBulkField(kind, string(k), v); err != nil {
			return kind, 0, err
		}
	}
	for _, f := range needs {
		if v := value.Lookup(d, f); v.IsMissing() || BulkUnset(f, v) {
			return kind, 0, MissingField(kind + "." + f)
		}
	}
	return kind, at, nil
}

// BulkUnset reports whether a field of an operation counts as missing.
func BulkUnset(k string, v value.Value) bool {
	return v.T == value.Null && k != "updateMods" && k != "hint"
}

// BulkFieldOf returns what a statement of update calls a field of an operation.
func BulkFieldOf(k string) string {
	switch k {
	case "filter":
		return "q"
	case "updateMods":
		return "u"
	case "constants":
		return "c"
	}
	return k
}

func checkBulkField(kind, k string, v value.Value) error {
	typed := func(t Types, ok bool) error {
		if ok {
			return nil
		}
		return WrongType(kind+"."+k, v.T, t)
	}
	switch {
	case kind == "insert":
		if k != "document" {
			return UnknownField("insert." + k)
		}
		return typed(TObject, v.T == value.Document)
	case k == "multi", k == "upsert" && kind == "update":
		return typed(TBool, v.T == value.Boolean)
	case k == "updateMods" && kind == "update":
		if v.T != value.Document && v.T != value.Array {
			return mongoerr.New(mongoerr.FailedToParse, "Update argument must be either an object or an array")
		}
		return nil // an unknown stage fails its operation alone
	case kind == "delete" && k != "filter" && k != "hint" && k != "collation" && k != "sampleId":
		return UnknownField("delete." + k)
	case k == "q" || k == "u" || k == "c":
		return UnknownField(kind + "." + k)
	}
	return CheckUpdateField(BulkFieldOf(k), v)
}
