package storage

import (
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// backoffFS delays writers of tables after an error: pebble retries a flush or compaction that finds the disk full
// at once and forever, which would occupy a processor and fill the log.
type backoffFS struct{ vfs.FS }

const errorBackoff = 300 * time.Millisecond

func waitAfter(err error) error {
	if err != nil {
		time.Sleep(errorBackoff)
	}
	return err
}

// Unwrap implements vfs.FS.
func (p backoffFS) Unwrap() vfs.FS { return p.FS }

// Create implements vfs.FS.
func (p backoffFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := p.FS.Create(name, category)
	if !strings.HasSuffix(name, ".sst") {
		return f, err
	}
	if err != nil {
		return nil, waitAfter(err)
	}
	return backoffFile{f}, nil
}

type backoffFile struct{ vfs.File }

func (f backoffFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, waitAfter(err)
}

func (f backoffFile) Sync() error     { return waitAfter(f.File.Sync()) }
func (f backoffFile) SyncData() error { return waitAfter(f.File.SyncData()) }
