package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// snapshotTime returns atClusterTime for the reply of a read with level snapshot, which the session's next
// reads can use; 0 for other reads.
func snapshotTime(op *command.Op, s *storage.Snapshot) storage.Timestamp {
	if s == nil || !op.Req.ReadConcern.Is("snapshot") {
		return 0
	}
	return s.Timestamp()
}

// checkReplicated refuses the read concerns that a standalone server does not support.
func (n *Node) checkReplicated(rc *command.ReadConcern) error {
	if n.Repl == nil || n.Repl.Name != "" {
		return nil
	}
	switch {
	case rc.Level == "snapshot":
		return mongoerr.New(mongoerr.NotAReplicaSet, "node needs to be a replica set member to use readConcern: snapshot")
	case rc.Level == "linearizable":
		return mongoerr.New(mongoerr.NotAReplicaSet, "node needs to be a replica set member to use read concern")
	}
	return nil
}

// checkWritingPipeline refuses $out and $merge under a read concern that a writing pipeline cannot honour.
func checkWritingPipeline(op *command.Op, pipeline value.Value) error {
	if !op.Req.ReadConcern.Is("linearizable") {
		return nil
	}
	for _, stage := range value.Values(pipeline.Doc()) {
		it := value.Walk(stage.Doc())
		if k, _, ok := it.Next(); ok && (string(k) == "$out" || string(k) == "$merge") {
			return mongoerr.Newf(mongoerr.InvalidOptions, "Command aggregate does not support { readConcern: { level: \"linearizable\", provenance: \"clientSupplied\" } }"+
				" :: caused by :: %s cannot be used with a 'linearizable' read concern level", k)
		}
	}
	return nil
}
