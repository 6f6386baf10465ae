package agg

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// What $merge makes of a document is the same statement wherever it is written from: a shard runs it itself, a router sends
// it to the shards that own the target.

// MergeFilter finds the document that a $merge is to change: by the identifying fields on. sparse says that the index on
// them leaves out documents without them, which then cannot be looked for.
func MergeFilter(on []string, sparse bool, doc []byte) ([]byte, error) {
	q, mark := value.Begin(nil)
	for _, f := range on {
		v := lookupPath(doc, strings.Split(f, "."))
		if v.IsNullish() {
			if sparse {
				return nil, mongoerr.Newf(51132, "$merge write error: 'on' field '%s' cannot be missing, null or undefined if supporting index is sparse", f)
			}
			v = value.NewNull()
		}
		q = value.Append(q, f, value.NewDocument(value.Doc(value.F("$eq", v))))
	}
	return value.End(q, mark), nil
}

// NeedsID reports whether a document without _id gets one before it is written: only an insert needs one where
// documents are found by other fields, since a match keeps the one it has.
func (w *WriteSpec) NeedsID(on []string, doc []byte) bool {
	if value.Lookup(doc, "_id").T != value.Missing {
		return false
	}
	for _, f := range on {
		if f == "_id" {
			return true
		}
	}
	return w.WhenMatched == "pipeline"
}

// Change returns the update for a document that is matched.
func (w *WriteSpec) Change(doc []byte) value.Value {
	switch d := value.NewDocument(doc); w.WhenMatched {
	case "replace":
		return d
	case "merge":
		return value.NewDocument(value.Doc(value.F("$set", d)))
	case "pipeline":
		return value.NewArray(value.ArrayOf(w.Pipeline...))
	default: // keepExisting, and fail, which looks at what was matched
		return value.NewDocument(value.Doc(value.F("$setOnInsert", d)))
	}
}
