package sampling

import (
	"github.com/shoaldb/shoal/query/value"
)

// readCommand returns the stored form of a read command: {filter, collation, let}.
func readCommand(q *Query) []byte {
	filter := value.Lookup(q.Body, "query")
	switch q.Name {
	case "find":
		filter = value.Lookup(q.Body, "filter")
	case "aggregate":
		filter = value.Value{}
		for _, stage := range value.Values(value.Lookup(q.Body, "pipeline").Doc()) {
			filter = value.Lookup(stage.Doc(), "$match")
			break
		}
	}
	if filter.T != value.Document {
		filter = value.NewDocument(value.Doc())
	}
	out, m := value.Begin(nil)
	out = value.Append(out, "filter", filter)
	for _, name := range []string{"collation", "let"} {
		if v := value.Lookup(q.Body, name); v.T == value.Document {
			out = value.Append(out, name, v)
		}
	}
	return value.End(out, m)
}

// ofSender has the fields of a command that describe its sender and its execution, but do not affect which documents it
// matches.
var ofSender = map[string]bool{
	"lsid": true, "txnNumber": true, "stmtId": true, "stmtIds": true, "autocommit": true, "startTransaction": true, "$clusterTime": true, "$client": true, "$audit": true,
	"$configTime": true, "$topologyTime": true, "shardVersion": true, "databaseVersion": true, "sampleId": true, "writeConcern": true, "readConcern": true,
	"maxTimeMS": true, "comment": true, "$readPreference": true, "apiVersion": true, "apiStrict": true, "apiDeprecationErrors": true, "clientOperationKey": true,
}

// modifyCommand returns the stored form of a findAndModify.
func modifyCommand(body []byte) []byte {
	out, m := value.Begin(nil)
	for k, v := range value.Elements(body) {
		if k == "findandmodify" {
			k = "findAndModify"
		}
		if !ofSender[k] {
			out = value.Append(out, k, v)
		}
	}
	return value.End(out, m)
}

// writeCommand returns an update or delete with only one of its statements.
func writeCommand(q *Query, st []byte) []byte {
	out, m := value.Begin(nil)
	for k, v := range value.Elements(q.Body) {
		if !ofSender[k] && k != listOf[q.Name] {
			out = value.Append(out, k, v)
		}
	}
	out = value.Append(out, listOf[q.Name], value.NewArray(value.ArrayOf(value.NewDocument(st))))
	return value.End(out, m)
}

// bulkCommand returns an operation of a bulkWrite as the equivalent update or delete.
func bulkCommand(q *Query, name, ns string, op []byte) []byte {
	st, m := value.Begin(nil)
	for k, v := range value.Elements(op) {
		switch k {
		case name, "sampleId", "return", "returnFields":
			continue
		case "filter":
			k = "q"
		case "updateMods":
			k = "u"
		case "constants":
			k = "c"
		case "multi":
			if name == "delete" {
				continue
			}
		}
		st = value.Append(st, k, v)
	}
	if name == "delete" {
		limit := int32(1)
		if value.Lookup(op, "multi").Truthy() {
			limit = 0
		}
		st = value.Append(st, "limit", value.NewInt32(limit))
	}
	st = value.End(st, m)
	db, coll := split(ns)
	out := []value.Field{value.F(name, value.NewString(coll)), value.F(listOf[name], value.NewArray(value.ArrayOf(value.NewDocument(st))))}
	if let := value.Lookup(q.Body, "let"); let.T == value.Document {
		out = append(out, value.F("let", let))
	}
	return value.Doc(append(out, value.F("$db", value.NewString(db)))...)
}

// statements returns a list of a command, from its body or from a document sequence.
func statements(q *Query, field string) (out [][]byte) {
	for i := range q.Seqs {
		if q.Seqs[i].ID != field {
			continue
		}
		for rest := q.Seqs[i].Docs; len(rest) >= 5; {
			v, ok := value.FromElement(value.Document, rest)
			if !ok {
				return nil
			}
			out = append(out, v.Doc())
			rest = rest[len(v.Doc()):]
		}
		return out
	}
	for _, v := range value.Values(value.Lookup(q.Body, field).Doc()) {
		if v.T != value.Document {
			return nil // the command's own parser reports it
		}
		out = append(out, v.Doc())
	}
	return out
}

// without returns a document without a field.
func without(doc []byte, field string) []byte {
	out, m := value.Begin(make([]byte, 0, len(doc)))
	for it := value.Walk(doc); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			return value.End(out, m)
		}
		if string(k) != field {
			out = append(out, raw...)
		}
	}
}
