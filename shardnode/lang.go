package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// nonNegative reads an integer argument of find and similar commands, which refuse negative numbers with BadValue.
func nonNegative(op *command.Op, name string) (int64, error) {
	i := op.Req.Int(name, 0)
	if i < 0 {
		return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' value must be >= 0, actual value '%d'", name, i)
	}
	return i, nil
}
