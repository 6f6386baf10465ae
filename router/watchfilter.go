package router

import (
	"strings"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
)

// watchFilter returns a filter for the shards' parts of a change stream: nil for none. Events that it filters out
// would not pass the $match that follows $changeStream; the client's stages run on the router in any case, so it
// may admit more than that $match. It admits the events that the router itself has to see: those that end
// streams, and the one to resume after.
//
// Documents that the router looks up (fullDocument with updateLookup) are not available on the shards; conditions
// on it stay on the router, as do those that depend on variables or on the collation.
func watchFilter(pipeline value.Value, spec *agg.ChangeStream, simple bool) []byte {
	stages := value.Values(pipeline.Doc())
	if len(stages) < 2 || !simple {
		return nil
	}
	filter := value.Lookup(stages[1].Doc(), "$match")
	if filter.T != value.Document {
		return nil
	}
	conditions := pushable(nil, filter.Doc(), spec.FullDocument == "updateLookup")
	if len(conditions) == 0 {
		return nil
	}
	ending := value.Doc(value.F("operationType", value.NewDocument(value.Doc(value.F("$in", value.NewArray(value.ArrayOf(
		value.NewString("drop"), value.NewString("rename"), value.NewString("dropDatabase"), value.NewString("invalidate"))))))))
	through := []value.Value{
		value.NewDocument(value.Doc(value.F("$and", value.NewArray(value.ArrayOf(conditions...))))), value.NewDocument(ending),
	}
	if t, _ := spec.Token(); t != nil {
		through = append(through, value.NewDocument(value.Doc(value.F("_id._data", value.NewString(t.Before().Data())))))
	}
	return value.Doc(value.F("$or", value.NewArray(value.ArrayOf(through...))))
}

// pushable appends the conditions of a filter, all of which have to hold, that shards can decide.
func pushable(dst []value.Value, filter []byte, lookedUp bool) []value.Value {
	for k, v := range value.Elements(filter) {
		if k == "$and" && v.T == value.Array {
			for _, part := range value.Values(v.Doc()) {
				if part.T == value.Document {
					dst = pushable(dst, part.Doc(), lookedUp)
				}
			}
			continue
		}
		condition := value.Doc(value.F(k, v))
		if decidable(condition, lookedUp) {
			dst = append(dst, value.NewDocument(condition))
		}
	}
	return dst
}

// decidable reports whether a filter depends only on paths of the event that shards have.
func decidable(filter []byte, lookedUp bool) bool {
	for k, v := range value.Elements(filter) {
		switch {
		case k == "$and" || k == "$or" || k == "$nor":
			for _, part := range value.Values(v.Doc()) {
				if part.T != value.Document || !decidable(part.Doc(), lookedUp) {
					return false
				}
			}
		case strings.HasPrefix(k, "$"):
			return false
		case lookedUp && (k == "fullDocument" || strings.HasPrefix(k, "fullDocument.")):
			return false
		}
	}
	return true
}
