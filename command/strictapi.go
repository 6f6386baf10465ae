package command

import (
	"slices"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// unstable are the arguments of commands of API Version 1 that are not in it (manual: "Stable API" on the page of each command).
var unstable = map[string][]string{
	"aggregate": {"explain"},
	"create":    {"autoIndexId", "capped", "indexOptionDefaults", "max", "size", "storageEngine"},
	"find":      {"awaitData", "max", "min", "noCursorTimeout", "returnKey", "showRecordId", "tailable"},
}

// unstableIndex are the options of an index that are not in API Version 1 (manual: createIndexes).
var unstableIndex = []string{"background", "bucketSize", "sparse", "storageEngine"}

// checkStrict refuses arguments of a client's command that are not in API Version 1. It is the only check: what a node sends for a client, and what a command
// becomes on its way, may have others. Those of a command that is explained are checked as its own, and the command must be in API Version 1.
func (op *Op) checkStrict() error {
	r := &op.Req
	if r.Spec.Name != "explain" || r.Cmd.T != value.Document {
		return checkArguments(r.Spec, r.Body)
	}
	body := r.Cmd.Doc()
	it := value.Walk(body)
	name, _, _ := it.Next()
	spec := op.Service.Table.Lookup(string(name))
	switch {
	case spec == nil:
		return nil // the command reports it
	case !spec.API:
		return notInAPI(string(name))
	}
	return checkArguments(spec, body)
}

func notInAPI(command string) error {
	return mongoerr.Newf(mongoerr.APIStrictError, "Provided apiStrict:true, but the command %s is not in API Version 1. Information on supported commands and migrations in API Version 1 can be found at https://www.mongodb.com/docs/manual/reference/stable-api/", command)
}

func checkArguments(spec *Spec, body []byte) error {
	for _, name := range unstable[spec.Name] {
		if !value.Lookup(body, name).IsNullish() {
			return notStrict(spec.path(name))
		}
	}
	switch spec.Name {
	case "aggregate", "create", "collMod": // the latter two define views
		if pipeline := value.Lookup(body, "pipeline"); pipeline.T == value.Array { // else the command reports it
			return checkStrictStages(pipeline)
		}
		return nil
	case "createIndexes":
		return checkStrictIndexes(spec, body)
	}
	return nil
}

// checkStrictIndexes refuses options and kinds of indexes that are not in API Version 1.
func checkStrictIndexes(spec *Spec, body []byte) error {
	indexes := value.Lookup(body, "indexes")
	if indexes.T != value.Array {
		return nil // the command reports it
	}
	for _, index := range value.Values(indexes.Doc()) {
		if index.T != value.Document {
			continue
		}
		for k, v := range value.Elements(index.Doc()) {
			switch {
			case slices.Contains(unstableIndex, k):
				return notStrict(spec.path("indexes." + k))
			case k == "key" && v.T == value.Document:
				for _, kind := range value.Elements(v.Doc()) {
					if kind.T == value.String && (kind.Str() == "text" || kind.Str() == "geoHaystack") {
						return mongoerr.Newf(mongoerr.APIStrictError, "%s indexes are not allowed with apiStrict:true.", kind.Str())
					}
				}
			}
		}
	}
	return nil
}

func notStrict(field string) error {
	return mongoerr.Newf(mongoerr.APIStrictError, "BSON field '%s' is not allowed with apiStrict:true.", field)
}

// checkStrictStages refuses stages that are not in API Version 1, also in the pipelines that stages contain. The stages of views are checked when a strict client
// defines the view, not when one reads it.
func checkStrictStages(pipeline value.Value) error {
	for _, st := range value.Values(pipeline.Doc()) {
		it := value.Walk(st.Doc())
		k, arg, _ := it.Next()
		name := string(k)
		if agg.Has(name, agg.Unstable) || isSearch(name) || name == "$collStats" && unstableCollStats(arg) {
			return mongoerr.Newf(mongoerr.APIStrictError, "%s is not allowed with 'apiStrict: true' in API Version 1", name)
		}
		if name == "$changeStream" && !value.Lookup(arg.Doc(), "showExpandedEvents").IsMissing() {
			return mongoerr.New(mongoerr.APIStrictError, "BSON field '$changeStream.showExpandedEvents' is not allowed with apiStrict:true.")
		}
		if arg.T != value.Document {
			continue
		}
		for field, v := range value.Elements(arg.Doc()) {
			if v.T == value.Array && (name == "$facet" || field == "pipeline" && (name == "$lookup" || name == "$unionWith")) {
				if err := checkStrictStages(v); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// isSearch reports whether a stage is one of a search index, of which this server recognises only the name.
func isSearch(stage string) bool {
	return stage == "$search" || stage == "$searchMeta" || stage == "$vectorSearch"
}

// unstableCollStats reports whether $collStats asks for more than the count.
func unstableCollStats(arg value.Value) bool {
	for k := range value.Elements(arg.Doc()) {
		if k != "count" {
			return true
		}
	}
	return false
}
