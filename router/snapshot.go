package router

import (
	"sync"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// atSnapshot runs a read. A read with level snapshot gets one time for all its shards: the newest that the shards of its
// collection know, which is not before anything that the client has seen. If the shards cannot answer at that time, because
// a transaction was being committed or a range was moving then, it is retried at a later time; a time that the
// client chose is never changed.
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
	if after == 0 {
		r.learnTime(op)
	}
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

// learnTime advances the router's clock to that of the shards that have the command's collection: any reply carries it. An idle
// router does not learn of writes through other routers. Without this, a client that has just seen one acknowledged would read the
// state before it. Errors are left to the read itself.
func (r *Router) learnTime(op *command.Op) {
	coll := op.Req.Cmd
	if coll.T != value.String {
		return
	}
	info, err := r.Catalog.Collection(op, op.Req.NS(coll.Str()))
	if err != nil {
		return
	}
	body := msg.Doc(new(msg.Ping))
	var asked sync.WaitGroup
	for _, shard := range info.Shards() {
		asked.Go(func() {
			if p, err := r.peer(op, shard); err == nil {
				_, _, _ = cluster.CallOn(op, p, readsFrom(op), &wire.Message{OpCode: wire.OpMsg, Body: body}, nil)
			}
		})
	}
	asked.Wait()
}

// readsAt returns the cluster time whose placement a command uses: the one that it reads at, or 0 for the current
// placement. Writes of a transaction go to the current owners, which know whether what they write has moved since
// the transaction began.
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

// snapshotConcern returns a snapshot read concern at a time.
func snapshotConcern(at uint64) *command.ReadConcern {
	return &command.ReadConcern{Level: "snapshot", Given: true, AtClusterTime: at,
		Doc: value.Doc(value.F("level", value.NewString("snapshot")), value.F("atClusterTime", value.NewTimestampU64(at)))}
}

// readConcern returns the request's read concern as an element; nothing if it has none.
func readConcern(op *command.Op) []byte {
	if op.Req.ReadConcern == nil {
		return nil
	}
	return value.Append(nil, "readConcern", value.NewDocument(op.Req.ReadConcern.Doc))
}

// maxSnapshotTries limits how often a snapshot read is retried at a later time.
const maxSnapshotTries = 12

// appendSnapshotTime appends atClusterTime to the reply of a snapshot read that the router makes itself.
func appendSnapshotTime(dst []byte, op *command.Op) []byte {
	if op.Req.ReadConcern == nil {
		return dst
	}
	return value.Append(dst, "atClusterTime", value.Lookup(op.Req.ReadConcern.Doc, "atClusterTime"))
}

// checkWriting refuses a writing pipeline under a read concern that it cannot honour.
func (a *aggCommand) checkWriting(op *command.Op) error {
	if len(a.writes) == 0 || !op.Req.ReadConcern.Is("linearizable") {
		return nil
	}
	return mongoerr.New(mongoerr.InvalidOptions, "Command aggregate does not support { readConcern: { level: \"linearizable\", provenance: \"clientSupplied\" } }"+
		" :: caused by :: a pipeline that ends in $out or $merge cannot be used with a 'linearizable' read concern level")
}
