package shardnode

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// buildService continues index builds that an earlier primary, or an earlier run of this one, did not finish. Those that were ready to commit wait for
// their commit quorum, with the votes that they had; others start again. If one fails, its indexes are removed and the oplog records that, as in the first
// attempt. One that had failed, and could not be aborted, is aborted as soon as that is possible.
func (s *Server) buildService() replication.Service {
	return replication.Service{Name: "IndexBuildsCoordinator", Run: func(ctx context.Context, _ int64) {
		var waiting sync.WaitGroup
		defer waiting.Wait()
		for {
			s.continueBuilds(ctx, &waiting)
			select {
			case <-s.Engine.LeftBuilds(): // one of this member's earlier time as primary
			case <-ctx.Done():
				return
			}
		}
	}}
}

func (s *Server) continueBuilds(ctx context.Context, waiting *sync.WaitGroup) {
	found, err := s.Engine.TakeUnfinishedBuilds()
	if err != nil {
		s.Node.warn("Unfinished index builds could not be resumed", err)
	}
	var restarted []storage.UnfinishedBuild
	for i := range found {
		if b := found[i].Failed(); b != nil {
			waiting.Go(func() { abortAgain(ctx, b) })
		} else if b := found[i].ReadyBuild(s.Node.ddl.AwaitQuorum); b != nil {
			waiting.Go(func() { _, _ = b.Complete(ctx) })
		} else {
			restarted = append(restarted, found[i])
		}
	}
	for _, f := range restarted {
		b := f.Again(s.Engine, s.Node.ddl.AwaitQuorum)
		if b.Start(ctx) == nil && b.Load(ctx) == nil {
			waiting.Go(func() { _, _ = b.Complete(ctx) })
		}
	}
}

// abortAgain removes the indexes of a build that has failed, which meanwhile keep their names, and have writers maintain them. Its client has the error: beginning
// it again, as with a build that was cut short, could give the collection an index that nobody expects.
func abortAgain(ctx context.Context, b *storage.IndexBuild) {
	for try := 0; b.Abort(ctx) != nil; try++ {
		if cluster.Backoff(ctx, try) != nil {
			b.Leave()
			return
		}
	}
}

// describeBuilds shows the running index builds in currentOp.
func describeBuilds(e *storage.Engine) (out [][]value.Field) {
	for i, b := range e.Builds() {
		names := b.Names()
		indexes := make([]value.Value, len(names))
		for k, name := range names {
			indexes[k] = value.NewString(name)
		}
		about := []value.Field{
			value.F("createIndexes", value.NewString(catalog.CollOf(b.Namespace()))), value.F("indexNames", value.NewArray(value.ArrayOf(indexes...))),
			value.F("buildUUID", b.UUID().Value()),
		}
		if entry, err := e.BuildEntry(b.UUID()); err == nil && entry != nil {
			about = append(about, value.F("commitQuorum", entry.Quorum), value.F("commitReadyMembers", value.Lookup(entry.Doc(), "commitReadyMembers")))
		}
		p := b.Progress()
		row := []value.Field{
			value.F("type", value.NewString("op")), value.F("desc", value.NewString("IndexBuildsCoordinatorMongod-"+strconv.Itoa(i))), value.F("active", value.NewBool(true)),
			value.F("op", value.NewString("none")), value.F("ns", value.NewString(b.Namespace())), value.F("command", value.NewDocument(value.Doc(about...))),
		}
		msg := p.Phase
		if p.Total > 0 && p.Scanning() {
			msg = fmt.Sprintf("%s: %d/%d %d%%", msg, p.Done, p.Total, p.Done*100/p.Total)
			row = append(row, value.F("progress", value.NewDocument(value.Doc(value.F("done", value.NewInt64(p.Done)), value.F("total", value.NewInt64(p.Total))))))
		}
		out = append(out, append(row, value.F("msg", value.NewString(msg))))
	}
	return out
}
