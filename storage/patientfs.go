package storage

import (
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// patientFS delays writers of tables after an error: pebble retries a flush or compaction that finds the disk full
// at once and forever, which would occupy a processor and fill the log.
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
