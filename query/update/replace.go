package update

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func compileReplacement(u value.Value, opts Options) (*Update, error) {
	switch {
	case opts.Multi:
		return nil, mongoerr.New(mongoerr.FailedToParse, "multi update is not supported for replacement-style update")
	case opts.HasFilters:
		return nil, mongoerr.New(mongoerr.FailedToParse, "arrayFilters may not be specified for replacement-style updates")
	}
	doc := u.Clone().Doc()
	for it := value.Walk(doc); ; {
		k, _, ok := it.Next()
		if !ok {
			return &Update{form: replacement, doc: doc}, nil
		}
		if len(k) > 0 && k[0] == '$' {
			return nil, dollarField(string(k))
		}
	}
}

func dollarField(name string) error {
	return mongoerr.Newf(mongoerr.DollarPrefixedFieldName, "The dollar ($) prefixed field '%s' in '%s' is not allowed "+
		"in the context of an update's replacement document. Consider using an aggregation pipeline with $replaceWith.", name, name)
}

// replace returns the replacement with the old document's _id first, and the time in empty timestamps.
func (u *Update) replace(ctx *Context) ([]byte, error) {
	id, own := value.Lookup(ctx.Doc, "_id"), value.Lookup(u.doc, "_id")
	if id.T != value.Missing && own.T != value.Missing && value.Compare(id, own) != 0 {
		return nil, alteredID(own)
	}
	if own.T == value.Missing {
		own = id
	}
	dst, mark := value.Begin(ctx.Buf[:0])
	dst = value.Append(dst, "_id", own)
	for it := value.Walk(u.doc); ; {
		raw, k, v, ok := it.NextRaw()
		switch {
		case !ok:
			return value.End(dst, mark), nil
		case string(k) == "_id":
		case v.T == value.Timestamp && v.TimestampU64() == 0 && ctx.ClusterTime != 0:
			dst = value.AppendKeyBytes(dst, k, value.NewTimestampU64(ctx.ClusterTime))
		default:
			dst = append(dst, raw...)
		}
	}
}

func alteredID(now value.Value) error {
	if now.T == value.Missing {
		return mongoerr.New(mongoerr.ImmutableField,
			"After applying the update, the (immutable) field '_id' was found to have been removed --")
	}
	return mongoerr.Newf(mongoerr.ImmutableField,
		"After applying the update, the (immutable) field '_id' was found to have been altered to _id: %s", value.Show(now))
}
