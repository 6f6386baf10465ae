package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/storage/witness"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A store whose files are damaged does not open. Its journals are compared with the witness, the sizes of tables
// are checked by pebble, and the blocks of tables are read here: at the start for as long as checkTime allows, the
// remaining ones in the background, where damage makes the store fail.
const (
	checkedAlways = 8 << 20
	checkedAtOpen = 32 << 20
	checkTime     = 100 * time.Millisecond // after this no further table is checked at the start
	checkRate     = 64 << 20               // bytes per second in the background
)

// wayBack is the advice for damaged files.
const wayBack = "restore the directory from a backup or, on a member of a replica set, remove the directory's contents and " +
	"start again, to resync from the other members"

// damaged returns the error for a file that cannot be trusted.
func damaged(what any) error {
	return corrupt("the files of the store are damaged: %v; %s", what, wayBack)
}

// openFiles locks the directory and compares the files with the witness. A store in memory has none.
func (e *Engine) openFiles() error {
	e.files = e.opts.FS
	if e.opts.Memory {
		return nil
	}
	// If there is no directory yet, pebble creates and locks it.
	if _, err := e.opts.FS.Stat(e.opts.Dir); err == nil {
		if e.lock, err = pebble.LockDirectory(e.opts.Dir, e.opts.FS); err != nil {
			return fmt.Errorf("the store in %q cannot be locked; is it open already? %w", e.opts.Dir, err)
		}
	}
	w, ignored, err := witness.Open(filledFS{heldFS{e.opts.FS, &e.gate}}, e.opts.Dir, e.fail)
	if err != nil {
		return errorsJoin(openError(e.opts.Dir, err), e.closeFiles())
	}
	if ignored > 0 {
		e.log.Warn().Int("records", ignored).Str("path", e.opts.FS.PathJoin(e.opts.Dir, witness.Name)).
			Msg("store: records of the witness cannot be read; the files they were about were not compared")
	}
	e.witness = w
	e.space.journals, err = newJournalFS(bufferedFS{backoffFS{throttledFS{w, e.tablesUrgent, &e.pauses}}}, e.opts.Dir)
	e.files = e.space.journals
	return err
}

// closeFiles ends what openFiles began, once pebble is closed.
func (e *Engine) closeFiles() (err error) {
	if e.witness != nil {
		err = e.witness.Close()
	}
	if e.lock != nil {
		err = errorsJoin(err, e.lock.Close())
	}
	return err
}

// openError explains why a store does not open, with advice if its files are damaged.
func openError(dir string, err error) error {
	var system syscall.Errno
	switch {
	case err == nil:
		return nil
	case mongoerr.CodeOf(err) == mongoerr.DataCorruptionDetected, mongoerr.CodeOf(err) == mongoerr.MustUpgrade:
		return err
	case errors.As(err, &system) && system != syscall.ENOENT:
		return fmt.Errorf("opening the store in %q: %w", dir, err)
	}
	return damaged(fmt.Sprintf("%q: %v", dir, err))
}

// table is a file of records and index keys.
type table struct {
	path string
	size int64
}

// allTables lists the store's tables.
func (e *Engine) allTables() ([]table, error) {
	levels, err := e.db.SSTables()
	if err != nil {
		return nil, err
	}
	var out []table
	seen := map[string]bool{}
	for _, l := range levels {
		for _, t := range l {
			name := fmt.Sprintf("%06d.sst", uint64(t.BackingSSTNum))
			if !seen[name] {
				seen[name] = true
				out = append(out, table{e.opts.FS.PathJoin(e.opts.Dir, name), int64(t.Size)})
			}
		}
	}
	return out, nil
}

// checkTables reads tables, the smallest first, for checkTime, and returns the remaining ones.
func (e *Engine) checkTables() (rest []table, err error) {
	all, err := e.allTables()
	slices.SortFunc(all, func(a, b table) int { return cmp.Compare(a.size, b.size) })
	began, sum := time.Now(), int64(0)
	for err == nil && len(all) > 0 {
		if sum += all[0].size; sum > checkedAtOpen || sum > checkedAlways && time.Since(began) > checkTime {
			break
		}
		err = e.checkTable(all[0])
		all = all[1:]
	}
	e.log.Info().Dur("took", time.Since(began)).Int("left", len(all)).Msg("store: checked tables")
	return all, err
}

// checkRest reads the remaining tables in the background, no faster than checkRate.
func (e *Engine) checkRest(ctx context.Context, rest []table) {
	for _, t := range rest {
		if err := e.checkTable(t); err != nil {
			e.fail(err)
			return
		}
		pause := time.NewTimer(time.Duration(float64(t.size) / checkRate * 1e9))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}

// readTable returns a reader of an sstable, which owns the file from then on. damage returns the error for a file that is not an sstable.
func (e *Engine) readTable(f vfs.File, damage func(error) error) (*sstable.Reader, error) {
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return nil, errorsJoin(err, f.Close())
	}
	o := e.pebbleOptions()
	o.EnsureDefaults()
	r, err := sstable.NewReader(context.Background(), readable, o.MakeReaderOptions())
	if err != nil {
		return nil, errorsJoin(damage(err), readable.Close())
	}
	return r, nil
}

// checkTable reads every block of a table. A table that no longer exists was compacted into others meanwhile.
func (e *Engine) checkTable(t table) error {
	f, err := e.opts.FS.Open(t.path, vfs.SequentialReadsOption)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r, err := e.readTable(f, func(err error) error { return damaged(fmt.Sprintf("file %s: %v", t.path, err)) })
	if err != nil {
		return err
	}
	defer closeQuietly(r)
	if err := r.ValidateBlockChecksums(); err != nil {
		return damaged(fmt.Sprintf("file %s: %v", t.path, err))
	}
	return nil
}
