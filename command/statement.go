package command

import (
	"strconv"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// CheckUpdateField checks the type of a field of a statement of update. Some operations of bulkWrite have the same fields.
func CheckUpdateField(k string, v value.Value) error {
	want, ok := TAny, true
	switch k {
	case "q", "c", "collation", "sort":
		want, ok = TObject, v.T == value.Document
	case "u":
		switch v.T {
		case value.Document:
		case value.Array:
			return checkStageNames(v)
		default:
			return mongoerr.New(mongoerr.FailedToParse, "Update argument must be either an object or an array")
		}
	case "upsert", "multi", "upsertSupplied":
		want, ok = TSafeBool, v.T == value.Boolean || v.T.Numeric()
	case "hint":
		return CheckHint(v)
	case "arrayFilters":
		if want, ok = TArray, v.T == value.Array; !ok {
			break
		}
		for i, f := range value.Values(v.Doc()) {
			if f.T != value.Document {
				return WrongType("update.updates.arrayFilters."+strconv.Itoa(i), f.T, TObject)
			}
		}
	case "sampleId", "collectionUUID", "allowShardKeyUpdatesWithoutFullShardKeyInQuery", "includeQueryStatsMetrics":
	default:
		return UnknownField("update.updates." + k)
	}
	if !ok {
		return WrongType("update.updates."+k, v.T, want)
	}
	return nil
}

// checkStageNames refuses an update pipeline with an unknown stage. That fails the whole command, whereas a
// stage that is not allowed in updates fails only its statement.
func checkStageNames(pipeline value.Value) error {
	for _, stage := range value.Values(pipeline.Doc()) {
		it := value.Walk(stage.Doc())
		if k, _, ok := it.Next(); ok && !agg.IsStage(string(k)) {
			return mongoerr.Newf(40324, "Unrecognized pipeline stage name: '%s'", k)
		}
	}
	return nil
}

// CheckHint validates a hint: an index name or key pattern, or {$natural: ±1}.
func CheckHint(h value.Value) error {
	switch h.T {
	case value.Missing, value.String:
		return nil
	case value.Document:
	default:
		return mongoerr.New(mongoerr.FailedToParse, "Hint must be a string or an object")
	}
	n := value.Lookup(h.Doc(), "$natural")
	if n.IsMissing() {
		return nil
	}
	if i, ok := n.AsInt64(); !ok || i != 1 && i != -1 || value.Count(h.Doc()) != 1 {
		return mongoerr.New(mongoerr.BadValue, "$natural hint must be 1 or -1, and stand alone")
	}
	return nil
}
