package shape

import (
	"github.com/shoaldb/shoal/query/value"
)

// filter is the form of a find filter: a conjunction of clauses. A filter of several clauses is shown as an
// $and, however it was written; an equality as $eq; $ne, $nin and the absence of a field as a $not.
func filter(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T != value.Document {
		return literal(w, dst, key, v)
	}
	dst, mark := begin(dst, value.Document, key)
	return value.End(w.conjunction(dst, v.Doc()), mark)
}

// conjunction appends the elements of a filter.
func (w *writer) conjunction(dst, doc []byte) []byte {
	start := len(dst)
	dst, n := w.clauses(dst, doc)
	if n < 2 {
		return dst
	}
	each := value.End(append(make([]byte, 4, 4+len(dst)-start+1), dst[start:]...), 0)
	dst, mark := begin(dst[:start], value.Array, []byte("$and"))
	i := 0
	for it := value.Walk(each); ; i++ {
		raw, _, _, ok := it.NextRaw()
		if !ok {
			return value.End(dst, mark)
		}
		var m int
		dst, m = begin(dst, value.Document, index(i))
		dst = value.End(append(dst, raw...), m)
	}
}

// clauses appends one element per clause.
func (w *writer) clauses(dst, doc []byte) (out []byte, n int) {
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return dst, n
		}
		if len(k) == 0 || k[0] != '$' {
			var more int
			dst, more = w.predicates(dst, w.renamedKey(k), v)
			n += more
			continue
		}
		if string(k) == "$comment" {
			continue
		}
		f := topLevel[string(k)]
		if f == nil {
			f = anything
		}
		dst = f(w, dst, k, v)
		n++
	}
}

// topLevel are the operators that are used in place of a field name.
var topLevel map[string]form

func init() { // initialised here because a filter may have expressions, and those filters
	topLevel = map[string]form{
		"$and": list(filter), "$or": list(filter), "$nor": list(filter), "$expr": expression, "$jsonSchema": schema,
		"$alwaysTrue": keep, "$alwaysFalse": keep,
		"$where": func(_ *writer, dst, key []byte, _ value.Value) []byte { return appendString(dst, key, "?javascript") },
	}
}

// predicates appends a filter's predicates on one path, a clause for each operator.
func (w *writer) predicates(dst, path []byte, v value.Value) (out []byte, n int) {
	clause := func(f func(dst []byte) []byte) {
		var mark int
		dst, mark = begin(dst, value.Document, path)
		dst = value.End(f(dst), mark)
		n++
	}
	if !predicateDoc(v) {
		clause(func(dst []byte) []byte { return w.equality(dst, v) })
		return dst, n
	}
	if nearKeys(v.Doc()) {
		clause(func(dst []byte) []byte { return w.geometry(dst, v.Doc()) })
		return dst, n
	}
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return dst, n
		}
		if string(k) == "$all" && e.T == value.Array && !operatorDoc(firstElement(e)) {
			for all := value.Walk(e.Doc()); ; {
				_, one, ok := all.Next()
				if !ok {
					break
				}
				clause(func(dst []byte) []byte { return w.equality(dst, one) })
			}
			continue
		}
		if string(k) != "$options" {
			clause(func(dst []byte) []byte { return w.operator(dst, v.Doc(), k, e) })
		}
	}
}

func firstElement(v value.Value) value.Value {
	it := value.Walk(v.Doc())
	_, e, _ := it.Next()
	return e
}

// predicateDoc reports whether a value is a document of operators, and not a value to compare with.
func predicateDoc(v value.Value) bool {
	if !operatorDoc(v) || isReference(firstKey(v.Doc())) {
		return false
	}
	for it := value.Walk(v.Doc()); ; {
		k, _, ok := it.Next()
		if !ok {
			return true
		}
		if len(k) == 0 || k[0] != '$' {
			return false
		}
	}
}

// isReference reports whether a field is one of a DBRef, which is a value.
func isReference(key []byte) bool {
	return string(key) == "$ref" || string(key) == "$id" || string(key) == "$db"
}

func nearKeys(doc []byte) bool {
	switch string(firstKey(doc)) {
	case "$near", "$nearSphere", "$geoNear", "$maxDistance", "$minDistance":
		return true
	}
	return false
}

func (w *writer) equality(dst []byte, v value.Value) []byte {
	if v.T == value.Regex {
		return w.pattern(dst, v, value.Value{})
	}
	return literal(w, dst, []byte("$eq"), v)
}

// pattern appends $regex and, if there are any, $options.
func (w *writer) pattern(dst []byte, v, options value.Value) []byte {
	if v.T == value.Regex {
		if _, o := v.Regex(); o != "" {
			options = value.NewString(o)
		}
	}
	dst = appendString(dst, []byte("$regex"), "?string")
	if options.T == value.Missing {
		return dst
	}
	return appendString(dst, []byte("$options"), "?string")
}

