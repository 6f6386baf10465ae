package storage

import (
	"context"

	"github.com/shoaldb/shoal/storage/catalog"
)

// IndexBuild is the building of indexes on a collection that has documents. Writers are not held up by it.
type IndexBuild struct{}

// BuildProgress is how far a build has come.
type BuildProgress struct {
	Phase string // as currentOp shows it
	Done  int64
	Total int64
}

// StartIndexBuild enters the indexes into the catalog as not ready (oplog: startIndexBuild). From its commit on, writers
// keep them up to date.
func (e *Engine) StartIndexBuild(ctx context.Context, ns string, specs [][]byte, build catalog.UUID) (*IndexBuild, error) {
	return nil, nyi("index build")
}

// Run scans, sorts, loads, checks uniqueness and commits (oplog: commitIndexBuild); on failure or when ctx ends it aborts
// the build (oplog: abortIndexBuild) and returns why.
func (b *IndexBuild) Run(ctx context.Context) (Timestamp, error) { return 0, nyi("index build") }

// Progress may be called from any goroutine while Run is under way.
func (b *IndexBuild) Progress() BuildProgress { return BuildProgress{} }
