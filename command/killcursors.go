package command

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// KillCursors implements killCursors; kill ends one cursor and reports whether it existed, owner returns its
// owner. If the client may not end one of the cursors, none of them ends.
func KillCursors(op *Op, owner func(id int64) (of [32]byte, ok bool), kill func(id int64) bool, dst []byte) ([]byte, error) {
	var ids, killed, missing []value.Value
	for i, v := range value.Values(op.Req.Doc("cursors")) {
		if v.IsNullish() {
			continue
		}
		if v.T != value.Int64 {
			return dst, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'killCursors.cursors.%d' is the wrong type '%s', expected type 'long'", i, v.T.Name())
		}
		if of, ok := owner(v.Int64()); ok && of != op.Owner() && !op.Allowed("killAnyCursor", op.Req.DB, op.Req.Cmd.Str()) {
			return dst, op.Refuse()
		}
		ids = append(ids, v)
	}
	for _, v := range ids {
		if kill(v.Int64()) {
			killed = append(killed, v)
		} else {
			missing = append(missing, v)
		}
	}
	dst = value.Append(dst, "cursorsKilled", value.NewArray(value.ArrayOf(killed...)))
	dst = value.Append(dst, "cursorsNotFound", value.NewArray(value.ArrayOf(missing...)))
	dst = value.Append(dst, "cursorsAlive", value.NewArray(value.ArrayOf()))
	return value.Append(dst, "cursorsUnknown", value.NewArray(value.ArrayOf())), nil
}
