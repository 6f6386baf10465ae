package router

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// pinSnapshot gives a read with level snapshot its time, one for all shards that it reaches: the newest that this router
// knows, which is behind nothing the client has seen.
func (r *Router) pinSnapshot(op *command.Op) error {
	if op.Req.ReadConcern == nil {
		return nil
	}
	rc, err := command.ParseReadConcern(op.Req.ReadConcern)
	if err != nil || rc.Level != "snapshot" || rc.AtClusterTime != 0 {
		return err
	}
	at := max(r.Clock.ClusterTime(), rc.AfterClusterTime)
	op.Req.ReadConcern = value.Doc(value.F("level", value.NewString(rc.Level)), value.F("atClusterTime", value.NewTimestampU64(at)))
	op.Req.Body = rebuild(op.Req.Body, map[string]bool{"readConcern": true}, value.Append(nil, "readConcern", value.NewDocument(op.Req.ReadConcern)))
	return nil
}

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
