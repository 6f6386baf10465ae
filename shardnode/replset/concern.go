package replset

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// CheckConcern checks whether a write concern can be satisfied. If it cannot, the write is still carried out and the
// reply has a writeConcernError; only a standalone server refuses the write.
func (r *Membership) CheckConcern(op *command.Op, wc command.WriteConcern) error {
	if r == nil || r.Name == "" {
		switch {
		case wc.Named:
			return mongoerr.Newf(mongoerr.BadValue, "cannot use non-majority 'w' mode \"%s\" when a host is not a member of a replica set", wc.Tag)
		case wc.W > 1:
			return mongoerr.New(mongoerr.BadValue, "cannot use 'w' > 1 when a host is not replicated")
		}
		return nil
	}
	if wc.Tags {
		op.SetWriteConcernError(mongoerr.New(mongoerr.UnsatisfiableWriteConcern, "Not enough data-bearing nodes"))
	} else if wc.Named && wc.Tag == "" { // for the set's own check, this is no name at all
		op.SetWriteConcernError(mongoerr.New(mongoerr.UnknownReplWriteConcern, "No write concern mode named '' found in replica set configuration"))
	} else if c := r.Config(); c != nil && (wc.Tag != "" || wc.W > 1) {
		if err := c.CheckWriteConcern(wc.ForSet()); err != nil {
			op.SetWriteConcernError(mongoerr.From(err))
		}
	}
	return nil
}

// CheckUnreplicated refuses the concerns that a standalone server honours in no command: a time of the cluster, which it does not
// have, and acknowledgements of members, also if the command writes nothing.
func (r *Membership) CheckUnreplicated(op *command.Op) error {
	if rc := op.Req.ReadConcern; rc != nil && rc.AfterClusterTime != 0 {
		return mongoerr.New(mongoerr.IllegalOperation, "Cannot specify afterClusterTime in readConcern without replication enabled")
	}
	if wc := op.Req.WriteConcern; wc != nil {
		return r.CheckConcern(op, *wc)
	}
	return nil
}
