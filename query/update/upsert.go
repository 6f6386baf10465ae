package update

import (
	"sort"
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// equality is a field that a filter requires to have one value.
type equality struct {
	path string
	v    value.Value
}

// NewUpsertDocument makes the document that an upsert inserts: the equalities of the filter, then the update. newID
// returns the _id if neither has one. NewUpsertDocument sets ctx.Doc and ctx.Insert.
func (u *Update) NewUpsertDocument(filter []byte, ctx *Context, newID func() value.Value) ([]byte, error) {
	var eqs []equality
	collectEqualities(filter, &eqs)
	if u.form == replacement {
		eqs = onlyID(eqs)
	}
	sort.SliceStable(eqs, func(i, j int) bool { return eqs[i].path < eqs[j].path })
	for i := 1; i < len(eqs); i++ {
		if err := checkEqualities(eqs[:i], eqs[i].path); err != nil {
			return nil, err
		}
	}
	c := *ctx
	c.Doc, c.Insert = documentOf(eqs), true
	doc, _, err := u.Apply(&c)
	if err != nil {
		return nil, err
	}
	return idFirst(doc, newID)
}

func onlyID(eqs []equality) []equality {
	out := eqs[:0]
	for _, e := range eqs {
		if e.path == "_id" || strings.HasPrefix(e.path, "_id.") {
			out = append(out, e)
		}
	}
	return out
}

func checkEqualities(before []equality, path string) error {
	for _, e := range before {
		switch {
		case e.path == path:
			return mongoerr.Newf(mongoerr.NotSingleValueField, "cannot infer query fields to set, path '%s' is matched twice", path)
		case strings.HasPrefix(path, e.path+"."):
			return mongoerr.Newf(mongoerr.NotSingleValueField,
				"cannot infer query fields to set, both paths '%s' and '%s' are matched", path, e.path)
		}
	}
	return nil
}

// collectEqualities finds what every matching document must have: field: value, $eq, $in and $all of one value, through
// $and and an $or of one branch.
func collectEqualities(filter []byte, out *[]equality) {
	for it := value.Walk(filter); ; {
		k, v, ok := it.Next()
		if !ok {
			return
		}
		key := string(k)
		switch {
		case key == "$and", key == "$or" && value.Count(v.Doc()) == 1:
			for _, e := range value.Values(v.Doc()) {
				collectEqualities(e.Doc(), out)
			}
		case strings.HasPrefix(key, "$"):
		case v.T == value.Regex:
		case v.T == value.Document && value.IsCondition(v.Doc()):
			collectOperators(key, v.Doc(), out)
		default:
			*out = append(*out, equality{key, v})
		}
	}
}

func collectOperators(path string, doc []byte, out *[]equality) {
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return
		}
		switch string(k) {
		case "$eq":
			*out = append(*out, equality{path, v})
		case "$in", "$all":
			if one := value.Values(v.Doc()); v.T == value.Array && len(one) == 1 && one[0].T != value.Regex &&
				!(one[0].T == value.Document && value.IsCondition(one[0].Doc())) {
				*out = append(*out, equality{path, one[0]})
			}
		}
	}
}

// documentOf builds a document from equalities sorted by path.
func documentOf(eqs []equality) []byte {
	dst, mark := value.Begin(nil)
	for i := 0; i < len(eqs); {
		head, rest := cutDot(eqs[i].path)
		if rest == "" {
			dst = value.Append(dst, head, eqs[i].v)
			i++
			continue
		}
		var below []equality
		for ; i < len(eqs) && strings.HasPrefix(eqs[i].path, head+"."); i++ {
			below = append(below, equality{eqs[i].path[len(head)+1:], eqs[i].v})
		}
		dst = value.Append(dst, head, value.NewDocument(documentOf(below)))
	}
	return value.End(dst, mark)
}

// idFirst moves _id to the front, and adds one if there is none.
func idFirst(doc []byte, newID func() value.Value) ([]byte, error) {
	id := value.Lookup(doc, "_id")
	switch id.T {
	case value.Array, value.Regex, value.Undefined:
		return nil, mongoerr.Newf(mongoerr.InvalidIdField, "The '_id' value cannot be of type %s", id.T.Name())
	case value.Missing:
		id = newID()
	}
	it := value.Walk(doc)
	if k, _, ok := it.Next(); ok && string(k) == "_id" {
		return doc, nil
	}
	dst, mark := value.Begin(make([]byte, 0, len(doc)+24))
	dst = value.Append(dst, "_id", id)
	for it := value.Walk(doc); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			return value.End(dst, mark), nil
		}
		if string(k) != "_id" {
			dst = append(dst, raw...)
		}
	}
}
