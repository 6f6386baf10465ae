package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// atSnapshot runs a read. One with level snapshot gets its time, one for all shards that it reaches: the newest that this
// router knows, which is behind nothing the client has seen. Where the shards cannot answer at that time, because a
// transaction was being committed or a range was moving then, it is a later one; a time that the client named is final.
func (r *Router) atSnapshot(op *command.Op, dst []byte, read func(dst []byte) ([]byte, error)) ([]byte, error) {
	rc := command.ReadConcern{}
	if op.Req.ReadConcern != nil {
		var err error
		if rc, err = command.ParseReadConcern(op.Req.ReadConcern); err != nil {
			return dst, err
		}
	}
	from := len(dst)
	if transactionOf(op) != nil {
		err := r.atFirst(op, func() (err error) {
			dst, err = read(dst[:from])
			return err
		})
		return dst, err
	}
	if rc.Level != "snapshot" || rc.AtClusterTime != 0 {
		return read(dst)
	}
	for try := 0; ; try++ {
		at := max(r.Clock.ClusterTime(), rc.AfterClusterTime)
		op.Req.ReadConcern = value.Doc(value.F("level", value.NewString(rc.Level)), value.F("atClusterTime", value.NewTimestampU64(at)))
		op.Req.Body = rebuild(op.Req.Body, map[string]bool{"readConcern": true}, value.Append(nil, "readConcern", value.NewDocument(op.Req.ReadConcern)))
		out, err := read(dst[:from])
		if !mongoerr.In(err, mongoerr.CategorySnapshot) || try >= maxSnapshotTries || cluster.Backoff(op, try/2) != nil {
			return out, err
		}
		dst = out
	}
}

// readsAt is the cluster time whose placement a command goes by: the one that it reads at, or 0 for today's. Writes of a
// transaction go to today's owners, who know whether what they write has moved since the transaction began.
func readsAt(op *command.Op) uint64 {
	rc := op.Req.ReadConcern
	if t := transactionOf(op); t != nil {
		rc = t.readConcern
	}
	if rc == nil || op.Req.Spec == nil || op.Req.Spec.Kind != command.Read {
		return 0
	}
	return value.Lookup(rc, "atClusterTime").TimestampU64()
}

// maxSnapshotTries bounds how often a snapshot is read at a later time.
const maxSnapshotTries = 12

// appendSnapshotTime names the time of a snapshot read in a reply that the router makes itself.
func appendSnapshotTime(dst []byte, op *command.Op) []byte {
	if op.Req.ReadConcern == nil {
		return dst
	}
	return value.Append(dst, "atClusterTime", value.Lookup(op.Req.ReadConcern, "atClusterTime"))
}

// checkWriting refuses a pipeline that writes under a read concern that such a one cannot keep.
func (a *aggCommand) checkWriting(op *command.Op) error {
	if len(a.writes) == 0 || op.Req.ReadConcern == nil || value.Lookup(op.Req.ReadConcern, "level").Str() != "linearizable" {
		return nil
	}
	return mongoerr.New(mongoerr.InvalidOptions, "Command aggregate does not support { readConcern: { level: \"linearizable\", provenance: \"clientSupplied\" } }"+
		" :: caused by :: a pipeline that ends in $out or $merge cannot be used with a 'linearizable' read concern level")
}
