package agg

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// $merge turns a document into the same statement wherever it runs: a shard executes it itself, a router sends it to the
// shards that own the target.

// MergeFilter returns the filter for the document that $merge changes, by the identifying fields on. sparse means that
// the index on them omits documents without them, so that these cannot be searched for.
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

// NeedsID reports whether a document without _id gets one before it is written: if documents are identified by
// other fields, only an insert needs one, since a matched document keeps its own.
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

// Change returns the update for a matched document.
func (w *WriteSpec) Change(doc []byte) value.Value {
	switch d := value.NewDocument(doc); w.WhenMatched {
	case "replace":
		return d
	case "merge":
		return value.NewDocument(value.Doc(value.F("$set", d)))
	case "pipeline":
		return value.NewArray(value.ArrayOf(w.Pipeline...))
	default: // keepExisting, and fail, which checks whether there was a match
		return value.NewDocument(value.Doc(value.F("$setOnInsert", d)))
	}
}
