package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// atSnapshot runs a read. A read with level snapshot gets one time for all shards that it reaches: the newest that
// this router knows, which is not before anything the client has seen. If the shards cannot answer at that time,
// because a transaction was being committed or a range was moving then, it is retried at a later one; a time that
// the client chose is final.
func (r *Router) atSnapshot(op *command.Op, dst []byte, read func(dst []byte) ([]byte, error)) ([]byte, error) {
	from := len(dst)
	if transactionOf(op) != nil {
		err := r.atFirst(op, func() (err error) {
			dst, err = read(dst[:from])
			return err
		})
		return dst, err
	}
	if !op.Req.ReadConcern.Is("snapshot") || op.Req.ReadConcern.AtClusterTime != 0 {
		return read(dst)
	}
	after := op.Req.ReadConcern.AfterClusterTime
	for try := 0; ; try++ {
		op.Req.ReadConcern = snapshotConcern(max(r.Clock.ClusterTime(), after))
		op.Req.Body = rebuild(op.Req.Body, map[string]bool{"readConcern": true}, readConcern(op))
		out, err := read(dst[:from])
		if !mongoerr.In(err, mongoerr.CategorySnapshot) || try >= maxSnapshotTries || cluster.Backoff(op, try/2) != nil {
			return out, err
		}
		dst = out
	}
}

// readsAt returns the cluster time whose placement a command uses: the one that it reads at, or 0 for today's.
// Writes of a transaction go to today's owners, which know whether what they write has moved since the transaction
// began.
func readsAt(op *command.Op) uint64 {
	rc := op.Req.ReadConcern
	if t := transactionOf(op); t != nil {
		rc = t.readConcern
	}
	if rc == nil || op.Req.Spec == nil || op.Req.Spec.Kind != command.Read {
		return 0
	}
	return rc.AtClusterTime
}

// snapshotConcern reads at a time.
func snapshotConcern(at uint64) *command.ReadConcern {
	return &command.ReadConcern{Level: "snapshot", Given: true, AtClusterTime: at,
		Doc: value.Doc(value.F("level", value.NewString("snapshot")), value.F("atClusterTime", value.NewTimestampU64(at)))}
}

// readConcern returns the request's own as an element; nothing if it has none.
func readConcern(op *command.Op) []byte {
	if op.Req.ReadConcern == nil {
		return nil
	}
	return value.Append(nil, "readConcern", value.NewDocument(op.Req.ReadConcern.Doc))
}

// maxSnapshotTries bounds how often a snapshot is read at a later time.
const maxSnapshotTries = 12

// appendSnapshotTime names the time of a snapshot read in a reply that the router makes itself.
func appendSnapshotTime(dst []byte, op *command.Op) []byte {
	if op.Req.ReadConcern == nil {
		return dst
	}
	return value.Append(dst, "atClusterTime", value.Lookup(op.Req.ReadConcern.Doc, "atClusterTime"))
}

// checkWriting refuses a pipeline that writes under a read concern that such a one cannot keep.
func (a *aggCommand) checkWriting(op *command.Op) error {
	if len(a.writes) == 0 || !op.Req.ReadConcern.Is("linearizable") {
		return nil
	}
	return mongoerr.New(mongoerr.InvalidOptions, "Command aggregate does not support { readConcern: { level: \"linearizable\", provenance: \"clientSupplied\" } }"+
		" :: caused by :: a pipeline that ends in $out or $merge cannot be used with a 'linearizable' read concern level")
}
