package router

import (
	"context"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The router itself writes the output of $out and $merge, even if a single shard has everything that the pipeline reads. Its writes carry
// the versions of the target, batch by batch.
//
// Rejected: having the shard run the whole pipeline. The command carries only the source's versions. When the target or its database
// moved meanwhile, the shard kept writing to its old copy, and those documents were lost although the command succeeded.

// writesToPlain reports whether the target of a pipeline that writes is a collection, or missing. The shard runs pipelines with other
// targets: it refuses views, and replaces a time series collection in one unit of work.
func (r *Router) writesToPlain(op *command.Op, a *aggCommand) (bool, error) {
	if len(a.writes) != 1 || op.Req.Shared("explain").Truthy() {
		return false, nil
	}
	stages := value.Values(a.pipeline.Doc())
	if out := value.Lookup(stages[len(stages)-1].Doc(), "$out"); value.Lookup(out.Doc(), "timeseries").T == value.Document {
		return false, nil
	}
	info, err := r.Catalog.Collection(op, a.writes[0])
	if err != nil {
		return false, nil // the shard reports that there can be no such target
	}
	kind, err := r.kindOf(op, info)
	return kind == "" || kind == "collection", err
}

// kindOf returns the type of a namespace as listCollections shows it, "" for none.
func (r *Router) kindOf(op *command.Op, info *cluster.CollectionInfo) (string, error) {
	if info.Map != nil {
		return "collection", nil
	}
	p, err := r.peer(op, info.DB.Primary)
	if err != nil {
		return "", err
	}
	db, coll := cluster.SplitNS(info.NS)
	found, err := cluster.FindAll(op, p, db, msg.Doc(&msg.ListCollections{DB: db, Filter: value.Doc(value.F("name", value.NewString(coll)))}))
	if err != nil || len(found) == 0 {
		return "", err
	}
	return value.Lookup(found[0], "type").Str(), nil
}

// aggregateWriting has one shard run a pipeline up to its last stage, and runs that stage here.
func (r *Router) aggregateWriting(op *command.Op, a *aggCommand, info *cluster.CollectionInfo, shard string, dst []byte) ([]byte, error) {
	spec, err := r.pipelineCollation(op, a.body, info)
	if err != nil {
		return dst, err
	}
	size, err := cursorSize(a.body)
	if err != nil {
		return dst, err
	}
	last, err := r.lastStage(op, a, spec)
	if err != nil {
		return dst, err
	}
	stages := value.Values(a.pipeline.Doc())
	extra := value.Append(nil, "pipeline", value.NewArray(value.ArrayOf(stages[:len(stages)-1]...)))
	extra = value.Append(extra, "cursor", value.NewDocument(value.Doc()))
	extra = value.Append(extra, "runtimeConstants", last.Options().Scope.Env().Constants())
	body := rebuild(a.body, map[string]bool{"pipeline": true, "cursor": true, "$clusterTime": true, "runtimeConstants": true, "writeConcern": true}, extra)
	remotes, err := r.openRemotes(op, []string{shard}, func(s string) []byte { return versioned(body, info, s) })
	if err != nil {
		return dst, err
	}
	src, err := last.Run(&mergeSource{c: &mergeCursor{remotes: remotes, extra: carried(op)}, r: r})
	if err != nil {
		return dst, err
	}
	return r.openMerged(op, a.shown(), &mergeCursor{source: attributed{src, "Executor error during aggregate command on namespace: " + a.shown() + " :: caused by :: "}}, size, false, dst)
}

// lastStage parses the last stage of a pipeline.
func (r *Router) lastStage(op *command.Op, a *aggCommand, spec *collation.Spec) (*agg.Pipeline, error) {
	scope, err := r.newScope(op, spec)
	if err != nil {
		return nil, err
	}
	db, coll := cluster.SplitNS(a.ns)
	stages := value.Values(a.pipeline.Doc())
	return agg.Parse(value.NewArray(value.ArrayOf(stages[len(stages)-1])), &agg.Options{
		NS: agg.Namespace{DB: db, Coll: coll}, Host: &aggHost{r: r, collation: spec}, Collator: spec.Collator(), Collation: explicit(spec),
		AllowDiskUse: r.mayUseDisk(op), StageMemory: r.Params.StageMemory, MaxStages: int(r.Params.Int("internalPipelineLengthLimit")), Scope: scope,
	})
}

// attributed is a source that prefixes errors with the command and namespace, as a shard does.
type attributed struct {
	agg.Source
	during string
}

// Next implements agg.Source.
func (s attributed) Next(ctx context.Context) (agg.Doc, bool, error) {
	d, ok, err := s.Source.Next(ctx)
	if err != nil && !isStale(err) {
		if e := mongoerr.From(err); !strings.HasPrefix(e.Message, "Executor error") && e.Code != mongoerr.CommandOnShardedViewNotSupportedOnMongod {
			err = e.Prefix(s.during)
		}
	}
	return d, ok, err
}