// operators appends all operators of a document, without the path.
func (w *writer) operators(dst, doc []byte) []byte {
	if nearKeys(doc) {
		return w.geometry(dst, doc)
	}
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return dst
		}
		if string(k) != "$options" {
			dst = w.operator(dst, doc, k, v)
		}
	}
}

// operator appends one operator of a document doc on a path.
func (w *writer) operator(dst, doc, k []byte, v value.Value) []byte {
	negated := func(name string, f form) []byte {
		out, mark := begin(dst, value.Document, []byte("$not"))
		return value.End(f(w, out, []byte(name), v), mark)
	}
	switch string(k) {
	case "$ne":
		if v.T == value.Regex {
			break
		}
		return negated("$eq", literal)
	case "$nin":
		return negated("$in", literal)
	case "$exists":
		if v.Truthy() {
			return appendString(dst, k, "?bool")
		}
		out, mark := begin(dst, value.Document, []byte("$not"))
		return value.End(appendString(out, k, "?bool"), mark)
	case "$regex":
		return w.pattern(dst, v, value.Lookup(doc, "$options"))
	case "$not":
		out, mark := begin(dst, value.Document, k)
		if v.T == value.Regex {
			return value.End(w.pattern(out, v, value.Value{}), mark)
		}
		if predicateDoc(v) {
			return value.End(w.operators(out, v.Doc()), mark)
		}
		return literal(w, dst, k, v)
	case "$elemMatch":
		return w.elemMatch(dst, k, v)
	case "$all":
		return list(func(w *writer, dst, key []byte, e value.Value) []byte {
			if !operatorDoc(e) {
				return literal(w, dst, key, e)
			}
			out, mark := begin(dst, value.Document, key)
			return value.End(w.operators(out, e.Doc()), mark)
		})(w, dst, k, v)
	case "$type":
		return value.AppendKeyBytes(dst, k, value.NewArray(typeCodes(v)))
	case "$geoWithin", "$within", "$geoIntersects":
		return geoArgument(w, dst, k, v)
	case "$and", "$or", "$nor", "$where", "$expr", "$jsonSchema":
		return topLevel[string(k)](w, dst, k, v)
	}
	return literal(w, dst, k, v)
}

func (w *writer) elemMatch(dst, k []byte, v value.Value) []byte {
	if v.T != value.Document {
		return literal(w, dst, k, v)
	}
	dst, mark := begin(dst, value.Document, k)
	if predicateDoc(v) && topLevel[string(firstKey(v.Doc()))] == nil {
		return value.End(w.operators(dst, v.Doc()), mark)
	}
	return value.End(w.conjunction(dst, v.Doc()), mark)
}

// typeCodes returns the argument of $type as a list of codes: types are not literals.
func typeCodes(v value.Value) []byte {
	types := []value.Value{v}
	if v.T == value.Array {
		types = value.Values(v.Doc())
	}
	for i, t := range types {
		if t.T == value.String {
			if code, ok := value.TypeByName(t.Str()); ok {
				types[i] = value.NewInt32(int32(int8(code)))
			}
		} else if n, ok := t.AsInt64(); ok {
			types[i] = value.NewInt32(int32(n))
		}
	}
	return value.ArrayOf(types...)
}

// geometry appends a search by distance, with its bounds.
func (w *writer) geometry(dst, doc []byte) []byte {
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return dst
		}
		dst = geoArgument(w, dst, k, v)
	}
}

// geoArgument keeps the kinds of geometries and drops their coordinates.
func geoArgument(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T != value.Document {
		return literal(w, dst, key, v)
	}
	if string(key) == "$geometry" {
		return document(fields{"type": word})(w, dst, key, v)
	}
	dst, mark := begin(dst, value.Document, key)
	return value.End(w.geometry(dst, v.Doc()), mark)
}

// keywords are the keywords of $jsonSchema; all others have literals.
var keywords fields

func init() { // initialised here because a schema contains schemas
	keywords = fields{
		"properties": names(schema), "patternProperties": names(schema), "dependencies": names(either(schema, paths)),
		"items": schemas, "additionalItems": schema, "additionalProperties": schema, "not": schema,
		"allOf": schemas, "anyOf": schemas, "oneOf": schemas, "required": paths, "bsonType": keep, "type": keep,
	}
}

func schema(w *writer, dst, key []byte, v value.Value) []byte {
	return document(keywords)(w, dst, key, v)
}

func schemas(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T == value.Array {
		return list(schema)(w, dst, key, v)
	}
	return schema(w, dst, key, v)
}
