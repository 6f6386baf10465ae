package shardnode

import "github.com/shoaldb/shoal/command"

// opDone is called when an operation has ended: it counts the operation, and logs and profiles it if it was slow.
func (n *Node) opDone(op *command.Op, err error) {
	if op.Req.Spec == nil {
		return
	}
	if state := n.shard.State(); state != nil {
		state.NoteError(err)
	}
	n.counters.Note(op)
	n.counters.work.Note(op)
	n.latency.note(n, op)
	n.profiler.NoteCommand(op, err)
}

// SetProfiling applies the options --slowms, --slowOpSampleRate and --profile.
func (s *Server) SetProfiling(slowMS int64, rate float64, level int) {
	s.Node.profiler.Configure(slowMS, rate, level)
}
