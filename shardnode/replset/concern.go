package replset

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// CheckConcern looks whether a write concern can be met. One that cannot is no reason not to write: the reply tells of it
// in writeConcernError. A server without a replica set refuses it before.
func (r *Membership) CheckConcern(op *command.Op, wc command.WriteConcern) error {
	if r == nil || r.Name == "" {
		switch {
		case wc.Tag != "":
			return mongoerr.Newf(mongoerr.BadValue, "cannot use non-majority 'w' mode \"%s\" when a host is not a member of a replica set", wc.Tag)
		case wc.W > 1:
			return mongoerr.New(mongoerr.BadValue, "cannot use 'w' > 1 when a host is not replicated")
		}
		return nil
	}
	if wc.Tags {
		op.SetWriteConcernError(mongoerr.New(mongoerr.UnsatisfiableWriteConcern, "Not enough data-bearing nodes"))
	} else if c := r.Config(); c != nil && (wc.Tag != "" || wc.W > 1) {
		if err := c.CheckWriteConcern(wc.ForSet()); err != nil {
			op.SetWriteConcernError(mongoerr.From(err))
		}
	}
	return nil
}
