package shape

import "github.com/shoaldb/shoal/query/value"

// pipeline is the form of an array of stages.
func pipeline(w *writer, dst, key []byte, v value.Value) []byte { return list(stage)(w, dst, key, v) }

func stage(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T != value.Document {
		return literal(w, dst, key, v)
	}
	dst, mark := begin(dst, value.Document, key)
	for it := value.Walk(v.Doc()); ; {
		k, arg, ok := it.Next()
		if !ok {
			return value.End(dst, mark)
		}
		f := stages[string(k)]
		if f == nil {
			f = anything
		}
		dst = f(w, dst, k, arg)
	}
}

// stages has the form of each stage's argument. All others have only options, and no names.
var stages map[string]form

func init() { // initialised here because stages contain pipelines
	computed := names(expression)
	pipelines := document(fields{"input": document(fields{"pipelines": names(pipeline), "normalization": keep}),
		"combination": document(fields{"weights": names(literal), "method": keep, "expression": expression})})
	stages = map[string]form{
		"$match": filter, "$project": names(projected), "$addFields": computed, "$set": computed, "$unset": paths,
		"$redact": expression, "$replaceWith": expression, "$replaceRoot": document(fields{"newRoot": expression}),
		"$unwind": either(document(fields{"path": expression, "includeArrayIndex": path}), expression),
		"$sort":   sortOrder, "$count": path, "$sortByCount": expression, "$documents": expression,
		"$group":      document(fields{"_id": expression, "": named(expression)}),
		"$bucket":     document(fields{"groupBy": expression, "output": computed}),
		"$bucketAuto": document(fields{"groupBy": expression, "output": computed, "granularity": keep}),
		"$facet":      names(pipeline),
		"$lookup": document(fields{"from": collection, "as": path, "localField": path, "foreignField": path,
			"let": computed, "pipeline": pipeline}),
		"$graphLookup": document(fields{"from": collection, "startWith": expression, "connectFromField": path,
			"connectToField": path, "as": path, "depthField": path, "restrictSearchWithMatch": filter}),
		"$unionWith": either(document(fields{"coll": whole, "db": whole, "pipeline": pipeline}), whole),
		"$out":       either(document(fields{"db": whole, "coll": whole, "timeseries": document(fields{"timeField": path, "metaField": path, "": keep})}), whole),
		"$merge": either(document(fields{"into": collection, "on": paths, "let": computed,
			"whenMatched": whenMatched, "whenNotMatched": keep}), whole),
		"$densify": document(fields{"field": path, "partitionByFields": paths,
			"range": document(fields{"unit": keep, "bounds": word})}),
		"$fill": document(fields{"partitionBy": expression, "partitionByFields": paths, "sortBy": sortOrder,
			"output": names(document(fields{"value": expression, "method": keep}))}),
		"$setWindowFields": document(fields{"partitionBy": expression, "sortBy": sortOrder, "output": names(windowField)}),
		"$geoNear": document(fields{"near": document(fields{"type": word}), "distanceField": path, "includeLocs": path,
			"key": path, "query": filter}),
		"$score":        document(fields{"score": expression, "normalization": keep}),
		"$rankFusion":   pipelines,
		"$scoreFusion":  pipelines,
		"$changeStream": document(fields{"fullDocument": keep, "fullDocumentBeforeChange": keep}),
	}
}

// whenMatched is the form of $merge's whenMatched: a keyword, or a pipeline.
func whenMatched(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T == value.Array {
		return pipeline(w, dst, key, v)
	}
	return word(w, dst, key, v)
}

// windowField is the form of one output of $setWindowFields: an operator and its window.
func windowField(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T != value.Document {
		return literal(w, dst, key, v)
	}
	dst, mark := begin(dst, value.Document, key)
	for it := value.Walk(v.Doc()); ; {
		k, arg, ok := it.Next()
		if !ok {
			return value.End(dst, mark)
		}
		if string(k) == "window" {
			dst = document(fields{"documents": list(word), "range": list(word), "unit": keep})(w, dst, k, arg)
			continue
		}
		dst = operands(w, dst, k, arg)
	}
}
