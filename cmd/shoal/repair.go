package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
)

// repairData implements --repair: it repairs a directory without serving clients, and returns the exit code.
//
// Damaged files are not repaired: the store refuses to open, and the exit code is the one that a server ends with.
func repairData(c *config, h *host) int {
	ctx := c.Program.logCtx()
	lock, err := lockData(c)
	if err != nil {
		return startFailed(ctx, err)
	}
	defer lock.release()
	work, cancel := h.context()
	defer cancel()
	if err := repairStore(work, c, h); err != nil {
		if h.ending() {
			console.Error(console.Storage, 9990017, ctx, "The repair was interrupted; run it again").Str("dbPath", c.DBPath).Write()
			return exitError
		}
		return startFailed(ctx, fmt.Errorf("repair of %s: %w", c.DBPath, err))
	}
	return exitClean
}

func repairStore(ctx context.Context, c *config, h *host) (err error) {
	a, err := newAssembly(c, h)
	if err != nil {
		return err
	}
	a.params.Store("ttlMonitorEnabled", value.NewBool(false)) // a repair deletes no documents that have expired
	s, err := a.openData(shardnode.Config{Dir: c.DBPath, Host: advertised(a.info.Host, c.Port)})
	if err != nil {
		_, err = a.fail(err)
		return err
	}
	defer func() { err = errors.Join(err, a.stop(context.WithoutCancel(ctx))) }()
	collections, repaired := 0, 0
	err = s.Repair(ctx, func(r *shardnode.CollectionRepair) {
		collections++
		if r.Changed() {
			repaired++
			console.Warning(console.Storage, 9990018, c.Program.logCtx(), "Repaired a collection").Str("namespace", r.NS).Int("records", r.Records).
				Int("entriesAdded", int64(r.Missing)).Int("entriesRemoved", int64(r.Extra)).Int("corruptRecordsRemoved", int64(r.Corrupt)).
				Int("indexesMadeMultikey", int64(r.Multikey)).Bool("countersCorrected", r.Counted).Write()
		}
	})
	if err == nil {
		console.Info(console.Storage, 9990019, c.Program.logCtx(), "The repair is complete").Int("collections", int64(collections)).Int("repaired", int64(repaired)).Write()
	}
	return err
}
