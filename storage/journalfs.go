package storage

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// journalFS reserves disk space for journals in small steps, as they grow. Pebble reserves that of a whole one at its first
// write, 70 MB, which an empty server would take up for each of its stores.
type journalFS struct{ vfs.FS }

// journalStep is how far a journal's space goes beyond what is written: enough that few syncs have to write metadata.
const journalStep = 4 << 20

// Unwrap implements vfs.FS.
func (j journalFS) Unwrap() vfs.FS { return j.FS }

// Create implements vfs.FS.
func (j journalFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := j.FS.Create(name, category)
	return inSteps(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (j journalFS) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := j.FS.ReuseForWrite(old, name, category)
	return inSteps(name, f, err)
}

func inSteps(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return &journalFile{File: f}, nil
}

// journalFile is written at its end alone, by one goroutine.
type journalFile struct {
	vfs.File
	written, reserved, asked int64
}

// Preallocate notes what is asked for; Write does it.
func (f *journalFile) Preallocate(offset, length int64) error {
	f.asked = max(f.asked, offset+length)
	return nil
}

func (f *journalFile) Write(p []byte) (int, error) {
	if end := f.written + int64(len(p)); end > f.reserved && f.reserved < f.asked {
		step := min(max(journalStep, end-f.reserved), f.asked-f.reserved)
		if f.File.Preallocate(f.reserved, step) == nil { // else the write says whether there is room
			f.reserved += step
		}
	}
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}
