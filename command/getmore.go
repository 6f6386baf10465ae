package command

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// GetMore has the arguments of getMore.
type GetMore struct {
	Cursor int64
	NS     string
	Size   int64 // of the batch; -1 for as much as fits
}

// ParseGetMore reads a getMore command.
func ParseGetMore(op *Op) (g GetMore, err error) {
	if t := op.Req.Cmd.T; t != value.Int64 {
		if op.Req.Cmd.IsNullish() {
			return g, MissingField("getMore.getMore")
		}
		return g, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'getMore.getMore' is the wrong type '%s', expected type 'long'", t.Name())
	}
	if v := op.Arg("term"); !v.IsMissing() && v.T != value.Int64 {
		return g, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'getMore.term' is the wrong type '%s', expected type 'long'", v.T.Name())
	}
	coll := op.Req.Str("collection")
	if coll == "" || CheckCollName(op.DB(), coll) != nil {
		return g, mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified for getMore: %s.%s", op.DB(), coll)
	}
	g = GetMore{Cursor: op.Req.Cmd.Int64(), NS: op.Req.NS(coll), Size: -1}
	if n := value.SafeInt64(op.Arg("batchSize")); n < 0 {
		return g, mongoerr.Newf(mongoerr.BadValue, "BSON field 'batchSize' value must be >= 0, actual value '%d'", n)
	} else if n > 0 {
		g.Size = n
	}
	return g, nil
}
