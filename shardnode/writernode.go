package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/shardnode/profile"
	"github.com/shoaldb/shoal/shardnode/write"
)

// writingNode implements what writes need from the node.
type writingNode struct{ n *Node }

func (w writingNode) Lone() bool { return w.n.lone() }

func (w writingNode) NotPrimary() error { return w.n.notPrimary() }

func (w writingNode) CheckConcern(op *command.Op, wc command.WriteConcern) error {
	return w.n.Repl.CheckConcern(op, wc)
}

func (w writingNode) AskPrimary(ctx context.Context, cmd []byte) ([]byte, error) {
	return w.n.Repl.AskPrimary(ctx, cmd)
}

func (w writingNode) Sharding() write.Sharding {
	if s := w.n.shard.State(); s != nil {
		return s
	}
	return nil
}

func (w writingNode) CheckBlocked(op *command.Op, ns string) error {
	return w.n.settings.CheckTarget(op, ns)
}

func (w writingNode) Observes(db string) bool { return w.n.profiler.Observes(db) }

func (w writingNode) Notes(db string, took time.Duration) bool {
	return w.n.profiler.Notes(db, took)
}

func (w writingNode) NoteStatement(op *command.Op, x *write.Executed) {
	w.n.profiler.Note(&profile.Execution{Op: op, Name: x.Name, NS: x.NS, Stats: x.Stats, Statement: x.Doc, Upserted: x.Upserted, Err: x.Err, Took: x.Took})
}

func (w writingNode) ReplyCursor(op *command.Op, dst []byte, ns string, docs [][]byte, size int64) ([]byte, error) {
	if size == int64(len(docs)) {
		size++ // a batch that holds every result leaves no cursor
	}
	return w.n.firstBatch(op, dst, &cursor{ns: ns, stream: &aggStream{src: agg.NewSliceSource(docs)}}, size, false)
}
