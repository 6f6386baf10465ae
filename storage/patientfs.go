package storage

import (
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// patientFS makes whoever writes tables wait after an error: pebble tries again at once and for ever when a flush or a
// merge finds the disk full, which takes a processor and fills the log.
type patientFS struct{ vfs.FS }

const patience = 300 * time.Millisecond

func waitAfter(err error) error {
	if err != nil {
		time.Sleep(patience)
	}
	return err
}

// Unwrap implements vfs.FS.
func (p patientFS) Unwrap() vfs.FS { return p.FS }

// Create implements vfs.FS.
func (p patientFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := p.FS.Create(name, category)
	if !strings.HasSuffix(name, ".sst") {
		return f, err
	}
	if err != nil {
		return nil, waitAfter(err)
	}
	return patientFile{f}, nil
}

type patientFile struct{ vfs.File }

func (f patientFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, waitAfter(err)
}

func (f patientFile) Sync() error     { return waitAfter(f.File.Sync()) }
func (f patientFile) SyncData() error { return waitAfter(f.File.SyncData()) }
